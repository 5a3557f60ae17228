"""Points on the sphere: validation, directions and cosines, shared by the metrics.

H is the raw n x d matrix of one layer, X its rows divided by their L2 norm, G = X X^T clipped to [-1, 1].
Everything is float64: in float32 a cosine of a vector with itself can exceed 1, and CKA of a nearly collapsed
layer is wrong in the first digit.
"""

from functools import lru_cache

import numpy as np

from collapse.errors import Refusal, Undefined

# Distance from the mean below which unit vectors point the same way: float32 states round at 6e-8.
SAME_DIRECTION = 1e-6
# Pairs whose cosine is above this are near one.
NEAR_ONE = 0.9


def as_matrix(H):
    """Return H as a finite float64 matrix.

    Raises
    ------
    Refusal
        If H is not two-dimensional or holds NaN or infinity.
    Undefined
        If H has no rows.
    """
    H = np.asarray(H, dtype=np.float64)
    if H.ndim != 2 or H.shape[1] == 0:
        raise Refusal(f"states must be a matrix of tokens by dimensions, found shape {H.shape}")
    if not np.isfinite(H).all():
        row = int(np.flatnonzero(~np.isfinite(H).all(axis=1))[0])
        raise Refusal(f"states hold NaN or infinity, first in row {row}: the forward pass that made them is broken")
    if len(H) == 0:
        raise Undefined("no tokens under this token rule")
    return H


def on_sphere(H):
    """Return X, the rows of H divided by their L2 norm (n x d, float64).

    Raises
    ------
    Undefined
        If a row is zero: it has no direction.
    """
    H = as_matrix(H)
    # Dividing by the largest entry first keeps the norm of very small and very large rows from under- or overflowing.
    largest = np.abs(H).max(axis=1, keepdims=True)
    zero = np.flatnonzero(largest[:, 0] == 0)
    if len(zero):
        raise Undefined(f"row {zero[0]} is a zero vector ({len(zero)} of {len(H)}): no direction on the sphere")
    X = H / largest
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X


def cosines(X):
    """Return G, all inner products of the unit rows of X (n x n, symmetric, in [-1, 1], exact ones on the diagonal)."""
    G = X @ X.T
    np.clip(G, -1.0, 1.0, out=G)
    np.fill_diagonal(G, 1.0)
    return G


def pairs(G):
    """Return the entries of G with i < j as a vector of length n (n - 1) / 2. The diagonal never counts."""
    return np.ravel(G).take(_upper(len(G)))


@lru_cache(maxsize=2)
def _upper(n):
    """Where the entries i < j of an n x n matrix stand in its rows laid end to end."""
    return np.flatnonzero(np.tri(n, k=-1, dtype=bool).T)


def nulls(columns, reason):
    """Return a row in which every column is null, with the reason."""
    return dict.fromkeys(columns) | {"undefined": str(reason)}
