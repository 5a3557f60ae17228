import numpy as np
import pytest
from clouds import (
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
from collapse.metrics.nn_stability import nn_stability

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


def between(X, Y):
    return list(nn_stability([X, Y]))[1]


def nearest(H):
    X = unit(H)
    return [max((j for j in range(len(X)) if j != i), key=lambda j: dot(X[i], X[j])) for i in range(len(X))]


def couples(pairing, d=8, gap=0.1):
    """Tokens in couples: those of one couple lie close together, couples lie at right angles."""
    H = np.zeros((2 * len(pairing), d))
    for axis, (a, b) in enumerate(pairing):
        H[[a, b], axis] = 1
        H[a, len(pairing) + axis] = gap
    return H


@laws
@given(shapes, seeds)
def test_the_value_is_the_share_of_tokens_that_keep_their_nearest_neighbour(shape, seed):
    A = cloud(*shape, seed)
    B = A + 0.7 * cloud(*shape, seed + 1)
    before, after = nearest(A), nearest(B)
    row = between(A, B)
    assert row["nn_stability"] == pytest.approx(sum(a == b for a, b in zip(before, after)) / len(A))
    assert row["n_compared"] == len(A)


@laws
@given(shapes, seeds)
def test_a_layer_keeps_all_its_own_neighbours_whatever_its_rotation_or_lengths(shape, seed):
    n, d = shape
    X = cloud(n, d, seed)
    for Y in (X, X @ rotation(d, seed), 0.01 * X, lengths(n, seed) * X):
        assert between(X, Y) == {"nn_stability": 1.0, "n_compared": n, "undefined": None}


@laws
@given(shapes, seeds)
def test_a_common_order_changes_nothing(shape, seed):
    A, B = cloud(*shape, seed), cloud(*shape, seed + 1)
    order = np.random.default_rng(seed).permutation(shape[0])
    assert between(A[order], B[order]) == between(A, B)


def test_couples_that_exchange_partners_lose_their_neighbours():
    row = between(couples([(0, 1), (2, 3), (4, 5)]), couples([(0, 1), (2, 5), (4, 3)]))
    assert row["nn_stability"] == pytest.approx(2 / 6)
    assert row["n_compared"] == 6


def test_rows_are_matched_token_by_token():
    X = couples([(0, 1), (2, 3), (4, 5)])
    assert between(X, np.roll(X, 1, axis=0))["nn_stability"] == 0


def test_neighbours_drawn_anew_agree_by_chance_alone():
    """Independent clouds of n tokens: each neighbour is kept with probability 1 / (n - 1)."""
    n = 20
    shares = [between(cloud(n, 40, 2 * seed), cloud(n, 40, 2 * seed + 1))["nn_stability"] for seed in range(200)]
    assert np.mean(shares) == pytest.approx(1 / (n - 1), abs=4 * np.std(shares) / np.sqrt(200))


def test_the_nearest_token_is_the_one_with_the_highest_cosine_and_never_itself_nor_the_opposite():
    X = np.vstack([np.eye(4), -np.eye(4)])
    X[4:] += 0.2 * np.roll(np.eye(4), 1, axis=1)
    assert between(X, couples([(0, 7), (1, 4), (2, 5), (3, 6)]))["nn_stability"] == 1


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_tokens_with_two_equally_near_neighbours_are_not_compared(dtype, seed):
    """Three copies of one token, of different lengths: which of two copies is nearer is rounding and row order."""
    X, Y = np.abs(cloud(10, 20)), cloud(10, 20, seed=1)
    # Opposite to all others, so that a copy is the nearest neighbour of copies alone.
    X[[3, 5, 8]] = -lengths(3) * np.abs(cloud(1, 20, seed))
    others = [i for i in range(10) if i not in (3, 5, 8)]
    agree = sum(nearest(X)[i] == nearest(Y)[i] for i in others)
    for row in (between(X.astype(dtype), Y), between(Y, X.astype(dtype))):
        assert row["n_compared"] == 7
        assert row["nn_stability"] == pytest.approx(agree / 7)


def test_two_copies_are_each_others_one_nearest_neighbour():
    X = np.abs(cloud(10, 20))
    X[[4, 7]] = -lengths(2)
    Y = couples([(4, 7), (0, 1), (2, 3), (5, 6), (8, 9)], d=10)
    assert between(X, Y)["n_compared"] == 10
    assert between(X, X)["nn_stability"] == 1
    assert between(X[[4, 7, 0, 1, 2]], Y[[4, 7, 0, 1, 2]])["nn_stability"] >= 2 / 5


def test_where_every_neighbour_is_a_tie_there_is_no_value():
    row = between(np.eye(5), np.eye(5))
    assert row["nn_stability"] is None
    assert row["n_compared"] == 0
    assert "no token has one nearest neighbour in both layers" in row["undefined"]


def test_each_layer_is_compared_with_the_one_before():
    A, B, C = (cloud(12, 8, seed) for seed in range(3))
    first, *rows = nn_stability([A, B, B, C])
    assert_null(first, "no layer before the first")
    assert rows == [between(A, B), between(B, B), between(B, C)]


@pytest.mark.parametrize(
    "flat", [np.ones((12, 8)), copies(12, 8), cloud(12, 2) @ cloud(2, 8)], ids=["ones", "line", "plane"]
)
def test_a_degenerate_layer_leaves_both_steps_that_touch_it_undefined(flat):
    X = cloud(12, 8)
    _, into, out_of, after = nn_stability([X, flat, X, X])
    assert_null(into, "degenerate layer: effective rank")
    assert_null(out_of, "the layer before: degenerate layer: effective rank")
    assert after["nn_stability"] == 1


@pytest.mark.parametrize("n", [1, 2])
def test_with_fewer_than_three_tokens_there_is_no_choice(n):
    assert_null(between(cloud(n, 8, 0), cloud(n, 8, 1)), f"{n} tokens: with fewer than 3")


@pytest.mark.parametrize(
    ("H", "cause"),
    [
        (np.empty((0, 8)), "no tokens"),
        (np.vstack([np.zeros((1, 8)), cloud(11, 8)]), "row 0 is a zero vector (1 of 12)"),
        (np.zeros((12, 8)), "row 0 is a zero vector (12 of 12)"),
    ],
    ids=["no-tokens", "zero-row", "all-zero"],
)
def test_without_directions_all_is_null_with_the_cause_ME11(H, cause):
    X = cloud(12, 8)[: len(H)]
    assert_null(between(X, H), cause)
    assert_null(between(H, X), "no tokens" if len(H) == 0 else f"the layer before: {cause}")


@broken
def test_broken_states_are_refused_wherever_they_come(H, cause):
    with pytest.raises(Refusal, match=cause):
        list(nn_stability([np.eye(3), H]))


@settings(laws, max_examples=100)
@given(seeds)
def test_coarse_clouds_get_finite_numbers_or_a_reason(seed):
    X = coarse_cloud(seed)
    for row in nn_stability([X, X, X + 1, X]):
        assert_honest(row)


def test_the_input_is_left_as_it_was():
    X, Y = cloud(6, 9, 0), cloud(6, 9, 1)
    before = X.copy(), Y.copy()
    between(X, Y)
    assert np.array_equal(X, before[0])
    assert np.array_equal(Y, before[1])
