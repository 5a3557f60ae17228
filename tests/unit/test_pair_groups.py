import math

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
    dot,
    laws,
    lengths,
    rotation,
    seeds,
    shapes,
    unit,
)
from hypothesis import given, settings

from collapse.errors import Refusal
from collapse.metrics.inner_products import inner_products
from collapse.metrics.pair_groups import COLUMNS, GROUPS, pair_groups

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


def random_labels(n, seed):
    rng = np.random.default_rng(seed)
    return rng.integers(-1, rng.integers(0, 5), size=n)


def by_group(H, labels):
    rows = pair_groups(H, labels)
    assert [row["group"] for row in rows] == list(GROUPS)
    return {row["group"]: {name: row[name] for name in (*COLUMNS, "undefined")} for row in rows}


def slow(H, labels):
    X, n = unit(H), len(H)
    found = {group: [] for group in GROUPS}
    for i in range(n):
        for j in range(i + 1, n):
            if labels[i] < 0 and labels[j] < 0:
                group = "noise_noise"
            elif labels[i] < 0 or labels[j] < 0:
                group = "noise_clustered"
            else:
                group = "within" if labels[i] == labels[j] else "between"
            found[group].append(dot(X[i], X[j]))
    return {
        group: {
            "mean_inner_product": math.fsum(values) / len(values) if values else None,
            "mass_near_one": sum(v > 0.9 for v in values) / len(values) if values else None,
            "share_of_pairs": len(values) / (n * (n - 1) / 2),
            "n_pairs": len(values),
            "undefined": None if values else "mean_inner_product, mass_near_one: no pairs in this group",
        }
        for group, values in found.items()
    }


@settings(laws, max_examples=60)
@given(shapes, seeds)
def test_every_column_is_its_definition_over_pairs(shape, seed):
    # A common direction, so that some cosines exceed 0.9.
    H = cloud(*shape, seed) + (seed % 3) * cloud(1, shape[1], seed + 1)
    labels = random_labels(len(H), seed)
    found, expected = by_group(H, labels), slow(H, labels)
    for group in GROUPS:
        assert_close(found[group], expected[group])


@laws
@given(shapes, seeds)
def test_the_groups_add_up_to_the_whole_layer(shape, seed):
    H = cloud(*shape, seed) + cloud(1, shape[1], seed + 1)
    rows = [row for row in pair_groups(H, random_labels(len(H), seed)) if row["n_pairs"]]
    whole = inner_products(H)
    assert sum(row["n_pairs"] for row in rows) == whole["n_pairs"]
    assert sum(row["share_of_pairs"] for row in rows) == pytest.approx(1)
    for name in ("mean_inner_product", "mass_near_one"):
        assert sum(row["share_of_pairs"] * row[name] for row in rows) == pytest.approx(whole[name], abs=1e-12)


@laws
@given(shapes, seeds)
def test_order_rotation_length_of_tokens_and_numbers_of_clusters_change_nothing(shape, seed):
    n, d = shape
    H, labels, rng = cloud(n, d, seed), random_labels(n, seed), np.random.default_rng(seed)
    expected = by_group(H, labels)
    order, names = rng.permutation(n), np.append(rng.permutation(30)[:10], -1)
    for other in (
        by_group(H[order], labels[order]),
        by_group(H, names[labels]),
        by_group(H @ rotation(d, seed), labels),
        by_group(lengths(n, seed) * H, labels),
    ):
        for group in GROUPS:
            assert_close(other[group], expected[group])


def test_groups_by_hand():
    """Two clusters of two at a right angle, and two noise tokens opposite to the first."""
    found = by_group([[1, 0], [2, 0], [0, 1], [0, 3], [-1, 0], [-5, 0]], [0, 0, 1, 1, -1, -1])
    values = {group: tuple(row[name] for name in COLUMNS) for group, row in found.items()}
    assert values["within"] == (1, 1, pytest.approx(2 / 15), 2)
    assert values["between"] == (0, 0, pytest.approx(4 / 15), 4)
    assert values["noise_clustered"] == (-0.5, 0, pytest.approx(8 / 15), 8)
    assert values["noise_noise"] == (1, 1, pytest.approx(1 / 15), 1)


def test_near_one_is_above_0_9():
    """(9, 3, 3, 1) has length 10."""
    below, above = [[1, 0, 0, 0], [9, 3, 3, 1.001]], [[1, 0, 0, 0], [9, 3, 3, 0.999]]
    assert by_group(below, [0, 0])["within"]["mass_near_one"] == 0
    assert by_group(above, [0, 0])["within"]["mass_near_one"] == 1


def test_planted_groups_are_closer_within_than_between():
    labels = np.repeat(np.arange(4), 8)
    H = cloud(4, 64)[labels] + 0.1 * cloud(32, 64, seed=1)
    found = by_group(H, labels)
    assert found["within"]["mean_inner_product"] > 0.9 > 0.5 > found["between"]["mean_inner_product"]


def test_labels_dealt_out_at_random_leave_every_group_at_the_mean_of_the_layer():
    H = cloud(60, 8) + 1
    rng = np.random.default_rng(0)
    draws = [by_group(H, rng.integers(-1, 3, size=60)) for _ in range(100)]
    mean = inner_products(H)["mean_inner_product"]
    for group in GROUPS:
        values = [draw[group]["mean_inner_product"] for draw in draws]
        assert np.mean(values) == pytest.approx(mean, abs=4 * np.std(values) / 10)


def test_a_group_without_pairs_has_a_share_of_zero_and_no_mean():
    found = by_group(cloud(5, 3), [0] * 5)
    assert found["within"]["share_of_pairs"] == 1
    for group in ("between", "noise_clustered", "noise_noise"):
        assert_honest(found[group])
        assert found[group] == {
            "mean_inner_product": None,
            "mass_near_one": None,
            "share_of_pairs": 0.0,
            "n_pairs": 0,
            "undefined": "mean_inner_product, mass_near_one: no pairs in this group",
        }


def test_all_noise_is_one_group():
    found = by_group(cloud(5, 3), [-1] * 5)
    assert [found[group]["n_pairs"] for group in GROUPS] == [0, 0, 0, 10]
    whole = inner_products(cloud(5, 3))
    assert found["noise_noise"]["mean_inner_product"] == pytest.approx(whole["mean_inner_product"])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_identical_tokens_have_mean_one_in_every_group(dtype):
    found = by_group(copies(40, 768, dtype=dtype), [0] * 10 + [1] * 10 + [-1] * 20)
    for group in GROUPS:
        assert found[group]["mean_inner_product"] == pytest.approx(1, abs=1e-12)
        assert found[group]["mass_near_one"] == 1


@pytest.mark.parametrize(
    ("H", "labels", "cause"),
    [
        (np.empty((0, 4)), [], "no tokens"),
        ([[1.0, 2.0]], [-1], "1 token: no pairs"),
        ([[1.0, 2.0], [0.0, 0.0], [1.0, 1.0]], [0, 0, -1], "row 1 is a zero vector (1 of 3)"),
        (np.zeros((5, 4)), [-1] * 5, "row 0 is a zero vector (5 of 5)"),
        (cloud(5, 4), None, "the clusters of this layer are undefined"),
        (np.zeros((5, 4)), None, "row 0 is a zero vector (5 of 5)"),
    ],
    ids=["no-tokens", "one-token", "zero-row", "all-zero", "no-labels", "cause-of-no-labels"],
)
def test_without_pairs_or_labels_all_is_null_with_the_cause_ME11(H, labels, cause):
    for row in by_group(H, labels).values():
        assert_null(row, cause)


@pytest.mark.parametrize("n", [2, 3])
def test_the_fewest_tokens_that_have_pairs(n):
    found = by_group(np.eye(n), [0] * n)
    assert found["within"]["n_pairs"] == n * (n - 1) // 2
    assert found["within"]["mean_inner_product"] == 0


@broken
def test_broken_states_are_refused(H, cause):
    with pytest.raises(Refusal, match=cause):
        pair_groups(H, [0, 0, 0])


@pytest.mark.parametrize(
    ("labels", "cause"),
    [
        ([0, 0], "2 cluster labels for 3 tokens"),
        ([0, 0, 1, 1], "4 cluster labels for 3 tokens"),
        ([0.0, 0.0, 1.0], "vector of integers, found float64"),
        ([0, 0, -3], "found -3"),
    ],
    ids=["too-few", "too-many", "floats", "below-noise"],
)
def test_labels_that_cannot_be_are_refused(labels, cause):
    with pytest.raises(Refusal, match=cause):
        pair_groups(np.eye(3), labels)


def test_the_input_is_left_as_it_was():
    H, labels = cloud(6, 9), np.array([0, 0, 1, -1, -1, 1])
    before = H.copy(), labels.copy()
    pair_groups(H, labels)
    assert np.array_equal(H, before[0])
    assert np.array_equal(labels, before[1])


@settings(laws, max_examples=100)
@given(seeds)
def test_coarse_clouds_get_finite_numbers_or_a_reason(seed):
    H = coarse_cloud(seed)
    for row in by_group(H, random_labels(len(H), seed)).values():
        assert_honest(row)
