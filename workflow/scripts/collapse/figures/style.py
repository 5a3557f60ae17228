"""The one style of all figures: colours that colour-blind readers tell apart, line styles that survive grey print."""

import re
import textwrap

RC = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.dpi": 100,
    "savefig.dpi": 300,
    "svg.fonttype": "path",
    "svg.hashsalt": "token-collapse",
}

# Okabe and Ito's palette; each scheme also has its own dash.
LOOKS = {
    "trained": {"color": "#0072B2", "linestyle": "-", "linewidth": 1.6, "label": "trained"},
    "norm-matched": {"color": "#D55E00", "linestyle": "--", "linewidth": 1.3, "label": "random (norm-matched)"},
    "norm-matched-reset": {
        "color": "#CC79A7",
        "linestyle": (0, (5, 1, 1, 1)),
        "linewidth": 1.3,
        "label": "random (norm-matched, norms reset)",
    },
    "orthogonal": {
        "color": "#E69F00",
        "linestyle": "-.",
        "linewidth": 1.3,
        "label": "random (orthogonal)",
    },
    "library-init": {
        "color": "#000000",
        "linestyle": (0, (7, 2)),
        "linewidth": 1.0,
        "label": "random (library initialisation)",
    },
    "shuffled": {
        "color": "#56B4E9",
        "linestyle": (0, (3, 1, 1, 1, 1, 1)),
        "linewidth": 1.3,
        "label": "random (shuffled entries)",
    },
    "spectrum-matched": {
        "color": "#009E73",
        "linestyle": (0, (8, 2, 1, 2)),
        "linewidth": 1.3,
        "label": "random (spectrum-matched)",
    },
}
# What a variant of a scheme changes, by the word in its name, which is also what its label says. Dashes tell variants
# of one scheme apart, also in grey.
VARIANTS = {
    "embeddings": {"color": "#E69F00", "linestyle": (0, (1, 2))},
    "qk": {"color": "#56B4E9", "linestyle": (0, (4, 2))},
    "ov": {"color": "#009E73", "linestyle": (0, (4, 1, 1, 1))},
    "mlp": {"color": "#CC79A7", "linestyle": (0, (9, 2))},
    "reset": {"color": "#CC79A7", "linestyle": (0, (5, 1, 1, 1))},
    "zero-bias": {"color": "#777777", "linestyle": (0, (2, 1))},
}
COMPONENTS = ("embeddings", "qk", "ov", "mlp")
# The theory, one look per line in order of appearance. Their numbers have no common divisor: 20 lines look different.
THEORY = {"linewidth": 1.6}
THEORY_COLOURS = ("#009E73", "#56B4E9", "#E69F00", "#000000")
THEORY_DASHES = (":", (0, (1, 4)), (0, (1, 1, 1, 4)), (0, (1, 1, 1, 1, 1, 4)), (0, (2, 4)))
# The state after the final norm is an open mark, whose shape tells weights apart in grey.
SHAPES = {"trained": "o", "norm-matched": "s", "orthogonal": "^", "library-init": "v", "shuffled": "D"}
SHAPES["spectrum-matched"] = "P"

# Clusters in the plane: shapes tell them apart in grey. Eight of one and seven of the other make 56 looks.
CLUSTER_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442", "#000000")
CLUSTER_SHAPES = ("o", "s", "^", "D", "v", "P", "*")
NOISE = {"marker": "x", "color": "#999999", "ms": 3, "mew": 0.7, "ls": ""}
# Tokens whose clusters are undefined, or not computed.
UNKNOWN = {"marker": ".", "color": "#444444", "ms": 3, "ls": ""}
# What a token is, in the explorer.
KINDS = {
    "other": {"color": "#0072B2", "marker": "o"},
    "punctuation": {"color": "#E69F00", "marker": "^"},
    "first position": {"color": "#D55E00", "marker": "D"},
    "special": {"color": "#000000", "marker": "s"},
}
# Projections, as readers know them.
METHODS = {"pca": "PCA", "tsne": "t-SNE", "umap": "UMAP"}

# What a quantity is without content, under the same mask.
CONTROL = {"color": "#777777", "linestyle": "-", "linewidth": 0.9, "marker": "|", "ms": 4}
CONTROL["label"] = "uniform attention, same mask"
# A value to read others against.
REFERENCE = {"color": "#777777", "linestyle": "-", "linewidth": 0.9}
TRAINED_DEPTH = {"color": "#444444", "linestyle": "-", "linewidth": 0.6, "label": "_"}
# The same call on a cloud without structure.
NULL = {"color": "#444444", "linestyle": "-", "linewidth": 0.6, "marker": ".", "ms": 3}
NULL["label"] = "null of the trained cloud"


def apply():
    """Use this style, and no display."""
    # Not at the top: the explorer needs the colours alone.
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update(RC)


def look(scheme, weights, nth=0):
    """Return the line style of weights; of the theory that of the `nth` of its lines, whose label names its beta."""
    if scheme in LOOKS:
        return LOOKS[scheme]
    if scheme != "identity":
        return _variant(scheme)
    beta, step, steps = re.fullmatch(r"identity-b(.+?)(?:-step(.+?))?(?:-n(\d+))?", weights).groups()
    said = [f"step {step}"] * bool(step) + [f"{steps} steps"] * bool(steps)
    own = {"color": THEORY_COLOURS[nth % len(THEORY_COLOURS)], "linestyle": THEORY_DASHES[nth % len(THEORY_DASHES)]}
    return THEORY | own | {"label": ", ".join([f"theory, Q = K = V = I, beta {beta}", *said])}


def shape(scheme):
    """Return the mark of a scheme's state after the final norm; variants of one scheme share it."""
    return next(mark for name, mark in SHAPES.items() if scheme.startswith(name))


def _variant(scheme):
    """The look of a scheme that is limited to components, or treats norms or biases in another way.

    Several components at once have the colour of the scheme itself and the dash of the first.
    """
    base = next(name for name in LOOKS if scheme.startswith(f"{name}-") and name != "norm-matched-reset")
    words = [word for word in VARIANTS if f"-{word}" in scheme.removeprefix(base)]
    own = LOOKS[base] | VARIANTS[words[0]]
    limited = [word for word in words if word in COMPONENTS]
    if len(limited) > 1:
        own["color"] = LOOKS[base]["color"]
    said = [" and ".join(limited) + " only"] * bool(limited)
    said += ["norms reset"] * ("reset" in words) + ["biases zero"] * ("zero-bias" in words)
    return own | {"linewidth": 1.0, "label": LOOKS[base]["label"].removesuffix(")") + f", {', '.join(said)})"}


def prompt_label(prompt):
    """Return a prompt's name for an axis label: underscores become spaces or, in time, line breaks."""
    return fit(prompt.replace("_", " "), 1.05)


def fit(words, inches):
    """Break words into lines that are no longer than that in the size of titles and labels."""
    # A letter of this font is 0.6 of its size wide, a wide one 0.9.
    return "\n".join(textwrap.wrap(words, int(72 * inches / (0.62 * RC["axes.titlesize"]))))
