"""What a job loads and what it holds, each in a process of its own, run as Snakemake runs it."""

import pytest
from grid import every_job
from jobs import Runs
from runner import HEAVY, SCRIPTS

# What transformers imports of scipy is for the losses of models that detect objects; FNet takes its transform from it.
MODEL = {"torch", "transformers", "scipy"}
LOADED = {
    "trained_weights": {"torch"},
    "draw_weights": {"torch"},
    "extract": MODEL,
    "attention": MODEL | {"numba"},
    "clusters": {"hdbscan", "sklearn", "scipy"},
    "projections pca": {"scipy"},
    "projections tsne": {"sklearn", "scipy"},
    "identity_attention": {"numba", "scipy"},
    "draw_figure mean_inner_product": {"matplotlib", "pandas"},
    "draw_figure clusters": {"matplotlib", "pandas"},
    "write_explorer": {"pandas"},
}
# The bound that benchmarks/README.md states: matrices of n x n and of n x d in float64, what pyarrow holds of a file,
# and of what has a row per token, the rows of the table.
MATRICES, FILES, ROW = 16, 12, 1500 / 2**20
N, D = 200, 800
PER_TOKEN = ("clusters", "projections pca", "identity_attention")
MEASURED = (*PER_TOKEN, "inner_products", "effective_rank", "cka", "cluster_life", "identity_states")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """What each job of the smallest grid took; umap apart, which compiles for ten seconds."""
    jobs = every_job(tmp_path_factory.mktemp("small"), 8, 6, 2, 2, grid=(1, 1, 1))
    return {name: call() for name, call in jobs if name != "projections umap"}


def test_no_job_loads_what_it_does_not_use(small):
    for name, found in small.items():
        assert HEAVY & set(found["packages"]) == LOADED.get(name, set()), name


def test_every_script_is_looked_at(small):
    assert {found["script"] for found in small.values()} == {path.name for path in SCRIPTS.glob("*.py")}


def test_memory_is_that_of_one_layer_however_many_there_are(small, tmp_path):
    one = MATRICES * (N * N + N * D) * 8 / 2**20 + FILES
    few, many = (Runs(tmp_path / name, N, D, n_blocks) for name, n_blocks in (("few", 2), ("many", 12)))
    for runs in (few, many):
        runs.run("identity_states")
    for name in MEASURED:
        held, more = few.run(name)["megabytes"], many.run(name)["megabytes"]
        assert held - small[name]["megabytes"] < one, name
        # Ten more layers in float64 would be 12 MB.
        rows = 10 * 2 * N * ROW if name in PER_TOKEN else 0
        assert more - held < 5 + rows, name
