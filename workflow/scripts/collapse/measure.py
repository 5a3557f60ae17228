"""Run one metric over one states file: both token rules, every state, keys attached."""

import numpy as np

from collapse import tables
from collapse.provenance import versions
from collapse.states import StatesFile
from collapse.token_rules import TOKEN_RULES

RUN_KEYS = ("model", "weights", "scheme", "seed", "prompt")


def measure(path, function, over, options, extra_keys=None, labels=None):
    """Yield what a metric says of each state of a run, with the keys of its row.

    Parameters
    ----------
    path : path
        A states file.
    function : callable
        The metric.
    over : str
        `layer`: function(H, **options) is called per state. `trajectory`: function(states, **options) is called once
        per token rule and yields once per state. `layer_labels`: function(H, labels, **options) per state. `labels`:
        function(labels of all states, **options) like a trajectory.
    options : dict
        Keyword arguments of the metric.
    extra_keys : dict, optional
        Further key columns (`beta`).
    labels : path, optional
        The run's table of cluster labels, for the metrics that need them.

    Yields
    ------
    (dict, result, mask)
        The key columns, what the metric returned, and the mask of tokens it saw.
    """
    states = StatesFile(path)
    run = {key: states.metadata[key] for key in RUN_KEYS}
    n_blocks = states.metadata["n_blocks"]
    clusters = cluster_labels(labels) if labels else {}
    for rule in TOKEN_RULES:
        mask, trajectory = states.mask(rule), states.trajectory(rule)
        found = [clusters.get((rule, layer, stage)) for layer, stage in states.states]
        results = _results(function, over, trajectory, found, options)
        for (layer, stage), result in zip(states.states, results, strict=True):
            keys = run | {"tokens": rule, "layer": layer, "stage": stage, "depth": layer / n_blocks}
            yield keys | (extra_keys or {}), result, mask


def _results(function, over, trajectory, labels, options):
    """Call a metric in the way that its kind asks for; one result per state."""
    if over == "trajectory":
        return function(trajectory, **options)
    if over == "labels":
        return function(labels, **options)
    if over == "layer_labels":
        return (function(H, own, **options) for H, own in zip(trajectory, labels))
    return (function(H, **options) for H in trajectory)


def cluster_labels(path):
    """Return {(token rule, layer, stage): labels in order of position, or None where they are undefined} of one run."""
    labels = {}
    columns = ["tokens", "layer", "stage", "label"]
    for row in tables.read(path, "cluster_labels").select(columns).to_pylist():
        labels.setdefault((row["tokens"], row["layer"], row["stage"]), []).append(row["label"])
    return {key: None if None in found else np.array(found) for key, found in labels.items()}


def metric_record(path, metric, options, code):
    """Return the provenance of a metric's file: options, code, versions, and the record of the states it read."""
    return {
        "metric": metric["name"],
        "options": options,
        "code": code,
        "versions": versions("numpy", "pyarrow", *metric["packages"]),
        "states": StatesFile(path).metadata,
    }
