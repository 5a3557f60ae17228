"""Pictures of one run's layers that can be followed from one to the next, and their compact form.

Orientation of a projection is arbitrary, and so are the numbers of clusters; both would change from layer to layer
although no token moved. With A the centred picture of a layer and B that of the layer before, A becomes A R for the
orthogonal R (turned or mirrored, never scaled) that makes |A R - B| smallest: R = U V^T of A^T B = U S V^T. A cluster
takes over the number of that cluster of the layer before with which it shares most tokens.

Source: Schönemann, A generalized solution of the orthogonal Procrustes problem, Psychometrika 31, 1966.
"""

import base64

import numpy as np

from collapse.labels import NOISE

# Coordinates are stored as multiples of the range over this.
STEPS = 32767


def turned(pictures):
    """Turn each picture onto the one before.

    Parameters
    ----------
    pictures : list of (array of shape (n, 2), or None)
        Coordinates of the same n tokens, layer by layer; None where a layer has no picture.

    Returns
    -------
    list of (array of shape (n, 2), or None)
        Centred; distances within each picture are as before.
    """
    found, before = [], None
    for picture in pictures:
        if picture is not None:
            centred = picture - picture.mean(axis=0)
            if before is not None:
                U, _, Vt = np.linalg.svd(centred.T @ before)
                centred = centred @ (U @ Vt)
            before = centred
        found.append(None if picture is None else centred)
    return found


def packed(pictures):
    """Encode pictures as multiples of one unit, rounded to the nearest.

    Parameters
    ----------
    pictures : list of array of shape (n, 2)

    Returns
    -------
    (str, float)
        Base64 of little-endian int16, picture by picture and token by token, x before y; and the unit, which is the
        largest coordinate over 32767: no coordinate is off by more than half of it.
    """
    places = np.array(pictures, dtype=np.float64)
    unit = float(np.abs(places).max(initial=0.0)) / STEPS or 1.0
    return encoded(np.rint(places / unit)), unit


def encoded(integers):
    """Return base64 of integers as little-endian int16."""
    return base64.b64encode(np.asarray(integers).astype("<i2").tobytes()).decode()


def followed(labels):
    """Renumber clusters so that one keeps its number while it keeps its tokens.

    Parameters
    ----------
    labels : list of (array of n integers, or None)
        Labels of the same tokens, layer by layer, -1 for noise; None where they are undefined.

    Returns
    -------
    list of (array of n integers, or None)
        The same clusters. One that shares more than half of the tokens of the smaller one with a cluster of the layer
        before has its number, the largest overlap first; any other has the smallest number that is free in both.
    """
    found, before = [], None
    for layer in labels:
        if layer is not None:
            layer = _renumbered(layer, before)
            before = layer
        found.append(layer)
    return found


def _renumbered(layer, before):
    own, sizes = np.unique(layer[layer != NOISE], return_counts=True)
    sizes = dict(zip(own.tolist(), sizes.tolist()))
    numbers, taken = {}, set()
    if before is not None:
        old, old_sizes = np.unique(before[before != NOISE], return_counts=True)
        old_sizes = dict(zip(old.tolist(), old_sizes.tolist()))
        both = (layer != NOISE) & (before != NOISE)
        pairs, shared = np.unique(np.stack([layer[both], before[both]]), axis=1, return_counts=True)
        for n, a, b in sorted(zip((-shared).tolist(), *pairs.tolist())):
            if -2 * n > min(sizes[a], old_sizes[b]) and a not in numbers and b not in numbers.values():
                numbers[a] = b
        taken = {*old_sizes}
    free = (number for number in range(len(sizes) + len(taken)) if number not in taken)
    for a in sizes:
        if a not in numbers:
            numbers[a] = next(free)
    return np.array([numbers.get(label, NOISE) for label in layer.tolist()], dtype=np.int64)
