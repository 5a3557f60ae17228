"""Attention matrices: validation, the cut of a token rule, and the uniform control, shared by the attention metrics.

A is (heads, n, n): row i of a head says how query i spreads its attention over the keys j; rows sum to 1. Softmax in
float32 leaves sums off by some 1e-7, so rows are renormalised in float64.
"""

import weakref

import numpy as np

from collapse.errors import Refusal, Undefined

# Largest error of a row sum that is still the rounding of a softmax.
ROW_SUM_TOLERANCE = 1e-4
# Below the smallest normal float32 a probability has lost its digits: normalising it would show rounding as attention.
LEAST_MASS = float(np.finfo(np.float32).tiny)
MEAN_HEAD = -1
# What `as_attention` and `restrict` returned and nothing can have changed since, by identity and mask.
_checked = weakref.WeakValueDictionary()


def as_attention(A, is_causal=False):
    """Return A as float64 with rows that sum to 1, read-only. What this returned before is returned as it is.

    Parameters
    ----------
    A : array, shape (heads, n, n)
        Attention of one layer.
    is_causal : bool
        Whether to refuse attention to later tokens.

    Raises
    ------
    Refusal
        If A has another shape, holds NaN, infinity or negative numbers, if a row does not sum to 1 within 1e-4, or if
        a causal row reaches a later token. The message names head and row.
    Undefined
        If there are no tokens.
    """
    if _checked.get((id(A), bool(is_causal))) is A:
        return A
    A = np.array(A, dtype=np.float64, order="C")
    if A.ndim != 3 or A.shape[1] != A.shape[2] or len(A) == 0:
        raise Refusal(f"attention must be heads x queries x keys with as many keys as queries, found shape {A.shape}")
    if A.shape[1] == 0:
        raise Undefined("no tokens under this token rule")
    sums = A.sum(axis=2)
    off = np.abs(sums - 1.0)
    # A sum tells of NaN and infinity too.
    if not ((off <= ROW_SUM_TOLERANCE).all() and A.min() >= 0):
        _refuse(~np.isfinite(A).all(axis=2), "holds NaN or infinity: the forward pass that made it is broken")
        _refuse((A < 0).any(axis=2), "is negative: these are scores, give what softmax makes of them")
        _refuse(
            off > ROW_SUM_TOLERANCE, f"does not sum to 1 (off by up to {off.max():.3g}): is dropout on, or a key cut?"
        )
    if is_causal and any(A[:, row, row + 1 :].any() for row in range(A.shape[1])):
        _refuse(np.triu(A, k=1).any(axis=2), "reaches a later token, in a model said to be causal")
    A /= sums[:, :, None]
    return _as_checked(A, {False, bool(is_causal)})


def restrict(A, mask):
    """Cut the rows and columns of tokens that a token rule drops, and renormalise the rows.

    Parameters
    ----------
    A : array, shape (heads, n, n)
        Attention, as `as_attention` returns it.
    mask : array of bool, shape (n,)
        The tokens to keep.

    Returns
    -------
    array, shape (heads, m, m)
        Read-only.

    Raises
    ------
    Refusal
        If the mask is not one bool per token.
    Undefined
        If no token is kept, or a row has nothing left: all that it attended to is cut, and what it would attend to
        without those tokens is not in the data. One such row leaves the whole layer undefined, as any other choice
        (zeros, a uniform row, one token less) would make up attention.
    """
    mask = np.asarray(mask)
    if mask.dtype != bool or mask.shape != A.shape[1:2]:
        raise Refusal(f"the mask must be {A.shape[1]} booleans, found {mask.dtype} of shape {mask.shape}")
    if not mask.any():
        raise Undefined("no tokens under this token rule")
    places = np.flatnonzero(mask)
    kept = A.take(places, axis=1).take(places, axis=2)
    mass = kept.sum(axis=2)
    lost = np.argwhere(mass < LEAST_MASS)
    if len(lost):
        head, row = lost[0]
        raise Undefined(
            f"head {head}, row {np.flatnonzero(mask)[row]} attends to nothing that this token rule keeps "
            f"({len(lost)} such rows)"
        )
    kept /= mass[:, :, None]
    return _as_checked(kept, {masked for masked in (False, True) if _checked.get((id(A), masked)) is A})


def uniform(n, is_causal):
    """Return attention without content: equal weights on all tokens that the mask shows (n x n).

    Under the `content` rule n is the number of tokens kept: uniform attention, cut and renormalised, is uniform again.
    """
    A = np.tril(np.ones((n, n))) if is_causal else np.ones((n, n))
    return A / A.sum(axis=1, keepdims=True)


def with_mean(rows, columns):
    """Number the rows, one per head, with the key `head`, and add the mean over heads as `head` -1.

    The mean is the mean of the heads' values, not the value of their mean attention. A bool says whether all heads
    have it. Where a head has no value the mean has none either, with the reason.
    """
    mean, reasons = {"head": MEAN_HEAD}, []
    for name in columns:
        values = [row[name] for row in rows]
        if None in values:
            mean[name] = None
            reasons.append(f"{name}: undefined in {values.count(None)} of {len(values)} heads")
        elif isinstance(values[0], bool):
            mean[name] = all(values)
        else:
            mean[name] = float(np.mean(values))
    numbered = [{"head": head} | row for head, row in enumerate(rows)]
    return [*numbered, mean | {"undefined": "; ".join(reasons) or None}]


def null_heads(heads, columns, reason):
    """Return the rows of a layer, `heads` and their mean, in which every column is null, with the reason."""
    numbers = [*range(heads), MEAN_HEAD]
    return [{"head": head} | dict.fromkeys(columns) | {"undefined": str(reason)} for head in numbers]


def _as_checked(A, masks):
    A.flags.writeable = False
    for is_causal in masks:
        _checked[id(A), is_causal] = A
    return A


def _refuse(rows, what):
    """Refuse attention if any of its rows (heads x n, bool) is bad, naming the first."""
    bad = np.argwhere(rows)
    if len(bad):
        head, row = bad[0]
        raise Refusal(f"attention of head {head}, row {row} {what} ({len(bad)} such rows)")
