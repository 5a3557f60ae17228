"""The explorer: one HTML page in which the tokens of a run move from layer to layer, two runs side by side.

What a run shows is one JSON object, see `run_data`. Small grids lie in the page; of larger ones each run is a file of
its own beside it, which the page loads as a script, since pages opened from a disk may not fetch.
"""

import json
from importlib.resources import files
from pathlib import Path

import jinja2
import numpy as np

from collapse.atomic import replacing, write_text
from collapse.by_run import ByRun
from collapse.errors import Refusal
from collapse.explorer_curves import CURVES, LABELS
from collapse.figures import style
from collapse.pictures import encoded, followed, packed, turned
from collapse.states import STAGES, StatesFile
from collapse.token_rules import TOKEN_RULES, token_mask

# Bytes of all runs together up to which they lie in the page itself.
EMBEDDED_MAX = 15_000_000
# plotly's names of the shapes of the figures.
SHAPES = {
    "o": "circle",
    "s": "square",
    "^": "triangle-up",
    "D": "diamond",
    "v": "triangle-down",
    "P": "cross",
    "*": "star",
}
# What stands for a label where clusters are undefined.
NO_LABEL = -2
# The metrics' own words; tables of tokens have no rows that could say it.
NO_TOKENS = "no tokens under this token rule"
NOT_RUN = "not computed under this token rule, see projections.tokens of the config"
DIGITS = 6
# With these the mean inner product is said where there are no clusters.
COUNTS = (("clusters", "n_clusters"), ("clusters", "noise_fraction"))
PLACE = ["layer", "stage", "depth"]
TOKEN_FLAGS = ("is_first", "is_special", "is_punctuation")


def write_explorer(tables, states, methods, template, javascript, stylesheet, page, folder):
    """Write the page and the folder of its runs.

    Parameters
    ----------
    tables : list of path
        Results tables: `runs`, `projections` and any of `explorer_curves.TABLES`.
    states : list of path
        A states file of each model and prompt, {model}/{weights}/{prompt}.parquet, of any weights: tokens are the same.
    methods : list of str
        Methods of the projections that the page offers, of which a run may lack some.
    template, javascript, stylesheet : path
        A Jinja template, and what it embeds.
    page : path
        The page.
    folder : path
        Beside the page. If all runs together take more than EMBEDDED_MAX bytes, each becomes a file in it,
        {model}/{weights}/{prompt}.js; if not, they lie in the page and the folder is empty.
    """
    readers = {Path(path).stem: ByRun(path, Path(path).stem) for path in tables}
    # Opened one at a time: a grid may have more of them than a process may hold.
    texts = {(path.parts[-3], path.stem): path for path in map(Path, states)}
    runs = readers["projections"].runs
    curves = _with_betas(readers, runs[0])
    embedded, size = {}, 0
    with replacing(folder) as temporary:
        temporary.mkdir()
        for run in runs:
            rows = {table: reader.read(run) for table, reader in readers.items()}
            data = run_data(rows, StatesFile(texts[run[0], run[2]]), curves, methods)
            text = as_json(data)
            embedded["/".join(run)] = text
            size += len(text)
            if size > EMBEDDED_MAX:
                # All that is in memory, which from here on is one run.
                for name, kept in embedded.items():
                    _write_run(temporary, name, kept)
                embedded = {}
    models, weights, prompts = (list(dict.fromkeys(names)) for names in zip(*runs))
    index = {
        "models": models,
        "weights": weights,
        "prompts": prompts,
        "curves": [
            {"title": curve.title, "bounds": curve.bounds, "counts": (curve.table, curve.column) in COUNTS}
            for curve in curves
        ],
        "folder": Path(folder).name,
        "looks": _looks(),
    }
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(template).parent), autoescape=True, undefined=jinja2.StrictUndefined
    )
    rendered = environment.get_template(Path(template).name).render(
        index=as_json(index),
        embedded=embedded,
        methods={method: words for method, words in style.METHODS.items() if method in methods},
        has_labels=LABELS in readers,
        plotly=(files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8"),
        javascript=Path(javascript).read_text(encoding="utf-8"),
        stylesheet=Path(stylesheet).read_text(encoding="utf-8"),
    )
    write_text(page, rendered)


def run_data(tables, states, curves, methods):
    """Return what the page shows of one run.

    Parameters
    ----------
    tables : dict
        Name -> the run's rows as a pyarrow.Table.
    states : StatesFile
        Of the run's model and prompt.
    curves : list of Curve
        Those whose tables are there.
    methods : list of str
        Methods of the projections, each of which has an entry.

    Returns
    -------
    dict
        `text` and `kind` (index into style.KINDS) of each token; `whole`, the tokens of the prompt where it was cut,
        else null; `blocks` and `trained`, depths in blocks; `states`, a list of [layer, stage, depth]; and `rules`:
        token rule -> `positions`; `labels`, see `_labels`, null without clusters; `methods`: name -> see `_frames`;
        `curves`: of each, `values` by state and `undefined`, state -> reason.

    Raises
    ------
    Refusal
        If the tables are not of the tokens of the states file.
    """
    (facts,) = tables["runs"].to_pylist()
    tokens = states.tokens()
    if len(tokens) != facts["n_tokens"] or states.metadata["prompt_hash"] != facts["prompt_hash"]:
        raise Refusal(
            f"{states.path}: holds other tokens than the table of runs says of {facts['model']}/{facts['prompt']}. "
            "Delete it and run again."
        )
    flags = {name: tokens[name].to_numpy() for name in TOKEN_FLAGS}
    frames = {name: rows.to_pandas() for name, rows in tables.items() if name != "runs"}
    states_found = _states(frames.values())
    index = {(layer, stage): number for number, (layer, stage, _) in enumerate(states_found)}
    pictures = frames["projections"]
    rules = {}
    for rule in TOKEN_RULES:
        own = {name: frame[frame["tokens"] == rule] for name, frame in frames.items()}
        positions = np.flatnonzero(token_mask(rule, flags["is_first"], flags["is_special"]))
        rules[rule] = {
            "positions": positions.tolist(),
            "labels": _labels(own[LABELS], own["clusters"], positions, index) if LABELS in own else None,
            "methods": {m: _frames(pictures[pictures["method"] == m], rule, positions, index) for m in methods},
            "curves": [_curve(own[curve.table], curve, index) for curve in curves],
        }
    return {
        "text": tokens["token"].to_pylist(),
        "kind": _kinds(flags),
        "whole": facts["n_tokens_untruncated"] if facts["n_tokens"] < facts["n_tokens_untruncated"] else None,
        "blocks": facts["n_blocks"],
        "trained": facts["trained_depth"],
        "states": states_found,
        "rules": rules,
    }


def as_json(data):
    """Return JSON that means the same in a script element and in a script: nothing in it is markup or ends a line."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _frames(frame, rule, positions, index):
    """Pictures of one method under one token rule, each turned onto the one before.

    Returns
    -------
    dict
        `frames`: of each, its `state`, its number in `xy` (`picture`, null with the reason in `undefined`), its
        `variance` (share) and `neighbourhood` (tokens) where it has one; `xy` in multiples of `unit`, see
        collapse.pictures.packed; `box`: the smallest and largest x and y of all.
    """
    frames, pictures = [], []
    own = frame[frame["tokens"] == rule]
    if own.empty:
        # At the states of the other token rule or, where the run has nothing of the method, at all.
        states = [index[layer, stage] for layer, stage, _ in _states([frame])] or index.values()
        reason = NOT_RUN if len(positions) else NO_TOKENS
        frames = [{"state": s, "undefined": reason, "variance": None, "neighbourhood": None} for s in states]
    for state, rows in _by_state(own, positions, index):
        first, undefined = rows.iloc[0], _reason(rows, "x")
        pictures.append(None if undefined else rows[["x", "y"]].to_numpy(dtype=np.float64))
        frames.append(
            {
                "state": state,
                "undefined": undefined,
                "variance": _number(first["explained_variance_ratio"]),
                "neighbourhood": _number(first["neighbourhood"]),
            }
        )
    shown = [picture for picture in turned(pictures) if picture is not None]
    numbers = iter(range(len(shown)))
    for entry in frames:
        entry["picture"] = None if entry["undefined"] else next(numbers)
    xy, unit = packed(shown)
    points = np.concatenate([np.zeros((1, 2)), *shown])
    box = [[_number(axis.min()), _number(axis.max())] for axis in points.T]
    return {"frames": frames, "xy": xy, "unit": unit, "box": box}


def _labels(frame, clusters, positions, index):
    """Cluster of each token at each state.

    Returns
    -------
    dict
        `values`: state by state and token by token, as `followed` numbers them, NO_LABEL where undefined; `undefined`:
        state -> reason; `alone`: state -> mean inner product where there is no cluster or nothing but noise, which
        says whether the tokens collapsed or are scattered.
    """
    found, undefined = [None] * len(index), {}
    if not len(positions):
        undefined = dict.fromkeys(index.values(), NO_TOKENS)
    for state, rows in _by_state(frame, positions, index):
        if reason := _reason(rows, "label"):
            undefined[state] = reason
        else:
            found[state] = rows["label"].to_numpy(dtype=np.int64)
    nothing = np.full(len(positions), NO_LABEL)
    values = [nothing if labels is None else labels for labels in followed(found)]
    empty = clusters[(clusters["n_clusters"] == 0) | (clusters["noise_fraction"] == 1)]
    alone = {index[row["layer"], row["stage"]]: _number(row["mean_inner_product"]) for _, row in empty.iterrows()}
    return {"values": encoded(values), "undefined": undefined, "alone": alone}


def _curve(frame, curve, index):
    for column, value in curve.where.items():
        frame = frame[frame[column] == value]
    values, undefined = [None] * len(index), {}
    for layer, stage, value, reason in frame[["layer", "stage", curve.column, "undefined"]].itertuples(index=False):
        state = index[layer, stage]
        values[state] = _number(value)
        if values[state] is None:
            undefined[state] = reason
    return {"values": values, "undefined": undefined}


def _with_betas(readers, run):
    """The curves whose tables are there; that of the energy once for each beta."""
    curves = []
    for curve in CURVES:
        if curve.table == "energy" and "energy" in readers:
            betas = dict.fromkeys(readers["energy"].read(run)["beta"].to_pylist())
            curves += [curve.at(beta) for beta in betas]
        elif curve.table in readers:
            curves.append(curve)
    return curves


def _states(frames):
    """(layer, stage, depth) of every state that a table has, in order of depth."""
    rows = [frame[PLACE].drop_duplicates().itertuples(index=False, name=None) for frame in frames]
    return sorted({place for part in rows for place in part}, key=lambda place: (place[0], STAGES.index(place[1])))


def _by_state(frame, positions, index):
    """(index of the state, its rows in order of position) in order of depth."""
    parts = []
    for (layer, stage), rows in frame.groupby(["layer", "stage"], sort=False):
        if not np.array_equal(rows["position"], positions):
            run = "/".join(rows[["model", "weights", "prompt"]].iloc[0])
            raise Refusal(
                f"results/tables: the run {run} has rows of other tokens at layer {layer} ({stage}) than its states "
                "file. Delete the tables and run again."
            )
        parts.append((index[layer, stage], rows))
    return sorted(parts, key=lambda part: part[0])


def _kinds(flags):
    """Index into style.KINDS of each token; a first token that is special counts as special."""
    kinds = list(style.KINDS)
    order = [("is_special", "special"), ("is_first", "first position"), ("is_punctuation", "punctuation")]
    known = [kinds.index(kind) for _, kind in order]
    return np.select([flags[name] for name, _ in order], known, kinds.index("other")).tolist()


def _reason(rows, column):
    """Why a state has no values; None where it has them."""
    missing = rows[column].isna()
    return rows["undefined"][missing].iloc[0] if missing.any() else None


def _number(value):
    return None if value is None or value != value else float(f"{float(value):.{DIGITS}g}")


def _write_run(folder, name, text):
    path = folder / f"{name}.js"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'explorer.add("{name}",{text});\n', encoding="utf-8")


def _looks():
    """Colours and shapes of the figures, for plotly."""
    colours, shapes = style.CLUSTER_COLOURS, [SHAPES[shape] for shape in style.CLUSTER_SHAPES]
    clusters = [[colours[n % len(colours)], shapes[n % len(shapes)]] for n in range(len(colours) * len(shapes))]
    return {
        "clusters": clusters,
        "noise": style.NOISE["color"],
        "unknown": style.UNKNOWN["color"],
        "kinds": [[kind, look["color"], SHAPES[look["marker"]]] for kind, look in style.KINDS.items()],
        "sides": [style.LOOKS["trained"]["color"], style.LOOKS["norm-matched"]["color"]],
    }
