"""Cluster labels: validation, shared by the metrics of clusters."""

import numpy as np

from collapse.errors import Refusal

NOISE = -1


def as_labels(labels, n=None):
    """Return cluster labels as a vector of int64.

    Raises
    ------
    Refusal
        If they are no vector of integers >= -1, or not n of them.
    """
    labels = np.asarray(labels)
    if labels.ndim != 1 or not (np.issubdtype(labels.dtype, np.integer) or labels.size == 0):
        raise Refusal(f"cluster labels must be a vector of integers, found {labels.dtype} of shape {labels.shape}")
    if labels.size and labels.min() < NOISE:
        raise Refusal(f"cluster labels start at {NOISE}, which is noise: found {labels.min()}")
    if n is not None and len(labels) != n:
        raise Refusal(
            f"{len(labels)} cluster labels for {n} tokens: they must be those of the same layer and token rule"
        )
    return labels.astype(np.int64)


def same_tokens(labels):
    """Return the labels of each layer as arrays, None where they are undefined; other tokens are a Refusal."""
    layers = [None if layer is None else as_labels(layer) for layer in labels]
    sizes = sorted({len(layer) for layer in layers if layer is not None})
    if len(sizes) > 1:
        raise Refusal(f"layers have {sizes[0]} and {sizes[-1]} tokens: they must be the same tokens")
    return layers
