"""How all inner products of a model are distributed, layer by layer: one figure per model."""

import numpy as np
from matplotlib.colors import LogNorm

from collapse.figures import style
from collapse.figures.draw import Drawing
from collapse.figures.panels import TOKEN_WORDS, describe_trained_depth, grid, label_grid, mark_trained_depth

TOKENS = "content"
FLOOR = 1e-3


def draw(name, subject, frames, depths):
    """Draw, per prompt and scheme, the share of pairs in each bin of cosine against depth.

    Parameters
    ----------
    name : str
        Unused: this module draws one figure.
    subject : str
        The model.
    frames : dict of DataFrame
        `inner_products`.
    depths : dict
        Model -> `depth` and `trained_depth` in blocks, of models that run deeper than they were trained.
    """
    frame = frames["inner_products"]
    frame = frame[(frame["model"] == subject) & (frame["tokens"] == TOKENS) & (frame["stage"] != "final_norm")]
    # The theory has one column per beta, random weights one for all seeds.
    frame = frame.assign(line=frame["weights"].where(frame["seed"].isna(), frame["scheme"]))
    prompts, lines = list(frame["prompt"].unique()), list(frame["line"].unique())
    labels = [style.look(*frame.loc[frame["line"] == line, ["scheme", "weights"]].iloc[0])["label"] for line in lines]
    figure, axes = grid(len(prompts), len(lines), width=2.2)
    image = None
    for row, prompt in zip(axes, prompts):
        for axis, line in zip(row, lines):
            cell = frame[(frame["prompt"] == prompt) & (frame["line"] == line)]
            image = _panel(axis, cell) or image
            mark_trained_depth(axis, depths.get(subject))
    label_grid(axes, prompts, labels, "relative depth (layer / blocks)")
    figure.supylabel("cosine (above dashes: near one)", fontsize=style.RC["axes.labelsize"])
    if image is not None:
        bar = figure.colorbar(image, ax=axes, shrink=0.6, pad=0.02)
        bar.set_label("share of pairs per bin (log)")
    seeds = frame["seed"].nunique()
    random = f" Random weights: the counts of {seeds} seed{'s' * (seeds > 1)} added up." if seeds else ""
    caption = (
        f"Histogram of the cosines of all token pairs of {subject} at each depth: 50 equal bins, colour the share of "
        f"pairs, logarithmic, white below {FLOOR:g}. Pairs above the dashed line are the mass near one.{random} "
        f"Weights: {'; '.join(labels)}. Prompts: {', '.join(prompts)}. Tokens: {TOKEN_WORDS[TOKENS]}."
        f"{describe_trained_depth({subject: depths.get(subject)})}"
    )
    return Drawing(figure, f"Inner products over layers: {subject}", caption, _alternative(frame, subject))


def _panel(axis, cell):
    """Draw one scheme on one prompt; the histograms of its seeds are added up."""
    defined = cell[cell["histogram"].notna()]
    axis.set_ylim(-1, 1)
    if defined.empty:
        axis.text(0.5, 0.5, "undefined", ha="center", transform=axis.transAxes)
        return None
    counts = defined.groupby("layer")["histogram"].agg(lambda column: np.sum(np.stack(column.to_list()), axis=0))
    share = np.stack(counts.to_list()).astype(float)
    share /= share.sum(axis=1, keepdims=True)
    depth = defined.groupby("layer")["depth"].first().to_numpy()
    half = 0.5 / max(defined["layer"].max(), 1)
    edges = np.append(depth - half, depth[-1] + half)
    norm = LogNorm(FLOOR, 1.0)
    shown = np.where(share.T >= FLOOR, share.T, np.nan)
    image = axis.pcolormesh(edges, np.linspace(-1, 1, 51), shown, norm=norm, cmap="viridis_r", rasterized=True)
    # Light around dark: it shows on any colour.
    axis.axhline(0.9, color="#ffffff", linewidth=1.8)
    axis.axhline(0.9, color="#000000", linewidth=0.8, linestyle="--")
    return image


def _alternative(frame, subject):
    last = frame[frame["depth"] == 1].groupby("line", sort=False)["mean_inner_product"].mean().dropna()
    words = "; ".join(f"{line}: {value:.3g}" for line, value in last.items())
    words = words or "undefined"
    return f"Heat maps of cosine against depth for {subject}. Mean cosine at the last block, over prompts: {words}."
