"""Inner products of token directions: how close to one point the tokens of a layer are.

Over the pairs i < j of G = X X^T (cosines of the token states): mean, standard deviation, quantiles, a histogram of
50 equal bins on [-1, 1], and the mass near one, the share of pairs above 0.9.

High mean and mass near one: the tokens have collapsed towards one direction. A mean near zero: directions as spread
out as independent ones in high dimension.

Source: Geshkovski et al., arXiv 2312.10794, section 1; the threshold 0.9 is that of the study reproduced.

Controls: a few "rogue" dimensions with a large common value give high cosines without any clustering. Two versions of
the mean stand beside it: `mean_inner_product_centred`, of X minus its mean over tokens (about -1/(n-1) for independent
tokens), and `mean_inner_product_without_rogue`, of X without the three dimensions that add most to the mean, as Timkey
and van Schijndel, arXiv 2109.04404, take them out; it alone depends on the basis.

Traps: counting self-pairs puts a floor of 1/n under everything; cosines that rounding lifts above 1 fall out of the
last bin (geometry clips them).
"""

import numpy as np

from collapse.errors import Undefined
from collapse.geometry import NEAR_ONE, SAME_DIRECTION, cosines, nulls, on_sphere, pairs

BINS = 50
N_ROGUE = 3
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
COLUMNS = (
    "mean_inner_product",
    "sd_inner_product",
    "mass_near_one",
    *(f"quantile_{round(100 * q):02d}" for q in QUANTILES),
    "histogram",
    "n_pairs",
    "mean_inner_product_centred",
    "mean_inner_product_without_rogue",
)


def inner_products(H):
    """Summarise the inner products of all pairs of token directions of one layer.

    Parameters
    ----------
    H : array, shape (n, d)
        Raw states.

    Returns
    -------
    dict
        `mean_inner_product` in [-1, 1], `sd_inner_product` (population, >= 0), `mass_near_one` in [0, 1],
        `quantile_05` to `quantile_95`, `histogram` (50 counts that add up to `n_pairs`), `n_pairs`, the two controls in
        [-1, 1], `undefined`. Null for fewer than two tokens or a zero row; a control is null where it leaves a token
        without direction.

    Raises
    ------
    Refusal
        If H is no matrix or holds NaN or infinity.

    Examples
    --------
    >>> inner_products([[1, 0], [0, 2], [3, 0]])["mean_inner_product"]
    0.3333333333333333
    """
    try:
        X = on_sphere(H)
        if len(X) < 2:
            raise Undefined("1 token: no pairs")
    except Undefined as reason:
        return nulls(COLUMNS, reason)
    values = pairs(cosines(X))
    controls, reasons = {}, []
    for column, matrix in (
        ("mean_inner_product_centred", _centred(X)),
        ("mean_inner_product_without_rogue", _without_rogue(X)),
    ):
        try:
            controls[column] = _mean_cosine(matrix)
        except Undefined as reason:
            controls[column] = None
            reasons.append(f"{column}: {reason}")
    histogram, _ = np.histogram(values, bins=BINS, range=(-1.0, 1.0))
    return {
        "mean_inner_product": float(values.mean()),
        "sd_inner_product": float(values.std()),
        "mass_near_one": float(np.mean(values > NEAR_ONE)),
        **{f"quantile_{round(100 * q):02d}": float(v) for q, v in zip(QUANTILES, np.quantile(values, QUANTILES))},
        "histogram": histogram.tolist(),
        "n_pairs": len(values),
        **controls,
        "undefined": "; ".join(reasons) or None,
    }


def _mean_cosine(H):
    """Mean over pairs of <x_i, x_j>, from the sum of all directions: sum over i != j = |sum x_i|^2 - n."""
    X = on_sphere(H)
    n = len(X)
    return float((np.square(X.sum(axis=0)).sum() - n) / (n * (n - 1)))


def _centred(X):
    """X minus its mean; a row that float32 rounding alone tells from the mean is set to zero: it is no direction."""
    centred = X - X.mean(axis=0)
    centred[np.linalg.norm(centred, axis=1) < SAME_DIRECTION] = 0.0
    return centred


def _without_rogue(X):
    """X without the dimensions whose products add most to the mean inner product; zero if there are no others."""
    added = np.square(X.sum(axis=0)) - np.square(X).sum(axis=0)
    others = np.sort(np.argsort(-added, kind="stable")[N_ROGUE:])
    return X[:, others] if len(others) else np.zeros_like(X)
