"""How steadily tokens are clustered, and how that is distributed over tokens: one figure per model."""

import matplotlib.figure
import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from collapse.figures import style
from collapse.figures.draw import Drawing
from collapse.figures.panels import TOKEN_WORDS, place_legend, prompts_of
from collapse.summary import BASELINES

TOKENS = "content"
EDGES = np.linspace(0.0, 1.0, 11)


def draw(name, subject, frames, depths):
    """Draw, per prompt, the share of layers in which each token is clustered, and its distribution over tokens.

    Trained weights and the theory are lines, and random ones the band that their seeds span.

    Parameters
    ----------
    name : str
        Unused: this module draws one figure.
    subject : str
        The model.
    frames : dict of DataFrame
        `cluster_membership`.
    depths : dict
        Model -> `depth` and `trained_depth` in blocks, of models that run deeper than they were trained: all layers
        count, those beyond too, and the caption says so.
    """
    frame = frames["cluster_membership"]
    frame = frame[frame["model"] == subject]
    # All seeds of a scheme are one line, each beta of the theory one of its own.
    frame = frame.assign(line=frame["weights"].where(frame["seed"].isna(), frame["scheme"]))
    schemes = set(frame["scheme"])
    random = next((scheme for scheme in BASELINES if scheme in schemes), None)
    theory = list(frame.loc[frame["scheme"] == "identity", "line"].unique())
    looks = {scheme: style.look(scheme, scheme) for scheme in ("trained", random) if scheme in schemes}
    looks |= {line: style.look("identity", line, nth) for nth, line in enumerate(theory)}
    seeds, prompts = frame.loc[frame["scheme"] == random, "seed"].nunique(), prompts_of(frame)
    # A prompt that leaves no token under the rule has no row here, and its panels.
    frame = frame[frame["tokens"] == TOKENS]
    figure = matplotlib.figure.Figure(figsize=(8.5, 1.45 * len(prompts) + 0.95), layout="constrained")
    axes = figure.subplots(len(prompts), 2, sharex="col", squeeze=False, width_ratios=[2, 1])
    for row, prompt in zip(axes, prompts):
        cells = {line: frame[(frame["prompt"] == prompt) & (frame["line"] == line)] for line in looks}
        _plot_row(row, {line: shares_of(cell) for line, cell in cells.items()}, looks)
        row[0].set_ylabel(style.prompt_label(prompt))
    axes[0, 0].set_title("share of layers in which a token is clustered")
    axes[0, 1].set_title("share of tokens with that share")
    axes[-1, 0].set_xlabel("position in the prompt (tokens)")
    axes[-1, 1].set_xlabel("share of layers (ten bins)")
    handles = [Line2D([], [], **look) for look in looks.values()]
    if seeds > 1:
        handles.append(Patch(color=looks[random]["color"], alpha=0.3, lw=0, label="range over seeds"))
    place_legend(figure, handles)
    band = f" (mean and range over {seeds} seeds)" if seeds > 1 else " (one seed, no band)" if seeds else ""
    weights = "; ".join(look["label"] + band * (scheme == random) for scheme, look in looks.items())
    caption = (
        f"For each token of {subject}, the share of layers in which it has an HDBSCAN cluster, over the layers whose "
        "clusters are defined (left), and how many of the tokens have which share (right). HDBSCAN puts some tokens of "
        "any cloud into clusters: what trained weights do is what lies outside the random band. Total collapse gives 0 "
        f"for all tokens, as pure noise does. Weights: {weights}. Prompts, each on its own, none averaged: "
        f"{', '.join(prompts)}. Tokens: {TOKEN_WORDS[TOKENS]}.{_describe_nulls(frame[frame['line'].isin(looks)])}"
        f"{_describe_depth(depths.get(subject))}"
    )
    return Drawing(figure, f"Cluster membership: {subject}", caption, _alternative(frame, subject, looks))


def shares_of(cell):
    """Positions, and shares with a row per seed; NaN where undefined."""
    table = cell.pivot(index="weights", columns="position", values="clustered_share")
    return table.columns.to_numpy(), table.to_numpy(dtype=float)


def _plot_row(row, runs, looks):
    defined = {line: found for line, found in runs.items() if found[1].size and not np.isnan(found[1]).any()}
    for axis in row:
        axis.set_ylim(-0.03, 1.03)
        if not defined:
            axis.text(0.5, 0.5, "undefined", ha="center", va="center", transform=axis.transAxes)
    row[1].set_xlim(0, 1)
    for line, (positions, shares) in defined.items():
        look = looks[line] | {"label": "_"}
        counts = np.stack([np.histogram(np.clip(share, 0, 1), EDGES)[0] / share.size for share in shares])
        row[0].plot(positions, shares.mean(axis=0), **look | {"linewidth": 0.9})
        row[1].stairs(counts.mean(axis=0), EDGES, color=look["color"], ls=look["linestyle"], lw=look["linewidth"])
        if len(shares) > 1:
            band = {"color": look["color"], "alpha": 0.3, "linewidth": 0}
            row[0].fill_between(positions, shares.min(axis=0), shares.max(axis=0), **band)
            row[1].stairs(counts.max(axis=0), EDGES, baseline=counts.min(axis=0), fill=True, **band)


def _describe_nulls(frame):
    missing = frame[frame["clustered_share"].isna()]
    if missing.empty:
        return ""
    runs = missing.groupby(["weights", "prompt"]).ngroups
    return f" Undefined, and not drawn, in {runs} runs, most often: {missing['undefined'].mode()[0]}."


def _describe_depth(depth):
    if depth is None:
        return ""
    return f" Training ended at block {depth['trained_depth']} of {depth['depth']}; the layers of all blocks count."


def _alternative(frame, subject, lines):
    means = frame.groupby("line")["clustered_share"].mean().reindex(lines).dropna()
    words = "; ".join(f"{line}: {value:.2f}" for line, value in means.items()) or "undefined"
    return f"Lines over positions and histograms for {subject}. Mean share over tokens and prompts: {words}."
