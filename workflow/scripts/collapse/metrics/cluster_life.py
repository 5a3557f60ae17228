"""Cluster life: how the clusters of a layer become those of the next.

Tokens are the same in every layer, so clusters are matched by the tokens they share. Cluster A of the layer before
and cluster B are **linked** when they share more than half of the tokens of the smaller one:

    2 |A n B| > min(|A|, |B|)

Then a **survivor** is a pair linked to each other and to nothing else; a **merge** a cluster linked from two or more; a
**split** a cluster of the layer before linked to two or more; a **birth** a cluster linked from none; a **death** a
cluster of the layer before linked to none. Noise is no cluster and takes no part.

A cluster's age is 1 where it appears, and one more in each layer it survives; birth, merge and split start anew.
`mean_lifespan` is the mean age of the clusters of a layer, `adjacent_ari` the adjusted Rand index with the layer
before, noise counted as one label.

A layer is on a **plateau** when it belongs to three layers in a row that two independent signals call steady:
`clusters_are_steady`, from labels: all three have clusters, whose number varies by at most `count_tolerance` (range
over maximum) while every step's ARI is at least 1 - `ari_tolerance`; and `rank_is_steady`, from states: the effective
rank of their directions varies by at most `rank_tolerance` (range over maximum).

Many survivors, a high ARI and old clusters: structure that layers keep, the metastable states of the theory. Many
births and deaths: clusters drawn anew in each layer, which in clouds without structure they are.

Source: matching and ages as in Spiliopoulou et al., MONIC, KDD 2006; ARI: Hubert and Arabie, J. Classif. 2, 1985.

Traps: with exactly half of the smaller cluster one shared token would link a pair to two clusters at once, and pairs
are the commonest clusters here. Two layers without any cluster have an ARI of 1 by convention, which would show
collapse and pure noise as stability: undefined here. Ages are cut at the first layer and at undefined ones. HDBSCAN's
labels can depend on row order: below `row_order_ari` 1 part of the change is no geometry. A drift slower than the
tolerance per three layers passes for a plateau.
"""

from functools import partial

import numpy as np

from collapse.errors import Undefined
from collapse.geometry import nulls, on_sphere
from collapse.labels import NOISE, same_tokens
from collapse.reasons import FIRST_LAYER
from collapse.spectra import entropy_rank, singular_values

PLATEAU = 3
# An agreement at the tolerance is within it, whatever its last digits.
ROUNDING = 1e-12
FOLLOWED = (
    "births",
    "deaths",
    "merges",
    "splits",
    "survivors",
    "mean_lifespan",
    "adjacent_ari",
    "clusters_are_steady",
)
COLUMNS = (*FOLLOWED, "rank_is_steady", "is_plateau")
STEP_COLUMNS = ("births", "deaths", "merges", "splits", "survivors", "adjacent_ari")


def cluster_life(states, labels, count_tolerance, ari_tolerance, rank_tolerance):
    """Follow the clusters of a trajectory from layer to layer, and say where clusters and geometry stand still.

    Parameters
    ----------
    states : iterable of arrays, shape (n, d)
        Raw states, in order of depth.
    labels, count_tolerance, ari_tolerance
        As for `follow`, one entry per layer.
    rank_tolerance : float
        Largest range of the effective rank over a plateau, as a share of its maximum, in [0, 1].

    Yields
    ------
    dict
        What `follow` yields, with `rank_is_steady` and `is_plateau`, both null where the rank has no value.

    Raises
    ------
    Refusal
        As `follow`; also if states hold NaN or infinity.
    """
    ranks = _in_threes(map(_sphere_rank, states), partial(_ranks_are_steady, tolerance=rank_tolerance))
    for row, (rank, flag) in zip(follow(labels, count_tolerance, ari_tolerance), ranks, strict=True):
        both = None if row["clusters_are_steady"] is None else row["clusters_are_steady"] and flag
        row |= {"rank_is_steady": flag, "is_plateau": both}
        if isinstance(rank, Undefined):
            reasons = [row["undefined"], f"rank_is_steady, is_plateau: {rank}"]
            row |= {"rank_is_steady": None, "is_plateau": None, "undefined": "; ".join(filter(None, reasons))}
        yield row


def _sphere_rank(H):
    """The effective rank of a layer's directions, or why it has none."""
    try:
        return entropy_rank(singular_values(on_sphere(H)))
    except Undefined as reason:
        # Without the frames that it came from, which hold the layer.
        return reason.with_traceback(None)


def _ranks_are_steady(ranks, tolerance):
    if any(isinstance(rank, Undefined) for rank in ranks):
        return False
    return max(ranks) - min(ranks) <= tolerance * max(ranks)


def follow(labels, count_tolerance, ari_tolerance):
    """Follow the clusters of a trajectory from layer to layer.

    Parameters
    ----------
    labels : iterable of (array of int, shape (n,), or None)
        Cluster of each token, -1 for noise, in order of depth; None where the clusters of a layer are undefined.
        n is the same for all. Numbers need not carry over between layers.
    count_tolerance : float
        Largest range of the number of clusters over a plateau, as a share of its maximum, in [0, 1].
    ari_tolerance : float
        Largest distance of adjacent ARI from 1 on a plateau, in [0, 1].

    Yields
    ------
    dict
        `births`, `deaths`, `merges`, `splits`, `survivors` (counts of the step from the layer before), `mean_lifespan`
        (layers, >= 1; null without clusters), `adjacent_ari` in [-0.5, 1], `clusters_are_steady`, `undefined`. Steps
        are null at the first layer and after an undefined one, the ARI also where neither layer has a cluster; all are
        null where clusters are undefined.

    Raises
    ------
    Refusal
        If labels are no integers >= -1, or layers have different numbers of tokens.

    Examples
    --------
    >>> rows = follow([[0, 0, 1, 1], [0, 0, 0, 0]], count_tolerance=0.1, ari_tolerance=0.1)
    >>> [(row["merges"], row["mean_lifespan"]) for row in rows]
    [(None, 1.0), (1, 1.0)]
    """
    layers = same_tokens(labels)
    rows = []
    before, ages, why_none = None, None, FIRST_LAYER
    for current in layers:
        if current is None:
            rows.append((nulls(FOLLOWED, "the clusters of this layer are undefined"), None))
            before, why_none = None, "the clusters of the layer before are undefined"
            continue
        row, ages = _first(current, why_none) if before is None else _step(before, current, ages)
        rows.append((row, len(ages)))
        before = current
    steady = partial(_clusters_are_steady, count_tolerance=count_tolerance, ari_tolerance=ari_tolerance)
    for (row, count), flag in _in_threes(rows, steady):
        yield row if count is None else row | {"clusters_are_steady": flag}


def _first(current, why_none):
    """The row of a layer that has none to compare with, and the age of each of its clusters."""
    ages = np.ones(np.unique(current[current != NOISE]).size)
    row = dict.fromkeys(FOLLOWED) | {"mean_lifespan": _mean(ages)}
    reasons = [f"{', '.join(STEP_COLUMNS)}: {why_none}"]
    return row | {"undefined": "; ".join(reasons + _no_clusters(ages))}, ages


def _step(before, current, ages):
    """The row of the step between two layers, and the ages after it."""
    table, old, new = _contingency(before, current)
    sizes = np.minimum.outer(table.sum(axis=1)[old], table.sum(axis=0)[new])
    links = 2 * table[np.ix_(old, new)] > sizes
    into, out_of = links.sum(axis=0), links.sum(axis=1)
    survives = links & (out_of == 1)[:, None] & (into == 1)[None, :]
    ages = 1.0 + ages @ survives
    has_clusters = old.any() or new.any()
    row = {
        "births": int((into == 0).sum()),
        "deaths": int((out_of == 0).sum()),
        "merges": int((into >= 2).sum()),
        "splits": int((out_of >= 2).sum()),
        "survivors": int(survives.sum()),
        "mean_lifespan": _mean(ages),
        "adjacent_ari": _adjusted_rand(table) if has_clusters else None,
    }
    reasons = [] if has_clusters else ["adjacent_ari: no clusters in either layer"]
    return row | {"undefined": "; ".join(reasons + _no_clusters(ages)) or None}, ages


def _contingency(before, current):
    """Tokens per pair of labels (noise included), and which rows and columns are clusters."""
    (names, rows), (other_names, columns) = (np.unique(labels, return_inverse=True) for labels in (before, current))
    cells = rows * len(other_names) + columns
    table = np.bincount(cells, minlength=len(names) * len(other_names)).reshape(len(names), len(other_names))
    return table, names != NOISE, other_names != NOISE


def _adjusted_rand(table):
    """Adjusted Rand index of two labellings, 1 where they are the same. Importing scikit-learn takes 1.6 s."""
    n = int(table.sum())
    # Sums of squares count ordered pairs. Python's integers: products of such counts overflow 64 bits.
    cells, rows, columns = (int((c**2).sum()) for c in (table, table.sum(axis=1), table.sum(axis=0)))
    both, only_before, only_current = cells - n, rows - cells, columns - cells
    neither = n * n - rows - columns + cells
    if only_before == only_current == 0:
        return 1.0
    scale = (both + only_before) * (only_before + neither) + (both + only_current) * (only_current + neither)
    return 2.0 * (both * neither - only_before * only_current) / scale


def _clusters_are_steady(layers, count_tolerance, ari_tolerance):
    """Whether rows of layers in a row, each with its number of clusters, are those of steady clusters."""
    counts, steps = [count for _, count in layers], [row["adjacent_ari"] for row, _ in layers[1:]]
    if None in counts or 0 in counts or None in steps:
        return False
    return max(counts) - min(counts) <= count_tolerance * max(counts) and min(steps) >= 1.0 - ari_tolerance - ROUNDING


def _in_threes(layers, are_steady):
    """Yield what each layer has, and whether it belongs to three that are steady: they cover any longer run.

    Two layers behind, so that layers need not be in memory together.
    """
    kept, flags = [], []
    for layer in layers:
        kept.append(layer)
        flags.append(False)
        if len(kept) == PLATEAU:
            if are_steady(kept):
                flags = [True] * PLATEAU
            yield kept.pop(0), flags.pop(0)
    yield from zip(kept, flags)


def _mean(ages):
    return float(ages.mean()) if len(ages) else None


def _no_clusters(ages):
    return [] if len(ages) else ["mean_lifespan: no clusters"]
