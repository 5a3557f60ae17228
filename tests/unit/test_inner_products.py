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
from collapse.metrics.effective_rank import effective_rank
from collapse.metrics.inner_products import inner_products

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


def slow(H):
    X = unit(H)
    values = sorted(dot(X[i], X[j]) for i in range(len(X)) for j in range(i + 1, len(X)))
    count = len(values)
    mean = math.fsum(values) / count
    edges = [-1 + k / 25 for k in range(51)]

    def quantile(q):
        place = q * (count - 1)
        low = math.floor(place)
        high = min(low + 1, count - 1)
        return values[low] + (place - low) * (values[high] - values[low])

    return {
        "mean_inner_product": mean,
        "sd_inner_product": math.sqrt(math.fsum((v - mean) ** 2 for v in values) / count),
        "mass_near_one": sum(v > 0.9 for v in values) / count,
        **{f"quantile_{q:02d}": quantile(q / 100) for q in (5, 25, 50, 75, 95)},
        "histogram": [sum(low <= v < high for v in values) for low, high in zip(edges, edges[1:-1] + [1.1])],
        "n_pairs": count,
        **slow_controls(X),
    }


def slow_controls(X):
    """The mean cosine around the mean, and without the three coordinates that add most to it, by loops over pairs."""
    n, d = len(X), len(X[0])
    index_pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    mean = [math.fsum(x[k] for x in X) / n for k in range(d)]
    added = [math.fsum(X[i][k] * X[j][k] for i, j in index_pairs) for k in range(d)]
    kept = sorted(sorted(range(d), key=lambda k: -added[k])[3:])
    versions = {
        "mean_inner_product_centred": [[x[k] - mean[k] for k in range(d)] for x in X],
        "mean_inner_product_without_rogue": [[x[k] for k in kept] for x in X],
    }
    row = {}
    for column, rows in versions.items():
        if all(any(row) for row in rows):
            U = unit(rows)
            row[column] = math.fsum(dot(U[i], U[j]) for i, j in index_pairs) / len(index_pairs)
        else:
            row[column] = None
    return row


BASIS_BOUND = "mean_inner_product_without_rogue"


@laws
@given(shapes, seeds)
def test_every_column_is_its_definition_over_pairs(shape, seed):
    H = cloud(*shape, seed)
    row = inner_products(H)
    expected = slow(H)
    assert (row.pop("undefined") is None) == (None not in expected.values())
    assert_close(row, expected)


@laws
@given(shapes, seeds)
def test_the_mean_is_what_the_length_of_the_sum_says(shape, seed):
    """The squared length of the sum of n unit vectors is n + n (n - 1) mean, so the mean is at least -1 / (n - 1)."""
    H, n = cloud(*shape, seed), shape[0]
    total = unit(H).sum(axis=0)
    mean = inner_products(H)["mean_inner_product"]
    assert mean == pytest.approx((total @ total - n) / (n * (n - 1)), abs=1e-12)
    assert -1 / (n - 1) - 1e-12 <= mean <= 1


@laws
@given(shapes, seeds)
def test_nothing_depends_on_order_rotation_or_the_length_of_tokens(shape, seed):
    n, d = shape
    H = cloud(n, d, seed)
    row = inner_products(H)
    assert_close(inner_products(np.random.default_rng(seed).permutation(H)), row)
    assert_close(inner_products(lengths(n, seed) * H), row)
    # Rogue dimensions are coordinates: that control alone belongs to the basis.
    rotated = inner_products(H @ rotation(d, seed)) | {BASIS_BOUND: row[BASIS_BOUND]}
    if row["undefined"] is None:
        assert_close(rotated | {"undefined": None}, row)


def test_turning_one_of_two_tokens_round_changes_the_sign():
    x, y = cloud(2, 5)
    assert inner_products([x, -y])["mean_inner_product"] == pytest.approx(-inner_products([x, y])["mean_inner_product"])


def test_tokens_in_a_plane_have_the_cosines_of_their_angles():
    H = [(math.cos(a), math.sin(a)) for a in np.deg2rad([0, 20, 60])]
    row = inner_products(H)
    cosines = [math.cos(math.radians(a)) for a in (20, 40, 60)]
    assert row["mean_inner_product"] == pytest.approx(sum(cosines) / 3)
    assert row["quantile_50"] == pytest.approx(cosines[1])
    assert row["mass_near_one"] == pytest.approx(1 / 3)


def test_orthogonal_tokens_have_no_mass_near_one_ME08():
    """ME08: with the diagonal counted it would be 1 / n = 0.125, and so would the mean."""
    row = inner_products(np.eye(8))
    assert (row["mass_near_one"], row["mean_inner_product"], row["sd_inner_product"]) == (0, 0, 0)
    assert row["n_pairs"] == 28


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_identical_tokens_lie_in_the_last_bin_with_mean_one(dtype):
    row = inner_products(copies(40, 768, dtype=dtype))
    assert row["mean_inner_product"] == pytest.approx(1, abs=1e-12)
    assert row["sd_inner_product"] == pytest.approx(0, abs=1e-12)
    assert row["mass_near_one"] == 1
    assert row["histogram"] == [0] * 49 + [780]


def test_opposite_tokens_lie_in_the_first_bin():
    row = inner_products([[1, 2, 2], [-2, -4, -4]])
    assert row["mean_inner_product"] == pytest.approx(-1)
    assert row["histogram"] == [1] + [0] * 49


def test_no_pair_falls_out_of_the_histogram_ME06():
    """ME06: float32 cosines above 1 fall out of the last bin."""
    V = unit(cloud(200, 768)).astype(np.float32)
    assert sum(inner_products(V)["histogram"]) == 200 * 199 // 2
    doubled = inner_products(np.vstack([V, V]))
    assert sum(doubled["histogram"]) == doubled["n_pairs"] == 400 * 399 // 2
    assert doubled["histogram"][-1] == 200


def test_two_rogue_dimensions_give_high_cosines_that_centring_shows_to_be_no_clustering_FT05():
    """FT05: 64 independent tokens with a constant 20 in two coordinates have a mean cosine of 0.507."""
    noise = cloud(64, 768)
    rogue = noise.copy()
    rogue[:, :2] += 20
    assert inner_products(rogue)["mean_inner_product"] == pytest.approx(0.507, abs=0.005)
    row = inner_products(rogue)
    assert row["mean_inner_product_centred"] == pytest.approx(-1 / 63, abs=0.002)
    assert row["mean_inner_product_without_rogue"] == pytest.approx(0, abs=0.01)
    ranks, plain = effective_rank(rogue), effective_rank(noise)
    assert ranks["effective_rank_raw"] < 0.9 * plain["effective_rank_raw"]
    assert ranks["effective_rank_centred"] == pytest.approx(plain["effective_rank_centred"], rel=0.01)


def test_the_input_is_left_as_it_was():
    H = cloud(6, 9)
    before = H.copy()
    inner_products(H)
    assert np.array_equal(H, before)


@broken
def test_broken_states_are_refused(H, cause):
    with pytest.raises(Refusal, match=cause):
        inner_products(H)


@pytest.mark.parametrize(
    ("H", "cause"),
    [
        (np.empty((0, 4)), "no tokens"),
        ([[1.0, 2.0]], "1 token: no pairs"),
        ([[0.0, 0.0]], "row 0 is a zero vector"),
        ([[1.0, 2.0], [0.0, 0.0], [1.0, 1.0]], "row 1 is a zero vector (1 of 3)"),
        (np.zeros((5, 4)), "row 0 is a zero vector (5 of 5)"),
    ],
    ids=["no-tokens", "one-token", "one-zero-token", "zero-row", "all-zero"],
)
def test_without_a_pair_of_directions_all_is_null_with_the_cause_ME11(H, cause):
    assert_null(inner_products(H), cause)


def test_two_tokens_are_one_pair():
    row = inner_products([[1, 0], [1, 1]])
    assert row["n_pairs"] == 1
    values = [row[f"quantile_{q:02d}"] for q in (5, 25, 50, 75, 95)] + [row["mean_inner_product"]]
    assert values == pytest.approx([math.sqrt(0.5)] * 6)
    assert row["sd_inner_product"] == 0


@settings(laws, max_examples=100)
@given(seeds)
def test_coarse_clouds_get_finite_numbers_or_a_reason(seed):
    row = inner_products(coarse_cloud(seed))
    assert_honest(row)
    if row["undefined"] is None:
        assert sum(row["histogram"]) == row["n_pairs"]
