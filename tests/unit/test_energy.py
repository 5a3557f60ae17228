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
from hypothesis import strategies as st

from collapse.errors import Refusal
from collapse.metrics.energy import energy
from collapse.metrics.inner_products import inner_products

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

betas = st.sampled_from([0.1, 1.0, 2.0, 5.0, 30.0])


def one(H, beta):
    (row,) = energy([H], beta, 0.0)
    return row


def slow(H, beta):
    X = unit(H)
    total = math.fsum(math.exp(beta * dot(x, y)) for x in X for y in X)
    return total / (2 * beta * len(X) ** 2)


@pytest.mark.parametrize(("beta", "value"), [(0.1, 5.526), (1, 1.359), (2, 1.847), (5, 14.841)])
def test_energy_of_467_identical_tokens(beta, value):
    row = one(copies(467, 768), beta)
    assert round(row["energy"], 3) == value
    assert row["energy"] == pytest.approx(math.exp(beta) / (2 * beta), rel=1e-12)


@pytest.mark.parametrize(("beta", "value"), [(0.1, 5.001), (1, 0.502), (2, 0.253), (5, 0.132)])
def test_energy_of_467_orthogonal_tokens(beta, value):
    n = 467
    row = one(lengths(n) * rotation(n), beta)
    assert round(row["energy"], 3) == value
    assert row["energy"] == pytest.approx((math.exp(beta) + n - 1) / (2 * beta * n), rel=1e-12)


@laws
@given(shapes, seeds, betas)
def test_energy_is_the_sum_over_all_ordered_pairs_with_the_diagonal(shape, seed, beta):
    H = cloud(*shape, seed)
    row = one(H, beta)
    assert row["energy"] == pytest.approx(slow(H, beta), rel=1e-12)
    assert row["log_energy"] == pytest.approx(math.log(slow(H, beta)), abs=1e-12)


@laws
@given(shapes, seeds, betas)
def test_energy_does_not_depend_on_order_rotation_or_the_length_of_tokens(shape, seed, beta):
    n, d = shape
    H = cloud(n, d, seed)
    row = one(H, beta)
    assert_close(one(np.random.default_rng(seed).permutation(H), beta), row)
    assert_close(one(H @ rotation(d, seed), beta), row)
    assert_close(one(lengths(n, seed) * H, beta), row)


@laws
@given(shapes, seeds, betas)
def test_no_cloud_has_more_energy_than_identical_tokens_nor_less_than_jensen_allows(shape, seed, beta):
    """Convexity of exp: the mean over all i, j of exp(beta g) is at least exp(beta times the mean of g)."""
    n, d = shape
    H = cloud(n, d, seed)
    mean = (1 + (n - 1) * inner_products(H)["mean_inner_product"]) / n
    log_energy = one(H, beta)["log_energy"]
    assert beta * mean - 1e-12 <= log_energy + math.log(2 * beta) < beta


def test_one_token_has_the_energy_of_collapse():
    assert one([[3.0, 4.0]], 2.0)["energy"] == pytest.approx(math.exp(2) / 4)


def test_two_opposite_tokens_have_cosh_energy():
    assert one([[1.0, 2.0], [-2.0, -4.0]], 3.0)["energy"] == pytest.approx(math.cosh(3) / 6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("beta", [89.0, 700.0, 710.0, 800.0, 1e6])
def test_log_energy_of_collapse_is_exact_where_exp_overflows_ME09(beta, dtype):
    """ME09: exp(89) overflows float32 and exp(710) float64; the logarithm of the mean is beta itself."""
    row = one(copies(20, 64, dtype=dtype), beta)
    assert_honest(row)
    # Cosines are rounded at 1e-15, and beta multiplies that.
    assert row["log_energy"] == pytest.approx(beta - math.log(2 * beta), abs=1e-14 * beta)
    if beta < 715:
        assert row["energy"] == pytest.approx(math.exp(row["log_energy"]), rel=1e-9)
    else:
        assert row["energy"] is None
        assert "energy: above the largest float64, use log_energy" in row["undefined"]


def test_at_a_large_beta_only_self_pairs_are_left():
    assert one(rotation(50), 800.0)["log_energy"] == pytest.approx(800 - math.log(2 * 800 * 50), abs=1e-12)


@pytest.mark.parametrize("beta", [1e-9, 1e-3])
def test_at_a_small_beta_energy_is_its_first_two_terms(beta):
    H = cloud(9, 4)
    total = unit(H).sum(axis=0)
    assert one(H, beta)["energy"] == pytest.approx(1 / (2 * beta) + total @ total / (2 * 81), rel=1e-6)


@laws
@given(shapes, seeds, betas)
def test_steps_compare_each_layer_with_the_one_before(shape, seed, beta):
    layers = [cloud(*shape, seed + step) for step in range(4)]
    rows = list(energy(layers, beta, 1e-6))
    assert [row["energy"] for row in rows] == [one(H, beta)["energy"] for H in layers]
    for before, row in zip(rows, rows[1:]):
        assert row["change"] == pytest.approx(row["energy"] - before["energy"], abs=1e-12 * before["energy"])
        assert row["relative_change"] == pytest.approx(row["energy"] / before["energy"] - 1, rel=1e-6, abs=1e-12)
        assert row["is_drop"] is (row["relative_change"] < -1e-6)
        assert row["undefined"] is None


def test_the_first_layer_has_an_energy_and_no_step():
    row = one(cloud(5, 4), 1.0)
    assert row["energy"] > 0
    assert row["change"] is row["relative_change"] is row["is_drop"] is None
    assert row["undefined"] == "change, relative_change, is_drop: no layer before the first"


def test_only_a_fall_beyond_the_tolerance_is_a_drop():
    H = cloud(5, 4)
    spread, collapsed = H, copies(5, 4)
    fall = list(energy([collapsed, spread], 1.0, 0.0))[1]["relative_change"]
    assert -1 < fall < -0.01
    assert [row["is_drop"] for row in energy([spread, collapsed, spread], 1.0, 0.0)] == [None, False, True]
    assert list(energy([collapsed, spread], 1.0, -fall * 1.01))[1]["is_drop"] is False
    assert list(energy([collapsed, spread], 1.0, -fall * 0.99))[1]["is_drop"] is True
    assert list(energy([H, H], 1.0, 0.0))[1]["is_drop"] is False


def test_rounding_of_float32_states_is_no_drop_at_the_default_tolerance():
    H = unit(cloud(64, 128))
    for beta in (0.1, 1.0, 2.0, 5.0):
        rows = list(energy([H, H.astype(np.float32), H], beta, 1e-6))
        assert [row["is_drop"] for row in rows] == [None, False, False]


def test_after_a_layer_without_energy_there_is_no_step():
    H = cloud(3, 4)
    first, hole, after, last = energy([H, np.zeros((3, 4)), H, H], 1.0, 0.0)
    assert_null(hole, "row 0 is a zero vector (3 of 3)")
    assert after["energy"] == first["energy"]
    assert after["change"] is after["relative_change"] is after["is_drop"] is None
    assert "no energy in the layer before" in after["undefined"]
    assert last["relative_change"] == 0


def test_steps_stay_known_where_energy_itself_overflows():
    H = cloud(6, 4)
    rows = list(energy([H, copies(6, 4)], 2000.0, 0.0))
    assert rows[1]["energy"] is rows[1]["change"] is None
    assert "change: above the largest float64, use relative_change" in rows[1]["undefined"]
    assert rows[1]["relative_change"] == pytest.approx(5, rel=1e-6)
    assert rows[1]["is_drop"] is False


def test_a_change_above_the_largest_float_is_null_and_not_infinite():
    """Orthogonal tokens at beta 718 have a finite energy, the step to collapse has not."""
    rows = list(energy([np.eye(100), np.ones((100, 3))], 718.0, 0.0))
    assert rows[0]["energy"] > 0
    assert rows[1]["energy"] is None
    assert rows[1]["relative_change"] == pytest.approx(99)
    assert_honest(rows[1])
    assert rows[1]["change"] is None


def test_a_fall_from_an_energy_above_the_largest_float_is_still_a_drop():
    row = list(energy([np.ones((100, 3)), np.eye(100)], 718.0, 0.0))[1]
    assert_honest(row)
    assert row["is_drop"] is True
    assert row["relative_change"] == pytest.approx(-0.99)


@pytest.mark.parametrize("beta", [0, -1.0, math.nan, math.inf])
def test_a_beta_that_is_no_positive_number_is_refused(beta):
    with pytest.raises(Refusal, match=f"beta must be a positive number, found {beta!r}"):
        list(energy([np.eye(3)], beta, 0.0))


@broken
def test_broken_states_are_refused_wherever_they_come(H, cause):
    with pytest.raises(Refusal, match=cause):
        list(energy([np.eye(3), H], 1.0, 0.0))


@pytest.mark.parametrize(
    ("H", "cause"),
    [
        (np.empty((0, 4)), "no tokens"),
        ([[1.0, 2.0], [0.0, 0.0], [1.0, 1.0]], "row 1 is a zero vector (1 of 3)"),
        (np.zeros((5, 4)), "row 0 is a zero vector (5 of 5)"),
    ],
    ids=["no-tokens", "zero-row", "all-zero"],
)
def test_without_directions_all_is_null_with_the_cause_ME11(H, cause):
    assert_null(one(H, 1.0), cause)


@settings(laws, max_examples=100)
@given(seeds, st.sampled_from([1e-3, 1.0, 100.0, 800.0]))
def test_coarse_clouds_get_finite_numbers_or_a_reason(seed, beta):
    for row in energy([coarse_cloud(seed), coarse_cloud(seed + 1)], beta, 0.0):
        assert_honest(row)


def test_the_input_is_left_as_it_was():
    H = cloud(6, 9)
    before = H.copy()
    one(H, 1.0)
    assert np.array_equal(H, before)
