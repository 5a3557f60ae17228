"""Duplicate tokens: how many clusters are one word of the prompt, repeated?

A cluster is a duplicate cluster when it has at least two tokens and all of them have one token id. With C the clustered
tokens and U those in duplicate clusters:

    duplicate_token_share = |U| / |C|

High: clusters are copies of one embedding that the layers have not told apart, which is the tokenizer's doing and not
attention's. In the embedding layer of a model that adds no positions the share is near 1 by construction. Low: clusters
join different words.

Source: METRICS.md of this project, from the critique of the study reproduced.

Traps: with `min_cluster_size` 2 two copies of one word are enough for a cluster; token ids tell apart what a reader
would not ("the" and " the"); without any cluster the share is 0 / 0.
"""

import numpy as np

from collapse.errors import Refusal
from collapse.geometry import nulls
from collapse.labels import NOISE, as_labels

COLUMNS = ("n_duplicate_clusters", "duplicate_token_share")


def duplicate_clusters(labels, token_ids):
    """Count the clusters of one layer that consist of one repeated token.

    Parameters
    ----------
    labels : array of int, shape (n,), or None
        Cluster of each token, -1 for noise; None where the clusters of this layer are undefined.
    token_ids : array of int, shape (n,)
        Id of each token in the vocabulary.

    Returns
    -------
    dict
        `n_duplicate_clusters` (clusters), `duplicate_token_share` in [0, 1] (share of the clustered tokens that are in
        them; null without clusters), `undefined`.

    Raises
    ------
    Refusal
        If labels or ids are no integers, or not as many as each other.

    Examples
    --------
    >>> duplicate_clusters([0, 0, 1, 1, -1], [7, 7, 7, 8, 9])
    {'n_duplicate_clusters': 1, 'duplicate_token_share': 0.5, 'undefined': None}
    """
    token_ids = np.asarray(token_ids)
    if token_ids.ndim != 1 or not (np.issubdtype(token_ids.dtype, np.integer) or token_ids.size == 0):
        raise Refusal(f"token ids must be a vector of integers, found {token_ids.dtype} of shape {token_ids.shape}")
    if labels is None:
        return nulls(COLUMNS, "the clusters of this layer are undefined")
    labels = as_labels(labels, len(token_ids))
    clustered = labels != NOISE
    names, members = np.unique(labels[clustered], return_inverse=True)
    if len(names) == 0:
        return {
            "n_duplicate_clusters": 0,
            "duplicate_token_share": None,
            "undefined": "duplicate_token_share: no clusters",
        }
    # A cluster with one distinct pair (cluster, id) has one id.
    distinct = np.unique(np.stack([members, token_ids[clustered]]), axis=1)[0]
    sizes = np.bincount(members)
    duplicate = (np.bincount(distinct) == 1) & (sizes >= 2)
    return {
        "n_duplicate_clusters": int(duplicate.sum()),
        "duplicate_token_share": float(sizes[duplicate].sum() / sizes.sum()),
        "undefined": None,
    }
