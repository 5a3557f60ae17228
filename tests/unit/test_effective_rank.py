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
    laws,
    lengths,
    rotation,
    seeds,
    shapes,
    unit,
)
from hypothesis import given, settings

from collapse.errors import Refusal
from collapse.geometry import cosines, on_sphere
from collapse.metrics.effective_rank import COLUMNS, effective_rank
from collapse.spectra import singular_values, singular_values_of_both, sphere_rank_from_cosines

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

RAW = ("effective_rank_raw", "spectral_entropy_rank", "participation_ratio")
SPHERE = tuple(name for name in COLUMNS if name not in RAW)


def entropy_rank(weights):
    total = math.fsum(weights)
    return math.exp(-math.fsum(w / total * math.log(w / total) for w in weights if w > 0))


def slow(H):
    X = unit(H)
    raw, sphere, centred = (np.linalg.svd(M, compute_uv=False) for M in (np.asarray(H), X, X - X.mean(axis=0)))
    return {
        "effective_rank_raw": entropy_rank(raw),
        "effective_rank_sphere": entropy_rank(sphere),
        "effective_rank_centred": entropy_rank(centred),
        "spectral_entropy_rank": entropy_rank(raw**2),
        "participation_ratio": (raw**2).sum() ** 2 / (raw**4).sum(),
        "spectral_entropy_rank_sphere": entropy_rank(sphere**2),
        "participation_ratio_sphere": (sphere**2).sum() ** 2 / (sphere**4).sum(),
        "undefined": None,
    }


def with_singular_values(sigma, n, d, seed=0):
    """An n x d matrix with these singular values and random vectors."""
    k = len(sigma)
    return rotation(n, seed)[:, :k] * sigma @ rotation(d, seed + 1)[:k]


@laws
@given(shapes, seeds)
def test_every_column_is_its_definition_on_an_svd(shape, seed):
    H = cloud(*shape, seed)
    # Small singular values come from the roots of eigenvalues: half of the digits.
    assert_close(effective_rank(H), slow(H), rel=1e-6)


@laws
@given(shapes, seeds)
def test_the_gate_of_cka_and_the_column_are_one_quantity(shape, seed):
    H = cloud(*shape, seed)
    rank = sphere_rank_from_cosines(cosines(on_sphere(H)))
    assert rank == pytest.approx(effective_rank(H)["effective_rank_sphere"], rel=1e-6)


@pytest.mark.parametrize(("n", "d"), [(4, 4), (4, 50), (50, 4), (20, 30)])
def test_singular_values_3_1_1_1(n, d):
    row = effective_rank(with_singular_values([3, 1, 1, 1], n, d))
    assert round(row["effective_rank_raw"], 4) == 3.4641
    assert round(row["spectral_entropy_rank"], 4) == 2.3094
    assert row["participation_ratio"] == pytest.approx(12**2 / 84)


@pytest.mark.parametrize("k", [1, 2, 5, 17])
@pytest.mark.parametrize(("n", "d"), [(17, 40), (40, 17)])
def test_k_equal_singular_values_give_k(k, n, d):
    row = effective_rank(with_singular_values([2.5] * k, n, d))
    assert [row[name] for name in RAW] == pytest.approx([k] * 3, rel=1e-6)


@pytest.mark.parametrize(("sigma", "rank"), [((1, 1), 2), ((1, 1, 0), 2)])
def test_zero_singular_values_count_as_nothing_and_logarithms_match_ME05(sigma, rank):
    """ME05: entropy in bits under e gives 2.718, and 0 log 0 gives NaN."""
    row = effective_rank(np.diag(np.array(sigma, float)))
    assert [row[name] for name in RAW] == pytest.approx([rank] * 3, rel=1e-12)
    assert effective_rank([[1, 0, 0], [0, 1, 0], [1, 1, 0]])["effective_rank_raw"] <= 2


@laws
@given(shapes, seeds)
def test_every_rank_lies_between_one_and_the_number_of_directions_there_are_ME05(shape, seed):
    n, d = shape
    row = effective_rank(cloud(n, d, seed))
    assert all(1 <= row[name] <= min(n, d) + 1e-9 for name in COLUMNS)
    assert row["effective_rank_centred"] <= min(n - 1, d) + 1e-9
    # Renyi entropies fall with their order.
    assert row["participation_ratio"] <= row["spectral_entropy_rank"] <= row["effective_rank_raw"] + 1e-9


@pytest.mark.parametrize(("n", "d"), [(3, 4096), (64, 768), (200, 300), (300, 40)])
def test_tokens_on_one_line_have_rank_one(n, d):
    signs = (-1.0) ** np.arange(n)[:, None]
    H = signs * lengths(n) * cloud(1, d)
    row = effective_rank(H)
    assert [row[name] for name in COLUMNS if name != "effective_rank_centred"] == pytest.approx([1] * 6, abs=1e-5)
    # Around their mean, opposite directions are one line still.
    assert row["effective_rank_centred"] == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(("n", "d"), [(250, 300), (300, 250)])
def test_rounding_adds_no_tail_to_a_matrix_of_low_rank(n, d):
    """Rounding makes eigenvalues of 1e-16 out of zeros, and their roots, 1e-8 each, would count as directions."""
    H = with_singular_values([5, 3, 1], n, d)
    assert len(singular_values(H)) == 3
    assert effective_rank(H)["effective_rank_raw"] == pytest.approx(entropy_rank([5, 3, 1]), rel=1e-9)


@laws
@given(shapes, seeds)
def test_singular_values_are_those_of_an_svd(shape, seed):
    H = cloud(*shape, seed)
    np.testing.assert_allclose(singular_values(H)[::-1], np.linalg.svd(H, compute_uv=False), rtol=1e-6)


def hostile(kind, n=40, d=60):
    """States whose two spectra are far apart, or close to rank one."""
    H = cloud(n, d)
    if kind == "massive token":
        H[0] *= 1e6
    elif kind == "near collapse":
        H = cloud(1, d) + 1e-3 * H
    elif kind == "low rank":
        H = lengths(n) * with_singular_values([5, 3, 1], n, d)
    elif kind == "far lengths":
        H[::2] *= 1e-100
    return H


@pytest.mark.parametrize("shape", [(40, 60), (60, 40)])
@pytest.mark.parametrize("kind", ["massive token", "near collapse", "low rank", "far lengths"])
def test_both_spectra_from_one_product_are_those_of_two(kind, shape):
    H = hostile(kind, *shape)
    for found, M in zip(singular_values_of_both(H, on_sphere(H)), (H, unit(H))):
        expected = singular_values(M)
        assert len(found) == len(expected)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        svd = np.linalg.svd(M, compute_uv=False)
        assert entropy_rank(found) == pytest.approx(entropy_rank(svd[svd > 1e-10 * svd[0]]), rel=1e-6)


@laws
@given(shapes, seeds)
def test_nothing_depends_on_order_rotation_or_a_common_factor(shape, seed):
    n, d = shape
    H = cloud(n, d, seed)
    row = effective_rank(H)
    assert_close(effective_rank(np.random.default_rng(seed).permutation(H)), row, rel=1e-6)
    assert_close(effective_rank(H @ rotation(d, seed)), row, rel=1e-6)
    assert_close(effective_rank(-7.3 * H), row, rel=1e-6)


@laws
@given(shapes, seeds)
def test_only_the_raw_columns_see_the_length_of_tokens(shape, seed):
    n, d = shape
    H = cloud(n, d, seed)
    row, scaled = effective_rank(H), effective_rank(lengths(n, seed) * H)
    assert_close(scaled, row, rel=1e-6, ignore=RAW)
    assert all(abs(scaled[name] - row[name]) > 1e-3 for name in RAW)


def test_one_massive_token_sets_the_raw_rank_and_not_that_of_directions():
    H = cloud(64, 768)
    massive = H.copy()
    massive[0] *= 1000
    row, other = effective_rank(H), effective_rank(massive)
    assert other["effective_rank_raw"] < 0.3 * row["effective_rank_raw"]
    assert other["effective_rank_sphere"] == pytest.approx(row["effective_rank_sphere"])


def test_a_common_direction_does_not_count_around_the_mean():
    """Three orthogonal tokens: rank 3; around their mean, an equilateral triangle: rank 2."""
    row = effective_rank(np.eye(3))
    assert row["effective_rank_sphere"] == pytest.approx(3)
    assert row["effective_rank_centred"] == pytest.approx(2)


@pytest.mark.parametrize("exponent", [-300, -150, -80, 80, 150, 300])
def test_a_common_factor_changes_nothing_however_extreme(exponent):
    """Squares and fourth powers of singular values under- and overflow unless they are scaled first."""
    H = cloud(5, 7)
    row = effective_rank(10.0**exponent * H)
    assert_honest(row)
    assert_close(row, effective_rank(H), rel=1e-6)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("n", "d"), [(2, 8), (20, 64), (100, 768)])
def test_identical_directions_have_no_rank_around_their_mean(n, d, dtype):
    """States are stored as float32: what lies between copies of one direction is rounding, not rank."""
    row = effective_rank(copies(n, d, dtype=dtype))
    assert row["effective_rank_sphere"] == pytest.approx(1, abs=1e-4)
    assert row["effective_rank_centred"] is None
    assert "effective_rank_centred: all tokens point the same way" in row["undefined"]
    assert_honest(row)


def test_directions_that_differ_a_little_but_truly_have_a_rank_around_their_mean():
    H = cloud(1, 64) + 1e-3 * cloud(20, 64, seed=1)
    assert effective_rank(H)["effective_rank_centred"] == pytest.approx(slow(H)["effective_rank_centred"], rel=1e-6)


def test_one_token_has_rank_one_and_none_around_its_mean():
    row = effective_rank([[3.0, 4.0, 0.0]])
    assert [row[name] for name in COLUMNS if name != "effective_rank_centred"] == pytest.approx([1] * 6)
    assert row["effective_rank_centred"] is None
    assert_honest(row)


def test_two_tokens_have_one_direction_around_their_mean():
    row = effective_rank([[1.0, 0.0], [0.0, 5.0]])
    assert row["effective_rank_sphere"] == pytest.approx(2)
    assert row["effective_rank_centred"] == pytest.approx(1)


def test_a_zero_row_leaves_the_raw_columns_and_takes_those_of_directions_ME11():
    row = effective_rank([[0.0, 0.0], [3.0, 0.0], [0.0, 3.0]])
    assert [row[name] for name in RAW] == pytest.approx([2] * 3)
    assert {row[name] for name in SPHERE} == {None}
    assert "row 0 is a zero vector (1 of 3)" in row["undefined"]
    assert_honest(row)


@pytest.mark.parametrize(
    ("H", "cause"), [(np.empty((0, 4)), "no tokens"), (np.zeros((5, 4)), "all states are zero")], ids=["none", "zero"]
)
def test_without_states_all_is_null_with_the_cause(H, cause):
    assert_null(effective_rank(H), cause)


@broken
def test_broken_states_are_refused(H, cause):
    with pytest.raises(Refusal, match=cause):
        effective_rank(H)


@settings(laws, max_examples=100)
@given(seeds)
def test_coarse_clouds_get_finite_numbers_within_bounds_or_a_reason(seed):
    H = coarse_cloud(seed)
    row = effective_rank(H)
    assert_honest(row)
    assert all(row[name] is None or 1 - 1e-9 <= row[name] <= min(H.shape) + 1e-9 for name in COLUMNS)


def test_the_input_is_left_as_it_was():
    H = cloud(6, 9)
    before = H.copy()
    effective_rank(H)
    assert np.array_equal(H, before)
