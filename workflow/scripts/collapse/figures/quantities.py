"""Several quantities of one model against relative depth: prompts down, quantities across, one figure per model."""

from dataclasses import dataclass

import matplotlib.figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from collapse.figures import style
from collapse.figures.draw import Drawing
from collapse.figures.panels import (
    describe_data,
    describe_trained_depth,
    is_degenerate,
    label_grid,
    legend,
    mark_trained_depth,
    plot_schemes,
    prompts_of,
    reach,
)

TOKENS = "content"
ENERGY = "energy"
SHARE = (-0.03, 1.03)
COSINE = (-1.03, 1.03)


@dataclass(frozen=True)
class Quantity:
    """One column of panels."""

    label: str
    column: str
    group: str | None = None
    limits: tuple | None = None
    # The inverse temperature of an energy; None for that nearest to 1, the theory's own.
    beta: float | None = None
    # The value that says nothing, drawn as a thin grey line.
    reference: float | None = None
    is_count: bool = False


@dataclass(frozen=True)
class Figure:
    """What a figure of this kind shows."""

    table: str
    title: str
    definition: str
    reading: str
    quantities: tuple
    # Say what the grey line is.
    reference: str | None = None
    # The quantity of the y axes with its unit, where it is the same for all or the titles do not say it.
    axis: str = ""


PAIR_GROUPS = {
    "within": "within a cluster",
    "between": "between clusters",
    "noise_clustered": "noise with clustered",
    "noise_noise": "noise with noise",
}
PAIRS = "Pairs of tokens are split by their clusters: both in one, in two, one of them noise, both noise. "
CIRCULAR = (
    "Clusters are made from the same cosines, so that pairs within one are closer even in a cloud without structure: "
    "read it beside the null in the figures of clusters."
)


def _pairs(column, limits):
    return tuple(Quantity(label, column, group, limits) for group, label in PAIR_GROUPS.items())


def _attention(group, words):
    return Figure(
        "attention_received",
        f"Attention received by {words}",
        f"the attention that {words} receive from other tokens, mean over heads and queries: per token over the mean "
        "of all tokens, the same over what uniform attention gives the same positions under the same mask, the share "
        "of all attention, and the share of tokens in the group",
        "Raw values carry the mask: under a causal one early tokens receive more whatever they are. Only what differs "
        "from 1 after the correction is attention's choice. Attention is of the state that enters a block.",
        (
            Quantity("raw\n(times the mean)", "received", group, reference=1.0),
            Quantity("mask-corrected\n(times uniform)", "received_mask_corrected", group, reference=1.0),
            Quantity("share of attention", "share_of_attention", group),
            Quantity("share of tokens", "share_of_tokens", group),
        ),
        "no preference",
    )


FIGURES = {
    "pair_groups_mean": Figure(
        "pair_groups",
        "Mean inner product by group of pairs",
        "the mean cosine over the pairs of each group, beside the interaction energy over all pairs",
        PAIRS + CIRCULAR,
        (*_pairs("mean_inner_product", COSINE), Quantity(ENERGY, ENERGY)),
        axis="mean cosine (last: energy)",
    ),
    "pair_groups_mass": Figure(
        "pair_groups",
        "Mass near one by group of pairs",
        "the share of each group's pairs with a cosine above 0.9",
        PAIRS + CIRCULAR,
        _pairs("mass_near_one", SHARE),
        axis="share above 0.9",
    ),
    "pair_groups_share": Figure(
        "pair_groups",
        "Share of pairs by group",
        "the pairs of each group over all pairs; the four add up to 1",
        PAIRS + "Means of a group with few pairs say little of the layer.",
        _pairs("share_of_pairs", SHARE),
        axis="share of all pairs",
    ),
    "cluster_life": Figure(
        "cluster_life",
        "Births, deaths, merges and splits of clusters",
        "how many clusters of a layer come from none of the layer before, of that layer lead to none, come from "
        "several, lead to several, and are linked one to one; linked are clusters that share more than half of the "
        "tokens of the smaller one",
        "Many survivors: structure that layers keep. Many births and deaths: clusters drawn anew, as in clouds without "
        "structure.",
        tuple(Quantity(name, name, is_count=True) for name in ("births", "deaths", "merges", "splits", "survivors")),
        axis="number of clusters",
    ),
    "cluster_plateaus": Figure(
        "cluster_life",
        "Age and stability of clusters",
        "the adjusted Rand index of the labels with those of the layer before, the mean age of the clusters of a "
        "layer, and whether the layer is on a plateau (1) or not (0): three layers in a row with clusters, whose "
        "number and labels change by no more than the tolerances of the config",
        "Plateaus are the metastable states of the theory. An index near 0 is what labels drawn anew give.",
        (
            Quantity("agreement with the\nlayer before (ARI)", "adjacent_ari", limits=(-0.55, 1.03), reference=0.0),
            Quantity("mean age (states)", "mean_lifespan"),
            Quantity("on a plateau\n(1 yes, 0 no)", "is_plateau", limits=SHARE),
        ),
        "labels drawn anew",
    ),
    "energy_by_beta": Figure(
        ENERGY,
        "Interaction energy",
        "the sum over all token pairs, self-pairs included, of exp(beta times cosine), over 2 beta n squared, for each "
        "inverse temperature beta",
        "Its largest value, exp(beta) / (2 beta), is collapse. That it can only rise is proved for Q = K = V = I, "
        "without a mask, at the beta of the dynamics.",
        (),
        axis="energy (no unit)",
    ),
    "attention_punctuation": _attention("punctuation", "punctuation"),
    "attention_noise": _attention("noise", "noise tokens"),
}


def draw(name, subject, frames, depths):
    """Draw the quantities of one model, a row of panels per prompt.

    Parameters
    ----------
    name : str
        A key of `FIGURES`.
    subject : str
        The model.
    frames : dict of DataFrame
        The results table of the quantities, and `energy` where it is one of them.
    depths : dict
        Model -> `depth` and `trained_depth` in blocks, of models that run deeper than they were trained.
    """
    spec = FIGURES[name]
    quantities = spec.quantities or _per_beta(frames[ENERGY])
    frame = _own(frames[spec.table], subject)
    if "received" in frame:
        frame = frame.assign(share_of_attention=frame["received"] * frame["share_of_tokens"])
    if "is_plateau" in frame:
        frame = frame.assign(is_plateau=frame["is_plateau"].astype("Float64").astype(float))
    parts, labels, nearest = [], [], None
    for quantity in quantities:
        label, part = quantity.label, frame
        if quantity.beta is not None:
            part = frame[frame["beta"] == quantity.beta]
        elif quantity.column == ENERGY:
            part, nearest = _energy(_own(frames[ENERGY], subject))
            label = f"energy, beta {nearest:g}"
        if quantity.group:
            part = frame[frame["group"] == quantity.group]
        parts.append(part)
        labels.append(label)
    prompts = prompts_of(frames[spec.table], subject)
    size = (max(1.75 * len(labels) + 1.0, 6.5), 1.45 * len(prompts) + 1.2)
    figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(prompts), len(labels), sharex=True, squeeze=False)
    for row, prompt in zip(axes, prompts):
        for axis, quantity, part in zip(row, quantities, parts):
            plot_schemes(axis, part[part["prompt"] == prompt], quantity.column)
            mark_trained_depth(axis, depths.get(subject))
            if quantity.reference is not None:
                axis.axhline(quantity.reference, **style.REFERENCE)
            if quantity.is_count:
                axis.yaxis.set_major_locator(MaxNLocator("auto", integer=True))
            free = (None, None) if quantity.column == ENERGY else (0, None)
            axis.set_ylim(*(reach(quantity.limits, part[quantity.column]) if quantity.limits else free))
    axes[0, 0].set_xlim(-0.02, 1.08)
    label_grid(axes, prompts, labels, "relative depth")
    undefined = [
        (label.replace("\n", " "), int(missing.sum()), len(missing))
        for label, quantity, part in zip(labels, quantities, parts)
        if (missing := _missing(part, quantity.column)).any()
    ]
    extra = [Line2D([], [], **style.REFERENCE, label=spec.reference)] if spec.reference else []
    legend(figure, frame, [], [*extra, *_cross(undefined)], spec.axis)
    title = f"{spec.title}: {subject}"
    caption = (
        f"{title}. Against relative depth (layer / blocks): {spec.definition}. {spec.reading} "
        f"{describe_data(frame, TOKENS)}{_describe_energy(nearest)}{_describe_undefined(undefined)}"
        f"{describe_trained_depth({subject: depths.get(subject)})}"
    )
    return Drawing(figure, title, caption, _alternative(quantities, title, parts, labels))


def _own(frame, subject):
    return frame[(frame["model"] == subject) & (frame["tokens"] == TOKENS)]


def _per_beta(frame):
    return tuple(Quantity(f"beta {beta:g}", ENERGY, beta=beta) for beta in sorted(frame["beta"].unique()))


def _energy(frame):
    """The energy at the inverse temperature nearest to 1, the theory's own, and that temperature."""
    beta = min(frame["beta"].unique(), key=lambda found: (abs(found - 1), found))
    return frame[frame["beta"] == beta], beta


def _missing(frame, column):
    return is_degenerate(frame[frame["stage"] != "final_norm"], column)


def _cross(undefined):
    return [Line2D([], [], ls="", marker="x", color="#444444", ms=3, label="undefined")] if undefined else []


def _describe_energy(beta):
    if beta is None:
        return ""
    return (
        f" The energy at beta {beta:g} is the sum over all token pairs, self-pairs included, of exp(beta times "
        "cosine), over 2 beta n squared."
    )


def _describe_undefined(undefined):
    words = "; ".join(f"{label}: {missing} of {n}" for label, missing, n in undefined)
    return f" Undefined states (crosses): {words}." if words else ""


def _alternative(quantities, title, parts, labels):
    """Say in words where each line ends: the mean over prompts at the deepest state."""
    said = []
    for label, quantity, part in zip(labels, quantities, parts):
        steps = part[part["stage"] != "final_norm"]
        last = steps[steps["depth"] == steps.groupby("weights")["depth"].transform("max")]
        means = last.groupby("scheme", sort=False)[quantity.column].mean().dropna()
        words = ", ".join(f"{scheme} {value:.3g}" for scheme, value in means.items()) or "undefined"
        said.append(f"{label.replace(chr(10), ' ')}: {words}")
    return f"Line plots of {title}, one row per prompt. At the deepest state, mean over prompts: {'; '.join(said)}."
