"""Compiled products against numpy's, at sizes that leave every number of rows over, masked and not."""

import numpy as np
import pytest
from clouds import laws, seeds
from hypothesis import given
from hypothesis import strategies as st

from collapse.compiled import deflated, lanczos, product, sinkhorn_round, symmetric_part

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

sizes = st.sampled_from([*range(1, 14), 33, 70])
# None: no one number stands above the diagonal.
aboves = st.sampled_from([None, 0.0, 1e-12, 0.3])


def matrix(n, above, seed):
    """Positive numbers of unlike size, one of them everywhere above the diagonal, and how a kernel is told so."""
    M = np.random.default_rng(seed).lognormal(sigma=4, size=(n, n))
    if above is None:
        return M, -1.0
    M[np.triu_indices(n, k=1)] = above
    return M, above


def symmetric(n, seed):
    """A symmetric matrix, and the same with nonsense above the diagonal."""
    W = np.random.default_rng(seed).normal(size=(n, n))
    W += W.T
    lower = W.copy()
    lower[np.triu_indices(n, k=1)] = np.nan
    return W, lower


@laws
@given(sizes, aboves, seeds)
def test_a_round_normalises_rows_and_then_columns(n, above, seed):
    M, told = matrix(n, above, seed)
    c = np.random.default_rng(seed + 1).lognormal(size=n)
    r, new = sinkhorn_round(M, c, told)
    np.testing.assert_allclose(r, 1 / (M @ c), rtol=1e-13)
    np.testing.assert_allclose(new, 1 / (M.T @ (1 / (M @ c))), rtol=1e-13)


@laws
@given(sizes, aboves, st.booleans(), seeds)
def test_the_symmetric_part_is_that_of_the_scaled_matrix(n, above, with_diagonal, seed):
    M, told = matrix(n, above, seed)
    r, c = np.random.default_rng(seed + 1).lognormal(size=(2, n))
    P = r[:, None] * M * c
    expected = (P + P.T) / 2
    if not with_diagonal:
        np.fill_diagonal(expected, 0.0)
    W, sums = symmetric_part(M, r, c, told, with_diagonal)
    np.testing.assert_allclose(W, np.tril(expected), rtol=1e-14)
    np.testing.assert_allclose(sums, expected.sum(axis=1), rtol=1e-13)


@laws
@given(sizes, seeds)
def test_deflation_scales_both_sides_and_moves_the_known_eigenvalue(n, seed):
    W, lower = symmetric(n, seed)
    scale, known = np.random.default_rng(seed + 1).lognormal(size=(2, n))
    S, squares = deflated(lower, scale, known)
    expected = scale[:, None] * W * scale - 2 * np.outer(known, known)
    np.testing.assert_allclose(np.tril(S), np.tril(expected), atol=1e-13 * np.abs(expected).max())
    assert squares == pytest.approx((expected**2).sum(), rel=1e-12)


@pytest.mark.parametrize("n", [1500, 2216])
def test_a_sum_of_squares_of_equal_numbers_is_off_by_few_roundings_per_token(n):
    one, nothing = np.ones(n), np.zeros(n)
    _, squares = deflated(np.full((n, n), 1 / n), one, nothing)
    assert squares == pytest.approx((1 / n) ** 2 * n**2, rel=n * np.finfo(float).eps)


@laws
@given(sizes, seeds)
def test_a_product_reads_the_lower_triangle_alone(n, seed):
    W, lower = symmetric(n, seed)
    x = np.random.default_rng(seed + 1).normal(size=n)
    np.testing.assert_allclose(product(lower, x), W @ x, atol=1e-13 * np.abs(W).sum())


@laws
@given(st.integers(12, 40), st.integers(1, 11), seeds)
def test_lanczos_turns_a_matrix_into_a_tridiagonal_one(n, steps, seed):
    S, lower = symmetric(n, seed)
    basis, diagonal, beside = np.zeros((steps + 1, n)), np.zeros(steps), np.zeros(steps)
    basis[0, seed % n] = 1.0
    # In two goes, as in one.
    middle = steps // 2
    assert lanczos(lower, basis, diagonal, beside, 0, middle, 1e-8) == middle
    assert lanczos(lower, basis, diagonal, beside, middle, steps, 1e-8) == steps
    np.testing.assert_allclose(basis @ basis.T, np.eye(steps + 1), atol=1e-12)
    T = np.diag(diagonal) + np.diag(beside[:-1], 1) + np.diag(beside[:-1], -1)
    np.testing.assert_allclose(basis[:-1] @ S @ basis[:-1].T, T, atol=1e-11)
    np.testing.assert_allclose(basis[-1] @ S @ basis[-2], beside[-1], atol=1e-11)


@pytest.mark.parametrize("values", [[1.0, 1e-3, 1e-7], [1.0, 1e-7], [3.0, 2.0, 1e-6]])
def test_lanczos_vectors_stay_orthogonal_where_a_step_leaves_little(values):
    """What is divided by a small number carries rounding that is large beside it."""
    Q = np.linalg.qr(np.random.default_rng(0).normal(size=(60, len(values))))[0]
    basis, diagonal, beside = np.zeros((9, 60)), np.zeros(8), np.zeros(8)
    basis[0] = 60**-0.5
    done = lanczos((Q * values) @ Q.T, basis, diagonal, beside, 0, 8, 1e-8)
    assert done < 8
    np.testing.assert_allclose(basis[:done] @ basis[:done].T, np.eye(done), atol=1e-11)


def test_lanczos_ends_where_its_vectors_are_whole():
    """Two different eigenvalues: two steps say all, and the third vector would be rounding."""
    basis, diagonal, beside = np.zeros((9, 30)), np.zeros(8), np.zeros(8)
    basis[0] = 30**-0.5
    S = np.diag([1.0] * 10 + [4.0] * 20)
    assert lanczos(S, basis, diagonal, beside, 0, 8, 1e-8) == 2
    T = np.array([[diagonal[0], beside[0]], [beside[0], diagonal[1]]])
    assert np.linalg.eigvalsh(T) == pytest.approx([1, 4])
