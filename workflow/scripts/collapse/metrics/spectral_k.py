"""Spectral k: how many groups the graph of positive cosines has, from the largest gap of its Laplacian.

With W = max(G, 0), its unit diagonal kept, and D = diag(W 1), let lambda_1 <= lambda_2 <= ... be the eigenvalues of

    L = I - D^-1/2 W D^-1/2

`spectral_k` is the k that maximises lambda_(k+1) - lambda_k among k = 1 ... min(n - 1, 30), the smallest such k where
gaps are equal; `gap` is that difference and `gap_ratio` the same over the second largest. k groups without a positive
cosine between them have k eigenvalues of exactly 0; copies of k orthogonal tokens have a gap of 1, the largest that
groups of copies give.

A large gap with a ratio far above 1: k well separated groups. A small gap or a ratio near 1: no number of groups
stands out. k = 1 with a large gap: one dominant direction, which says that there are no groups beside it.

Source: von Luxburg, A tutorial on spectral clustering, Stat. Comput. 17, 2007, section 8.3 (eigengap heuristic).

Traps: lambda_1 is 0 whatever the states are, and in states with a common direction lambda_2 is far above it: then k is
1 and only `gap` says so. scipy's and scikit-learn's Laplacian leave the diagonal of W out. Here it stays: without it, a
token orthogonal to all others has no degree, and cosines of 1e-17, rounding alone, become links of full weight.
Clusters of HDBSCAN can be far more than 30: the two counts answer different questions.
"""

import numpy as np

from collapse.errors import Undefined
from collapse.geometry import cosines, nulls, on_sphere

MAX_K = 30
# Gaps that differ by less are equal: float32 states round cosines at 6e-8.
ROUNDING = 1e-6
COLUMNS = ("spectral_k", "gap", "gap_ratio")


def spectral_k(H):
    """Find the largest gap in the Laplacian spectrum of one layer.

    Parameters
    ----------
    H : array, shape (n, d)
        Raw states.

    Returns
    -------
    dict
        `spectral_k` in 1 ... min(n - 1, 30), `gap` in [0, 2], `gap_ratio` >= 1, `undefined`. All are null for fewer
        than three tokens, a zero row, or where there is no gap (mutually orthogonal tokens); the ratio where there is
        no second one (identical tokens, for which k is 1 and the gap 1).

    Raises
    ------
    Refusal
        If H is no matrix or holds NaN or infinity.

    Examples
    --------
    >>> row = spectral_k([[1, 0], [2, 0], [0, 1], [0, 3], [0, 1]])
    >>> row["spectral_k"], round(row["gap"], 9)
    (2, 1.0)
    """
    try:
        X = on_sphere(H)
        if len(X) < 3:
            raise Undefined(f"{len(X)} tokens: with fewer than 3 there are no two gaps to compare")
        gaps = np.diff(_spectrum(cosines(X))[: MAX_K + 1])
        if gaps.max() < ROUNDING:
            raise Undefined(
                f"no gap: the first {len(gaps) + 1} eigenvalues are equal, as of mutually orthogonal tokens"
            )
    except Undefined as reason:
        return nulls(COLUMNS, reason)
    second, first = np.sort(gaps)[-2:]
    row = {"spectral_k": int(np.flatnonzero(gaps > first - ROUNDING)[0]) + 1, "gap": float(first), "undefined": None}
    if second < ROUNDING:
        return row | {"gap_ratio": None, "undefined": "gap_ratio: no second gap"}
    return row | {"gap_ratio": float(first / second)}


def _spectrum(G):
    """Eigenvalues of the normalised Laplacian, ascending. The unit diagonal keeps every degree at 1 or above."""
    W = np.maximum(G, 0.0)
    root = np.sqrt(W.sum(axis=0))
    # Eigenvalues of D^-1/2 W D^-1/2 first: one minus them keeps small eigenvalues of L to rounding of 1.
    return np.sort(1.0 - np.linalg.eigvalsh(W / np.outer(root, root)))
