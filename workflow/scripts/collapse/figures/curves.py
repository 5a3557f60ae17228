"""One quantity against relative depth: prompts down, models across, trained against random and theory."""

from dataclasses import dataclass

from matplotlib.lines import Line2D

from collapse.attention import MEAN_HEAD
from collapse.figures import style
from collapse.figures.draw import Drawing
from collapse.figures.panels import (
    describe_data,
    describe_nulls,
    describe_trained_depth,
    grid,
    label_grid,
    legend,
    mark_trained_depth,
    plot_control,
    plot_schemes,
    prompts_of,
    reach,
)
from collapse.gate import DEGENERATE_RANK
from collapse.titles import TITLES


@dataclass(frozen=True)
class Curve:
    """What a figure of this kind shows."""

    table: str
    column: str
    tokens: str
    # The quantity of the y axis, with its unit.
    axis: str
    definition: str
    reading: str
    # Of the y axis, which reaches further where values do.
    limits: tuple | None = None
    # The column of the same quantity without content, drawn beside it.
    control: str | None = None
    # Whether degenerate states are marked; the gate itself is drawn where the quantity is what it looks at.
    is_gated: bool = False
    # Whether it is as in the source study, where another is its control.
    is_published: bool = False

    @property
    def label(self):
        """What stands over the figure."""
        return TITLES[self.table, self.column] + (" (as in the source study)" if self.is_published else "")


# Where a control is not uniform attention.
NULLS = {"null_n_clusters", "null_noise_fraction"}
NULL_WORDS = (
    " The thin line with dots is the same call on the trained cloud with each coordinate permuted over tokens: "
    "structure is what differs from it."
)
UNIFORM_WORDS = " The grey line is uniform attention under the same mask."
GATE_COLUMN = "effective_rank_sphere"
GATE_WORDS = (
    f" Triangles mark degenerate states: their directions have an effective rank below {DEGENERATE_RANK:g}, so that "
    "CKA and nearest neighbours would compare rounding and are undefined there."
)


CURVES = {
    "mass_near_one": Curve(
        "inner_products",
        "mass_near_one",
        "content",
        "share of pairs",
        "the share of token pairs whose directions have a cosine above 0.9",
        "At 1 all tokens point nearly the same way: collapse. At 0 no pair is above the threshold, which says nothing "
        "of pairs just below it.",
        (-0.03, 1.03),
    ),
    "mean_inner_product": Curve(
        "inner_products",
        "mean_inner_product",
        "content",
        "mean cosine",
        "the mean cosine over pairs of token directions",
        "At 1 all tokens point the same way; independent directions in high dimension give about 0.",
        (-0.35, 1.03),
    ),
    "mean_inner_product_without_rogue": Curve(
        "inner_products",
        "mean_inner_product_without_rogue",
        "content",
        "mean cosine",
        "the mean cosine over pairs of token directions, after the three dimensions that add most to it are left out",
        "The control of the mean inner product: what is gone here was three coordinates, not the cloud.",
        (-0.35, 1.03),
    ),
    "energy": Curve(
        "energy",
        "energy",
        "content",
        "energy (no unit)",
        "the sum over all token pairs, self-pairs included, of exp(beta times cosine), over 2 beta n squared",
        "Its largest value, exp(beta) / (2 beta), is collapse. That it can only rise is proved for Q = K = V = I, "
        "without a mask, at the beta of the dynamics; under a causal mask, or at another beta, it can fall there too.",
    ),
    "effective_rank_raw": Curve(
        "effective_rank",
        "effective_rank_raw",
        "all",
        "effective rank (directions)",
        "the exponential of the entropy of the normalised singular values of the raw states",
        "It counts directions in use and is at most the number of tokens. Norms count, so one massive token can set "
        "it; the version of directions alone, without the first token, is its control.",
        is_gated=True,
        is_published=True,
    ),
    "effective_rank_sphere": Curve(
        "effective_rank",
        "effective_rank_sphere",
        "content",
        "effective rank (directions)",
        "the exponential of the entropy of the normalised singular values of the states divided by their norms",
        "The control of the raw version: norms do not enter. At 1 all tokens point the same way.",
        is_gated=True,
    ),
    "effective_rank_centred": Curve(
        "effective_rank",
        "effective_rank_centred",
        "content",
        "effective rank (directions)",
        "the exponential of the entropy of the normalised singular values of the states divided by their norms, less "
        "their mean over tokens",
        "Neither norms nor a direction that all tokens share enter. It has no scale: of a nearly collapsed cloud it "
        "describes what is left, and can be large.",
        is_gated=True,
    ),
    "cka_biased": Curve(
        "cka",
        "cka_biased",
        "all",
        "CKA (no unit)",
        "linear centred CKA of token directions with the layer before",
        "Near 1 a layer keeps the geometry. Independent clouds of n tokens in d dimensions give d / (n + d), not 0. "
        "The debiased version is its control, and of content tokens: the table tells estimator and token rule apart.",
        (-0.05, 1.05),
        is_published=True,
    ),
    "cka_debiased": Curve(
        "cka",
        "cka_debiased",
        "content",
        "CKA (no unit)",
        "linear centred CKA of token directions with the layer before, from the unbiased estimator of HSIC",
        "The control of the biased version, which is of all tokens: independent clouds give 0 on average.",
        (-0.25, 1.05),
    ),
    "nn_stability": Curve(
        "nn_stability",
        "nn_stability",
        "content",
        "share of tokens",
        "the share of tokens whose nearest neighbour by cosine is the same token as in the layer before",
        "Near 1 the local geometry is kept; in a collapsed layer neighbours are rounding, so it is undefined there.",
        (-0.05, 1.05),
    ),
    "n_clusters": Curve(
        "clusters",
        "n_clusters",
        "content",
        "number of clusters",
        "the number of HDBSCAN clusters of token directions (precomputed cosine distances)",
        "0 is what HDBSCAN says both of a collapsed cloud and of a scattered one: read it beside the mean inner "
        "product.",
        control="null_n_clusters",
    ),
    "noise_fraction": Curve(
        "clusters",
        "noise_fraction",
        "content",
        "share of tokens",
        "the share of tokens in no HDBSCAN cluster of token directions (precomputed cosine distances)",
        "1 is what HDBSCAN says both of a collapsed cloud and of a scattered one: read it beside the mean inner "
        "product.",
        (-0.03, 1.03),
        control="null_noise_fraction",
    ),
    "fiedler_symmetric": Curve(
        "fiedler",
        "fiedler_symmetric",
        "content",
        "Fiedler value (no unit)",
        "the second eigenvalue of the normalised Laplacian of (A + A^T) / 2, mean of the heads' values",
        "At 0 a head falls into parts that do not attend to each other. What uniform attention gives under the same "
        "mask is no merit of the head's.",
        (-0.05, 1.35),
        control="fiedler_symmetric_uniform",
    ),
    "fiedler_published": Curve(
        "fiedler",
        "fiedler_published",
        "all",
        "Fiedler value (no unit)",
        "the same after clip, alternate normalisation and without self-loops, mean of the heads' values",
        "Under a causal mask it is set by the clip and the number of rounds, as the value of uniform attention shows; "
        "so every model has a figure of its own, and causal and bidirectional heads are never on one axis.",
        (-0.05, 2.05),
        control="fiedler_published_uniform",
    ),
    "attention_entropy": Curve(
        "attention_entropy",
        "entropy",
        "content",
        "entropy (nats)",
        "the entropy of a row of attention, in nats, mean over rows and heads",
        "At 0 every token attends to one alone; at most what uniform attention gives under the same mask.",
        control="entropy_uniform",
    ),
}


def draw(name, subject, frames, depths):
    """Draw one quantity for every prompt and model.

    Parameters
    ----------
    name : str
        A key of `CURVES`.
    subject : str
        `b` and an inverse temperature for the energy, a model for a figure that each has of its own, else empty.
    frames : dict of DataFrame
        The results table that the quantity is in.
    depths : dict
        Model -> `depth` and `trained_depth` in blocks, of models that run deeper than they were trained.
    """
    curve = CURVES[name]
    frame = frames[curve.table]
    frame = frame[frame["tokens"] == curve.tokens]
    title = curve.label
    if curve.table == "energy":
        beta = float(subject.removeprefix("b"))
        frame = frame[frame["beta"] == beta]
        title = f"{curve.label} at beta {subject.removeprefix('b')}"
    elif subject:
        frame = frame[frame["model"] == subject]
        title = f"{curve.label}, {subject}"
    if "head" in frame:
        frame = frame[frame["head"] == MEAN_HEAD]
    is_null = curve.control in NULLS
    if curve.is_gated:
        frame = frame.assign(is_below_gate=frame[GATE_COLUMN] < DEGENERATE_RANK)
    models, prompts = list(frame["model"].unique()), prompts_of(frame)
    # Quantities without natural limits depend on the number of tokens: a scale per prompt, the same for all models.
    figure, axes = grid(len(prompts), len(models), sharey=True if curve.limits else "row")
    for row, prompt in zip(axes, prompts):
        for axis, model in zip(row, models):
            panel = frame[(frame["model"] == model) & (frame["prompt"] == prompt)]
            plot_schemes(axis, panel, curve.column, "is_below_gate" if curve.is_gated else None)
            mark_trained_depth(axis, depths.get(model))
            if is_null:
                plot_control(axis, panel[panel["scheme"] == "trained"], curve.control, style.NULL)
            elif curve.control:
                plot_control(axis, panel, curve.control, style.CONTROL)
            if curve.column == GATE_COLUMN:
                axis.axhline(DEGENERATE_RANK, **style.REFERENCE)
    axes[0, 0].set_xlim(-0.02, 1.08)
    drawn = [frame[column] for column in (curve.column, curve.control) if column]
    for row in axes:
        # An energy at a small beta is nearly constant: from zero its changes would not be seen.
        free = (None, None) if curve.table == "energy" else (0, None)
        row[0].set_ylim(*(reach(curve.limits, *drawn) if curve.limits else free))
    label_grid(axes, prompts, models, "relative depth (layer / blocks)")
    extra = [Line2D([], [], **style.NULL if is_null else style.CONTROL)] if curve.control else []
    extra += _gate(frame, curve)
    legend(figure, frame, [curve.column], extra, curve.axis)
    caption = (
        f"{title}: {curve.definition}, against relative depth. {curve.reading} {describe_data(frame, curve.tokens)}"
        f"{NULL_WORDS if is_null else UNIFORM_WORDS if curve.control else ''}{GATE_WORDS if curve.is_gated else ''}"
        f"{describe_nulls(frame, curve.column)}{_describe_drops(frame) if curve.table == 'energy' else ''}"
        f"{_describe_no_clusters(frame) if curve.table == 'clusters' else ''}"
        f"{describe_trained_depth({model: depths.get(model) for model in models})}"
    )
    return Drawing(figure, title, caption, _alternative(frame, curve, title))


def _gate(frame, curve):
    """Legend entries of the gate: the line where it is drawn, and the mark where a state is below it."""
    handles = []
    if curve.column == GATE_COLUMN:
        handles.append(Line2D([], [], **style.REFERENCE, label=f"gate: {DEGENERATE_RANK:g} directions"))
    if curve.is_gated and frame["is_below_gate"].any():
        handles.append(Line2D([], [], ls="", marker="v", color="#444444", ms=3, label="degenerate (below the gate)"))
    return handles


def _describe_drops(frame):
    """Say how many steps of depth lower the energy beyond the tolerance, per model and weights."""
    steps = frame[(frame["stage"] == "block") & frame["is_drop"].notna()]
    counts = steps.groupby(["model", "scheme"], sort=False)["is_drop"].agg(["sum", "size"])
    words = "; ".join(f"{model} {scheme}: {int(drops)} of {n}" for (model, scheme), drops, n in counts.itertuples())
    return f" Steps at which it falls beyond the tolerance, over prompts and seeds: {words}."


def _describe_no_clusters(frame):
    """Say what the mean inner product is where all is noise: near 1 that is collapse, else a scattered cloud."""
    empty = frame[frame["n_clusters"] == 0]
    ranges = empty.groupby(["model", "scheme"], sort=False)["mean_inner_product"].agg(["size", "min", "max"])
    words = "; ".join(f"{m} {s}, {n} states: {low:.2f} to {high:.2f}" for (m, s), n, low, high in ranges.itertuples())
    return f" Mean inner product where no cluster was found, per model and weights: {words}." if words else ""


def _alternative(frame, curve, title):
    """Say in words where each line ends: the value at the last block, over prompts."""
    blocks = frame[frame["stage"] == "block"]
    # Attention belongs to the state that enters a block: the last of those is not the last of the states.
    last = blocks[blocks["depth"] == blocks.groupby("model")["depth"].transform("max")]
    ends = last.groupby(["model", "scheme"], sort=False)[curve.column].agg(["min", "max"]).dropna()
    words = "; ".join(f"{m}, {s}: {low:.3g} to {high:.3g}" for (m, s), low, high in ends.itertuples())
    words = words or "undefined everywhere"
    where = "block's attention" if curve.control and curve.control not in NULLS else "block"
    return f"Line plots of {title.lower()}, one panel per prompt and model. At the last {where}, over prompts: {words}."
