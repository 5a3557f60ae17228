"""What the figures share: a grid of panels with prompts down and models across, and words about the data."""

import matplotlib.figure
import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from collapse.figures import style

TOKEN_WORDS = {"all": "all tokens", "content": "content tokens only (without position 0 and special tokens)"}


def grid(n_rows, n_columns, width=2.5, height=1.45, sharey=True):
    """Return (figure, axes as a 2-D array): panels of one size, x shared, y shared as matplotlib's `sharey` says."""
    size = (max(width * n_columns + 1.0, 6.0), height * n_rows + 0.95)
    figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
    axes = figure.subplots(n_rows, n_columns, sharex=True, sharey=sharey, squeeze=False)
    return figure, axes


def label_grid(axes, rows, columns, x_label):
    """Name the columns on top, the rows on the left, and the x axis once per column."""
    for axis, name in zip(axes[0], columns):
        axis.set_title(name)
    for axis, name in zip(axes[:, 0], rows):
        axis.set_ylabel(style.prompt_label(name))
    for axis in axes[-1]:
        axis.set_xlabel(x_label)


def plot_schemes(axis, frame, column):
    """Draw one panel: a line per scheme and beta against depth; the mean over seeds in a band from smallest to largest.

    The post-norm state stands alone as an open marker beyond depth 1. Where a value is undefined in every seed, the
    line has a gap and a small cross lies on the lower edge.
    """
    for (scheme, _), runs in _lines(frame):
        look = style.look(scheme)
        steps = runs[runs["stage"] != "final_norm"]
        values = _over_seeds(steps, "depth", column)
        axis.plot(values.index, values["mean"], **look | {"label": "_"})
        if runs["seed"].nunique() > 1:
            axis.fill_between(values.index, values["min"], values["max"], color=look["color"], alpha=0.25, linewidth=0)
        undefined = values.index[values["mean"].isna()]
        edge = axis.get_xaxis_transform()
        axis.plot(
            undefined, np.full(len(undefined), 0.03), "x", color=look["color"], ms=3, transform=edge, clip_on=False
        )
        after = runs.loc[runs["stage"] == "final_norm", column].mean()
        axis.plot([1.05], [after], "o", mfc="white", mec=look["color"], ms=4, clip_on=False)


def legend(figure, frame, extra=()):
    """Put one legend above all panels: schemes, their bands, and what else a figure draws."""
    handles = []
    for scheme in frame["scheme"].unique():
        look = style.look(scheme)
        handles.append(Line2D([], [], **look))
        if frame.loc[frame["scheme"] == scheme, "seed"].nunique() > 1:
            handles.append(Patch(color=look["color"], alpha=0.25, lw=0, label="range over seeds"))
    if (frame["stage"] == "final_norm").any():
        handles.append(
            Line2D([], [], ls="", marker="o", mfc="white", mec="#444444", ms=4, label="after the final norm")
        )
    handles += extra
    # The longest entry takes a good two inches.
    columns = min(len(handles), int(figure.get_figwidth() / 2.2))
    figure.legend(handles=handles, loc="outside upper center", ncols=columns)


def describe_data(frame, tokens):
    """Return a sentence that names models, weights, prompts, token rule and band."""
    seeds = frame["seed"].nunique()
    band = f"the line is the mean and the band the range over {seeds} seeds" if seeds > 1 else "one seed, so no band"
    schemes = ", ".join(style.look(scheme)["label"] for scheme in frame["scheme"].unique())
    return (
        f"Models: {', '.join(frame['model'].unique())}. Weights: {schemes}; for random weights {band}. Prompts, each "
        f"on its own, none averaged: {', '.join(frame['prompt'].unique())}. Tokens: {TOKEN_WORDS[tokens]}."
    )


def describe_nulls(frame, column):
    """Return a sentence on undefined values, with their most frequent reason; empty where there are none."""
    missing = frame[frame[column].isna() & (frame["stage"] != "final_norm")]
    if missing.empty:
        return ""
    reason = missing["undefined"].mode()[0]
    return f" Undefined in {len(missing)} of {len(frame)} states (crosses on the lower edge), most often: {reason}."


def _lines(frame):
    """Group runs into lines: all seeds of a scheme together, each beta of the theory apart."""
    line = frame["weights"].where(frame["seed"].isna(), frame["scheme"])
    return frame.groupby(["scheme", line], sort=False)


def _over_seeds(frame, key, column):
    return frame.groupby(key)[column].agg(["mean", "min", "max"])
