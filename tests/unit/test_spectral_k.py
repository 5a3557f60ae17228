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
from collapse.metrics.spectral_k import spectral_k

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


def groups(sizes, d=None, seed=None):
    """Copies of orthogonal directions, of different lengths, rotated if a seed is given."""
    H = np.repeat(np.eye(len(sizes), d or len(sizes)), sizes, axis=0)
    H = lengths(len(H), seed or 0) * H
    return H if seed is None else H @ rotation(H.shape[1], seed)


def at_cosine(c, m):
    """Two groups of m copies, at cosine c."""
    return np.repeat([[1.0, 0.0], [c, math.sqrt(1 - c * c)]], m, axis=0)


def slow(H):
    """Eigenvalues of the random walk D^-1 W, which is similar to D^-1/2 W D^-1/2 and not symmetric."""
    X, n = unit(H), len(H)
    W = [[max(dot(X[i], X[j]), 0.0) if i != j else 1.0 for j in range(n)] for i in range(n)]
    P = [[w / math.fsum(row) for w in row] for row in W]
    values = sorted(1 - value.real for value in np.linalg.eigvals(P))
    gaps = [b - a for a, b in zip(values, values[1:31])]
    best = max(range(len(gaps)), key=lambda k: gaps[k])
    others = [gap for k, gap in enumerate(gaps) if k != best]
    return {"spectral_k": best + 1, "gap": gaps[best], "gap_ratio": gaps[best] / max(others), "undefined": None}


@laws
@given(shapes, seeds)
def test_every_column_is_its_definition_on_the_random_walk(shape, seed):
    H = cloud(*shape, seed)
    assert_close(spectral_k(H), slow(H), rel=1e-8)


@laws
@given(shapes, seeds)
def test_planted_groups_are_its_definition_and_their_number(shape, seed):
    rng = np.random.default_rng(seed)
    k, d = int(rng.integers(2, 5)), max(shape[1], 16)
    group = rng.permutation(np.arange(6 * k) % k)
    H = np.eye(k, d)[group] + 0.02 * rng.normal(size=(6 * k, d))
    row = spectral_k(H)
    assert_close(row, slow(H), rel=1e-8)
    assert row["spectral_k"] == k
    assert row["gap_ratio"] > 2


@laws
@given(shapes, seeds)
def test_nothing_depends_on_order_rotation_or_the_length_of_tokens(shape, seed):
    n, d = shape
    H = cloud(n, d, seed)
    row = spectral_k(H)
    assert_close(spectral_k(np.random.default_rng(seed).permutation(H)), row)
    assert_close(spectral_k(H @ rotation(d, seed)), row)
    assert_close(spectral_k(lengths(n, seed) * H), row)


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize("sizes", [(4, 4, 4), (2, 3, 7), (1, 5, 6), (1, 1, 2)])
def test_three_orthogonal_groups_have_k_3_with_the_full_gap(sizes, seed):
    """A group of one token, orthogonal to all, counts: rounding must not become its links, whatever the rotation."""
    row = spectral_k(groups(sizes, d=8, seed=seed))
    assert row["spectral_k"] == 3
    assert row["gap"] == pytest.approx(1, abs=1e-7)
    assert row["gap_ratio"] is None
    assert row["undefined"] == "gap_ratio: no second gap"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [3, 40])
def test_identical_tokens_have_k_1_with_the_full_gap(n, dtype):
    row = spectral_k(copies(n, 64, dtype=dtype))
    assert row["spectral_k"] == 1
    assert row["gap"] == pytest.approx(1, abs=1e-7)
    assert row["undefined"] == "gap_ratio: no second gap"


@pytest.mark.parametrize("m", [2, 5, 20])
@pytest.mark.parametrize("c", [0.05, 0.2, 0.3, 0.4, 0.7, 0.99])
def test_two_groups_at_a_cosine_are_two_below_one_third(c, m):
    """The second eigenvalue is 2c / (1 + c), all others 1: k is 2 where (1 - c) / (1 + c) is the larger gap."""
    first, second = 2 * c / (1 + c), (1 - c) / (1 + c)
    row = spectral_k(at_cosine(c, m))
    assert row["spectral_k"] == (2 if c < 1 / 3 else 1)
    assert row["gap"] == pytest.approx(max(first, second))
    assert row["gap_ratio"] == pytest.approx(max(first, second) / min(first, second))


def test_equal_gaps_give_the_smaller_k_and_a_ratio_of_one():
    for H in (at_cosine(1 / 3, 4), at_cosine(1 / 3 + 1e-9, 4), at_cosine(1 / 3 - 1e-9, 4)):
        row = spectral_k(H)
        assert row["spectral_k"] == 1
        assert (row["gap"], row["gap_ratio"]) == (pytest.approx(0.5), pytest.approx(1))


def test_negative_cosines_are_no_links():
    H = np.vstack([np.tile([1.0, 0.1], (5, 1)), np.tile([-1.0, 0.1], (5, 1))])
    row = spectral_k(H)
    assert (row["spectral_k"], row["gap"]) == (2, pytest.approx(1))


def test_a_common_direction_makes_k_1_and_the_gap_says_how_dominant_it_is():
    H = groups((10, 10, 10), d=16, seed=3) / lengths(30, 3)
    with_mean = H + 3 * rotation(16, seed=3)[8]
    assert spectral_k(H)["spectral_k"] == 3
    row = spectral_k(with_mean)
    assert row["spectral_k"] == 1
    assert 0.8 < row["gap"] < 1


def test_the_number_of_groups_is_bounded_by_30():
    assert spectral_k(groups((2,) * 30))["spectral_k"] == 30
    assert_null(spectral_k(groups((2,) * 31)), "no gap: the first 31 eigenvalues are equal")


def test_k_can_be_one_less_than_the_number_of_tokens():
    assert spectral_k(groups((1, 1, 1, 2)))["spectral_k"] == 4


@pytest.mark.parametrize("n", [3, 8, 40])
@pytest.mark.parametrize("seed", [None, 1])
def test_orthogonal_tokens_have_no_gap(n, seed):
    assert_null(spectral_k(groups((1,) * n, seed=seed)), "no gap: the first")


@broken
def test_broken_states_are_refused(H, cause):
    with pytest.raises(Refusal, match=cause):
        spectral_k(H)


@pytest.mark.parametrize(
    ("H", "cause"),
    [
        (np.empty((0, 4)), "no tokens"),
        ([[1.0, 2.0]], "1 tokens: with fewer than 3"),
        ([[1.0, 2.0], [2.0, 1.0]], "2 tokens: with fewer than 3"),
        ([[1.0, 2.0], [0.0, 0.0], [1.0, 1.0], [2.0, 1.0]], "row 1 is a zero vector (1 of 4)"),
        (np.zeros((5, 4)), "row 0 is a zero vector (5 of 5)"),
    ],
    ids=["no-tokens", "one-token", "two-tokens", "zero-row", "all-zero"],
)
def test_without_three_directions_all_is_null_with_the_cause_ME11(H, cause):
    assert_null(spectral_k(H), cause)


@settings(laws, max_examples=100)
@given(seeds)
def test_coarse_clouds_get_numbers_in_range_or_a_reason(seed):
    H = coarse_cloud(seed)
    row = spectral_k(H)
    assert_honest(row)
    if row["gap"] is not None:
        assert 1 <= row["spectral_k"] <= len(H) - 1
        assert 0 < row["gap"] <= 2
        assert row["gap_ratio"] is None or row["gap_ratio"] >= 1


def test_the_input_is_left_as_it_was():
    H = cloud(6, 9)
    before = H.copy()
    spectral_k(H)
    assert np.array_equal(H, before)
