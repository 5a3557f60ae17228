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
J. Math. 21, 1967; Newton's method for the scaling of a symmetric matrix: Knight and Ruiz, IMA J. Numer. Anal. 33, 2013.
"""

from functools import lru_cache

import numpy as np
from scipy.linalg import eigh
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, structural_rank
from scipy.sparse.linalg import LinearOperator, cg

from collapse.attention import as_attention, null_heads, uniform, with_mean
from collapse.errors import Refusal, Undefined

CLIP = 1e-12
# Largest error of a row sum of a doubly stochastic matrix: some hundred roundings.
BALANCED = 1e-13
FIRST_ROUNDS = 50
NEWTON_STEPS = 60
# Largest change of log x in one step: far from the solution the quadratic model that a step rests on holds no further.
LONGEST_STEP = 3.0
PRODUCTS_PER_STEP = 1000
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
    rows = [_head(head, rounds, tolerance) | control for head in A]
    return with_mean([{name: row[name] for name in (*COLUMNS, "undefined")} for row in rows], COLUMNS)


@lru_cache(maxsize=16)
def _uniform_values(n, is_causal, rounds, tolerance):
    """The control: it depends on nothing else, so a job computes it once per number of tokens, not once per layer."""
    row = _head(uniform(n, is_causal), rounds, tolerance)
    return {f"{name}_uniform": row[name] for name in VALUES}


def _head(A, rounds, tolerance):
    """The values of one head (n x n)."""
    row = _published(A, rounds, tolerance) | dict.fromkeys(VALUES[1:], 0.0) | {"undefined": None}
    W = (A + A.T) / 2
    row["n_components"] = int(connected_components(csr_array(W), directed=False, return_labels=False))
    # Parts without a link stay without one under any scaling, and rounding would give 1e-16 for their 0.
    if row["n_components"] == 1:
        row["fiedler_symmetric"] = _second_eigenvalue(W)
        try:
            x = _balance(W)
            row["fiedler_symmetric_sinkhorn"] = _second_eigenvalue(x[:, None] * W * x)
        except Undefined as reason:
            row |= {"fiedler_symmetric_sinkhorn": None, "undefined": f"fiedler_symmetric_sinkhorn: {reason}"}
    return row


def _published(A, rounds, tolerance):
    M = np.maximum(A, CLIP)
    r, c, done, converged = _sinkhorn(M, rounds, tolerance)
    M = r[:, None] * M * c
    W = (M + M.T) / 2
    np.fill_diagonal(W, 0.0)
    return {
        "fiedler_published": _second_eigenvalue(W),
        "sinkhorn_residual": float(max(np.abs(M.sum(axis=axis) - 1.0).max() for axis in (0, 1))),
        "sinkhorn_rounds": done,
        "converged": converged,
    }


def _sinkhorn(M, rounds, tolerance):
    """Alternate row and column normalisation of M; return r, c, rounds done, and whether they settled.

    The normalised matrix is r_i M_ij c_j: two products with vectors a round instead of two passes that rewrite it. The
    rule to stop, no entry changed by the tolerance in one round, is that of the in-place version, not a bound: the
    entry that moved most when last looked at is a witness, and while it moves too much all is said. Only when it rests
    are all entries formed.
    """
    r = c = np.ones(len(M))
    witness = None
    for done in range(1, rounds + 1):
        r_before, c_before = r, c
        r = 1.0 / (M @ c)
        c = 1.0 / (r @ M)
        if witness is not None:
            i, j = witness
            if abs(r[i] * c[j] - r_before[i] * c_before[j]) * M[i, j] >= tolerance:
                continue
        change = np.abs(np.outer(r, c) - np.outer(r_before, c_before)) * M
        witness = np.unravel_index(change.argmax(), change.shape)
        if change[witness] < tolerance:
            return r, c, done, True
    return r, c, rounds, False


def _balance(W):
    """Return x > 0 with x_i (W x)_i = 1: the doubly stochastic scaling x_i W_ij x_j of a symmetric W.

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
    if not W.diagonal().all() and structural_rank(csr_array(W)) < n:
        raise Undefined("some tokens are linked only to fewer others: no scaling of W is doubly stochastic")
    r, c, _, _ = _sinkhorn(W, FIRST_ROUNDS, tolerance=0.0)
    x = np.sqrt(r * c)
    for _ in range(NEWTON_STEPS):
        sums = x * (W @ x)
        error = np.abs(sums - 1.0).max()
        if error < BALANCED:
            return x
        step = _newton_step(W, x, sums, min(0.1, error))
        if not np.isfinite(step).all():
            break
        x = x * np.exp(step / max(1.0, np.abs(step).max() / LONGEST_STEP))
    raise Undefined(f"no doubly stochastic scaling found, sums stay off by {error:.1g}")


def _newton_step(W, x, sums, rtol):
    n = len(W)
    hessian = LinearOperator((n, n), matvec=lambda v: sums * v + x * (W @ (x * v)), dtype=np.float64)
    precondition = LinearOperator((n, n), matvec=lambda v: v / sums, dtype=np.float64)
    # Where the scaling does not exist the curvature can vanish to all digits; the caller looks at what comes out.
    with np.errstate(divide="ignore", invalid="ignore"):
        return cg(hessian, 1.0 - sums, rtol=rtol, maxiter=PRODUCTS_PER_STEP, M=precondition)[0]


def _second_eigenvalue(W):
    """Second eigenvalue of the normalised Laplacian of a symmetric W (n x n, n >= 2)."""
    degrees = W.sum(axis=1)
    if not degrees.all():
        # A token without any link is a component of its own. Its row over its degree would be 0 / 0.
        return 0.0
    scale = 1.0 / np.sqrt(degrees)
    L = -(scale[:, None] * W * scale)
    np.fill_diagonal(L, 1.0 + L.diagonal())
    first, second = eigh(L, eigvals_only=True, subset_by_index=[0, 1], driver="evr", overwrite_a=True)
    # The vector D^1/2 1 has eigenvalue 0. If it does not, W was not symmetric or D are not its row sums.
    assert abs(first) < 1e-9, f"the first eigenvalue of a Laplacian is 0, not {first}"
    return max(0.0, float(second))
