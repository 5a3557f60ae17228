"""The straightforward pipeline and the workflow give the same numbers, and the benchmarks run."""

import bench
import growth
import kernels
import numpy as np
import pytest
import straightforward as plain

from collapse.attention import restrict
from collapse.metrics.attention_entropy import attention_entropy
from collapse.metrics.attention_received import attention_received
from collapse.metrics.attention_tokens import attention_tokens
from collapse.metrics.cka import cka
from collapse.metrics.cluster_life import cluster_life
from collapse.metrics.cluster_membership import cluster_membership
from collapse.metrics.clusters import clusters
from collapse.metrics.effective_rank import effective_rank
from collapse.metrics.energy import energy
from collapse.metrics.fiedler import fiedler
from collapse.metrics.inner_products import inner_products
from collapse.metrics.nn_stability import nn_stability
from collapse.metrics.pair_groups import pair_groups
from collapse.metrics.projections import projections
from collapse.metrics.spectral_k import spectral_k

OPTIONS = {
    "energy": {"betas": [0.1, 5.0], "tolerance": 1e-6},
    "clusters": {"min_cluster_size": 2, "min_samples": None, "null_draws": 2, "row_orders": 1, "seed": 0},
    "cluster_life": {"count_tolerance": 0.3, "ari_tolerance": 0.6, "rank_tolerance": 0.1},
    "projections": {"seed": 0, "perplexity": 30, "n_neighbors": 15, "tokens": ["content"]},
    "fiedler": {"rounds": 100, "tolerance": 1e-6},
}
N, D, LAYERS = 40, 24, 4
MASKS = {"all": np.ones(N, dtype=bool), "content": np.arange(N) > 0}


@pytest.fixture(scope="module")
def run():
    """Layers, and what the straightforward pipeline says of them."""
    layers = kernels.trajectory(N, D, LAYERS)
    named = [(layer, "block", H) for layer, H in enumerate(layers)]
    rows, seconds = plain.run_states(named, MASKS, np.arange(N), OPTIONS)
    assert set(seconds) >= set(rows) - {"cluster_labels"}
    return layers, rows


def ours(metric, layers, labels):
    """What the workflow says, layer by layer, of the same tokens and the same labels."""
    trajectories = {"cka": cka, "nn_stability": nn_stability}
    by_layer = {"inner_products": inner_products, "effective_rank": effective_rank, "spectral_k": spectral_k}
    if metric in trajectories:
        return trajectories[metric](layers)
    if metric in by_layer:
        return map(by_layer[metric], layers)
    if metric == "energy":
        return (row for beta in OPTIONS["energy"]["betas"] for row in energy(layers, beta, 1e-6))
    if metric == "pair_groups":
        return (row for H, own in zip(layers, labels) for row in pair_groups(H, own))
    if metric == "cluster_life":
        return cluster_life(layers, labels, **OPTIONS["cluster_life"])
    return cluster_membership(labels, len(layers[0]))


METRICS = ("inner_products", "energy", "effective_rank", "cka", "nn_stability", "spectral_k", "pair_groups")


@pytest.mark.parametrize("metric", [*METRICS, "cluster_life", "cluster_membership"])
def test_the_straightforward_pipeline_says_the_same_of_states(run, metric):
    layers, rows = run
    expected = [
        row
        for rule, mask in MASKS.items()
        for row in ours(metric, [H[mask] for H in layers], rows["cluster_labels"][rule])
    ]
    compare(rows[metric], expected, 1e-9)


def compare(rows, expected, tolerance):
    for row, wanted in zip(rows, expected, strict=True):
        for name, value in wanted.items():
            if name != "undefined":
                exact = value is None or isinstance(value, (str, list))
                assert row[name] == (value if exact else pytest.approx(value, rel=tolerance, abs=tolerance)), name


def test_clusters_have_the_same_controls_and_their_own_counts(run):
    """The Euclidean mode of HDBSCAN may count otherwise; what no clustering enters is the same."""
    layers, rows = run
    for row, (wanted, *_) in zip(rows["clusters"], clusters(layers, **OPTIONS["clusters"])):
        assert row.keys() == (wanted.keys() - {"undefined"}) | {"n_duplicate_clusters", "duplicate_token_share"}
        compare([row], [{name: wanted[name] for name in ("mean_inner_product", "tied_share")}], 1e-12)


def test_principal_axes_are_the_same_up_to_their_direction(run):
    layers, rows = run
    expected = [row for H in layers for row in projections(H, "pca")]
    for row, wanted in zip(rows["projections"], expected):
        assert [abs(row["x"]), abs(row["y"])] == pytest.approx([abs(wanted["x"]), abs(wanted["y"])], abs=1e-9)
        assert row["explained_variance_ratio"] == pytest.approx(wanted["explained_variance_ratio"])


@pytest.mark.parametrize("is_causal", [False, True])
def test_the_straightforward_pipeline_says_the_same_of_attention(is_causal):
    A = np.array([kernels.attention(N, is_causal, seed) for seed in range(3)])
    is_punctuation = np.arange(N) % 5 == 2
    labels = np.arange(N) % 7 - 1
    by_rule = {rule: [labels[mask]] for rule, mask in MASKS.items()}
    rows, _ = plain.run_attention([A], MASKS, is_causal, is_punctuation, by_rule, OPTIONS)
    wanted = {metric: [] for metric in rows}
    for rule, mask in MASKS.items():
        cut = restrict(A, mask)
        wanted["fiedler"] += fiedler(cut, is_causal, 100, 1e-6)
        wanted["attention_entropy"] += attention_entropy(cut, is_causal)
        tokens = attention_tokens(cut, is_causal)
        wanted["attention_tokens"] += tokens
        columns = [[row[name] for row in tokens] for name in ("received", "received_uniform")]
        wanted["attention_received"] += attention_received(*columns, is_punctuation[mask], by_rule[rule][0])
    for metric, found in rows.items():
        compare(found, wanted[metric], 1e-9)


@pytest.mark.parametrize("n", [48, 160])
def test_every_kernel_is_its_straightforward_form_within_the_stated_error(n):
    """From 150 tokens on Fiedler values are found by Lanczos' method."""
    for name, kernel in kernels.kernels(n, 64, 96).items():
        assert kernels.difference(kernel) <= kernel.error, name


def test_a_tiny_bench_runs(capsys):
    bench.kernels_table(bench.TINY)
    bench.state_metrics_table(bench.TINY)
    bench.passes_table(bench.TINY)
    printed = capsys.readouterr().out
    for line in ("Sinkhorn", "spectral_k", "bytes stored over bytes of float32 states", "minilm-l6"):
        assert line in printed


def test_growth_finds_exponents_and_what_dominates():
    assert growth.exponent((2, 4, 8), (0.0, 1.0, 4.0)) == pytest.approx(2)
    assert growth.exponent((2, 4), (0.0, 1.0)) is None
    costs = {"square": [(n**2, 10 + n) for n in (2, 4, 8)], "constant": [(5, float("nan"))] * 3}
    lines = growth.table("tokens", (2, 4, 8), costs).splitlines()
    assert lines[2].startswith("| square | 4 s | 16 s | 64 s | 2.00 | 2.00 | 12 to 18 MB |")
    assert "| 0.00 | 0.00 | - | - |" in lines[3].replace("-0.00", "0.00")
    assert lines[-1] == "Most time at each size: constant at 2, square at 4, square at 8."
    assert set(growth.over_heads((2, 4), 16)) == {"fiedler", "attention_entropy", "attention_tokens"}
