import math

import numpy as np
import pytest
from clouds import (
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
    shapes,
    unit,
)
from hypothesis import given, settings

from collapse.errors import Refusal
from collapse.metrics.cka import COLUMNS, cka
from collapse.token_rules import token_mask

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


def between(X, Y):
    return list(cka([X, Y]))[1]


def values(row):
    return [row[name] for name in COLUMNS]


def biased(X, Y):
    """Kornblith et al., from centred features: |Y^T X|^2 / (|X^T X| |Y^T Y|)."""
    X, Y = (M - M.mean(axis=0) for M in (X, Y))
    return np.linalg.norm(Y.T @ X) ** 2 / (np.linalg.norm(X.T @ X) * np.linalg.norm(Y.T @ Y))


def unbiased_hsic(K, L):
    """Song et al. 2012, equation 4, with traces and sums of the matrices without their diagonals."""
    n = len(K)
    K, L = (M - np.diag(np.diag(M)) for M in (K, L))
    one = np.ones(n)
    return (
        np.trace(K @ L) + (one @ K @ one) * (one @ L @ one) / ((n - 1) * (n - 2)) - 2 / (n - 2) * (one @ K @ L @ one)
    ) / (n * (n - 3))


def debiased(X, Y):
    K, L = X @ X.T, Y @ Y.T
    return unbiased_hsic(K, L) / math.sqrt(unbiased_hsic(K, K) * unbiased_hsic(L, L))


@laws
@given(shapes, shapes, seeds)
def test_both_are_their_formula_on_directions_whatever_the_dimensions(shape, other, seed):
    n = shape[0]
    A, B = cloud(*shape, seed), cloud(n, other[1], seed + 1) + 0.5 * cloud(n, 1, seed + 2)
    X, Y = unit(A), unit(B)
    assert values(between(A, B)) == pytest.approx([biased(X, Y), debiased(X, Y)], abs=1e-10)


@laws
@given(shapes, seeds)
def test_a_layer_compared_with_itself_gives_one(shape, seed):
    X = cloud(*shape, seed)
    assert values(between(X, X)) == pytest.approx([1, 1], abs=1e-12)


@laws
@given(shapes, seeds)
def test_both_stay_in_their_range_and_do_not_depend_on_which_layer_comes_first(shape, seed):
    X, Y = cloud(*shape, seed), cloud(*shape, seed + 1)
    row = between(X, Y)
    # Ranges are exact in theory and rounded in practice.
    assert 0 <= row["cka_biased"] <= 1 + 1e-12
    assert row["cka_debiased"] <= 1 + 1e-12
    assert values(between(Y, X)) == pytest.approx(values(row), abs=1e-12)


@laws
@given(shapes, seeds)
def test_rotation_scale_length_of_tokens_and_a_common_order_change_nothing(shape, seed):
    n, d = shape
    X, Y = cloud(n, d, seed), cloud(n, d, seed) + cloud(n, d, seed + 1)
    expected = pytest.approx(values(between(X, Y)), abs=1e-10)
    order = np.random.default_rng(seed).permutation(n)
    assert values(between(X @ rotation(d, seed), Y @ rotation(d, seed + 1))) == expected
    assert values(between(3.7 * X, 0.01 * Y)) == expected
    assert values(between(lengths(n, seed) * X, lengths(n, seed + 1) * Y)) == expected
    assert values(between(X[order], Y[order])) == expected


def test_rows_are_matched_token_by_token():
    X = cloud(20, 10)
    shuffled = between(X, np.roll(X, 1, axis=0))
    assert shuffled["cka_biased"] < 0.7
    assert abs(shuffled["cka_debiased"]) < 0.4


def test_stretching_one_axis_is_a_change_of_geometry():
    X = cloud(40, 10)
    assert between(X, X * np.r_[5, np.ones(9)])["cka_debiased"] < 0.9


@pytest.mark.parametrize(("n", "d"), [(64, 768), (64, 64), (32, 96), (200, 50)])
def test_independent_clouds_give_d_over_n_plus_d_with_bias_and_zero_without(n, d):
    rows = [between(cloud(n, d, 2 * seed), cloud(n, d, 2 * seed + 1)) for seed in range(20)]
    assert np.mean([row["cka_biased"] for row in rows]) == pytest.approx(d / (n + d), abs=0.015)
    errors = [row["cka_debiased"] for row in rows]
    assert abs(np.mean(errors)) < 3 * np.std(errors) / math.sqrt(20)
    assert min(errors) < 0 < max(errors)


def test_64_independent_tokens_in_768_dimensions_give_0_92():
    rows = [between(cloud(64, 768, 2 * seed), cloud(64, 768, 2 * seed + 1)) for seed in range(20)]
    assert np.mean([row["cka_biased"] for row in rows]) == pytest.approx(0.921, abs=0.006)


def test_a_common_mean_alone_gives_nothing_ME02():
    """ME02: without centring, independent clouds around one mean give 0.99."""
    X, Y = (np.random.default_rng(seed).normal(5, 1, size=(500, 16)) for seed in (0, 1))
    K, L = (unit(M) @ unit(M).T for M in (X, Y))
    assert np.vdot(K, L) / (np.linalg.norm(K) * np.linalg.norm(L)) > 0.99
    row = between(X, Y)
    assert row["cka_biased"] == pytest.approx(0.0336, abs=0.01)
    assert row["cka_debiased"] == pytest.approx(0, abs=0.01)


def test_one_massive_token_in_both_layers_does_not_feign_agreement_FT02():
    """FT02: on raw states a first token 30 times longer lifts independent clouds to 0.9998."""
    X, Y = cloud(64, 768, 0), cloud(64, 768, 1)
    massive = np.r_[30, np.ones(63)][:, None]
    assert biased(massive * X, massive * Y) > 0.999
    assert values(between(massive * X, massive * Y)) == pytest.approx(values(between(X, Y)), abs=1e-12)


def test_one_massive_token_in_one_layer_does_not_feign_disagreement_FT03():
    """FT03: on raw states a first token 30 times longer in one layer takes 0.972 to 0.128."""
    X = cloud(64, 768, 0)
    Y = 0.8 * X + 0.6 * cloud(64, 768, 1)
    massive = np.r_[30, np.ones(63)][:, None]
    assert biased(massive * X, Y) < 0.2
    row = between(massive * X, Y)
    assert row["cka_biased"] == pytest.approx(0.972, abs=0.004)
    assert row["cka_debiased"] == pytest.approx(0.638, abs=0.04)


def test_the_content_rule_leaves_out_a_first_token_that_no_tokenizer_marks_FT02_FT06():
    """FT06: GPT-2's first token is content to its tokenizer. FT02: CKA must be there without it as well."""
    keep = token_mask("content", np.arange(30) == 0, np.zeros(30, dtype=bool))
    X, Y = cloud(30, 20, 0), cloud(30, 20, 1)
    replaced = Y.copy()
    replaced[0] = X[0]
    assert keep.tolist() == [False] + [True] * 29
    assert values(between(X, replaced)) != pytest.approx(values(between(X, Y)), abs=1e-6)
    assert values(between(X[keep], replaced[keep])) == values(between(X[keep], Y[keep]))


def test_each_layer_is_compared_with_the_one_before():
    A, B, C = (cloud(12, 8, seed) for seed in range(3))
    first, *rows = cka([A, B, B, C])
    assert_null(first, "no layer before the first")
    assert [values(row) for row in rows] == [values(between(A, B)), values(between(B, B)), values(between(B, C))]


@pytest.mark.parametrize(
    "flat", [np.ones((12, 8)), copies(12, 8), cloud(12, 2) @ cloud(2, 8)], ids=["ones", "line", "plane"]
)
def test_a_degenerate_layer_leaves_both_steps_that_touch_it_undefined_ME03(flat):
    """ME03: constant layers are undefined, never 0 or 1."""
    X = cloud(12, 8)
    before, into, out_of, after = list(cka([X, flat, X, X]))
    assert_null(into, "degenerate layer: effective rank")
    assert_null(out_of, "the layer before: degenerate layer: effective rank")
    assert values(after) == pytest.approx([1, 1], abs=1e-12)


def test_the_gate_is_an_effective_rank_of_three():
    """Four orthogonal directions, one of them held by more and more of the tokens."""
    spread = np.repeat(np.eye(4), [5, 5, 5, 5], axis=0) + 0.01 * cloud(20, 4)
    skewed = np.repeat(np.eye(4), [17, 1, 1, 1], axis=0)
    X = cloud(20, 4)
    assert between(X, spread)["undefined"] is None
    # Singular values sqrt(17), 1, 1, 1 have the effective rank 3.08; one more token in the first direction, 2.14.
    assert between(X, skewed)["undefined"] is None
    skewed[-1] = skewed[0]
    assert_null(between(X, skewed), "effective rank 2.")


@pytest.mark.parametrize("n", [1, 2])
def test_one_or_two_tokens_have_no_value_ME03(n):
    assert_null(between(cloud(n, 8, 0), cloud(n, 8, 1)), "effective rank")


def test_three_tokens_have_no_debiased_value_ME03():
    """ME03: the unbiased estimator divides by n - 3."""
    for X, Y in [(cloud(3, 8, 0), cloud(3, 8, 1)), (np.eye(3), np.eye(3))]:
        row = between(X, Y)
        assert_honest(row)
        assert row["cka_debiased"] is None


def test_three_orthogonal_tokens_are_too_few_and_not_of_too_low_a_rank():
    """Their effective rank is exactly 3, which is not below 3, whatever rounding does to it."""
    row = between(np.eye(3), np.eye(3))
    assert "needs at least 4 tokens, found 3" in row["undefined"]
    assert row["cka_biased"] in (None, pytest.approx(1))


@pytest.mark.parametrize("n", [4, 5, 12])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("turn", [False, True], ids=["axes", "turned"])
def test_tokens_that_are_all_equally_far_apart_have_no_debiased_value(n, turn, dtype):
    """Off the diagonal nothing varies: the U-centred matrix is zero, or rounding, and the quotient says nothing."""
    simplex = (rotation(n) if turn else np.eye(n)).astype(dtype)
    for row in (between(cloud(n, 30), simplex), between(simplex, cloud(n, 30)), between(simplex, simplex)):
        assert row["cka_debiased"] is None
        assert_honest(row)


def test_four_tokens_are_enough():
    X, Y = cloud(4, 60, 0), cloud(4, 60, 1)
    assert values(between(X, Y)) == pytest.approx([biased(unit(X), unit(Y)), debiased(unit(X), unit(Y))], abs=1e-9)


@pytest.mark.parametrize(
    ("H", "cause"),
    [
        (np.empty((0, 8)), "no tokens"),
        (np.vstack([np.zeros((1, 8)), cloud(11, 8)]), "row 0 is a zero vector (1 of 12)"),
        (np.zeros((12, 8)), "row 0 is a zero vector (12 of 12)"),
    ],
    ids=["no-tokens", "zero-row", "all-zero"],
)
def test_without_directions_both_are_null_with_the_cause_ME11(H, cause):
    X = cloud(max(len(H), 1), 8)
    assert_null(between(X, H), cause)
    assert_null(between(H, X) if len(H) else between(H, H), cause)


@broken
def test_broken_states_are_refused_wherever_they_come(H, cause):
    with pytest.raises(Refusal, match=cause):
        list(cka([np.eye(3), H]))
    with pytest.raises(Refusal, match=cause):
        list(cka([H, np.eye(3)]))


@settings(laws, max_examples=100)
@given(seeds)
def test_coarse_clouds_get_finite_numbers_or_a_reason(seed):
    X = coarse_cloud(seed)
    for row in cka([X, X, X + 1, X]):
        assert_honest(row)


def test_no_layers_give_no_rows():
    assert list(cka([])) == []


def test_the_input_is_left_as_it_was():
    X, Y = cloud(6, 9, 0), cloud(6, 9, 1)
    before = X.copy(), Y.copy()
    between(X, Y)
    assert np.array_equal(X, before[0])
    assert np.array_equal(Y, before[1])
