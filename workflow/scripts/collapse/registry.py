"""The metrics of this workflow: one entry each. See docs of `Metric` for what an entry says.

To add a metric: a module under collapse/metrics, an entry here, its columns in workflow/schemas/tables.yaml, and its
name under `metrics` in the config.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """How the workflow runs one metric.

    Attributes
    ----------
    function : str
        Name of the function, in the module of the metric's name.
    over : str
        `layer` or `trajectory`, see collapse.metrics; `layer_labels` or `labels` for metrics of clusters.
    options : bool
        Whether the config has a section of the metric's name, whose entries are the function's keyword arguments.
    per_beta : bool
        Whether it has the inverse temperature as one more axis: one file per beta, given as the keyword `beta`.
    token_table : str or None
        Name of a second table with one row per token, if the metric yields labels.
    packages : tuple of str
        Libraries, beside numpy and pyarrow, whose versions belong in the record.
    """

    function: str
    over: str = "layer"
    options: bool = False
    per_beta: bool = False
    token_table: str | None = None
    packages: tuple = ()


METRICS = {
    "inner_products": Metric("inner_products"),
    "energy": Metric("energy", over="trajectory", options=True, per_beta=True),
    "effective_rank": Metric("effective_rank"),
    "cka": Metric("cka", over="trajectory"),
    "nn_stability": Metric("nn_stability", over="trajectory"),
    "clusters": Metric(
        "clusters",
        over="trajectory",
        options=True,
        token_table="cluster_labels",
        packages=("hdbscan", "scikit-learn"),
    ),
    "pair_groups": Metric("pair_groups", over="layer_labels"),
    "cluster_life": Metric("cluster_life", over="labels", options=True),
    "spectral_k": Metric("spectral_k"),
}


def needs_labels(metric):
    """Tell whether a metric reads the table of cluster labels."""
    return metric.over in ("labels", "layer_labels")


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

FIGURES = {
    "mass_near_one": Figure("curves", ("inner_products",), COLLAPSE),
    "mean_inner_product": Figure("curves", ("inner_products",), COLLAPSE),
    "mean_inner_product_without_rogue": Figure("curves", ("inner_products",), COLLAPSE),
    "inner_product_histograms": Figure("histograms", ("inner_products",), COLLAPSE, per="model"),
    "energy": Figure("curves", ("energy",), THEORY, per="beta"),
    "effective_rank_raw": Figure("curves", ("effective_rank",), DIRECTIONS),
    "effective_rank_sphere": Figure("curves", ("effective_rank",), DIRECTIONS),
    "effective_rank_centred": Figure("curves", ("effective_rank",), DIRECTIONS),
    "cka_biased": Figure("curves", ("cka",), DIRECTIONS),
    "cka_debiased": Figure("curves", ("cka",), DIRECTIONS),
    "nn_stability": Figure("curves", ("nn_stability",), DIRECTIONS),
    "clusters": Figure("clusters", ("clusters",), CLUSTERS, per="model"),
}
