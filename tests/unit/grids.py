"""Results tables of grids that were never run, as the figures read them: every column in its range."""

import numpy as np
import pyarrow as pa

from collapse import tables
from collapse.registry import METRICS

N_BLOCKS, N_TOKENS = 6, 12
PROMPTS = ("short_heterogeneous", "repeated_tokens")
NO_STEP = {"cka_biased", "cka_debiased", "nn_stability", "births", "deaths", "merges", "splits", "survivors"}
FIRST = "no layer before the first"


def frame(table, n_models=2, prompts=PROMPTS, n_seeds=2, undefined=None, model="model-{}-of-a-size", others=()):
    """A table of random values, checked against its description.

    Parameters
    ----------
    model : str
        Names of models, with the place of their number.
    others : tuple of (slug, scheme, seed)
        Further weights.
    undefined : str, optional
        The reason for which every value that can be is null.
    """
    rng = np.random.default_rng(0)
    spec = tables.description()["tables"][table]
    rows, names = [], [model.format(number) for number in range(n_models)]
    weights = [("trained", "trained", None), ("identity-b1", "identity", None), *others]
    weights[1:1] = [(f"norm-matched-s{seed}", "norm-matched", seed) for seed in range(n_seeds)]
    for place in _places(spec, table, names, prompts, weights):
        row = dict.fromkeys(tables.schema(table).names) | place
        values = [name for name in spec["columns"] if name not in place]
        for name in values:
            row[name] = _value(name, spec["columns"][name], rng)
        gone = [name for name in values if spec["columns"][name].get("nullable") == "with reason"]
        if undefined:
            row |= dict.fromkeys(gone) | {"undefined": undefined}
        elif row.get("layer") == 0 and NO_STEP & set(gone):
            row |= dict.fromkeys(NO_STEP & set(gone)) | {"undefined": FIRST}
        rows.append(row)
    data = pa.Table.from_pylist(rows, schema=tables.schema(table))
    tables.check(table, data, "a grid that was never run")
    return data.to_pandas()


def _places(spec, table, names, prompts, weights):
    metric = METRICS.get(table)
    blocks = N_BLOCKS - (metric is not None and metric.over in ("attention", "groups"))
    stages = [("embedding", 0), *(("block", layer) for layer in range(1, blocks + 1)), ("final_norm", N_BLOCKS)]
    if blocks < N_BLOCKS:
        stages.pop()
    for model in names:
        for slug, scheme, seed in weights:
            # The theory's particles have no final norm.
            own = [place for place in stages if scheme != "identity" or place[0] != "final_norm"]
            for prompt in prompts:
                run = {"model": model, "weights": slug, "scheme": scheme, "seed": seed, "prompt": prompt}
                for tokens in ("all", "content"):
                    for stage, layer in own if "layer" in spec["keys"] else [(None, None)]:
                        place = run | {"tokens": tokens}
                        if stage:
                            place |= {"layer": layer, "stage": stage, "depth": layer / N_BLOCKS}
                        yield from _axes(spec, place)


def _axes(spec, place):
    """The place once for each value of the axes that are not of every table."""
    axes = {"head": (0, -1), "beta": (1.0, 5.0), "group": spec.get("groups"), "position": range(N_TOKENS)}
    axes["method"] = ("pca", "tsne", "umap")
    places = [place]
    for name, values in axes.items():
        if name in spec["keys"] or name in spec["columns"]:
            places = [found | {name: value} for found in places for value in values]
    # The costlier methods run at few depths, of content tokens.
    is_laid_out = place.get("layer") in (0, 4, N_BLOCKS) and place["tokens"] == "content"
    return [found for found in places if is_laid_out or found.get("method", "pca") == "pca"]


def _value(name, spec, rng):
    if spec["type"] == "list<int64>":
        return rng.integers(0, 9, 50).tolist()
    if spec["type"] == "bool":
        return bool(rng.integers(2))
    if spec["type"] == "string":
        return "x"
    low, high = (float(bound) for bound in spec.get("range", (-3, 3)))
    value = rng.uniform(max(low, -3), min(high, max(low, -3) + 4))
    return int(round(value)) if spec["type"].startswith("int") else value
