import numpy as np
import pytest
from clouds import broken, cloud, copies, dot, laws, lengths, rotation, seeds, shapes, unit
from hypothesis import given

from collapse.errors import Refusal, Undefined
from collapse.geometry import as_matrix, cosines, nulls, on_sphere, pairs

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int64])
def test_every_number_type_becomes_float64_with_the_same_values(dtype):
    H = np.array([[1, 2], [3, 4]], dtype=dtype)
    assert as_matrix(H).dtype == np.float64
    assert as_matrix(H).tolist() == [[1, 2], [3, 4]]


def test_a_list_of_lists_is_a_matrix():
    assert as_matrix([[1, 2], [3, 4]]).tolist() == [[1, 2], [3, 4]]


@broken
@pytest.mark.parametrize("function", [as_matrix, on_sphere])
def test_broken_states_are_refused_with_shape_or_row(function, H, cause):
    with pytest.raises(Refusal, match=cause):
        function(H)


@pytest.mark.parametrize("function", [as_matrix, on_sphere])
def test_no_tokens_is_undefined_and_not_an_error_of_another_kind(function):
    with pytest.raises(Undefined, match="no tokens"):
        function(np.empty((0, 5)))


@pytest.mark.parametrize(("rows", "cause"), [([0], r"row 0 .*\(1 of 3\)"), ([1, 2], r"row 1 .*\(2 of 3\)")])
def test_a_zero_row_has_no_direction_ME11(rows, cause):
    """ME11: libraries answer distance 1 or NaN; the row must be detected and named."""
    H = np.ones((3, 4))
    H[rows] = 0
    with pytest.raises(Undefined, match=f"{cause}.*no direction"):
        on_sphere(H)


def test_nan_beside_a_zero_row_is_refused_and_not_excused_as_undefined():
    with pytest.raises(Refusal, match="row 1"):
        on_sphere([[0.0, 0.0], [np.nan, 1.0]])


@laws
@given(shapes, seeds)
def test_directions_are_rows_over_their_norm(shape, seed):
    H = cloud(*shape, seed)
    np.testing.assert_allclose(on_sphere(H), unit(H), rtol=1e-14)
    np.testing.assert_allclose(np.linalg.norm(on_sphere(H), axis=1), 1.0, rtol=1e-15)


@laws
@given(shapes, seeds)
def test_directions_do_not_depend_on_the_length_of_each_token(shape, seed):
    H = cloud(*shape, seed)
    np.testing.assert_allclose(on_sphere(lengths(shape[0], seed) * H), on_sphere(H), rtol=1e-14)


@pytest.mark.parametrize("exponent", [-1000, -300, 300, 1000])
def test_directions_of_tiny_and_huge_tokens_are_exact(exponent):
    """A power of two changes no digit; squares of these entries would under- or overflow."""
    H = np.clip(cloud(5, 7), -4, 4)
    assert np.array_equal(on_sphere(2.0**exponent * H), on_sphere(H))


def test_tokens_of_very_different_length_are_normalised_side_by_side():
    X = on_sphere([[3e-300, 4e-300], [3e300, 4e300], [3, 4]])
    np.testing.assert_allclose(X, [[0.6, 0.8]] * 3, rtol=1e-15)


@laws
@given(shapes, seeds)
def test_directions_turn_with_the_cloud_and_follow_its_order(shape, seed):
    H, Q = cloud(*shape, seed), rotation(shape[1], seed)
    order = np.random.default_rng(seed).permutation(shape[0])
    np.testing.assert_allclose(on_sphere(H @ Q), on_sphere(H) @ Q, atol=1e-14)
    assert np.array_equal(on_sphere(H[order]), on_sphere(H)[order])


def test_float32_states_are_measured_in_float64():
    H = cloud(6, 9).astype(np.float32)
    X = on_sphere(H)
    assert X.dtype == np.float64
    np.testing.assert_allclose(np.linalg.norm(X, axis=1), 1.0, rtol=1e-15)
    assert np.array_equal(X, on_sphere(H.astype(np.float64)))


def test_the_layout_in_memory_does_not_matter():
    H = cloud(12, 10)
    wide = np.repeat(H, 2, axis=1)
    for view in (np.asfortranarray(H), wide[:, ::2], H[::-1][::-1]):
        np.testing.assert_allclose(cosines(on_sphere(view)), cosines(on_sphere(H)), atol=1e-15)


def test_the_input_is_left_as_it_was():
    H = cloud(6, 9)
    before = H.copy()
    X = on_sphere(H)
    assert np.array_equal(H, before)
    unchanged = X.copy()
    cosines(X)
    assert np.array_equal(X, unchanged)


@laws
@given(shapes, seeds)
def test_cosines_are_the_inner_products_of_all_pairs(shape, seed):
    H = cloud(*shape, seed)
    X = unit(H)
    expected = [[dot(x, y) for y in X] for x in X]
    np.testing.assert_allclose(cosines(on_sphere(H)), expected, atol=1e-14)


@laws
@given(shapes, seeds)
def test_cosines_are_symmetric_to_the_last_bit_with_ones_on_the_diagonal(shape, seed):
    G = cosines(on_sphere(cloud(*shape, seed)))
    assert np.array_equal(G, G.T)
    assert np.array_equal(np.diag(G), np.ones(shape[0]))


def test_cosines_never_leave_minus_one_to_one_ME06():
    """ME06: rows a little too long, as float32 makes them, give products beyond 1."""
    x = unit(cloud(1, 768))
    X = np.vstack([x, x, -x]) * (1 + 1e-7)
    assert (X @ X.T).max() > 1 > -1 > (X @ X.T).min()
    assert cosines(X).tolist() == [[1, 1, -1], [1, 1, -1], [-1, -1, 1]]


def test_copies_of_any_length_have_cosine_one_to_rounding():
    assert cosines(on_sphere(copies(50, 768))).min() > 1 - 1e-14


def test_pairs_are_the_entries_above_the_diagonal_row_by_row():
    G = np.arange(16).reshape(4, 4)
    assert pairs(G).tolist() == [1, 2, 3, 6, 7, 11]


@pytest.mark.parametrize("n", [0, 1, 2, 3, 50])
def test_there_are_n_choose_2_pairs_and_the_diagonal_is_none_of_them_ME08(n):
    G = np.ones((n, n))
    np.fill_diagonal(G, np.nan)
    assert len(pairs(G)) == n * (n - 1) // 2
    assert np.array_equal(pairs(G), np.ones(n * (n - 1) // 2))


def test_nulls_fill_every_column_and_carry_the_reason_as_text():
    assert nulls(("a", "b"), Undefined("why")) == {"a": None, "b": None, "undefined": "why"}
