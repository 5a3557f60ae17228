"""The first screen of the report: at the last block, do trained weights resist what random ones do?

The unit is the prompt: seeds of random weights are averaged within a prompt, layers are never counted as independent,
and nothing is averaged over models.
"""

TOKENS = "content"
INNER_PRODUCT = "Mean inner product"
QUANTITIES = (
    ("inner_products", "mass_near_one", "Mass near one (share of pairs with cosine above 0.9)", -1),
    ("inner_products", "mean_inner_product", INNER_PRODUCT, -1),
    ("effective_rank", "effective_rank_sphere", "Effective rank of the directions", 1),
)
SCHEMES = ("trained", "norm-matched", "norm-matched-reset", "identity")


def headline(frames):
    """Summarise the last block of every model.

    Parameters
    ----------
    frames : dict of pyarrow.Table
        The results tables; quantities whose table is not there are left out.

    Returns
    -------
    list of dict
        Per model: `model`, `rows`. A row has `quantity`, `cells` ({scheme: {mean, low, high, n} over prompts, or None})
        and, where trained and norm-matched are both there, `verdict`: on how many prompts trained weights are further
        from collapse, closer to it, equal, and how many could not be compared.
    """
    found = [(table, column, label, sign) for table, column, label, sign in QUANTITIES if table in frames]
    models = dict.fromkeys(name for table, *_ in found for name in frames[table]["model"].to_pylist())
    return [
        {
            "model": model,
            "rows": [_row(frames[table], model, column, label, sign) for table, column, label, sign in found],
        }
        for model in models
    ]


def sentences(models):
    """Say in words, per model, what its mean inner product tells; nothing is said of a model that lacks a side."""
    said = []
    for entry in models:
        row = next((r for r in entry["rows"] if r["quantity"] == INNER_PRODUCT and r["verdict"]), None)
        cells = row and [row["cells"][scheme] for scheme in ("trained", "norm-matched")]
        if not row or None in cells:
            continue
        verdict, n = row["verdict"], row["verdict"]["n"]
        if verdict["resists"] == n:
            words = f"trained weights keep tokens further apart than norm-matched random ones on all {n} prompts"
        elif verdict["collapses"] == n:
            words = f"trained weights draw tokens closer together than norm-matched random ones, on all {n} prompts"
        else:
            words = f"prompts disagree: trained weights keep tokens further apart on {verdict['resists']} of {n}"
        said.append({"model": entry["model"], "words": words, "trained": cells[0]["mean"], "random": cells[1]["mean"]})
    return said


def _row(frame, model, column, label, sign):
    values = last_block(frame, model, column)
    cells = {scheme: _over_prompts(values[scheme]) for scheme in SCHEMES if scheme in values}
    row = {"quantity": label, "cells": cells, "verdict": None}
    if "trained" in values and "norm-matched" in values:
        row["verdict"] = compare(values["trained"], values["norm-matched"], sign)
    return row


def last_block(frame, model, column):
    """Return {scheme: {prompt: value at the last block, mean over seeds, or None where a seed has none}}."""
    wanted = ["model", "scheme", "prompt", "tokens", "stage", "depth", column]
    by_run = {}
    for row in frame.select(wanted).to_pylist():
        if (row["model"], row["tokens"], row["stage"], row["depth"]) == (model, TOKENS, "block", 1.0):
            by_run.setdefault(row["scheme"], {}).setdefault(row["prompt"], []).append(row[column])
    return {scheme: {prompt: _mean(found) for prompt, found in runs.items()} for scheme, runs in by_run.items()}


def compare(trained, random, sign):
    """Count prompts by the sign of trained minus random; `sign` +1 where larger means further from collapse."""
    differences = [
        None if trained.get(prompt) is None or random.get(prompt) is None else sign * (trained[prompt] - random[prompt])
        for prompt in dict.fromkeys([*trained, *random])
    ]
    known = [difference for difference in differences if difference is not None]
    return {
        "resists": sum(difference > 0 for difference in known),
        "collapses": sum(difference < 0 for difference in known),
        "equal": sum(difference == 0 for difference in known),
        "undefined": len(differences) - len(known),
        "n": len(differences),
    }


def _over_prompts(values):
    known = [value for value in values.values() if value is not None]
    if not known:
        return None
    return {"mean": sum(known) / len(known), "low": min(known), "high": max(known), "n": len(known)}


def _mean(values):
    return None if None in values else sum(values) / len(values)
