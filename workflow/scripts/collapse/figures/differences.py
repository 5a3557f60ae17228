"""Trained minus random at the last block, per model and prompt, on one page."""

import matplotlib.figure
import numpy as np
from matplotlib.lines import Line2D

from collapse.errors import Undefined
from collapse.figures import style
from collapse.figures.draw import Drawing
from collapse.figures.panels import TOKEN_WORDS
from collapse.statistics import interval
from collapse.summary import BASELINES

TOKENS = "content"
QUANTITIES = (
    ("inner_products", "mass_near_one", "mass near one\n(share of pairs)"),
    ("inner_products", "mean_inner_product", "mean inner product\n(cosine)"),
    ("inner_products", "mean_inner_product_without_rogue", "the same without rogue\ndimensions (cosine)"),
    ("effective_rank", "effective_rank_sphere", "effective rank\n(directions)"),
)
MEAN = {"marker": "D", "ms": 5, "mfc": "white"}
PROMPT = {"marker": "o", "ms": 3.5}


def draw(name, subject, frames, depths):
    """Draw a line per model and prompt, and one per model for the mean over its prompts; a column per quantity.

    Parameters
    ----------
    name, subject : str
        Unused: this module draws one figure of the whole grid.
    frames : dict of DataFrame
        `inner_products` and `effective_rank`.
    depths : dict
        Model -> `depth` and `trained_depth` in blocks, of models that run deeper than they were trained. Their last
        block is that of training.
    """
    random = _baseline(frames)
    found = [subtract(last_block(frames[table], depths), column, random) for table, column, _ in QUANTITIES]
    first = frames["inner_products"]
    # A row for the mean of each model, and one for each prompt under it.
    rows = [(m, prompt) for m in first["model"].unique() for prompt in (None, *first["prompt"].unique())]
    figure = matplotlib.figure.Figure(figsize=(11.0, 0.17 * len(rows) + 1.6), layout="constrained")
    axes = figure.subplots(1, len(QUANTITIES), sharey=True)
    undefined = 0
    for axis, (_, _, label), differences in zip(axes, QUANTITIES, found):
        axis.axvline(0.0, **style.REFERENCE)
        axis.set_title(label)
        axis.set_xlabel("trained minus random")
        axis.margins(x=0.1)
        undefined += _plot(axis, rows, differences)
    axes[0].set_yticks(range(len(rows)), [prompt or model for model, prompt in rows])
    axes[0].set_ylim(len(rows) - 0.4, -0.6)
    for tick, (_, prompt) in zip(axes[0].get_yticklabels(), rows):
        tick.set_fontweight("normal" if prompt else "bold")
    color = style.look("trained", "trained")["color"]
    handles = [
        Line2D([], [], ls="", color=color, **PROMPT, label="one prompt (line: range over seeds)"),
        Line2D([], [], ls="", color=color, **MEAN, label="mean over prompts (line: 95 % interval)"),
        Line2D([], [], ls="", marker="x", color="#444444", ms=4, label="undefined"),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    seeds = first.loc[first["scheme"] == random, "seed"].nunique()
    caption = (
        "Trained minus random at the last block"
        f"{_describe_depths(depths)}, for each model and prompt: the share of pairs with a cosine above 0.9, the mean "
        "cosine, the same without the three dimensions that add most to it, and the exponential of the entropy of the "
        "singular values of the directions. Right of 0 in the first three, left in the last: trained weights are "
        "nearer to collapse. A dot is a prompt, its line the range over seeds of the random weights; a diamond the "
        "mean over the prompts of a model, its line a 95 % interval by a studentised "
        "bootstrap over prompts, seeds averaged within each (from 3 prompts on). Models: "
        f"{', '.join(first['model'].unique())}. Weights: trained; "
        f"{style.look(random, random)['label'] if random else 'no random ones in this grid'}"
        f"{f' ({seeds} seeds)' if seeds > 1 else ' (one seed, no range)' if seeds else ''}. Prompts: "
        f"{', '.join(first['prompt'].unique())}. Tokens: {TOKEN_WORDS[TOKENS]}."
        f"{f' Undefined (crosses): {undefined} of {len(rows) * len(QUANTITIES)}.' if undefined else ''}"
    )
    return Drawing(figure, "Trained minus random", caption, _alternative(found))


def _baseline(frames):
    schemes = set(frames["inner_products"]["scheme"])
    return next((scheme for scheme in BASELINES if scheme in schemes), None)


def last_block(frame, depths):
    """The rows at the last block, of a model that runs deeper than it was trained at the last of training."""
    frame = frame[(frame["tokens"] == TOKENS) & (frame["stage"] == "block")]
    ends = {model: depth["trained_depth"] / depth["depth"] for model, depth in depths.items()}
    return frame[np.isclose(frame["depth"], frame["model"].map(ends).fillna(1.0).astype(float))]


def subtract(last, column, random):
    """{model: {prompt: trained minus random, one per seed, NaN where undefined}}."""
    trained = last[last["scheme"] == "trained"].set_index(["model", "prompt"])[column]
    others = last[last["scheme"] == random]
    found = {}
    for (model, prompt), values in others.groupby(["model", "prompt"], sort=False)[column]:
        own = trained.get((model, prompt), np.nan)
        found.setdefault(model, {})[prompt] = np.asarray(own - values, dtype=float)
    return found


def _plot(axis, rows, differences):
    """Draw one column; return how many rows are undefined in it."""
    color, undefined = style.look("trained", "trained")["color"], 0
    for place, (model, prompt) in enumerate(rows):
        runs = differences.get(model, {})
        middle, low, high = _of_prompt(runs, prompt) if prompt else _of_model(runs)
        if middle is None:
            axis.plot([0.5], [place], "x", color="#444444", ms=4, transform=axis.get_yaxis_transform())
            undefined += 1
            continue
        if low is not None:
            axis.plot([low, high], [place, place], "-", color=color, lw=1.2)
        axis.plot([middle], [place], ls="", color=color, **(PROMPT if prompt else MEAN))
    return undefined


def _describe_depths(depths):
    words = [f"{model}: {depth['trained_depth']} of {depth['depth']}" for model, depth in depths.items()]
    return f" (of training where a model runs deeper, {', '.join(words)})" if words else ""


def _of_prompt(runs, prompt):
    """Mean, smallest and largest over seeds; None for what is undefined, and for the range of one seed."""
    values = runs.get(prompt, np.array([np.nan]))
    if np.isnan(values).any():
        return None, None, None
    return (values.mean(), values.min(), values.max()) if len(values) > 1 else (values[0], None, None)


def _of_model(runs):
    """Mean over prompts and its interval; None for what is undefined."""
    means = [values.mean() for values in runs.values() if not np.isnan(values).any()]
    if not means:
        return None, None, None
    try:
        return np.mean(means), *interval(means)
    except Undefined:
        return np.mean(means), None, None


def _alternative(found):
    """Say, per model and quantity, the mean over prompts."""
    words = []
    for (_, _, label), differences in zip(QUANTITIES, found):
        means = {model: _of_model(runs)[0] for model, runs in differences.items()}
        said = ", ".join(f"{model} {'undefined' if m is None else f'{m:+.3g}'}" for model, m in means.items())
        words.append(f"{' '.join(label.split())}: {said or 'undefined'}")
    return f"Dots with intervals. Trained minus random, mean over prompts: {'; '.join(words)}."
