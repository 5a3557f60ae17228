"""Results of a grid that was never run, as the explorer reads them: two models, two weights, two prompts.

`post` has 4 blocks; `pre` has 6, and a state after its final norm. Tokens move on known curves. Trained weights of
`post` have no picture at layer 2; random ones end in noise alone. t-SNE is there at three depths, of
content tokens.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa

from collapse import tables
from collapse.explorer import write_explorer
from collapse.states import writing

REPORT = Path(__file__).resolve().parents[1] / "workflow" / "report"
SOURCES = {
    "template": REPORT / "explorer.html.j2",
    "javascript": REPORT / "explorer.js",
    "stylesheet": REPORT / "explorer.css",
}
BLOCKS = {"post": 4, "pre": 6}
WEIGHTS = [("trained", "trained", None), ("norm-matched-s0", "norm-matched", 0)]
HOSTILE = [
    "[CLS]",
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script>",
    "<b>",
    " bold",
    "</b>",
    '<img src=x onerror="alert(3)">',
    "line\u2028end",
    "&amp;",
    "\n",
    "-->",
    ".",
]
PLAIN = ["A", " dog", " and", " a", " fox", " are", " in", " the", " house", "."]
# The same text to another tokenizer.
PIECES = ["[CLS]", "a", "do", "##g", "and", "a", "fox", "are", "in", "the", "house", "."]
PROMPTS = ("hostile", "plain")
PUNCTUATION = {".", "-->"}
METHODS = ["pca", "tsne"]
TSNE_TOKENS = ["content"]
NO_PICTURE = "all tokens point the same way"
TABLES = ["runs", "projections", "clusters", "cluster_labels", "inner_products", "energy"]


def make(root, names=TABLES):
    """Write the tables and states under `root`; return (paths of tables, paths of states)."""
    rows = {name: [] for name in TABLES}
    states = []
    for model in BLOCKS:
        for prompt in PROMPTS:
            states.append(_write_states(root / f"states/{model}/trained/{prompt}.parquet", model, prompt))
    # As results are gathered: each method and each beta over all runs.
    runs = [(m, w, p) for m in BLOCKS for w in WEIGHTS for p in PROMPTS]
    for method in METHODS:
        for run in runs:
            rows["projections"] += _projections(*run, method)
    for beta in (0.5, 2.0):
        for run in runs:
            rows["energy"] += [_row("energy", place | {"beta": beta}) for place in _places(*run)]
    for model, weights, prompt in runs:
        rows["runs"].append(_run(model, weights, prompt))
        for place in _places(model, weights, prompt):
            is_noise = weights[0] != "trained" and place["layer"] == BLOCKS[model]
            found = {"n_clusters": 0, "noise_fraction": 1.0} if is_noise else {"n_clusters": 2, "noise_fraction": 0.25}
            rows["clusters"].append(_row("clusters", place | found | {"mean_inner_product": 0.987}))
            rows["inner_products"].append(_row("inner_products", place | {"mean_inner_product": place["depth"]}))
            for position in _positions(place):
                # The numbers of the two clusters change places from layer to layer.
                label = -1 if is_noise or position % 4 == 3 else (position + place["layer"]) % 2
                extra = {"position": position, "label": label, "probability": 1.0, "undefined": None}
                rows["cluster_labels"].append(place | extra)
    for name in names:
        tables.write(root / f"tables/{name}.parquet", name, rows[name], {})
    return [root / f"tables/{name}.parquet" for name in names], states


def write(root, names=TABLES):
    """Write an explorer of these results into root/report; return the page."""
    found, states = make(root, names)
    page, folder = root / "report/explorer.html", root / "report/explorer"
    write_explorer(found, states, METHODS, **SOURCES, page=page, folder=folder)
    return page


def tokens_of(model, prompt):
    return HOSTILE if prompt == "hostile" else PIECES if model == "pre" else PLAIN


def place_of(model, weights, prompt, layer, n, method="pca"):
    """Where tokens are: an ellipse for each run, at a turn and on a side that differ from layer to layer."""
    angle = 2 * np.pi * np.arange(n) / n
    shape = np.stack([np.cos(angle), (0.3 + 0.1 * layer) * np.sin(angle)], axis=1) * (1 if method == "pca" else 40)
    turn = 1.3 * layer + len(model + weights + prompt)
    R = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    return shape @ (R if layer % 2 else R * [1, -1])


def _write_states(path, model, prompt):
    tokens = tokens_of(model, prompt)
    n = len(tokens)
    first = np.arange(n) == 0
    columns = {
        "position": np.arange(n, dtype=np.int32),
        "token_id": np.arange(n, dtype=np.int32),
        "token": tokens,
        "is_special": [token == "[CLS]" for token in tokens],
        "is_first": first,
        "is_punctuation": [token in PUNCTUATION for token in tokens],
    }
    record = {"model": model, "weights": "trained", "prompt": prompt, "prompt_hash": prompt * 2}
    with writing(path, pa.table(columns), 2, record) as write_state:
        write_state(0, "embedding", np.ones((n, 2)))
    return path


def _states(model):
    blocks = BLOCKS[model]
    found = [(0, "embedding"), *((layer, "block") for layer in range(1, blocks + 1))]
    return found + [(blocks, "final_norm")] * (model == "pre")


def _places(model, weights, prompt):
    slug, scheme, seed = weights
    run = {"model": model, "weights": slug, "scheme": scheme, "seed": seed, "prompt": prompt}
    for rule in ("all", "content"):
        for layer, stage in _states(model):
            yield run | {"tokens": rule, "layer": layer, "stage": stage, "depth": layer / BLOCKS[model]}


def _positions(place):
    return range(place["tokens"] == "content", len(tokens_of(place["model"], place["prompt"])))


def _projections(model, weights, prompt, method):
    for place in _places(model, weights, prompt):
        layer, positions = place["layer"], _positions(place)
        is_laid_out = layer in (0, 2, BLOCKS[model]) and place["stage"] != "final_norm"
        if method == "tsne" and not (is_laid_out and place["tokens"] in TSNE_TOKENS):
            continue
        is_undefined = (model, weights[0], layer, method) == ("post", "trained", 2, "pca")
        xy = place_of(model, weights[0], prompt, layer, len(positions), method)
        for position, (x, y) in zip(positions, xy.tolist()):
            yield place | {
                "position": position,
                "method": method,
                "x": None if is_undefined else x,
                "y": None if is_undefined else y,
                "explained_variance_ratio": 0.5 if method == "pca" and not is_undefined else None,
                "neighbourhood": None if method == "pca" else 3.0,
                "undefined": NO_PICTURE if is_undefined else None,
            }


def _run(model, weights, prompt):
    slug, scheme, seed = weights
    n = len(tokens_of(model, prompt))
    facts = {"model": model, "weights": slug, "scheme": scheme, "seed": seed, "prompt": prompt, "n_tokens": n}
    facts |= {"n_tokens_untruncated": n, "token_limit": n, "n_content_tokens": n - 1, "n_blocks": BLOCKS[model]}
    facts |= {"trained_depth": BLOCKS[model], "n_states": len(_states(model)), "dimension": 2, "is_causal": True}
    names = {"weights_hash": slug, "prompt_hash": prompt * 2, "device": "cpu", "dtype": "float32", "record": "{}"}
    return facts | names


def _row(table, known):
    """A row with a value in its range wherever none is given."""
    values = {"float64": 0.5, "int64": 2, "bool": True, "list<int64>": [1]}
    row = {"undefined": None} | known
    for name, spec in tables.columns(table).items():
        value = values.get(spec["type"])
        if name not in row:
            row[name] = max(value, spec["range"][0]) if "range" in spec and spec["range"][0] > 0 else value
    return row
