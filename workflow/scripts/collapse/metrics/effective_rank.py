"""Effective rank: how many directions the tokens of a layer really use.

With singular values sigma_k and p_k = sigma_k / sum(sigma), the effective rank is exp(-sum p_k log p_k). It lies
between 1 (rank one, all tokens on a line) and the rank, which min(n, d) bounds: with few tokens it is capped by them.

* `effective_rank_raw` of H, as in the source study: norms count, and one massive token can set it;
* `effective_rank_sphere` of X, the directions alone;
* `effective_rank_centred` of X minus its mean: without the direction that all tokens share.

From p_k = sigma_k^2 / sum(sigma^2), a different quantity with other names: `spectral_entropy_rank` (exponential of
the entropy) and `participation_ratio` (1 / sum p_k^2), of H, and the same of X as `..._sphere`.

Source: Roy and Vetterli, The effective rank, EUSIPCO 2007.

Traps: logarithms are natural on both sides; 0 log 0 is 0; the two definitions are often given one name. Singular
values are the roots of the eigenvalues of the smaller Gram matrix in float64, which is several times faster than an
SVD. Eigenvalues below the rounding error of that matrix are zero: their roots would add up to a false tail.
"""

import numpy as np

from collapse.errors import Undefined
from collapse.geometry import SAME_DIRECTION, nulls, on_sphere
from collapse.spectra import entropy_rank, singular_values, singular_values_of_both

COLUMNS = (
    "effective_rank_raw",
    "effective_rank_sphere",
    "effective_rank_centred",
    "spectral_entropy_rank",
    "participation_ratio",
    "spectral_entropy_rank_sphere",
    "participation_ratio_sphere",
)


def effective_rank(H):
    """Compute the effective ranks of one layer.

    Parameters
    ----------
    H : array, shape (n, d)
        Raw states.

    Returns
    -------
    dict
        The columns above, each in [1, min(n, d)], and `undefined`. All are null for a zero matrix, those of X where a
        token has no direction, the centred one where all tokens point the same way.

    Raises
    ------
    Refusal
        If H is no matrix or holds NaN or infinity.

    Examples
    --------
    >>> round(effective_rank([[3, 0, 0], [0, 1, 0], [0, 0, 1]])["effective_rank_raw"], 4)
    2.5869
    """
    try:
        X = on_sphere(H)
    except Undefined as reason:
        return _of_lengths_alone(H, reason)
    raw, sphere = singular_values_of_both(H, X)
    row = _raw_columns(raw) | {
        "effective_rank_sphere": entropy_rank(sphere),
        "spectral_entropy_rank_sphere": entropy_rank(sphere**2),
        "participation_ratio_sphere": _participation(sphere**2),
    }
    centred = X - X.mean(axis=0)
    if np.sqrt((centred**2).sum(axis=1).mean()) < SAME_DIRECTION:
        reason = "effective_rank_centred: all tokens point the same way"
        return row | {"effective_rank_centred": None, "undefined": reason}
    return row | {"effective_rank_centred": entropy_rank(singular_values(centred)), "undefined": None}


def _of_lengths_alone(H, why_no_directions):
    """The row of states some of which have no direction."""
    try:
        raw = singular_values(H)
    except Undefined as reason:
        return nulls(COLUMNS, reason)
    return dict.fromkeys(COLUMNS) | _raw_columns(raw) | {"undefined": f"of X: {why_no_directions}"}


def _raw_columns(raw):
    # Fourth powers of singular values overflow unless the largest is 1.
    raw = raw / raw[-1]
    return {
        "effective_rank_raw": entropy_rank(raw),
        "spectral_entropy_rank": entropy_rank(raw**2),
        "participation_ratio": _participation(raw**2),
    }


def _participation(weights):
    return float(weights.sum() ** 2 / (weights**2).sum())
