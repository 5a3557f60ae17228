"""Products with n x n matrices that numba compiles, because numpy reads such a matrix more often than the sum needs.

From 300 tokens on a matrix in float64 no longer fits the cache that is near, and what a product with a vector costs is
reading it. So a matrix that is needed in two directions is read once, four rows at a time; of a symmetric one only the
lower triangle is read, and what stands above its diagonal means nothing; and of one under a causal mask no more than
that, where all above its diagonal is one number, `above` (negative: it is not).

Sums are taken in another order than numpy's: results differ from its own by rounding. The first job after a change of
this file compiles for some seconds; numba keeps what it compiled beside it.
"""

import numpy as np
from numba import njit

ROWS = 4
TILE = 8
# Share of a vector that is left of it: what rounding leaves in it is then at most 1e-13 of that.
LITTLE = 1e-3
# Reordered sums are what makes them fast. Division by zero gives infinity, as in numpy, and no exception.
compiled = njit(cache=True, fastmath={"reassoc", "contract"}, error_model="numpy")


@compiled
def sinkhorn_round(M, c, above):
    """Normalise the rows and then the columns of r_i M_ij c_j.

    Parameters
    ----------
    M : array, shape (n, n)
        Non-negative.
    c : array, shape (n,)
        The scaling of columns so far.
    above : float
        Every M_ij with j > i, or a negative number if they differ.

    Returns
    -------
    (r, c) : arrays, shape (n,)
        r = 1 / (M c) of the given c, and the new c = 1 / (M^T r).
    """
    n = len(M)
    r, sums = np.empty(n), np.zeros(n)
    # What lies above the diagonal, beside a group of rows and above a group of columns.
    is_masked = above >= 0.0
    later, earlier = np.zeros(n + 1), 0.0
    if is_masked:
        for j in range(n - 1, -1, -1):
            later[j] = later[j + 1] + c[j]
    for i in range(0, n - n % ROWS, ROWS):
        end = i + ROWS if is_masked else n
        row0, row1, row2, row3 = M[i], M[i + 1], M[i + 2], M[i + 3]
        s0 = s1 = s2 = s3 = 0.0
        for j in range(end):
            s0 += row0[j] * c[j]
            s1 += row1[j] * c[j]
            s2 += row2[j] * c[j]
            s3 += row3[j] * c[j]
        rest = above * later[end]
        r0, r1, r2, r3 = 1.0 / (s0 + rest), 1.0 / (s1 + rest), 1.0 / (s2 + rest), 1.0 / (s3 + rest)
        for j in range(end):
            sums[j] += (r0 * row0[j] + r1 * row1[j]) + (r2 * row2[j] + r3 * row3[j])
        r[i], r[i + 1], r[i + 2], r[i + 3] = r0, r1, r2, r3
        if is_masked:
            for j in range(i, end):
                sums[j] += above * earlier
            earlier += (r0 + r1) + (r2 + r3)
    for i in range(n - n % ROWS, n):
        if is_masked:
            sums[i] += above * earlier
        s = 0.0
        for j in range(n):
            s += M[i, j] * c[j]
        r[i] = 1.0 / s
        for j in range(n):
            sums[j] += r[i] * M[i, j]
    return r, 1.0 / sums


@compiled
def symmetric_part(M, r, c, above, with_diagonal):
    """Return the lower triangle of W = (P + P^T) / 2 with P_ij = r_i M_ij c_j, and the row sums of W.

    `above` as for `sinkhorn_round`; without `with_diagonal` the diagonal of W is 0. Above it W holds zeros.
    """
    n = len(M)
    W, sums = np.zeros((n, n)), np.zeros(n)
    for i in range(n):
        W[i, i] = r[i] * M[i, i] * c[i] if with_diagonal else 0.0
    if above >= 0.0:
        for i in range(n):
            for j in range(i):
                W[i, j] = 0.5 * (r[i] * M[i, j] * c[j] + r[j] * above * c[i])
    else:
        for top in range(0, n, TILE):
            for left in range(0, top + 1, TILE):
                for i in range(top, min(top + TILE, n)):
                    for j in range(left, min(left + TILE, i)):
                        W[i, j] = 0.5 * (r[i] * M[i, j] * c[j] + r[j] * M[j, i] * c[i])
    for i in range(n):
        s = W[i, i]
        for j in range(i):
            s += W[i, j]
            sums[j] += W[i, j]
        sums[i] += s
    return W, sums


@compiled
def deflated(W, scale, known):
    """Return the lower triangle of S = D W D - 2 k k^T, with D the scale on a diagonal and k known, and its |S|_F^2."""
    n = len(W)
    S, squares = np.empty((n, n)), 0.0
    for i in range(n):
        # Row by row: what rounding makes of n^2 equal numbers in one sum grows with n^2.
        row = 0.0
        for j in range(i):
            S[i, j] = scale[i] * W[i, j] * scale[j] - 2.0 * known[i] * known[j]
            row += S[i, j] * S[i, j]
        S[i, i] = scale[i] * W[i, i] * scale[i] - 2.0 * known[i] * known[i]
        squares += 2.0 * row + S[i, i] * S[i, i]
    return S, squares


@compiled
def product(W, x):
    """Return W x of a symmetric W (n x n), of which the lower triangle is read."""
    n = len(W)
    y = np.zeros(n)
    for i in range(0, n - n % ROWS, ROWS):
        row0, row1, row2, row3 = W[i], W[i + 1], W[i + 2], W[i + 3]
        x0, x1, x2, x3 = x[i], x[i + 1], x[i + 2], x[i + 3]
        s0 = s1 = s2 = s3 = 0.0
        for j in range(i):
            s0 += row0[j] * x[j]
            s1 += row1[j] * x[j]
            s2 += row2[j] * x[j]
            s3 += row3[j] * x[j]
            y[j] += (row0[j] * x0 + row1[j] * x1) + (row2[j] * x2 + row3[j] * x3)
        y[i] += s0 + row0[i] * x0 + row1[i] * x1 + row2[i] * x2 + row3[i] * x3
        y[i + 1] += s1 + row1[i] * x0 + row1[i + 1] * x1 + row2[i + 1] * x2 + row3[i + 1] * x3
        y[i + 2] += s2 + row2[i] * x0 + row2[i + 1] * x1 + row2[i + 2] * x2 + row3[i + 2] * x3
        y[i + 3] += s3 + row3[i] * x0 + row3[i + 1] * x1 + row3[i + 2] * x2 + row3[i + 3] * x3
    for i in range(n - n % ROWS, n):
        s = W[i, i] * x[i]
        for j in range(i):
            s += W[i, j] * x[j]
            y[j] += W[i, j] * x[i]
        y[i] += s
    return y


@compiled
def length(v):
    """Return the Euclidean length of a vector."""
    s = 0.0
    for j in range(len(v)):
        s += v[j] * v[j]
    return np.sqrt(s)


@compiled
def lanczos(S, basis, diagonal, beside, first, last, residual):
    """Go on with Lanczos' method on a symmetric S, from step `first` to before `last`; return the steps now done.

    Rows of `basis` are its vectors, which are kept orthogonal; `diagonal` and `beside` the tridiagonal matrix they make
    of S. It ends early where what a step adds is smaller than `residual`.
    """
    n = len(S)
    for k in range(first, last):
        v = product(S, basis[k])
        before = length(v)
        diagonal[k] = 0.0
        # Rounding brings back what was found before, so it is taken out at every step: the latest first. Where little
        # is left, rounding is much of it, and it is taken out once more.
        for _ in range(2):
            for m in range(k, -1, -1):
                s = 0.0
                for j in range(n):
                    s += basis[m, j] * v[j]
                for j in range(n):
                    v[j] -= s * basis[m, j]
                if m == k:
                    diagonal[k] += s
            beside[k] = length(v)
            if beside[k] > LITTLE * before:
                break
        if beside[k] < residual:
            return k + 1
        for j in range(n):
            basis[k + 1, j] = v[j] / beside[k]
    return last
