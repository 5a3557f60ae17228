"""Attention received by groups of tokens: clustered or noise, punctuation or other.

For a group S, with `received` and `received_uniform` per token (attention_tokens):

    received              = mean over S of received_j
    received_mask_corrected = mean over S of received_j / mean over S of received_uniform_j

`received` above 1: the group's tokens are looked at more than the average token. `received_mask_corrected` above 1:
more than their positions alone would give. 1 is what uniform attention gives in both the corrected value, for any
group, and the raw value over all tokens.

The correction divides means, not token by token: the last token of a causal prompt has a uniform value of 0, and those
near it so little that their ratios would swamp the group.

Source: the study reproduced; the correction is this project's.

Traps: clustered tokens need not lie early or late, but punctuation closes the prompt and the first tokens are rarely
punctuation, so a raw difference between groups may be one of positions. Clustered and noise split the tokens once,
punctuation and other a second time. Special tokens count as other under the rule `all`.
"""

import numpy as np

from collapse.errors import Refusal
from collapse.labels import NOISE, as_labels

GROUPS = ("clustered", "noise", "punctuation", "other")
COLUMNS = ("received", "received_mask_corrected", "share_of_tokens")


def attention_received(received, received_uniform, is_punctuation, labels):
    """Split the attention received in one layer by groups of tokens.

    Parameters
    ----------
    received, received_uniform : array, shape (n,)
        From attention_tokens; both None where attention received is undefined.
    is_punctuation : array of bool, shape (n,)
    labels : array of int, shape (n,)
        Clusters of the state that enters the block, -1 for noise; None where clusters are undefined.

    Returns
    -------
    list of dict
        One row per group: `group`, `received` (>= 0), `received_mask_corrected` (>= 0), `share_of_tokens` in [0, 1],
        `undefined`. An empty group has a share of 0 and receives null.

    Raises
    ------
    Refusal
        If the arrays are not of one length, hold something else, or are empty.

    Examples
    --------
    >>> rows = attention_received([1.5, 1.5, 0.0], [2.0, 1.0, 0.0], [False, True, True], [0, -1, 0])
    >>> [(row["group"], row["received"], row["received_mask_corrected"]) for row in rows]
    [('clustered', 0.75, 0.75), ('noise', 1.5, 1.5), ('punctuation', 0.75, 1.5), ('other', 1.5, 0.75)]
    """
    is_punctuation = np.asarray(is_punctuation)
    if is_punctuation.dtype != bool or is_punctuation.ndim != 1 or len(is_punctuation) == 0:
        raise Refusal(f"is_punctuation must be one bool per token, found {is_punctuation.dtype} {is_punctuation.shape}")
    n = len(is_punctuation)
    if (received is None) != (received_uniform is None):
        raise Refusal("received and received_uniform are defined together or not at all")
    if received is not None:
        received, received_uniform = _shares(received, n, "received"), _shares(received_uniform, n, "received_uniform")
    members = dict.fromkeys(GROUPS) | {"punctuation": is_punctuation, "other": ~is_punctuation}
    if labels is not None:
        labels = as_labels(labels, n)
        members |= {"clustered": labels != NOISE, "noise": labels == NOISE}
    return [{"group": group} | _row(members[group], received, received_uniform) for group in GROUPS]


def _shares(values, n, name):
    values = np.asarray(values, dtype=np.float64)
    if values.shape != (n,) or not (np.isfinite(values) & (values >= 0)).all():
        raise Refusal(f"{name} must be {n} finite numbers >= 0, one per token, found shape {values.shape}")
    return values


def _row(inside, received, received_uniform):
    """The values of one group, from the mask of its tokens."""
    row = dict.fromkeys(COLUMNS) | {"undefined": None}
    if inside is None:
        return row | {"undefined": "clusters are undefined in this state: see cluster_labels"}
    row["share_of_tokens"] = float(inside.mean())
    if not inside.any():
        return row | {"undefined": "received, received_mask_corrected: no token is in this group"}
    if received is None:
        reason = "attention received is undefined in this layer: see attention_tokens"
        return row | {"undefined": f"received, received_mask_corrected: {reason}"}
    row["received"] = float(received[inside].mean())
    expected = float(received_uniform[inside].mean())
    if expected == 0:
        return row | {"undefined": "received_mask_corrected: the mask lets no other token see this group"}
    return row | {"received_mask_corrected": row["received"] / expected}
