"""Reasons of undefined values, for readers: which go without saying, and which are of one kind."""

import re

FIRST_LAYER = "no layer before the first"
AFTER_NORM = "the state after the final norm is no layer"


def reason_kind(reason):
    """Return a reason without its numbers, so that like reasons count together.

    >>> reason_kind("row 3 is a zero vector (1 of 12)")
    'row # is a zero vector (# of #)'
    """
    return re.sub(r"-?\d[\d.]*(e[+-]?\d+)?", "#", reason)
