"""Attention received: which tokens the others look at.

    r_j = mean over heads h and over the n - 1 queries i != j of A_hij,        received_j = r_j / mean over k of r_k

The diagonal is left out, so a token that attends to itself gains nothing by it; rows are not renormalised after that.
The mean over tokens is 1. Above 1: looked at more than the average token. A value near n: all others look at it alone
(an attention sink). `received_uniform` is the same of uniform attention under the same mask.

Source: the study reproduced; attention sinks: Xiao et al., arXiv 2309.17453.

Traps: a causal mask favours early tokens without any content (position 0 gets 6 times the mean at 264 tokens with the
diagonal counted), and the last token gets nothing at all. The denominator is n - 1 for every token, also for late ones
that few queries can see: read `received` beside `received_uniform`, never alone.
"""

from functools import lru_cache

import numpy as np

from collapse.attention import as_attention, uniform
from collapse.errors import Undefined
from collapse.geometry import nulls

COLUMNS = ("received", "received_uniform")


def attention_tokens(A, is_causal):
    """Compute the attention that each token of one layer receives.

    Parameters
    ----------
    A : array, shape (heads, n, n)
        Attention under one token rule; rows sum to 1.
    is_causal : bool
        Whether a token sees only itself and those before it.

    Returns
    -------
    list of dict
        One row per token: `received` and `received_uniform` in [0, n], each with mean 1 over tokens, and `undefined`.
        Both are null with fewer than two tokens, or where every token attends to itself alone.

    Raises
    ------
    Refusal
        If A is no attention under this mask.

    Examples
    --------
    >>> rows = attention_tokens([[[1, 0, 0], [1, 0, 0], [0, 1, 0]]], is_causal=True)
    >>> [(row["received"], round(row["received_uniform"], 3)) for row in rows]
    [(1.5, 2.143), (1.5, 0.857), (0.0, 0.0)]
    """
    try:
        A = as_attention(A, is_causal)
        n = A.shape[1]
        if n < 2:
            raise Undefined("1 token: no other token attends to it")
        found = _received(A.mean(axis=0)), _uniform_received(n, is_causal)
    except Undefined as reason:
        return [nulls(COLUMNS, reason) for _ in range(np.shape(A)[1])]
    return [{"received": r, "received_uniform": u, "undefined": None} for r, u in zip(*map(np.ndarray.tolist, found))]


@lru_cache(maxsize=16)
def _uniform_received(n, is_causal):
    """The control: it depends on nothing else, so a job computes it once per number of tokens, not once per layer."""
    return _received(uniform(n, is_causal))


def _received(A):
    """Column sums without the diagonal, over their mean: the number of queries and heads cancels. Overwrites A."""
    # Not column minus diagonal: next to a 1 on the diagonal little attention would lose its digits.
    np.fill_diagonal(A, 0.0)
    columns = A.sum(axis=0)
    if not columns.any():
        raise Undefined("every token attends to itself alone: no attention is received from others")
    return columns / columns.mean()
