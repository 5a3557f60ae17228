"""What the figures share: a grid of panels with prompts down and models across, and words about the data."""

import math

import matplotlib.figure
import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from collapse.figures import style
from collapse.reasons import FIRST_LAYER, reason_kind

TOKEN_WORDS = {"all": "all tokens", "content": "content tokens only (without position 0 and special tokens)"}


def grid(n_rows, n_columns, width=2.5, height=1.45, sharey=True):
    """Return (figure, axes as a 2-D array): panels of one size, x shared, y shared as matplotlib's `sharey` says."""
    size = (max(width * n_columns + 1.0, 6.0), height * n_rows + 0.95)
    figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
    axes = figure.subplots(n_rows, n_columns, sharex=True, sharey=sharey, squeeze=False)
    return figure, axes


def label_grid(axes, rows, columns, x_label):
    """Name the columns on top, the rows on the left, and the x axis once per column."""
    width = axes[0, 0].get_figure().get_figwidth() / len(columns) - 0.5
    for axis, name in zip(axes[0], columns):
        axis.set_title("\n".join(style.fit(line, width) for line in name.splitlines()))
    for axis, name in zip(axes[:, 0], rows):
        axis.set_ylabel(style.prompt_label(name))
    for axis in axes[-1]:
        axis.set_xlabel(x_label)


def prompts_of(frame, model=None):
    """Return the prompts of a table, also those that leave no token under one of its token rules, and so no row."""
    return list((frame if model is None else frame[frame["model"] == model])["prompt"].unique())


def reach(limits, *values):
    """Return limits of an axis that hold every value: those given and, where values lie beyond, more.

    The mean cosine of two opposite tokens is -1, of a thousand independent ones 0: a fixed scale fits one of them.
    """
    low, high = limits
    found = np.concatenate([np.asarray(some, dtype=float) for some in values])
    found = found[np.isfinite(found)]
    if not found.size:
        return limits
    pad = 0.02 * (max(high, found.max()) - min(low, found.min()))
    return low if found.min() >= low else found.min() - pad, high if found.max() <= high else found.max() + pad


def plot_schemes(axis, frame, column, degenerate=None):
    """Draw one panel: a line per scheme and beta against depth; the mean over seeds in a band from smallest to largest.

    The post-norm state stands alone as an open marker beyond depth 1. Where any seed's value is undefined the line has
    a gap, and a small cross lies on the lower edge, on a level of its own for each line. The first layer, where what
    compares with the layer before has no value, gets none. Where `degenerate`, a column of booleans, holds, values have
    a triangle on that level.
    """
    for level, (look, runs) in enumerate(_lines(frame)):
        steps = runs[runs["stage"] != "final_norm"]
        values = _over_seeds(steps, "depth", column)
        axis.plot(values.index, values["mean"], **look | {"label": "_"})
        if runs["seed"].nunique() > 1:
            axis.fill_between(values.index, values["min"], values["max"], color=look["color"], alpha=0.25, linewidth=0)
        undefined = is_degenerate(steps, column)
        _mark(axis, steps[undefined], level, "x", look["color"])
        if degenerate:
            _mark(axis, steps[steps[degenerate] & ~undefined], level, "v", look["color"])
        if (runs["stage"] == "final_norm").any():
            after = _over_seeds(runs[runs["stage"] == "final_norm"], "depth", column)["mean"]
            mark = {"marker": style.shape(runs["scheme"].iloc[0]), "mfc": "white", "mec": look["color"], "ms": 4}
            # Marks may lie beyond a panel's edge, which must not move the panels.
            axis.plot([1.05], after, ls="", clip_on=False, in_layout=False, **mark)


def _mark(axis, states, level, mark, color):
    """Put marks at the depths of states on the lower edge of a panel, on the level of their line."""
    depths = states["depth"].unique()
    place = {"transform": axis.get_xaxis_transform(), "clip_on": False, "in_layout": False}
    axis.plot(depths, np.full(len(depths), 0.03 + 0.06 * level), mark, color=color, ms=3, **place)


def plot_control(axis, frame, column, look):
    """Draw what the first weights of a panel give without content: a line without the state after the final norm."""
    steps = frame[frame["stage"] != "final_norm"]
    values = steps.dropna(subset=[column]).groupby("depth")[column].first()
    axis.plot(values.index, values, **look | {"label": "_"})


def mark_trained_depth(axis, depth):
    """Draw a thin vertical line where training ended, for a model that runs deeper; `depth` is None for all others."""
    if depth:
        axis.axvline(depth["trained_depth"] / depth["depth"], **style.TRAINED_DEPTH)


def describe_trained_depth(depths):
    """Return a sentence on those vertical lines, from {model: depth or None}; empty where there are none."""
    words = [f"{model} {d['trained_depth']} of {d['depth']}" for model, d in depths.items() if d]
    return f" The thin vertical line is the depth of training, in blocks: {', '.join(words)}." if words else ""


def legend(figure, frame, columns, extra=(), y_label=""):
    """Put one legend above all panels, and beside them what their y axes show.

    The legend has the lines, their bands, undefined values of `columns`, and what else is drawn.
    """
    handles, bands = [], []
    has_norm = (frame["stage"] == "final_norm").any()
    for look, runs in _lines(frame):
        open_mark = has_norm and (runs["stage"] == "final_norm").any()
        mark = {"marker": style.shape(runs["scheme"].iloc[0]), "mfc": "white", "ms": 4} if open_mark else {}
        handles.append(Line2D([], [], **look | mark))
        if runs["seed"].nunique() > 1:
            bands.append(look["color"])
    if bands:
        # One entry for all: each band has the colour of its line.
        color = bands[0] if len(bands) == 1 else "#777777"
        handles.append(Patch(color=color, alpha=0.25, lw=0, label="range over seeds"))
    if has_norm:
        look = {"marker": "o", "mfc": "white", "mec": "#444444", "ms": 4}
        handles.append(Line2D([], [], ls="", **look, label="open: after the final norm"))
    if any(is_degenerate(frame, column).any() for column in columns):
        handles.append(Line2D([], [], ls="", marker="x", color="#444444", ms=3, label="undefined"))
    handles += extra
    n_rows = place_legend(figure, handles)
    middle = 0.5 * (1 - 0.18 * n_rows / figure.get_figheight())
    figure.supylabel(y_label, y=middle, fontsize=style.RC["axes.labelsize"])


def place_legend(figure, handles):
    """Put a legend above all panels, in as many columns as fit; return its number of rows."""
    longest = max(len(handle.get_label()) for handle in handles)
    n_columns = max(1, min(len(handles), int(figure.get_figwidth() / (0.7 + 0.064 * longest))))
    # Room for three rows is in every figure; many kinds of weights take more, which panels must not give.
    n_rows = math.ceil(len(handles) / n_columns)
    figure.set_figheight(figure.get_figheight() + 0.18 * max(0, n_rows - 3))
    figure.legend(handles=handles, loc="outside upper center", ncols=n_columns)
    return n_rows


def describe_data(frame, tokens):
    """Return a sentence that names models, weights with their bands, prompts and token rule."""
    words = []
    for look, runs in _lines(frame):
        seeds = runs["seed"].nunique()
        band = f" (mean and range over {seeds} seeds)" if seeds > 1 else " (one seed, no band)" if seeds else ""
        words.append(look["label"] + band)
    return (
        f"Models: {', '.join(frame['model'].unique())}. Weights: {'; '.join(words)}. Prompts, each on its own, none "
        f"averaged: {', '.join(frame['prompt'].unique())}. Tokens: {TOKEN_WORDS[tokens]}."
    )


def describe_nulls(frame, column):
    """Return a sentence on undefined values, with their most frequent kind of reason; empty where there are none."""
    steps = frame[frame["stage"] != "final_norm"]
    missing = steps[is_degenerate(steps, column)]
    if missing.empty:
        return ""
    kinds = missing["undefined"].map(reason_kind)
    where = f"{len(missing)} of {len(steps)} states (crosses, on a level for each line)"
    return f" Undefined in {where}, most often: {kinds.mode()[0]}."


def is_degenerate(frame, column):
    """Tell which rows are null for another reason than being the first layer."""
    return frame[column].isna() & ~frame["undefined"].fillna("").str.contains(FIRST_LAYER)


def _lines(frame):
    """Yield (look, runs) of each line: all seeds of a scheme together, each beta of the theory apart."""
    line, n_theory = frame["weights"].where(frame["seed"].isna(), frame["scheme"]), 0
    for (scheme, _), runs in frame.groupby(["scheme", line], sort=False):
        yield style.look(scheme, runs["weights"].iloc[0], n_theory), runs
        n_theory += scheme == "identity"


def _over_seeds(frame, key, column):
    """Mean, smallest and largest over seeds; none where a seed has none, since the rest would be another quantity."""
    if frame["seed"].nunique() <= 1:
        # One row for each key: grouping them takes longer than drawing them.
        one = frame.set_index(key)[column]
        return pd.DataFrame({"mean": one, "min": one, "max": one})
    values = frame.groupby(key)[column].agg(["mean", "min", "max", "count", "size"])
    return values.where(values["count"] == values["size"])
