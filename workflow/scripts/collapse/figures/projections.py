"""Tokens in the plane, trained above random, coloured by cluster: one figure per model."""

import matplotlib.figure
from matplotlib.lines import Line2D

from collapse.figures import style
from collapse.figures.draw import Drawing
from collapse.figures.panels import TOKEN_WORDS, prompts_of
from collapse.summary import BASELINES

# Unless t-SNE and UMAP ran under the other token rule alone.
TOKENS = "content"
# Where only PCA was computed, which is at every layer: the source study's depths.
DEPTHS = (0.07, 0.6, 1.0)
CLUSTER = {"ms": 3, "mec": "#000000", "mew": 0.3, "ls": ""}
RUN = ["model", "weights", "prompt", "tokens", "layer", "stage", "position"]


def draw(name, subject, frames, depths):
    """Draw the projections of one model: two rows per prompt, a column per method and depth.

    Parameters
    ----------
    name : str
        Unused: this module draws one figure.
    subject : str
        The model.
    frames : dict of DataFrame
        `projections` and `cluster_labels`.
    depths : dict
        Model -> `depth` and `trained_depth` in blocks, of models that run deeper than they were trained: their caption
        says so, since depth is over columns here.
    """
    whole = _of_layers(frames["projections"], subject, TOKEN_WORDS)
    tokens = _tokens(whole)
    frame, labels = (_of_layers(frames[table], subject, [tokens]) for table in ("projections", "cluster_labels"))
    frame = frame.merge(labels[[*RUN, "label"]], on=RUN, how="left", validate="many_to_one")
    # A prompt that leaves no token under the rule has no row, and its panels.
    methods = [method for method in style.METHODS if method in set(whole["method"])]
    columns = [(method, depth) for method in methods for depth in _depths(whole)]
    weights, prompts = _weights(whole), prompts_of(whole)
    seeds = whole.loc[whole["scheme"].isin(BASELINES), "seed"].nunique()
    frame = frame[frame["weights"].isin(weights) & frame["depth"].isin({depth for _, depth in columns})]
    rows = [(prompt, slug) for prompt in prompts for slug in weights]
    figure = matplotlib.figure.Figure(
        figsize=(max(1.25 * len(columns) + 0.8, 6.0), 1.3 * len(rows) + 0.8), layout="constrained"
    )
    axes = figure.subplots(len(rows), len(columns), squeeze=False)
    undefined = []
    for line, (prompt, slug) in zip(axes, rows):
        run = frame[(frame["prompt"] == prompt) & (frame["weights"] == slug)]
        for axis, (method, depth) in zip(line, columns):
            undefined += _plot(axis, run[(run["method"] == method) & (run["depth"] == depth)])
        line[0].set_ylabel(f"{style.prompt_label(prompt)}\n({weights[slug]})")
    for axis, (method, depth) in zip(axes[0], columns):
        axis.set_title(f"{style.METHODS[method]}\ndepth {depth:.2f}")
    handles = [Line2D([], [], **_look(0), label="in a cluster"), Line2D([], [], **style.NOISE, label="noise")]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    schemes = dict(zip(whole["weights"], whole["scheme"]))
    words = "; ".join(f"{style.look(schemes[slug], slug)['label']}: {slug}" for slug in weights)
    caption = (
        f"Tokens of {subject} in the plane, from their directions, at the relative depths (layer / blocks) above the "
        "columns. Colour and shape are the HDBSCAN cluster, which is found in all dimensions and not in the plane; "
        "they do not carry over from panel to panel. Grey crosses are noise. Axes have no unit: distances compare "
        "within a panel only, and t-SNE and UMAP keep neighbours, not distances. "
        f"{_describe_settings(frame)}Weights: {words}. No band: a projection has no mean; of random weights the first "
        f"of {seeds} seed{'s' * (seeds != 1)} is shown. "
        f"Prompts, each on its own: {', '.join(prompts)}. Tokens: {TOKEN_WORDS[tokens]}."
        f"{_describe_depth(depths.get(subject))}{_describe_undefined(undefined, axes.size)}"
    )
    return Drawing(figure, f"Tokens in the plane: {subject}", caption, _alternative(frame, subject, weights, undefined))


def _of_layers(frame, subject, rules):
    own = frame[(frame["model"] == subject) & frame["tokens"].isin(rules)]
    return own[own["stage"] != "final_norm"]


def _tokens(frame):
    """The token rule that is drawn."""
    rules = set(frame.loc[frame["method"] != "pca", "tokens"])
    return rules.pop() if len(rules) == 1 else TOKENS


def _depths(frame):
    """The depths at which the costlier methods were run, or those nearest to the source study's."""
    chosen = frame.loc[frame["method"] != "pca", "depth"].unique()
    if not len(chosen):
        found = frame.loc[frame["scheme"] == "trained", "depth"].unique()
        chosen = {min(found, key=lambda depth: abs(depth - wanted)) for wanted in DEPTHS}
    return sorted(chosen)


def _weights(frame):
    """{slug: what to call it}: trained, and the first seed of the first scheme that can be a baseline."""
    slugs = frame[["scheme", "weights"]].drop_duplicates()
    shown = dict.fromkeys(slugs.loc[slugs["scheme"] == "trained", "weights"], "trained")
    random = next((scheme for scheme in BASELINES if scheme in set(slugs["scheme"])), None)
    return shown | dict.fromkeys(slugs.loc[slugs["scheme"] == random, "weights"][:1], "random")


def _plot(axis, cell):
    """Draw one panel; return its reason where it is undefined."""
    axis.set_xticks([])
    axis.set_yticks([])
    if cell.empty or cell["x"].isna().any():
        axis.text(0.5, 0.5, "undefined", ha="center", va="center", transform=axis.transAxes)
        return ["no token under this rule"] if cell.empty else [cell["undefined"].iloc[0]]
    labels = cell["label"].fillna(-2)
    for label, tokens in cell.groupby(labels):
        look = _look(int(label)) if label >= 0 else style.NOISE if label == -1 else style.UNKNOWN
        axis.plot(tokens["x"], tokens["y"], **look)
    axis.margins(0.08)
    axis.set_aspect("equal", adjustable="datalim")
    return []


def _look(label):
    """Colour and shape of a cluster: their numbers have no common divisor, so that few clusters look alike."""
    colour = style.CLUSTER_COLOURS[label % len(style.CLUSTER_COLOURS)]
    return CLUSTER | {"marker": style.CLUSTER_SHAPES[label % len(style.CLUSTER_SHAPES)], "mfc": colour}


def _describe_settings(frame):
    parts = []
    variance = frame["explained_variance_ratio"].dropna()
    if not variance.empty:
        parts.append(f"PCA shows {variance.min():.0%} to {variance.max():.0%} of the variance")
    for method, word in (("tsne", "perplexity"), ("umap", "neighbours")):
        sizes = frame.loc[frame["method"] == method, "neighbourhood"].dropna()
        if not sizes.empty:
            span = " to ".join(f"{size:g}" for size in sorted({sizes.min(), sizes.max()}))
            parts.append(f"{style.METHODS[method]} has {word} {span}")
    return f"{'; '.join(parts)}. " if parts else ""


def _describe_depth(depth):
    if depth is None:
        return ""
    return f" Training ended at block {depth['trained_depth']} of {depth['depth']}."


def _describe_undefined(undefined, n):
    if not undefined:
        return ""
    reason = max(dict.fromkeys(undefined), key=undefined.count)
    return f" Undefined in {len(undefined)} of {n} panels, most often: {reason}."


def _alternative(frame, subject, weights, undefined):
    last = frame[(frame["depth"] == frame["depth"].max()) & frame["label"].notna()].drop_duplicates(RUN)
    words = []
    for slug, kind in weights.items():
        runs = last[last["weights"] == slug].groupby("prompt", sort=False)["label"]
        counts = ", ".join(f"{prompt} {labels.max() + 1:.0f}" for prompt, labels in runs)
        words.append(f"{kind}: {counts or 'undefined'}")
    also = f" {len(undefined)} panels are undefined." if undefined else ""
    return f"Scatter plots of the tokens of {subject}. Clusters at the last block, {'; '.join(words)}.{also}"
