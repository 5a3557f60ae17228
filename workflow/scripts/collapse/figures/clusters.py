"""Clusters against depth, beside what tells collapse from noise: one figure per model."""

import matplotlib.figure
from matplotlib.lines import Line2D

from collapse.figures import style
from collapse.figures.draw import Drawing
from collapse.figures.panels import (
    describe_data,
    describe_nulls,
    describe_trained_depth,
    legend,
    mark_trained_depth,
    plot_control,
    plot_schemes,
    reach,
)

TOKENS = "content"
PANELS = (
    ("n_clusters", "number of clusters"),
    ("noise_fraction", "noise (share of tokens)"),
    ("mean_inner_product", "mean inner product (cosine)"),
)
NULLS = {"n_clusters": "null_n_clusters", "noise_fraction": "null_noise_fraction"}


def draw(name, subject, frames, depths):
    """Draw cluster count, noise fraction and mean inner product of one model, a row per prompt.

    Parameters
    ----------
    name : str
        Unused: this module draws one figure.
    subject : str
        The model.
    frames : dict of DataFrame
        `clusters`.
    depths : dict
        Model -> `depth` and `trained_depth` in blocks, of models that run deeper than they were trained.
    """
    frame = frames["clusters"]
    frame = frame[(frame["model"] == subject) & (frame["tokens"] == TOKENS)]
    prompts = list(frame["prompt"].unique())
    figure = matplotlib.figure.Figure(figsize=(8.5, 1.45 * len(prompts) + 0.95), layout="constrained")
    axes = figure.subplots(len(prompts), len(PANELS), sharex=True, squeeze=False)
    for row, prompt in zip(axes, prompts):
        cell = frame[frame["prompt"] == prompt]
        for axis, (column, _) in zip(row, PANELS):
            plot_schemes(axis, cell, column)
            mark_trained_depth(axis, depths.get(subject))
            if column in NULLS:
                plot_control(axis, cell[cell["scheme"] == "trained"], NULLS[column], style.NULL)
        row[0].set_ylabel(style.prompt_label(prompt))
        row[0].set_ylim(bottom=0)
        row[1].set_ylim(-0.03, 1.03)
        row[2].set_ylim(*reach((-0.35, 1.03), frame["mean_inner_product"]))
    for axis, (_, label) in zip(axes[0], PANELS):
        axis.set_title(label)
    for axis in axes[-1]:
        axis.set_xlabel("relative depth (layer / blocks)")
    axes[0, 0].set_xlim(-0.02, 1.08)
    legend(figure, frame, [column for column, _ in PANELS], [Line2D([], [], **style.NULL)])
    caption = (
        "HDBSCAN clusters of token directions (precomputed cosine distances), the share of tokens in none, and the "
        "mean inner product against relative depth. No clusters and pure noise is what HDBSCAN says both of a "
        "collapsed cloud (mean inner product near 1) and of a scattered one (near 0). The thin line with dots is the "
        "same call on the trained cloud with each coordinate permuted over tokens: structure is what differs from it. "
        f"{_row_order(frame)}"
        f"{describe_data(frame, TOKENS)}{describe_nulls(frame, 'n_clusters')}"
        f"{describe_trained_depth({subject: depths.get(subject)})}"
    )
    return Drawing(figure, f"Clusters over layers: {subject}", caption, _alternative(frame, subject))


def _row_order(frame):
    """Say how much the labels depend on the order of rows."""
    ari = frame["row_order_ari"].dropna()
    if ari.empty:
        return ""
    return (
        f"Labels of shuffled rows agree with an adjusted Rand index of {ari.mean():.2f} on average, {ari.min():.2f} at "
        "worst: where it is low, counts hold and labels do not. "
    )


def _alternative(frame, subject):
    last = frame[(frame["stage"] == "block") & (frame["depth"] == 1)]
    means = last.groupby("scheme", sort=False)[["n_clusters", "noise_fraction", "mean_inner_product"]].mean().dropna()
    words = "; ".join(f"{s}: {n:.3g} clusters, noise {f:.2f}, mean cosine {c:.2f}" for s, n, f, c in means.itertuples())
    return f"Line plots for {subject}. At the last block, mean over prompts: {words or 'undefined'}."
