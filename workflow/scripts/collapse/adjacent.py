"""Metrics that compare each layer with the one before, and the gate that closes for degenerate layers."""

import numpy as np

from collapse.errors import Undefined
from collapse.gate import DEGENERATE_RANK
from collapse.geometry import nulls
from collapse.reasons import FIRST_LAYER
from collapse.spectra import sphere_rank_from_cosines


def compare_adjacent(layers, prepare, compare, columns):
    """Yield a row per layer: `compare` of what `prepare` makes of the layer before and of this one.

    Parameters
    ----------
    layers : iterable of arrays, shape (n, d)
        Raw states, in order of depth. Each is prepared once.
    prepare : callable
        prepare(H); may raise Undefined.
    compare : callable
        compare(before, current) returns a row.
    columns : tuple of str
        What is null, with the reason, at the first layer and where either layer is undefined.
    """
    before = None
    for H in layers:
        try:
            current = prepare(H)
        except Undefined as reason:
            # Without the frames that it came from, which hold the layer.
            current = reason.with_traceback(None)
        if before is None:
            yield nulls(columns, FIRST_LAYER)
        elif isinstance(current, Undefined):
            yield nulls(columns, current)
        elif isinstance(before, Undefined):
            yield nulls(columns, f"the layer before: {before}")
        else:
            yield compare(before, current)
        before = current


def require_spread(G):
    """Raise Undefined for a cosine matrix whose effective rank is below the gate: what differs there is rounding."""
    # Three orthogonal tokens are at the gate, give or take rounding, and pass.
    if _least_rank(G) > DEGENERATE_RANK:
        return
    rank = sphere_rank_from_cosines(G)
    if rank < DEGENERATE_RANK - 1e-9:
        raise Undefined(f"degenerate layer: effective rank {rank:.3g} on the sphere is below {DEGENERATE_RANK:g}")


def _least_rank(G):
    """A number that the effective rank is not below, without eigenvalues, which most layers do not need.

    The exponential of an entropy is at least 1 / sum(p^2), here (sum sigma)^2 / n, and by Hoelder's inequality
    sum(sigma) is at least t^(3/2) / f, with t the trace of the Gram matrix and f its Frobenius norm. Centring only
    lowers singular values, so the centred Gram matrix bounds sum(sigma) too, better where tokens share a direction.
    """
    n, means = len(G), G.mean(axis=0)
    squares = np.vdot(G, G)
    whole = n**2 / squares
    trace = n * (1.0 - means.mean())
    # The second bound is at most this trace; where it is small, the difference below is rounding.
    if trace <= DEGENERATE_RANK:
        return whole
    return max(whole, trace**3 / (n * (squares - 2 * n * (means @ means) + (n * means.mean()) ** 2)))
