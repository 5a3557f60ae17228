"""Which tokens of a prompt a metric sees: `all`, or `content` (without position 0 and special tokens).

GPT-2's first position carries a vector many times longer than the rest, and [CLS] and [SEP] gather attention: either
alone can move effective rank, CKA or a mean. Every metric is computed under both rules.
"""

import numpy as np

TOKEN_RULES = ("all", "content")


def token_mask(rule, is_first, is_special):
    """Return a boolean mask of length n: the tokens that `rule` keeps."""
    if rule == "all":
        return np.ones(len(is_first), dtype=bool)
    if rule == "content":
        return ~(np.asarray(is_first) | np.asarray(is_special))
    raise ValueError(f"unknown token rule {rule!r}: one of {', '.join(TOKEN_RULES)}")
