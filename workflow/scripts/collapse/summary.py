"""The first screen of the report: at the last block, do trained weights resist what random ones do?

The unit is the prompt: seeds of random weights are averaged within a prompt, layers are never counted as independent,
and nothing is averaged over models or over inverse temperatures of the theory. The last block is that of the trained
depth, also where a shared block is repeated further; of the theory it is the last step.
"""

from functools import reduce
from operator import and_

import pyarrow.compute as pc

TOKENS = "content"
INNER_PRODUCT, WITHOUT_ROGUE = "Mean inner product", "Mean inner product without its three largest dimensions"
# Table, column, label, and +1 where larger means further from collapse.
QUANTITIES = (
    ("inner_products", "mass_near_one", "Mass near one (share of pairs with cosine above 0.9)", -1),
    ("inner_products", "mean_inner_product", INNER_PRODUCT, -1),
    ("inner_products", "mean_inner_product_without_rogue", WITHOUT_ROGUE, -1),
    ("effective_rank", "effective_rank_sphere", "Effective rank of the directions", 1),
)
# Schemes that redraw all weights, in the order in which one is taken as the baseline, and what to call them. A scheme
# limited to components is a question about those, never the baseline.
RANDOM = {
    "norm-matched": "random weights of the same norms",
    "orthogonal": "random orthogonal weights",
    "library-init": "freshly initialised weights",
    "shuffled": "shuffled weights",
    "spectrum-matched": "random weights of the same spectra",
}
VARIANTS = {"": "", "-reset": " with norms reset", "-zero-bias": " with zero biases"}
VARIANTS["-reset-zero-bias"] = " with norms reset and zero biases"
BASELINES = {base + variant: RANDOM[base] + words for base in RANDOM for variant, words in VARIANTS.items()}


def headline(frames):
    """Summarise the last block of every model.

    Parameters
    ----------
    frames : dict of pyarrow.Table
        `runs`, and the results tables; quantities whose table is not there are left out.

    Returns
    -------
    list of dict
        Per model: `model`, `random` (the random scheme that trained weights are compared with, or None), `rows`. A row
        has `quantity`, `cells` ({line: {mean, low, high, n} over prompts, or None}; a line is a scheme with all its
        seeds, or the theory at one beta) and, where both sides are there, `verdict`: on how many prompts trained
        weights are further from collapse, closer to it, equal, and how many could not be compared, with `trained` and
        `random`, the means over the prompts that could.
    """
    found = [quantity for quantity in QUANTITIES if quantity[0] in frames]
    models = dict.fromkeys(name for table, *_ in found for name in frames[table]["model"].to_pylist())
    runs = frames["runs"].select(["model", "trained_depth"]).to_pylist()
    trained_depths = {run["model"]: run["trained_depth"] for run in runs}
    summary = []
    for model in models:
        values = [last_block(frames[table], model, column, trained_depths[model]) for table, column, *_ in found]
        random = next((scheme for scheme in BASELINES for lines in values if scheme in lines), None)
        rows = [_row(lines, label, sign, random) for lines, (_, _, label, sign) in zip(values, found)]
        summary.append({"model": model, "random": random, "rows": rows})
    return summary


def sentences(models):
    """Say in words, per model, what its mean inner product tells; nothing is said of a model that lacks a side."""
    said = []
    for entry in models:
        verdicts = {row["quantity"]: row["verdict"] for row in entry["rows"] if row["verdict"]}
        verdict, control = verdicts.get(INNER_PRODUCT), verdicts.get(WITHOUT_ROGUE)
        if verdict and verdict["trained"] is not None:
            control = control if control and control["trained"] is not None else None
            said.append({"model": entry["model"], "words": _words(verdict, entry["random"])} | _pair(verdict, control))
    return said


def last_block(frame, model, column, trained_depth):
    """Return {line: {prompt: value at the last block, mean over seeds, or None where a seed has none}}."""
    wanted = {"model": model, "tokens": TOKENS, "stage": "block"}
    last = frame.filter(reduce(and_, (pc.field(key) == value for key, value in wanted.items())))
    is_theory = pc.field("scheme") == "identity"
    last = last.filter(pc.if_else(is_theory, pc.field("depth") == 1.0, pc.field("layer") == trained_depth))
    by_run = {}
    for row in last.select(["weights", "scheme", "prompt", column]).to_pylist():
        line = row["weights"] if row["scheme"] == "identity" else row["scheme"]
        by_run.setdefault(line, {}).setdefault(row["prompt"], []).append(row[column])
    return {line: {prompt: _mean(found) for prompt, found in runs.items()} for line, runs in by_run.items()}


def compare(trained, random, sign):
    """Count prompts by the sign of trained minus random; `sign` +1 where larger means further from collapse."""
    prompts = dict.fromkeys([*trained, *random])
    known = [p for p in prompts if trained.get(p) is not None and random.get(p) is not None]
    differences = [sign * (trained[p] - random[p]) for p in known]
    return {
        "resists": sum(difference > 0 for difference in differences),
        "collapses": sum(difference < 0 for difference in differences),
        "equal": sum(difference == 0 for difference in differences),
        "undefined": len(prompts) - len(known),
        "n": len(prompts),
        "trained": _mean([trained[p] for p in known]),
        "random": _mean([random[p] for p in known]),
    }


def _row(lines, label, sign, random):
    row = {"quantity": label, "cells": {line: _over_prompts(v) for line, v in lines.items()}, "verdict": None}
    if "trained" in lines and random in lines:
        row["verdict"] = compare(lines["trained"], lines[random], sign)
    return row


def _words(verdict, random):
    baseline = BASELINES[random]
    further, closer, known = verdict["resists"], verdict["collapses"], verdict["n"] - verdict["undefined"]
    everywhere = f"on all {known} prompts" if known > 1 else "on the one prompt"
    if further == known:
        words = f"trained weights keep tokens further apart than {baseline}, {everywhere}"
    elif closer == known:
        words = f"trained weights draw tokens closer together than {baseline}, {everywhere}"
    else:
        parts = [f"further apart on {further}" if further else "", f"closer together on {closer}" if closer else ""]
        parts.append(f"equal on {verdict['equal']}" if verdict["equal"] else "")
        words = f"against {baseline}, trained weights put tokens {', '.join(filter(None, parts))} of {known} prompts"
    return words + (f"; undefined on {verdict['undefined']} more" if verdict["undefined"] else "")


def _pair(verdict, control):
    return {
        "trained": verdict["trained"],
        "random": verdict["random"],
        "control": control and {"trained": control["trained"], "random": control["random"]},
    }


def _over_prompts(values):
    known = [value for value in values.values() if value is not None]
    if not known:
        return None
    return {"mean": _mean(known), "low": min(known), "high": max(known), "n": len(known)}


def _mean(values):
    return None if None in values or not values else sum(values) / len(values)
