"""Nearest-neighbour stability: does a token keep its closest companion from one layer to the next?

The share of tokens whose nearest neighbour by cosine is the same token as in the layer before. Near 1: the local
geometry is kept. Near 1/(n-1): neighbours are drawn anew.

Only tokens that have one nearest neighbour in both layers are compared. Copies of one token (equal embeddings, before
any position enters) are all at distance zero from each other: the winner of such a tie is the accident of row order,
not geometry. `n_compared` says how many tokens were left.

Traps: in a collapsed layer neighbours are decided by rounding, so there the value is undefined (effective rank of X
below 3, as for CKA).
"""

import numpy as np

from collapse.adjacent import compare_adjacent, require_spread
from collapse.errors import Refusal, Undefined
from collapse.geometry import cosines, nulls, on_sphere

COLUMNS = ("nn_stability", "n_compared")
TIE = 1e-12


def nn_stability(layers):
    """Compare each token's nearest neighbour with that of the layer before.

    Parameters
    ----------
    layers : iterable of arrays, shape (n, d)
        Raw states, in order of depth; n is the same for all.

    Yields
    ------
    dict
        `nn_stability` in [0, 1], `n_compared` (tokens with one nearest neighbour in both layers), `undefined`. The
        first row is null: nothing is before it.
    """
    return compare_adjacent(layers, _neighbours, _compare, COLUMNS)


def _neighbours(H):
    """Index of each token's nearest neighbour, -1 where two are equally near."""
    G = cosines(on_sphere(H))
    if len(G) < 3:
        raise Undefined(f"{len(G)} tokens: with fewer than 3 there is no choice of neighbour")
    require_spread(G)
    np.fill_diagonal(G, -np.inf)
    tokens, nearest = np.arange(len(G)), G.argmax(axis=1)
    first = G[tokens, nearest]
    G[tokens, nearest] = -np.inf
    return np.where(first - G.max(axis=1) > TIE, nearest, -1)


def _compare(before, current):
    if before.shape != current.shape:
        raise Refusal(f"adjacent layers have {len(before)} and {len(current)} tokens: they must be the same tokens")
    unique = (before >= 0) & (current >= 0)
    compared = int(unique.sum())
    if compared == 0:
        row = nulls(COLUMNS, "nn_stability: no token has one nearest neighbour in both layers")
        return row | {"n_compared": 0}
    share = float(np.mean(before[unique] == current[unique]))
    return {"nn_stability": share, "n_compared": compared, "undefined": None}
