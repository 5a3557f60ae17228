"""Cluster membership: how steadily a token is in a cluster, whichever it is.

    clustered_share_i = layers in which token i has a label other than -1, over the layers whose clusters are defined

1: the token is clustered in every layer; 0: it is noise in all of them. The source study's histogram of it over tokens
is to be compared with that of random weights: HDBSCAN puts some tokens of any cloud into clusters.

Source: the study reproduced.

Traps: total collapse gives 0 clusters, so all tokens 0, as pure noise does: read it beside mean_inner_product. Layers
are not independent draws: a share says nothing about significance.
"""

import numpy as np

from collapse.errors import Refusal
from collapse.geometry import nulls
from collapse.labels import NOISE, same_tokens

COLUMNS = ("clustered_share",)


def cluster_membership(labels, n_tokens):
    """Compute, for each token, the share of layers in which it is in a cluster.

    Parameters
    ----------
    labels : iterable of (array of int, shape (n,), or None)
        Cluster of each token in each layer, -1 for noise; None where the clusters of a layer are undefined, which is
        left out.
    n_tokens : int
        n, which the labels do not say where all are undefined.

    Returns
    -------
    list of dict
        One row per token: `clustered_share` in [0, 1] and `undefined`. Null where clusters are defined in no layer.

    Raises
    ------
    Refusal
        If labels are no integers >= -1, or of another number of tokens.

    Examples
    --------
    >>> [row["clustered_share"] for row in cluster_membership([[0, 0, -1], [0, -1, -1], None], 3)]
    [1.0, 0.5, 0.0]
    """
    defined = [layer for layer in same_tokens(labels) if layer is not None]
    if defined and len(defined[0]) != n_tokens:
        raise Refusal(f"labels are of {len(defined[0])} tokens, expected {n_tokens}")
    if not defined:
        return [nulls(COLUMNS, "the clusters of every layer are undefined") for _ in range(n_tokens)]
    shares = np.mean([layer != NOISE for layer in defined], axis=0)
    return [{"clustered_share": share, "undefined": None} for share in shares.tolist()]
