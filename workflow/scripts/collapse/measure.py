"""Run one metric over one states file: both token rules, every state, keys attached."""

from collapse.provenance import versions
from collapse.states import StatesFile
from collapse.token_rules import TOKEN_RULES

RUN_KEYS = ("model", "weights", "scheme", "seed", "prompt")


def measure(path, function, over, options, extra_keys=None):
    """Yield what a metric says of each state of a run, with the keys of its row.

    Parameters
    ----------
    path : path
        A states file.
    function : callable
        The metric.
    over : str
        `layer`: function(H, **options) is called per state. `trajectory`: function(states, **options) is called once
        per token rule and yields once per state.
    options : dict
        Keyword arguments of the metric.
    extra_keys : dict, optional
        Further key columns (`beta`).

    Yields
    ------
    (dict, result, mask)
        The key columns, what the metric returned, and the mask of tokens it saw.
    """
    states = StatesFile(path)
    run = {key: states.metadata[key] for key in RUN_KEYS}
    n_blocks = states.metadata["n_blocks"]
    for rule in TOKEN_RULES:
        mask, trajectory = states.mask(rule), states.trajectory(rule)
        if over == "trajectory":
            results = function(trajectory, **options)
        else:
            results = (function(H, **options) for H in trajectory)
        for (layer, stage), result in zip(states.states, results, strict=True):
            keys = run | {"tokens": rule, "layer": layer, "stage": stage, "depth": layer / n_blocks}
            yield keys | (extra_keys or {}), result, mask


def metric_record(path, metric, options, code):
    """Return the provenance of a metric's file: options, code, versions, and the record of the states it read."""
    return {
        "metric": metric["name"],
        "options": options,
        "code": code,
        "versions": versions("numpy", "pyarrow", *metric["packages"]),
        "states": StatesFile(path).metadata,
    }
