"""Run one metric over one states file: both token rules and every state unless told otherwise, keys attached."""

import math
from itertools import islice

import numpy as np

from collapse import tables
from collapse.geometry import nulls
from collapse.provenance import versions
from collapse.reasons import AFTER_NORM
from collapse.states import StatesFile
from collapse.token_rules import TOKEN_RULES

RUN_KEYS = ("model", "weights", "scheme", "seed", "prompt")


def measure(path, function, over, options, extra_keys=None, labels=None, depths=None, tokens=TOKEN_RULES):
    """Yield what a metric says of each state of a run under each token rule, with the keys of its row.

    State by state, the rules in turn: one that is read for the first is there for the second.

    Parameters
    ----------
    path : path
        A states file.
    function : callable
        The metric.
    over : str
        How the metric is called. Per state: `layer`: function(H, **options); `layer_labels`: function(H, labels,
        **options). Once per token rule: `trajectory`: function(states, **options) yields once per state;
        `trajectory_labels`: function(states, labels, **options) of all layers yields once per layer;
        `labels_per_token`: function(labels of all layers, number of tokens, **options). The state after the final norm
        is no layer: nulls in the former, left out in the latter.
    options : dict
        Keyword arguments of the metric.
    extra_keys : dict, optional
        Further key columns (`beta`).
    labels : path, optional
        The run's table of cluster labels, for the metrics that need them.
    depths : list of float in [0, 1], optional
        Measure only the states nearest to these relative depths; of two equally near, the deeper.
    tokens : list of str
        Measure only under these of `TOKEN_RULES`.

    Yields
    ------
    (dict, result, mask)
        The key columns, what the metric returned, and the mask of tokens it saw.
    """
    states = StatesFile(path)
    n_blocks = states.metadata["n_blocks"]
    run = run_keys(states.metadata) | (extra_keys or {})
    clusters = cluster_labels(labels) if labels else {}
    places = range(len(states)) if depths is None else places_at(states, depths)
    rules = [rule for rule in TOKEN_RULES if rule in tokens]
    masks = [states.mask(rule) for rule in rules]
    labelled = [[clusters.get((rule, *states.states[place])) for place in places] for rule in rules]
    if over == "labels_per_token":
        for rule, mask, found in zip(rules, masks, labelled):
            layers = _of_layers(found, states)
            yield run | {"tokens": rule}, function(layers, int(mask.sum()), **options), mask
        return
    results = [
        _results(function, over, states.trajectory(rule, places), found, states, options)
        for rule, found in zip(rules, labelled)
    ]
    for place, *found in zip(places, *results, strict=True):
        keys = layer_keys(*states.states[place], n_blocks)
        for rule, result, mask in zip(rules, found, masks):
            yield run | {"tokens": rule} | keys, result, mask


def rows_of(measured, table):
    """Return the rows of a table, in its order, from what `measure` yields.

    A metric may return several rows per state: one per group, head or token, and the table of the last has a position.
    """
    per_token, rows = "position" in tables.columns(table), []
    for keys, found, mask in measured:
        found = found if isinstance(found, list) else [found]
        if per_token:
            positions = np.flatnonzero(mask).tolist()
            found = [{"position": position} | row for position, row in zip(positions, found, strict=True)]
        rows += [keys | row for row in found]
    return rule_by_rule(rows)


def rule_by_rule(rows):
    """Return rows in the order of tables: those of one token rule after those of the other, each as they came."""
    return sorted(rows, key=lambda row: TOKEN_RULES.index(row["tokens"]))


def run_keys(metadata):
    """Return the key columns that say which run a states file holds."""
    return {key: metadata[key] for key in RUN_KEYS}


def layer_keys(layer, stage, n_blocks):
    """Return the key columns of one state."""
    return {"layer": layer, "stage": stage, "depth": layer / n_blocks}


def places_at(states, depths):
    """Return the places in `states.states` of the layers nearest to relative depths, each once, in order of depth."""
    n_blocks = states.metadata["n_blocks"]
    layers = {math.floor(depth * n_blocks + 0.5) for depth in depths}
    return [place for place, (layer, stage) in enumerate(states.states) if layer in layers and stage != "final_norm"]


def _results(function, over, trajectory, labels, states, options):
    """Call a metric in the way that its kind asks for; one result per state."""
    if over == "trajectory":
        return function(trajectory, **options)
    if over == "trajectory_labels":
        layers = _of_layers(labels, states)
        return _until_norm(function(islice(trajectory, len(layers)), layers, **options), len(labels))
    if over == "layer_labels":
        return (function(H, own, **options) for H, own in zip(trajectory, labels))
    return (function(H, **options) for H in trajectory)


def _of_layers(found, states):
    """What is found at the layers of a run, of what is found at all of its states."""
    return [own for own, (_, stage) in zip(found, states.states, strict=True) if stage != "final_norm"]


def _until_norm(results, n_states):
    """The rows of the layers and, where a state after the final norm follows, one of nulls."""
    n_layers = 0
    for row in results:
        yield row
        n_layers += 1
    for _ in range(n_states - n_layers):
        yield nulls([name for name in row if name != "undefined"], AFTER_NORM)


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
