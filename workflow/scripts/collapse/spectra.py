"""Singular values and the effective rank they give, shared by what measures directions."""

import numpy as np

from collapse.errors import Undefined
from collapse.geometry import as_matrix


def sphere_rank_from_cosines(G):
    """Return the effective rank of X from its cosine matrix G = X X^T (n x n): the degeneracy gate of CKA uses it."""
    return entropy_rank(_roots(np.linalg.eigvalsh(G)))


def singular_values(M):
    """Return the singular values of M (n x d) that rounding cannot have made, ascending.

    Raises
    ------
    Undefined
        If M is zero or has no rows.
    """
    M = as_matrix(M)
    largest = np.abs(M).max()
    if largest == 0:
        raise Undefined("all states are zero")
    M = M / largest
    gram = M @ M.T if M.shape[0] <= M.shape[1] else M.T @ M
    return largest * _roots(np.linalg.eigvalsh(gram))


def singular_values_of_both(H, X):
    """Return the `singular_values` of H and of X, its rows divided by their length (both n x d).

    With n <= d from one product: H H^T is X X^T, scaled on both sides by the lengths of rows. Nothing is subtracted, so
    no digit is lost, as it would be if the Gram matrix of centred rows were taken from either.
    """
    H = as_matrix(H)
    if H.shape[0] > H.shape[1]:
        return singular_values(H), singular_values(X)
    largest = np.abs(H).max()
    lengths = np.linalg.norm(H / largest, axis=1)
    gram = X @ X.T
    sphere = _roots(np.linalg.eigvalsh(gram))
    gram *= np.outer(lengths, lengths)
    return largest * _roots(np.linalg.eigvalsh(gram)), sphere


def entropy_rank(weights):
    """Return exp of the entropy (natural) of non-negative weights, normalised to sum 1."""
    p = weights[weights > 0] / weights.sum()
    return float(np.exp(-(p * np.log(p)).sum()))


def _roots(eigenvalues):
    floor = eigenvalues[-1] * len(eigenvalues) * np.finfo(np.float64).eps
    return np.sqrt(eigenvalues[eigenvalues > floor])
