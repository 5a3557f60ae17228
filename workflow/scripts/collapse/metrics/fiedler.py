"""Fiedler values: how well the attention graph of a head holds together.

The Fiedler value is the second eigenvalue of the normalised Laplacian I - D^-1/2 W D^-1/2 of a symmetric W with row
sums D. It is 0 if and only if the tokens fall into parts that do not attend to each other (`n_components` counts
these, from the support of A + A^T), small where a few weak links join such parts, and 1 where all pairs attend alike.
Three definitions:

* `fiedler_published`, as in the source study: M = max(A, 1e-12), then rounds of row and then column normalisation
  until a round changes no entry by the tolerance or the rounds are used up; W = (M + M^T) / 2 without its diagonal.
* `fiedler_symmetric`: W = (A + A^T) / 2, self-attention kept.
* `fiedler_symmetric_sinkhorn`: that W scaled on both sides to a doubly stochastic matrix, the limit of Sinkhorn's
  rounds on W. The limit is unique, however it is reached.

Beside each stands `..._uniform`, the value of uniform attention under the same mask: only the distance from it is the
head's own. The published definition also has its `sinkhorn_rounds`, `sinkhorn_residual` (largest error of a row or
column sum after them) and `converged`. Row -1 is the mean of the heads' values, which is not the value of their mean.

Traps: the only doubly stochastic scaling of a causal matrix is the identity, so there the published value is set by
the clip, the round limit and the tolerance, `converged` or not: never compare it between causal and bidirectional
models. With two tokens it is 2 whatever they attend to. One token that all attend to holds any graph together: read
the `content` token rule beside `all`. Eigenvalue routines read one triangle of a matrix that is not symmetric.

Source: Fiedler, Czech. Math. J. 23, 1973; Chung, Spectral graph theory, 1997, chapter 1; Sinkhorn and Knopp, Pacific
J. Math. 21, 1967; Newton's method for the scaling of a symmetric matrix: Knight and Ruiz, IMA J. Numer. Anal. 33, 2013;
Lanczos' method and its residuals: Parlett, The symmetric eigenvalue problem, 1998, chapter 13.
"""

from functools import lru_cache

import numpy as np
from scipy.linalg import eigh_tridiagonal
from scipy.linalg.lapack import dpotrf
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, structural_rank
from scipy.sparse.linalg import LinearOperator, cg

from collapse.attention import as_attention, null_heads, uniform, with_mean
from collapse.compiled import deflated, lanczos, product, sinkhorn_round, symmetric_part
from collapse.errors import Refusal, Undefined

CLIP = 1e-12
# No one number stands above the diagonal.
UNMASKED = -1.0
# Largest error of a row sum of a doubly stochastic matrix: some hundred roundings.
BALANCED = 1e-13
FIRST_ROUNDS = 50
NEWTON_STEPS = 60
# Largest change of log x in one step: far from the solution the quadratic model that a step rests on holds no further.
LONGEST_STEP = 3.0
PRODUCTS_PER_STEP = 1000
# Lanczos: from how many tokens on it is faster than a decomposition, its most steps and after how many it is looked at,
# the residual that ends it, and how far above what it finds the largest eigenvalue may lie, which is proven.
ITERATIVE_FROM = 150
LANCZOS_STEPS = 128
STEPS_AT_ONCE = 8
RESIDUAL = 1e-8
PROVEN = 5e-11
# Roundings per token, as a share of |S|^2, that its sum and those taken from it may be off by.
ROUNDINGS = 4.0 * np.finfo(np.float64).eps
VALUES = ("fiedler_published", "fiedler_symmetric", "fiedler_symmetric_sinkhorn")
COLUMNS = (
    *(name for value in VALUES for name in (value, f"{value}_uniform")),
    "sinkhorn_residual",
    "sinkhorn_rounds",
    "converged",
    "n_components",
)


def fiedler(A, is_causal, rounds, tolerance):
    """Compute the Fiedler values of the heads of one layer.

    Parameters
    ----------
    A : array, shape (heads, n, n)
        Attention under one token rule; rows sum to 1.
    is_causal : bool
        Whether a token sees only itself and those before it.
    rounds : int
        Most rounds of the published definition, >= 1; one round is a row and then a column normalisation.
    tolerance : float
        The published definition stops after a round that changes no entry by this much, >= 0.

    Returns
    -------
    list of dict
        One row per head and one with `head` -1, their mean: the columns above and `undefined`. Fiedler values lie in
        [0, 2]. All are null with fewer than two tokens, and `fiedler_symmetric_sinkhorn` where W cannot be scaled.

    Raises
    ------
    Refusal
        If A is no attention under this mask, or rounds or tolerance are out of range.

    Examples
    --------
    >>> rows = fiedler([[[1, 0, 0], [1/2, 1/2, 0], [1/3, 1/3, 1/3]]], is_causal=True, rounds=100, tolerance=1e-6)
    >>> round(rows[0]["fiedler_symmetric"], 6), rows[0]["n_components"], rows[0]["converged"]
    (0.555316, 1, False)
    """
    if rounds < 1 or not tolerance >= 0:
        raise Refusal(f"rounds must be at least 1 and tolerance at least 0, found {rounds!r} and {tolerance!r}")
    try:
        A = as_attention(A, is_causal)
        if A.shape[1] < 2:
            raise Undefined("1 token: a graph needs two tokens to have a second eigenvalue")
    except Undefined as reason:
        return null_heads(len(A), COLUMNS, reason)
    control = _uniform_values(A.shape[1], is_causal, rounds, tolerance)
    rows = [_head(head, is_causal, rounds, tolerance) | control for head in A]
    return with_mean([{name: row[name] for name in (*COLUMNS, "undefined")} for row in rows], COLUMNS)


@lru_cache(maxsize=16)
def _uniform_values(n, is_causal, rounds, tolerance):
    """The control: it depends on nothing else, so a job computes it once per number of tokens, not once per layer."""
    row = _head(uniform(n, is_causal), is_causal, rounds, tolerance)
    return {f"{name}_uniform": row[name] for name in VALUES}


def _head(A, is_causal, rounds, tolerance):
    """The values of one head (n x n)."""
    row = _published(A, is_causal, rounds, tolerance) | dict.fromkeys(VALUES[1:], 0.0) | {"undefined": None}
    one = np.ones(len(A))
    W, degrees = symmetric_part(A, one, one, 0.0 if is_causal else UNMASKED, True)
    row["n_components"] = _n_components(W)
    # Parts without a link stay without one under any scaling, and rounding would give 1e-16 for their 0.
    if row["n_components"] == 1:
        row["fiedler_symmetric"] = _second_eigenvalue(W, degrees)
        try:
            x = _balance(W)
            row["fiedler_symmetric_sinkhorn"] = _second_eigenvalue(W, x * product(W, x), x)
        except Undefined as reason:
            row |= {"fiedler_symmetric_sinkhorn": None, "undefined": f"fiedler_symmetric_sinkhorn: {reason}"}
    return row


def _n_components(W):
    """Parts of the graph of W (lower triangle) that no link joins."""
    # Mostly the first token or the last is linked to all, and then there is no need to search.
    if (W[:, 0] > 0).all() or (W[-1] > 0).all():
        return 1
    return int(connected_components(csr_array(W), directed=False, return_labels=False))


def _published(A, is_causal, rounds, tolerance):
    M = np.maximum(A, CLIP)
    above = CLIP if is_causal else UNMASKED
    r, c, done, converged = _sinkhorn(M, rounds, tolerance, above)
    W, degrees = symmetric_part(M, r, c, above, False)
    return {
        "fiedler_published": _second_eigenvalue(W, degrees),
        "sinkhorn_residual": float(max(np.abs(r * (M @ c) - 1.0).max(), np.abs(c * (r @ M) - 1.0).max())),
        "sinkhorn_rounds": done,
        "converged": converged,
    }


def _sinkhorn(M, rounds, tolerance, above=UNMASKED):
    """Alternate row and column normalisation of M; return r, c, rounds done, and whether they settled.

    The normalised matrix is r_i M_ij c_j: M is read once a round instead of rewritten twice. The rule to stop, no entry
    changed by the tolerance in one round, is that of the in-place version, not a bound: the entry that moved most when
    last looked at is a witness, and while it moves too much all is said. When it rests, the entries that moved most in
    their rows are asked, and only when these rest too are all entries formed.
    """
    r = c = np.ones(len(M))
    rows = np.arange(len(M))
    columns = np.zeros(len(M), dtype=np.intp)
    i = 0
    for done in range(1, rounds + 1):
        r_before, c_before = r, c
        r, c = sinkhorn_round(M, c, above)
        j = columns[i]
        if abs(r[i] * c[j] - r_before[i] * c_before[j]) * M[i, j] >= tolerance:
            continue
        moved = np.abs(r * c[columns] - r_before * c_before[columns]) * M[rows, columns]
        i = moved.argmax()
        if moved[i] >= tolerance:
            continue
        change = np.outer(r, c)
        change -= np.outer(r_before, c_before)
        np.abs(change, out=change)
        change *= M
        columns = change.argmax(axis=1)
        i = change.max(axis=1).argmax()
        if change[i, columns[i]] < tolerance:
            return r, c, done, True
    return r, c, rounds, False


def _balance(W):
    """Return x > 0 with x_i (W x)_i = 1: the doubly stochastic scaling x_i W_ij x_j of a symmetric W (lower triangle).

    Sinkhorn's rounds come near and then need thousands more, where tokens attend mostly to themselves or to the token
    before. So the last digits are Newton's, with conjugate gradients: x = exp(y) is the minimum of the convex
    sum_ij exp(y_i) W_ij exp(y_j) / 2 - sum_i y_i, and the scaling is the limit of the rounds, as there is only one.

    Raises
    ------
    Undefined
        If there is no such scaling, or the steps do not suffice: links that the limit would remove vanish slowly.
    """
    n = len(W)
    # A positive diagonal is support enough. Without it, more tokens may hang on one than its column has room for.
    if not W.diagonal().all() and structural_rank(csr_array(W + np.tril(W, k=-1).T)) < n:
        raise Undefined("some tokens are linked only to fewer others: no scaling of W is doubly stochastic")
    x = _first_rounds(W)
    for _ in range(NEWTON_STEPS):
        sums = x * product(W, x)
        error = np.abs(sums - 1.0).max()
        if error < BALANCED:
            return x
        step = _newton_step(W, x, sums, min(0.1, error))
        if not np.isfinite(step).all():
            break
        x = x * np.exp(step / max(1.0, np.abs(step).max() / LONGEST_STEP))
    raise Undefined(f"no doubly stochastic scaling found, sums stay off by {error:.1g}")


def _first_rounds(W):
    """Sinkhorn's rounds on a symmetric W, until they are there or used up: r and c tend to multiples of one vector."""
    r = c = np.ones(len(W))
    for _ in range(FIRST_ROUNDS):
        sums = product(W, c)
        if np.abs(r * sums - 1.0).max() < BALANCED:
            break
        r = 1.0 / sums
        c = 1.0 / product(W, r)
    return np.sqrt(r * c)


def _newton_step(W, x, sums, rtol):
    n = len(W)
    hessian = LinearOperator((n, n), matvec=lambda v: sums * v + x * product(W, x * v), dtype=np.float64)
    precondition = LinearOperator((n, n), matvec=lambda v: v / sums, dtype=np.float64)
    # Where the scaling does not exist the curvature can vanish to all digits; the caller looks at what comes out.
    with np.errstate(divide="ignore", invalid="ignore"):
        return cg(hessian, 1.0 - sums, rtol=rtol, maxiter=PRODUCTS_PER_STEP, M=precondition)[0]


def _second_eigenvalue(W, degrees, x=1.0):
    """Second eigenvalue of the normalised Laplacian of x_i W_ij x_j, of which the row sums are given (n >= 2).

    W is symmetric, and its lower triangle is read.
    """
    if not degrees.all():
        # A token without any link is a component of its own. Its row over its degree would be 0 / 0.
        return 0.0
    # The largest eigenvalue of S, 1, belongs to D^1/2 1. Moved to -1, below which there is none, it leaves the second.
    S, squares = deflated(W, x / np.sqrt(degrees), np.sqrt(degrees / degrees.sum()))
    assert np.isfinite(squares), "attention or its scaling is not finite, and a maximum with 0 would hide it"
    return max(0.0, 1.0 - _largest_eigenvalue(S, squares))


def _largest_eigenvalue(S, squares):
    """Largest eigenvalue of a symmetric S (lower triangle), within 1e-10, half of which is for rounding.

    `squares` is the sum of the squared entries of S. Lanczos' method finds one in a few products, but may miss a larger
    one, and needs thousands where many lie close. So what it finds, never above the largest, is proven. Its vectors
    turn S into [[T, C], [C^T, B]] with T tridiagonal and C one number b in a corner, and no eigenvalue of S is above
    that of [[T, C], [C^T, |B|]], where for |B| stands its Frobenius norm, all that T and b leave of that of S. Where
    many eigenvalues make that too large, (what was found + PROVEN) I - S has a Cholesky factor only if none is larger.
    What is not found or not proven is decomposed.
    """
    n = len(S)
    if n >= ITERATIVE_FROM:
        found, diagonal, beside = _lanczos(S)
        if found is not None:
            rest = squares * (1.0 + n * ROUNDINGS) - (diagonal**2).sum() - 2.0 * (beside**2).sum()
            bound = eigh_tridiagonal(np.append(diagonal, np.sqrt(max(rest, 0.0))), beside, eigvals_only=True)[-1]
            if bound <= found + PROVEN:
                return found
            shifted = -S
            shifted.flat[:: n + 1] += found + PROVEN
            if dpotrf(shifted.T, lower=False, clean=False, overwrite_a=True)[1] == 0:
                return found
    # All of them: LAPACK's routines for one eigenvalue fail where many are equal, as in a complete graph.
    return float(np.linalg.eigvalsh(S, UPLO="L")[-1])


def _lanczos(S):
    """An eigenvalue of a symmetric S, mostly its largest, or None where that needs too many products; and T and beside.

    The tridiagonal T has the entries of `diagonal` and all but the last of `beside`, which is the b that T leaves over.
    """
    n = len(S)
    basis = np.empty((LANCZOS_STEPS + 1, n))
    diagonal, beside = np.zeros(LANCZOS_STEPS), np.zeros(LANCZOS_STEPS)
    start = np.random.default_rng(0).normal(size=n)
    basis[0] = start / np.linalg.norm(start)
    found = None
    for first in range(0, LANCZOS_STEPS, STEPS_AT_ONCE):
        done = lanczos(S, basis, diagonal, beside, first, first + STEPS_AT_ONCE, RESIDUAL)
        value, last = _top(diagonal[:done], beside[: done - 1])
        if beside[done - 1] * abs(last) < RESIDUAL:
            found = value
            break
    return found, diagonal[:done], beside[:done]


def _top(diagonal, beside):
    """Largest eigenvalue of a symmetric tridiagonal matrix, and the last entry of its vector."""
    at = {"select": "i", "select_range": (len(diagonal) - 1, len(diagonal) - 1), "check_finite": False}
    value, vector = eigh_tridiagonal(diagonal, beside, **at)
    return float(value[0]), float(vector[-1, 0])
