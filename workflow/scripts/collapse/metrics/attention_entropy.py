"""Entropy of attention: over how many tokens a head spreads it.

    entropy = mean over rows i of -sum_j A_ij log A_ij        (natural logarithm, 0 log 0 = 0)

0: every token attends to exactly one. At most `entropy_uniform`, the same of uniform attention under the same mask,
which is log n without a mask and the mean of log 1, ..., log n with a causal one. Row -1 is the mean over heads.

Source: Shannon, Bell Syst. Tech. J. 27, 1948; of attention heads: Clark et al., arXiv 1906.04341, section 3.

Traps: a causal mask alone lowers it by about 1, since early rows are short: compare with the uniform value. A head
that attends to one special token and a head that attends to the token before both have entropy 0.
"""

from functools import lru_cache

import numpy as np

from collapse.attention import as_attention, null_heads, uniform, with_mean
from collapse.errors import Undefined

COLUMNS = ("entropy", "entropy_uniform")
# In place of 0, whose logarithm is not finite: times 0 it is 0. No float32 is as small.
LEAST = np.finfo(np.float64).tiny


def attention_entropy(A, is_causal):
    """Compute the mean entropy of the rows of each head of one layer.

    Parameters
    ----------
    A : array, shape (heads, n, n)
        Attention under one token rule; rows sum to 1.
    is_causal : bool
        Whether a token sees only itself and those before it.

    Returns
    -------
    list of dict
        One row per head and one with `head` -1, their mean: `entropy` and `entropy_uniform` in nats, in [0, log n],
        and `undefined`. Null without tokens.

    Raises
    ------
    Refusal
        If A is no attention under this mask.

    Examples
    --------
    >>> round(attention_entropy([[[1, 0], [1/2, 1/2]]], is_causal=True)[0]["entropy"], 4)
    0.3466
    """
    try:
        A = as_attention(A, is_causal)
    except Undefined as reason:
        return null_heads(len(A), COLUMNS, reason)
    control = _uniform_entropy(A.shape[1], is_causal)
    rows = [{"entropy": _entropy(head), "entropy_uniform": control, "undefined": None} for head in A]
    return with_mean(rows, COLUMNS)


@lru_cache(maxsize=16)
def _uniform_entropy(n, is_causal):
    """The control: it depends on nothing else, so a job computes it once per number of tokens, not once per layer."""
    return _entropy(uniform(n, is_causal))


def _entropy(A):
    # A row with one entry can sum to a rounding more than 1, and its entropy to a rounding less than 0.
    return max(0.0, float(-np.vdot(A, np.log(np.maximum(A, LEAST))) / len(A)))
