"""Every metric against its formula, slowly, on states and attention of the demo's real models.

Random clouds are isotropic; trained states are not: rogue dimensions, a first token of many times the usual length, and
near-collapse are where a formula that is right on clouds can lose its digits.
"""

import json
from itertools import pairwise

import numpy as np
import pytest
import test_attention_entropy
import test_attention_received
import test_attention_tokens
import test_cka
import test_cluster_life
import test_effective_rank
import test_energy
import test_fiedler
import test_inner_products
import test_nn_stability
import test_pair_groups
import test_projections
import test_spectral_k
import yaml
from clouds import assert_close, unit
from sklearn.cluster import HDBSCAN
from threadpoolctl import threadpool_limits

from collapse.attention import as_attention
from collapse.attention_pass import run_attention
from collapse.checkpoint import load_model
from collapse.extraction import extract
from collapse.fetch import fetch
from collapse.metrics.attention_entropy import attention_entropy
from collapse.metrics.attention_received import attention_received
from collapse.metrics.attention_tokens import attention_tokens
from collapse.metrics.cka import cka
from collapse.metrics.cluster_life import follow
from collapse.metrics.clusters import clusters
from collapse.metrics.effective_rank import effective_rank
from collapse.metrics.energy import energy
from collapse.metrics.fiedler import fiedler
from collapse.metrics.inner_products import inner_products
from collapse.metrics.nn_stability import nn_stability
from collapse.metrics.pair_groups import GROUPS, pair_groups
from collapse.metrics.projections import projections
from collapse.metrics.spectral_k import spectral_k
from collapse.states import StatesFile
from collapse.weights import draw, trained

REPOSITORY = test_projections.SCRIPTS.parents[1]
# The formulas take n^2 d steps in Python.
MAX_TOKENS = 40
NORM_MATCHED = {"scheme": "norm-matched", "seed": 0, "components": ["all"], "norms": "keep", "biases": "keep"}
RUNS = [("minilm-l6", "trained"), ("minilm-l6", "norm-matched-s0"), ("smollm2-135m", "trained")]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    with threadpool_limits(1):
        yield


class Run:
    """States of one real run, layer by layer, and the attention of its blocks, computed once."""

    def __init__(self, path, checkpoint):
        self.file = StatesFile(path)
        self.layers = [self.file.read(place).astype(np.float64) for place in range(len(self.file))]
        # First, middle and last block: the formulas are slow.
        n_blocks = self.file.metadata["n_blocks"]
        self.some = [self.layers[place] for place in (0, n_blocks // 2, n_blocks)]
        self.is_causal = self.file.metadata["is_causal"]
        model, entry = load_model(checkpoint, "cpu")
        self.attention = {}
        ids = self.file.tokens()["token_id"].to_pylist()
        run_attention(model, entry, ids, self._keep)

    def _keep(self, block, A):
        self.attention[block] = as_attention(A, self.is_causal)

    def labels(self):
        return [labels for _, labels, _ in clusters(self.layers, 2, None, null_draws=1, row_orders=1, seed=0)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root, made = tmp_path_factory.mktemp("real"), {}
    config = yaml.safe_load((REPOSITORY / "config" / "config.yaml").read_text())
    sources = {model["name"]: model["source"] for model in config["models"]}

    def get(model, weights):
        if (model, weights) not in made:
            place = root / model
            if not place.exists():
                fetch(model, sources[model], place / "snapshot", place / "source.json", root / "hub.lock.yaml")
                trained(place / "snapshot", place / "source.json", *checkpoint_of(place, "trained"))
            checkpoint, record = checkpoint_of(place, weights)
            if weights != "trained":
                draw(*checkpoint_of(place, "trained"), NORM_MATCHED, checkpoint, record)
            extract(
                run={"model": model, "weights": weights, "prompt": "p"},
                checkpoint=checkpoint,
                weights_record=json.loads(record.read_text()),
                scheme=weights,
                prompt=REPOSITORY / "resources" / "prompts" / "encyclopedia_paragraph.txt",
                max_tokens=MAX_TOKENS,
                device="cpu",
                threads=1,
                output=place / f"{weights}.parquet",
            )
            made[model, weights] = Run(place / f"{weights}.parquet", checkpoint)
        return made[model, weights]

    return get


def checkpoint_of(place, weights):
    return place / weights / "checkpoint", place / weights / "weights.json"


@pytest.fixture(params=RUNS, ids="/".join, scope="module")
def run(request, runs):
    return runs(*request.param)


def test_the_runs_are_what_is_hard(runs):
    """What the others are here for: collapse under random weights, a massive first token, rogue dimensions."""
    near_collapse = inner_products(runs("minilm-l6", "norm-matched-s0").layers[-1])
    assert near_collapse["mean_inner_product"] > 0.95
    smollm2 = runs("smollm2-135m", "trained")
    norms = np.linalg.norm(smollm2.layers[15], axis=1)
    assert norms[0] > 20 * np.median(norms)
    row = inner_products(smollm2.layers[15][1:])
    assert row["mean_inner_product"] - row["mean_inner_product_without_rogue"] > 0.1


def test_inner_products_on_real_states(run):
    for H in run.some:
        assert_close(inner_products(H), test_inner_products.slow(H) | {"undefined": None}, rel=1e-9)


@pytest.mark.parametrize("beta", [0.1, 1.0, 2.0, 5.0])
def test_energy_on_real_states(run, beta):
    for H, row in zip(run.some, energy(run.some, beta, 1e-6)):
        assert row["energy"] == pytest.approx(test_energy.slow(H, beta), rel=1e-12)


def test_effective_rank_on_real_states(run):
    for H in run.layers:
        assert_close(effective_rank(H), test_effective_rank.slow(H), rel=1e-6)


def test_cka_on_real_states(run):
    for (before, H), row in zip(pairwise(run.layers), list(cka(run.layers))[1:], strict=True):
        if row["cka_biased"] is None:
            assert "effective rank" in row["undefined"]
        else:
            X, Y = unit(before), unit(H)
            assert row["cka_biased"] == pytest.approx(test_cka.biased(X, Y), abs=1e-9)
            assert row["cka_debiased"] == pytest.approx(test_cka.debiased(X, Y), abs=1e-7)


def test_nn_stability_on_real_states(run):
    found = list(nn_stability(run.layers))[1:]
    neighbours = [test_nn_stability.nearest(H) for H in run.layers]
    for (before, after), row in zip(pairwise(neighbours), found, strict=True):
        if row["nn_stability"] is not None and row["n_compared"] == len(after):
            same = [a == b for a, b in zip(before, after)]
            assert row["nn_stability"] == pytest.approx(np.mean(same))


def test_clusters_on_real_states(run):
    """The other library's HDBSCAN, which counts a token among its own neighbours, where row order has no say.

    Mutual reachability makes ties of unequal distances, and each library breaks them in its own way.
    """
    compared = 0
    for H in run.layers:
        ((row, labels, _),) = clusters([H], 2, None, null_draws=1, row_orders=8, seed=0)
        distances = np.clip(1 - unit(H) @ unit(H).T, 0, 2)
        np.fill_diagonal(distances, 0)
        other = HDBSCAN(metric="precomputed", min_cluster_size=2, min_samples=3, copy=True).fit(distances).labels_
        assert row["mean_inner_product"] == pytest.approx(1 - distances[np.triu_indices(len(H), 1)].mean(), abs=1e-12)
        if row["row_order_ari"] == 1:
            assert test_cluster_life.slow_ari(list(labels), list(other)) > 0.9
            compared += 1
    assert compared


def test_what_is_measured_on_clusters(run):
    labels = run.labels()
    for H, own in zip(run.layers[::3], labels[::3]):
        expected = test_pair_groups.slow(H, own)
        for row in pair_groups(H, own):
            assert_close({name: row[name] for name in expected[row["group"]]}, expected[row["group"]], rel=1e-9)
        assert {row["group"] for row in pair_groups(H, own)} == set(GROUPS)
    tolerances = {"count_tolerance": 0.1, "ari_tolerance": 0.2}
    for row, expected in zip(follow(labels, **tolerances), test_cluster_life.slow(labels, **tolerances)):
        assert_close({name: row[name] for name in expected}, expected)


def test_spectral_k_on_real_states(run):
    for H in run.some:
        assert_close(spectral_k(H), test_spectral_k.slow(H), rel=1e-6)


def test_pca_on_real_states(run):
    for H in run.some:
        rows = projections(H, "pca")
        expected, share = test_projections.slow_pca(H)
        np.testing.assert_allclose(np.abs([(row["x"], row["y"]) for row in rows]), np.abs(expected), atol=1e-6)
        assert rows[0]["explained_variance_ratio"] == pytest.approx(share)


def test_fiedler_on_real_states(run):
    for A in (run.attention[0], run.attention[len(run.attention) - 1]):
        rows = fiedler(A[:2], run.is_causal, rounds=100, tolerance=1e-6)
        for head, row in zip(A[:2], rows):
            value, done, settled, residual = test_fiedler.slow_published(head, 100, 1e-6)
            assert row["fiedler_published"] == pytest.approx(value, abs=1e-9)
            assert (row["sinkhorn_rounds"], row["converged"]) == (done, settled)
            assert row["sinkhorn_residual"] == pytest.approx(residual, abs=1e-9)
            symmetric = test_fiedler.dense_second((head + head.T) / 2, loops=True)
            assert row["fiedler_symmetric"] == pytest.approx(symmetric, abs=1e-10)


def test_attention_of_tokens_and_rows(run):
    is_punctuation = run.file.tokens()["is_punctuation"].to_numpy()
    for block, labels in zip(run.attention, run.labels()):
        A = run.attention[block]
        for head, row in zip(A, attention_entropy(A, run.is_causal)):
            assert row["entropy"] == pytest.approx(test_attention_entropy.slow(head), abs=1e-10)
        rows = attention_tokens(A, run.is_causal)
        received, expected_uniform = ([row[name] for row in rows] for name in test_attention_tokens.COLUMNS)
        assert received == pytest.approx(test_attention_tokens.slow(A), rel=1e-9)
        members = {
            "clustered": labels >= 0,
            "noise": labels < 0,
            "punctuation": is_punctuation,
            "other": ~is_punctuation,
        }
        for row in attention_received(received, expected_uniform, is_punctuation, labels):
            inside = np.flatnonzero(members[row["group"]]).tolist()
            slow = test_attention_received.slow(received, expected_uniform, inside)
            assert_close({name: row[name] for name in slow}, slow, rel=1e-9)
