import numpy as np
import pytest
from clouds import (
    assert_close,
    assert_honest,
    assert_null,
    broken,
    cloud,
    coarse_cloud,
    copies,
    laws,
    lengths,
    rotation,
    seeds,
)
from hypothesis import given, settings
from sklearn.cluster import HDBSCAN
from sklearn.metrics import adjusted_rand_score

from collapse.errors import Refusal
from collapse.geometry import cosines, on_sphere
from collapse.metrics import clusters as module
from collapse.metrics.clusters import clusters, hdbscan_on_sphere, token_rows
from collapse.metrics.inner_products import inner_products

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

DEFAULTS = {"min_cluster_size": 2, "min_samples": None, "null_draws": 3, "row_orders": 3, "seed": 0}


def one(H, **options):
    (result,) = clusters([H], **DEFAULTS | options)
    return result


def planted(groups, size, d, seed=0, spread=0.05):
    """Groups of tokens around independent directions, in random order, with the group of each token."""
    rng = np.random.default_rng(seed)
    group = rng.permutation(np.repeat(np.arange(groups), size))
    return rng.normal(size=(groups, d))[group] + spread * rng.normal(size=(groups * size, d)), group


def agreement(labels, others):
    return adjusted_rand_score(labels, others)


@pytest.mark.parametrize("min_cluster_size", [2, 5])
@pytest.mark.parametrize("seed", range(3))
def test_three_planted_groups_are_found_HD03(seed, min_cluster_size):
    """HD03: three planted groups are 20, 20, 20 on the precomputed distances."""
    H, group = planted(3, 20, 8, seed)
    row, labels, probabilities = one(lengths(60, seed) * H, min_cluster_size=min_cluster_size)
    assert agreement(labels, group) == 1
    assert np.bincount(labels).tolist() == [20, 20, 20]
    assert (row["n_clusters"], row["noise_fraction"], row["mean_cluster_size"]) == (3, 0, 20)
    assert row["largest_cluster_share"] == pytest.approx(1 / 3)
    assert_honest(row)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_groups_within_a_narrow_cone_are_found(dtype):
    """Nearly collapsed is not collapsed: cosines of 1 - 1e-7 between groups are far above the rounding of float32."""
    offsets, group = planted(3, 20, 64)
    H = (3 * cloud(1, 64, seed=5) + 1e-3 * offsets).astype(dtype)
    row, labels, _ = one(H, min_cluster_size=5)
    assert row["mean_inner_product"] > 1 - 1e-6
    assert agreement(labels, group) == 1


def test_a_token_far_from_every_group_is_noise():
    H, group = planted(3, 20, 16)
    row, labels, probabilities = one(np.vstack([H, -H.sum(axis=0)]), min_cluster_size=5)
    assert agreement(labels[:-1], group) == 1
    assert (labels[-1], probabilities[-1]) == (-1, 0)
    assert row["noise_fraction"] == pytest.approx(1 / 61)
    assert row["mean_cluster_size"] == 20
    assert row["largest_cluster_share"] == pytest.approx(20 / 61)


def test_summaries_are_those_of_the_labels():
    row, labels, _ = one(cloud(60, 5), min_cluster_size=3)
    found = labels[labels >= 0]
    sizes = [np.sum(found == label) for label in set(found.tolist())]
    assert len(sizes) > 1
    assert 0 < row["noise_fraction"] < 1
    assert row["n_clusters"] == len(sizes)
    assert row["noise_fraction"] == np.mean(labels == -1)
    assert row["mean_cluster_size"] == pytest.approx(np.mean(sizes))
    assert row["largest_cluster_share"] == pytest.approx(max(sizes) / 60)


def test_the_mean_inner_product_beside_the_count_is_that_of_the_layer():
    H = cloud(30, 6)
    assert one(H)[0]["mean_inner_product"] == pytest.approx(inner_products(H)["mean_inner_product"], abs=1e-14)


def test_planted_groups_exceed_their_null():
    """Permuted coordinates keep each coordinate's values and destroy the groups."""
    for seed in range(3):
        row, _, _ = one(planted(6, 10, 64, seed)[0], min_cluster_size=5)
        assert row["n_clusters"] == 6
        assert row["null_n_clusters"] < 3
        assert row["null_noise_fraction"] > 0.5 > row["noise_fraction"] == 0


def test_a_cloud_without_structure_agrees_with_its_null():
    rows = [one(cloud(40, 8, seed), min_cluster_size=3, null_draws=5)[0] for seed in range(25)]
    counts = [row["n_clusters"] - row["null_n_clusters"] for row in rows]
    noise = [row["noise_fraction"] - row["null_noise_fraction"] for row in rows]
    assert np.std(counts) > 0
    assert np.std(noise) > 0
    assert abs(np.mean(counts)) < 3 * np.std(counts) / 5
    assert abs(np.mean(noise)) < 3 * np.std(noise) / 5


def test_the_null_keeps_the_values_of_each_coordinate_and_breaks_up_the_tokens(monkeypatch):
    seen = []
    monkeypatch.setattr(module, "on_sphere", lambda M: (seen.append(np.array(M)), on_sphere(M))[1])
    H = cloud(12, 6)
    one(H, null_draws=4)
    X, nulls = on_sphere(H), seen[1:]
    assert len(nulls) == 4
    for drawn in nulls:
        np.testing.assert_allclose(np.sort(drawn, axis=0), np.sort(X, axis=0), atol=1e-15)
        places = np.argsort(np.argsort(drawn, axis=0), axis=0), np.argsort(np.argsort(X, axis=0), axis=0)
        assert not {tuple(row) for row in places[0]} & {tuple(row) for row in places[1]}
    assert not np.allclose(nulls[0], nulls[1])


def test_null_columns_are_means_over_the_draws(monkeypatch):
    answers = iter([[0, 0, 1, 1], [0, 0, -1, -1], [-1, -1, -1, -1], [0, 0, 1, 1], [0, 0, 1, 1]])
    monkeypatch.setattr(module, "hdbscan_on_sphere", lambda *_, **__: (np.array(next(answers)), np.ones(4)))
    row, labels, _ = one(cloud(4, 5), null_draws=3, row_orders=1)
    assert labels.tolist() == [0, 0, 1, 1]
    assert (row["null_n_clusters"], row["null_noise_fraction"]) == (pytest.approx(1), pytest.approx(0.5))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("n", "d"), [(3, 5), (20, 8), (20, 768), (64, 768)])
def test_identical_directions_are_one_point_and_no_clusters_HD11(n, d, dtype):
    """HD11. States are stored as float32: rounding between copies of one direction must not become clusters."""
    for seed in range(8):
        row, labels, probabilities = one(copies(n, d, seed, dtype))
        assert row["n_clusters"] == 0
        assert row["noise_fraction"] == 1
        assert row["mean_inner_product"] == pytest.approx(1, abs=1e-12)
        assert row["mean_cluster_size"] is row["largest_cluster_share"] is None
        assert row["undefined"] == "mean_cluster_size, largest_cluster_share: no clusters"
        assert set(labels.tolist()) == {-1}
        assert set(probabilities.tolist()) == {0}


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_eight_groups_of_eight_copies_are_eight_clusters_HD11(dtype):
    """HD11: distances of zero give infinite densities, and stability comparisons of infinities NaN."""
    group = np.random.default_rng(0).permutation(np.repeat(np.arange(8), 8))
    H = lengths(64) * cloud(8, 64)[group]
    row, labels, probabilities = one(H.astype(dtype), min_cluster_size=5)
    assert agreement(labels, group) == 1
    assert row["n_clusters"] == 8
    assert np.isfinite(probabilities).all()
    assert row["row_order_ari"] == 1


def test_a_single_tight_group_is_not_reported_as_a_cluster_HD02():
    """HD02: only with allow_single_cluster would it be, and then most of it as noise. The inner product tells it."""
    H = cloud(1, 16) + 0.001 * cloud(30, 16, seed=1)
    row, labels, _ = one(H, min_cluster_size=20)
    assert row["n_clusters"] == 0
    assert row["mean_inner_product"] > 0.999


@pytest.mark.parametrize("k", [2, 3, 4])
def test_min_samples_is_counted_as_hdbscan_counts_it_HD05(k):
    """HD05: scikit-learn counts the point itself, so its k + 1 is hdbscan's k. One library is pinned: hdbscan."""
    G = cosines(on_sphere(cloud(80, 3)))
    labels, _ = hdbscan_on_sphere(G, min_cluster_size=5, min_samples=k)

    def sklearn_labels(min_samples):
        return HDBSCAN(metric="precomputed", min_cluster_size=5, min_samples=min_samples, copy=True).fit(1 - G).labels_

    assert agreement(labels, sklearn_labels(k + 1)) > 0.97
    assert agreement(labels, sklearn_labels(k)) < 0.8


@pytest.mark.parametrize("min_cluster_size", [2, 3, 5])
def test_without_min_samples_it_is_min_cluster_size_HD05(min_cluster_size):
    G = cosines(on_sphere(cloud(80, 3)))
    default, explicit = (hdbscan_on_sphere(G, min_cluster_size, k)[0] for k in (None, min_cluster_size))
    assert np.array_equal(default, explicit)
    assert not np.array_equal(default, hdbscan_on_sphere(G, min_cluster_size, 1)[0])


@pytest.mark.parametrize(("n", "d"), [(60, 8), (40, 64)])
def test_an_independent_implementation_finds_the_same_clusters(n, d):
    for seed in range(3):
        H, _ = planted(n // 10, 10, d, seed, spread=0.3)
        _, labels, _ = one(H, min_cluster_size=4)
        other = HDBSCAN(metric="precomputed", min_cluster_size=4, min_samples=5, copy=True).fit(
            np.clip(1 - cosines(on_sphere(H)), 0, 2)
        )
        assert agreement(labels, other.labels_) == 1


def test_nothing_that_is_handed_in_is_overwritten_HD06():
    """HD06: a library that works in place gives a second call mutual-reachability distances."""
    H = cloud(40, 6)
    G = cosines(on_sphere(H))
    states, matrix = H.copy(), G.copy()
    first = hdbscan_on_sphere(G, 2, None)
    hdbscan_on_sphere(G, 5, None)
    again = hdbscan_on_sphere(G, 2, None)
    one(H)
    assert np.array_equal(G, matrix)
    assert np.array_equal(H, states)
    assert all(np.array_equal(a, b) for a, b in zip(first, again))


def test_every_diagonal_is_taken_as_distance_zero():
    G = cosines(on_sphere(cloud(40, 6)))
    other = G.copy()
    np.fill_diagonal(other, 0.5)
    assert np.array_equal(hdbscan_on_sphere(G, 2, None)[0], hdbscan_on_sphere(other, 2, None)[0])


@pytest.mark.parametrize("seed", range(3))
def test_without_ties_row_order_does_not_matter(seed):
    """With min_samples 1 the mutual reachability distances are the distances themselves, all different."""
    H = cloud(60, 5, seed)
    row, labels, probabilities = one(H, min_samples=1, min_cluster_size=3, row_orders=5)
    order = np.random.default_rng(seed).permutation(60)
    _, shuffled, others = one(H[order], min_samples=1, min_cluster_size=3)
    assert row["n_clusters"] > 1
    assert row["row_order_ari"] == 1
    assert row["tied_share"] == 0
    assert agreement(labels[order], shuffled) == 1
    np.testing.assert_allclose(probabilities[order], others, atol=1e-9)


def test_row_order_does_not_matter_to_separated_groups_at_the_defaults():
    H, _ = planted(5, 10, 32)
    order = np.random.default_rng(1).permutation(50)
    row, labels, _ = one(H, min_cluster_size=5, row_orders=5)
    assert row["row_order_ari"] == 1
    assert agreement(labels[order], one(H[order], min_cluster_size=5)[1]) == 1


def test_where_distances_tie_row_order_matters_and_is_reported_HD09():
    """HD09: 60 points rounded to one decimal."""
    clouds = [np.round(cloud(60, 2, seed), 1) for seed in range(3)]
    found = [one(H[H.any(axis=1)], min_cluster_size=4, row_orders=10)[0] for H in clouds]
    assert all(row["tied_share"] > 0.1 for row in found)
    assert all(-1 <= row["row_order_ari"] < 1 for row in found)


def test_row_order_can_matter_without_a_single_tied_distance():
    """Mutual reachability distances tie where distances do not: a core distance is that of many pairs.

    So a tied_share of 0 promises nothing, and row_order_ari has to be read itself.
    """
    row = one(cloud(60, 2, 4), min_cluster_size=4, row_orders=10)[0]
    assert row["tied_share"] == 0
    assert row["row_order_ari"] < 1


def test_row_order_ari_is_the_mean_over_shuffled_rows():
    H = np.round(cloud(60, 2), 1)
    G = cosines(on_sphere(H))
    labels, _ = hdbscan_on_sphere(G, 4, None)
    rng = np.random.default_rng(9)
    orders = [rng.permutation(60) for _ in range(200)]
    expected = [agreement(labels[o], hdbscan_on_sphere(G[np.ix_(o, o)], 4, None)[0]) for o in orders]
    found = one(H, min_cluster_size=4, row_orders=200)[0]["row_order_ari"]
    assert found == pytest.approx(np.mean(expected), abs=4 * np.std(expected) * (2 / 200) ** 0.5)
    assert np.std(expected) > 0


def test_tied_share_counts_distances_that_repeat_another():
    """Cosines 1, 0, 0, 0, 0, 1: two values in six pairs."""
    assert one([[1, 1], [1, 1], [1, -1], [1, -1]])[0]["tied_share"] == pytest.approx(4 / 6)
    assert one(cloud(20, 5))[0]["tied_share"] == 0


def test_rotation_and_the_length_of_tokens_change_nothing():
    H, group = planted(4, 10, 12, spread=0.4)
    row, labels, probabilities = one(H, min_cluster_size=4)
    for other in (H @ rotation(12), lengths(40) * H):
        _, others, strengths = one(other, min_cluster_size=4)
        assert np.array_equal(labels, others)
        np.testing.assert_allclose(probabilities, strengths, atol=1e-9)
    scaled = one(lengths(40) * H, min_cluster_size=4)[0]
    assert_close(scaled, row)


def test_the_same_seed_gives_the_same_row_and_another_seed_another_null():
    layers = [np.round(cloud(40, 4, seed), 1) for seed in range(2)]
    first, again = (list(clusters(layers, **DEFAULTS | {"min_cluster_size": 3})) for _ in range(2))
    for (row, labels, probabilities), (row2, labels2, probabilities2) in zip(first, again):
        assert row == row2
        assert np.array_equal(labels, labels2)
        assert np.array_equal(probabilities, probabilities2)
    others = list(clusters(layers, **DEFAULTS | {"min_cluster_size": 3, "seed": 1}))
    assert [row for row, *_ in first] != [row for row, *_ in others]
    assert all(np.array_equal(a[1], b[1]) for a, b in zip(first, others))


def test_a_layer_draws_from_its_own_stream_whatever_comes_before():
    A, B, C = (cloud(30, 5, seed) for seed in range(3))
    rows = [list(clusters(layers, **DEFAULTS))[1][0] for layers in ([A, B], [C, B], [np.zeros((30, 5)), B])]
    assert rows[0] == rows[1] == rows[2]
    assert list(clusters([B, B], **DEFAULTS))[0][0] != rows[0]


def test_the_global_random_state_is_neither_read_nor_moved():
    np.random.seed(0)  # noqa: NPY002
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    first = one(cloud(20, 5))[0]
    assert np.array_equal(np.random.get_state()[1], state)  # noqa: NPY002
    np.random.seed(1)  # noqa: NPY002
    assert one(cloud(20, 5))[0] == first


@pytest.mark.parametrize("n", [3, 4, 30])
def test_there_is_one_label_and_one_probability_per_token(n):
    row, labels, probabilities = one(cloud(n, 5))
    assert len(labels) == len(probabilities) == n
    assert np.issubdtype(labels.dtype, np.integer)
    assert set(labels.tolist()) - {-1} == set(range(row["n_clusters"]))
    assert np.all((probabilities >= 0) & (probabilities <= 1))
    assert np.all((probabilities > 0) == (labels >= 0))


@pytest.mark.parametrize("min_cluster_size", [5, 50])
def test_fewer_tokens_than_a_cluster_needs_are_all_noise(min_cluster_size):
    row, labels, _ = one(cloud(4, 5), min_cluster_size=min_cluster_size)
    assert_honest(row)
    assert (row["n_clusters"], row["noise_fraction"]) == (0, 1)


@pytest.mark.parametrize(
    "H",
    [np.eye(20), np.repeat(np.eye(3), 4, axis=0), np.round(cloud(60, 2, 4), 1)],
    ids=["axes", "copied-axes", "quantised-HD09"],
)
def test_a_null_cloud_with_a_zero_row_is_no_crash(H):
    """Permuting the coordinates of states with zeros can leave a token none; the layer keeps its own clusters."""
    for seed in range(5):
        row, labels, probabilities = one(H, min_cluster_size=4, seed=seed)
        assert_honest(row)
        assert row["mean_inner_product"] == pytest.approx(inner_products(H)["mean_inner_product"])
        assert len(labels) == len(probabilities) == len(H)


@pytest.mark.parametrize(
    ("H", "cause"),
    [
        (np.empty((0, 4)), "no tokens"),
        ([[1.0, 2.0]], "1 tokens: HDBSCAN needs at least 3"),
        ([[1.0, 2.0], [2.0, 1.0]], "2 tokens: HDBSCAN needs at least 3"),
        ([[1.0, 2.0], [0.0, 0.0], [1.0, 1.0], [2.0, 1.0]], "row 1 is a zero vector (1 of 4)"),
        (np.zeros((5, 4)), "row 0 is a zero vector (5 of 5)"),
    ],
    ids=["no-tokens", "one-token", "two-tokens", "zero-row", "all-zero"],
)
def test_without_three_directions_all_is_null_with_the_cause_ME11(H, cause):
    row, labels, probabilities = one(H)
    assert_null(row, cause)
    assert labels is probabilities is None


@broken
def test_broken_states_are_refused_wherever_they_come(H, cause):
    with pytest.raises(Refusal, match=cause):
        list(clusters([np.eye(2), H], **DEFAULTS))


def test_an_error_of_the_library_reaches_the_user_HD12(monkeypatch):
    """HD12: a broad except once turned an incompatible scikit-learn into 'nothing found'."""

    def incompatible(*_, **__):
        raise TypeError("check_array() got an unexpected keyword argument")

    monkeypatch.setattr(module.hdbscan, "hdbscan", incompatible)
    with pytest.raises(TypeError, match="unexpected keyword"):
        one(cloud(10, 4))


@settings(laws, max_examples=60)
@given(seeds)
def test_coarse_clouds_get_finite_numbers_or_a_reason(seed):
    row, labels, _ = one(coarse_cloud(seed) + 0.5)
    assert_honest(row)
    assert (labels is None) == (row["n_clusters"] is None)


def test_token_rows_name_the_positions_that_the_token_rule_kept():
    mask = np.array([False, True, True, False, True])
    rows = token_rows({"undefined": None}, np.array([0, -1, 1]), np.array([1.0, 0.0, 0.5]), mask)
    assert [(r["position"], r["label"], r["probability"]) for r in rows] == [(1, 0, 1.0), (2, -1, 0.0), (4, 1, 0.5)]
    assert {r["undefined"] for r in rows} == {None}
    assert {type(value) for r in rows for value in r.values()} == {int, float, type(None)}


def test_token_rows_of_a_layer_without_clusters_have_labels_all_the_same():
    row, labels, probabilities = one(copies(5, 4))
    rows = token_rows(row, labels, probabilities, np.ones(5, dtype=bool))
    assert rows == [{"position": p, "label": -1, "probability": 0.0, "undefined": None} for p in range(5)]


def test_token_rows_of_a_null_layer_are_null_with_its_reason():
    mask = np.array([False, True, True])
    rows = token_rows(*one(cloud(2, 4)), mask)
    assert [r["position"] for r in rows] == [1, 2]
    for r in rows:
        assert r["label"] is r["probability"] is None
        assert "2 tokens: HDBSCAN needs at least 3" in r["undefined"]


def test_a_mask_that_keeps_another_number_of_tokens_is_an_error():
    with pytest.raises(ValueError, match="argument 2 is (shorter|longer) than argument 1"):
        token_rows({"undefined": None}, np.array([0, 1]), np.array([1.0, 1.0]), np.ones(3, dtype=bool))
