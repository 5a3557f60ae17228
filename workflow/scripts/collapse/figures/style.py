"""The one style of all figures: colours that colour-blind readers tell apart, line styles that survive grey print."""

import matplotlib

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
}
# The theory, one look per beta in order of appearance.
THEORY = {"linestyle": ":", "linewidth": 1.6}
THEORY_COLOURS = ("#009E73", "#56B4E9", "#E69F00", "#000000")


# What a quantity is without content, under the same mask.
CONTROL = {"color": "#777777", "linestyle": "-", "linewidth": 0.9, "label": "uniform attention, same mask"}


def apply():
    """Use this style, and no display."""
    matplotlib.use("Agg")
    matplotlib.rcParams.update(RC)


def look(scheme, weights):
    """Return the line style of weights; a theory line has a colour of its beta, which its label names."""
    if scheme != "identity":
        return LOOKS[scheme]
    beta = weights.removeprefix("identity-b")
    colour = THEORY_COLOURS[0 if beta == "1" else 1 + sum(beta.encode()) % (len(THEORY_COLOURS) - 1)]
    return THEORY | {"color": colour, "label": f"theory, Q = K = V = I, beta {beta}"}


def prompt_label(prompt):
    """Return a prompt's name for an axis label: underscores become spaces or, in time, line breaks."""
    words, lines = prompt.split("_"), [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) > 14:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)
