"""The metrics and figures of this workflow.

A metric is a module under collapse/metrics with a function of its own name, and a table in workflow/schemas/tables.yaml
that describes its columns and says, under `metric`, how it is run. A figure is an entry in `FIGURES`.
"""

from dataclasses import dataclass

from collapse.tables import description


@dataclass(frozen=True)
class Metric:
    """How the workflow runs one metric: the `metric` entry of its table.

    Attributes
    ----------
    over : str
        What its function is called with, and how often, see collapse.measure: `layer`, `trajectory`, `layer_labels`,
        `trajectory_labels`, `labels_per_token`; `attention`, see collapse.attention_tables; `groups`, see
        collapse.attention_groups.
    axis : str or None
        One more axis, with one file each: `beta` or `method`, given to the function under that keyword.
    token_table : str or None
        Name of a second table with one row per token, if the metric yields labels.
    packages : list of str
        Libraries, beside numpy and pyarrow, whose versions belong in the record.
    """

    over: str
    axis: str | None = None
    token_table: str | None = None
    packages: tuple = ()


METRICS = {name: Metric(**spec["metric"]) for name, spec in description()["tables"].items() if "metric" in spec}
# The options that each method of the projections uses.
METHOD_OPTIONS = {
    "pca": (),
    "tsne": ("depths", "perplexity", "seed", "tokens"),
    "umap": ("depths", "n_neighbors", "seed", "tokens"),
}


def module(name):
    """Return the dotted module of a metric."""
    return f"collapse.metrics.{name}"


@dataclass(frozen=True)
class Figure:
    """How the workflow draws one figure.

    Attributes
    ----------
    module : str
        Its module under collapse/figures.
    tables : tuple of str
        The tables it reads.
    per : str or None
        None for one figure; `model` or `beta` for one figure each.
    question : str
        The question in the report under which it stands.
    """

    module: str
    tables: tuple
    question: str
    per: str | None = None


COLLAPSE = "Do the tokens collapse?"
DIRECTIONS = "How many directions are left, and does the geometry change?"
THEORY = "Does the energy rise at every layer?"
CLUSTERS = "Do clusters form?"
ATTENTION = "What does attention do?"
TRAINING = "What do trained weights change?"

FIGURES = {
    "mass_near_one": Figure("curves", ("inner_products",), COLLAPSE),
    "mean_inner_product": Figure("curves", ("inner_products",), COLLAPSE),
    "mean_inner_product_without_rogue": Figure("curves", ("inner_products",), COLLAPSE),
    "inner_product_histograms": Figure("histograms", ("inner_products",), COLLAPSE, per="model"),
    "energy": Figure("curves", ("energy",), THEORY, per="beta"),
    "energy_by_beta": Figure("quantities", ("energy",), THEORY, per="model"),
    "effective_rank_raw": Figure("curves", ("effective_rank",), DIRECTIONS),
    "effective_rank_sphere": Figure("curves", ("effective_rank",), DIRECTIONS),
    "effective_rank_centred": Figure("curves", ("effective_rank",), DIRECTIONS),
    "cka_biased": Figure("curves", ("cka",), DIRECTIONS),
    "cka_debiased": Figure("curves", ("cka",), DIRECTIONS),
    "nn_stability": Figure("curves", ("nn_stability",), DIRECTIONS),
    "clusters": Figure("clusters", ("clusters",), CLUSTERS, per="model"),
    "n_clusters": Figure("curves", ("clusters",), CLUSTERS),
    "noise_fraction": Figure("curves", ("clusters",), CLUSTERS),
    "cluster_membership": Figure("membership", ("cluster_membership",), CLUSTERS, per="model"),
    "cluster_life": Figure("quantities", ("cluster_life",), CLUSTERS, per="model"),
    "cluster_plateaus": Figure("quantities", ("cluster_life",), CLUSTERS, per="model"),
    "projections": Figure("projections", ("projections", "cluster_labels"), CLUSTERS, per="model"),
    "pair_groups_mean": Figure("quantities", ("pair_groups", "energy"), CLUSTERS, per="model"),
    "pair_groups_mass": Figure("quantities", ("pair_groups",), CLUSTERS, per="model"),
    "pair_groups_share": Figure("quantities", ("pair_groups",), CLUSTERS, per="model"),
    "attention_entropy": Figure("curves", ("attention_entropy",), ATTENTION),
    "fiedler_symmetric": Figure("curves", ("fiedler",), ATTENTION),
    "fiedler_published": Figure("curves", ("fiedler",), ATTENTION, per="model"),
    "attention_punctuation": Figure("quantities", ("attention_received",), ATTENTION, per="model"),
    "attention_noise": Figure("quantities", ("attention_received",), ATTENTION, per="model"),
    "trained_minus_random": Figure("differences", ("inner_products", "effective_rank"), TRAINING),
}
