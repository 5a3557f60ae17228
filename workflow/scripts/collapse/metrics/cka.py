"""Linear CKA between a layer and the layer before: does the layer change how the tokens lie to each other?

With K = X X^T of one layer and L of the other, centred over tokens:

* `cka_biased`, as in the source study: <HKH, HLH>_F / (|HKH|_F |HLH|_F), H the centring matrix, in [0, 1];
* `cka_debiased`: the same with U-centred matrices (zero diagonal), the unbiased estimator of HSIC, at most 1 and
  around 0 for independent clouds, where it can be negative.

Near 1: the layer keeps the geometry, up to rotation and scale. The biased estimator tends to d / (n + d) for
independent clouds: 0.92 for 64 tokens in 768 dimensions, which is why both are here.

Source: Kornblith et al., arXiv 1905.00414; unbiased HSIC: Song et al., JMLR 13, 2012, equation 4.

Traps: without centring a common mean alone gives 0.99; one massive token in both layers gives 1 (X has unit rows, and
the `content` token rule drops the first token); in a collapsed layer the value is rounding. Where the effective rank
of X is below 3 in either layer, both are undefined.
"""

import numpy as np

from collapse.adjacent import compare_adjacent, require_spread
from collapse.errors import Refusal
from collapse.geometry import cosines, on_sphere

COLUMNS = ("cka_biased", "cka_debiased")
# Largest U-centred entry below which a layer has no structure beyond the rounding of float32 states.
FLAT = 1e-6


def cka(layers):
    """Compare each layer of a trajectory with the one before.

    Parameters
    ----------
    layers : iterable of arrays, shape (n, d)
        Raw states, in order of depth; n is the same for all, d need not be.

    Yields
    ------
    dict
        `cka_biased` in [0, 1], `cka_debiased` in (-inf, 1], `undefined`. The first row is null: nothing is before it.
    """
    return compare_adjacent(layers, _prepare, _compare, COLUMNS)


def _prepare(H):
    """Centre a layer's cosine matrix in both ways, once."""
    G = cosines(on_sphere(H))
    require_spread(G)
    return _centre(G), _u_centre(G) if len(G) >= 4 else None


def _compare(before, current):
    (K, U), (L, V) = before, current
    if K.shape != L.shape:
        raise Refusal(f"adjacent layers have {len(K)} and {len(L)} tokens: they must be the same tokens")
    row = {"cka_biased": _cosine(K, L), "cka_debiased": None, "undefined": None}
    if U is None:
        return row | {"undefined": f"cka_debiased: needs at least 4 tokens, found {len(K)}"}
    if min(np.abs(U).max(), np.abs(V).max()) < FLAT:
        return row | {"undefined": "cka_debiased: all pairs of tokens are equally far apart"}
    return row | {"cka_debiased": _cosine(U, V)}


def _cosine(A, B):
    return float(np.vdot(A, B) / (np.linalg.norm(A) * np.linalg.norm(B)))


def _centre(G):
    means = G.mean(axis=0)
    return G - means[:, None] - means[None, :] + means.mean()


def _u_centre(G):
    """Szekely and Rizzo's U-centring: <U, V>_F / (n (n - 3)) is the unbiased HSIC of Song et al."""
    n = len(G)
    K = G - np.diag(np.diag(G))
    sums = K.sum(axis=0)
    U = K - (sums[:, None] + sums[None, :]) / (n - 2) + sums.sum() / ((n - 1) * (n - 2))
    np.fill_diagonal(U, 0.0)
    return U
