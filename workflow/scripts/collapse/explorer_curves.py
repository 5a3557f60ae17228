"""The curves beside the explorer's pictures: one number per state, of whatever tables the config computes.

`fiedler_published` is not among them: left and right share an axis, which causal and bidirectional heads must not.
"""

from dataclasses import dataclass, field, replace

from collapse.attention import MEAN_HEAD
from collapse.titles import TITLES


@dataclass(frozen=True)
class Curve:
    """One curve.

    Attributes
    ----------
    title : str
        What stands over it.
    table, column : str
        Where its values are.
    where : dict
        Column -> value of the rows that hold it, in tables with more than one row per state.
    bounds : (float or None, float or None)
        Ends of its axis; None: that of the values.
    """

    title: str
    table: str
    column: str
    where: dict = field(default_factory=dict)
    bounds: tuple = (0, None)

    def at(self, beta):
        """Return the curve of one inverse temperature."""
        return replace(self, title=f"{self.title}, beta {beta:g}", where=self.where | {"beta": beta})


def _of_figures(table, column, where=None, bounds=(0, None)):
    """A curve that the figures show too, under the same title."""
    return Curve(TITLES[table, column], table, column, where or {}, bounds)


SHARE = (0, 1)
TO_ONE = (None, 1)
HEADS = {"head": MEAN_HEAD}

CURVES = (
    _of_figures("inner_products", "mean_inner_product", bounds=TO_ONE),
    _of_figures("inner_products", "mean_inner_product_without_rogue", bounds=TO_ONE),
    _of_figures("inner_products", "mass_near_one", bounds=SHARE),
    _of_figures("clusters", "n_clusters"),
    Curve("Number of clusters, null", "clusters", "null_n_clusters"),
    _of_figures("clusters", "noise_fraction", bounds=SHARE),
    Curve("Noise fraction, null", "clusters", "null_noise_fraction", bounds=SHARE),
    _of_figures("effective_rank", "effective_rank_raw"),
    _of_figures("effective_rank", "effective_rank_sphere"),
    _of_figures("effective_rank", "effective_rank_centred"),
    _of_figures("cka", "cka_biased", bounds=SHARE),
    _of_figures("cka", "cka_debiased", bounds=TO_ONE),
    _of_figures("nn_stability", "nn_stability", bounds=SHARE),
    # One curve for each beta of the table.
    _of_figures("energy", "energy", bounds=(None, None)),
    Curve("Mean inner product within clusters", "pair_groups", "mean_inner_product", {"group": "within"}, TO_ONE),
    Curve("Mean inner product between clusters", "pair_groups", "mean_inner_product", {"group": "between"}, TO_ONE),
    Curve("Clusters born", "cluster_life", "births"),
    Curve("Clusters that survived", "cluster_life", "survivors"),
    Curve("Agreement of labels with the layer before (ARI)", "cluster_life", "adjacent_ari", bounds=TO_ONE),
    Curve("Number of groups by the eigengap", "spectral_k", "spectral_k"),
    _of_figures("fiedler", "fiedler_symmetric", HEADS),
    Curve("Fiedler value of uniform attention, symmetric", "fiedler", "fiedler_symmetric_uniform", HEADS),
    _of_figures("attention_entropy", "entropy", HEADS),
    Curve("Entropy of uniform attention", "attention_entropy", "entropy_uniform", HEADS),
    Curve(
        "Attention received by punctuation, mask-corrected",
        "attention_received",
        "received_mask_corrected",
        {"group": "punctuation"},
    ),
    Curve(
        "Attention received by noise tokens, mask-corrected",
        "attention_received",
        "received_mask_corrected",
        {"group": "noise"},
    ),
)
# What the page cannot do without, and where clusters and their colours come from.
PICTURES = ("runs", "projections")
LABELS = "cluster_labels"
TABLES = tuple(dict.fromkeys([*PICTURES, LABELS, *(curve.table for curve in CURVES)]))
