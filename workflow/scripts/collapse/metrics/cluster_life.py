"""Cluster life: how the clusters of a layer become those of the next.

Tokens are the same in every layer, so clusters are matched by the tokens they share. Cluster A of the layer before
and cluster B are **linked** when they share more than half of the tokens of the smaller one:

    2 |A n B| > min(|A|, |B|)

Then a **survivor** is a pair linked to each other and to nothing else; a **merge** a cluster linked from two or more; a
**split** a cluster of the layer before linked to two or more; a **birth** a cluster linked from none; a **death** a
cluster of the layer before linked to none. Noise is no cluster and takes no part.

A cluster's age is 1 where it appears, and one more in each layer it survives; birth, merge and split start anew.
`mean_lifespan` is the mean age of the clusters of a layer, `adjacent_ari` the adjusted Rand index with the layer
before, noise counted as one label. A layer is on a **plateau** when it belongs to three layers in a row with
clusters, whose number varies by at most `count_tolerance` (range over maximum) while every step's ARI is at least
1 - `ari_tolerance`.

Many survivors, a high ARI and old clusters: structure that layers keep, the metastable states of the theory. Many
births and deaths: clusters drawn anew in each layer, which in clouds without structure they are.

Source: matching and ages as in Spiliopoulou et al., MONIC, KDD 2006; ARI: Hubert and Arabie, J. Classif. 2, 1985.

Traps: with exactly half of the smaller cluster one shared token would link a pair to two clusters at once, and pairs
are the commonest clusters here. Two layers without any cluster have an ARI of 1 by convention, which would show
collapse and pure noise as stability: undefined here. Ages are cut at the first layer and at undefined ones. HDBSCAN's
labels can depend on row order: below `row_order_ari` 1 part of the change is no geometry. A drift slower than the
tolerance per three layers passes for a plateau.
"""

import numpy as np

from collapse.errors import Refusal
from collapse.geometry import nulls
from collapse.metrics.duplicate_tokens import NOISE, as_labels

PLATEAU = 3
COLUMNS = (
    "births",
    "deaths",
    "merges",
    "splits",
    "survivors",
    "mean_lifespan",
    "adjacent_ari",
    "is_plateau",
)
STEP_COLUMNS = ("births", "deaths", "merges", "splits", "survivors", "adjacent_ari")


def cluster_life(labels, count_tolerance, ari_tolerance):
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
        (layers, >= 1; null without clusters), `adjacent_ari` in [-0.5, 1], `is_plateau`, `undefined`. Steps are null
        at the first layer and after an undefined one, the ARI also where neither layer has a cluster; all are null
        where clusters are undefined.

    Raises
    ------
    Refusal
        If labels are no integers >= -1, or layers have different numbers of tokens.

    Examples
    --------
    >>> rows = cluster_life([[0, 0, 1, 1], [0, 0, 0, 0]], count_tolerance=0.1, ari_tolerance=0.1)
    >>> [(row["merges"], row["mean_lifespan"]) for row in rows]
    [(None, 1.0), (1, 1.0)]
    """
    layers = same_tokens(labels)
    rows, counts = [], []
    before, ages, why_none = None, None, "no layer before the first"
    for current in layers:
        if current is None:
            rows.append(nulls(COLUMNS, "the clusters of this layer are undefined"))
            counts.append(None)
            before, why_none = None, "the clusters of the layer before are undefined"
            continue
        row, ages = _first(current, why_none) if before is None else _step(before, current, ages)
        rows.append(row)
        counts.append(len(ages))
        before = current
    on_plateau = _plateaus(counts, [row["adjacent_ari"] for row in rows], count_tolerance, ari_tolerance)
    for row, count, flag in zip(rows, counts, on_plateau):
        yield row if count is None else row | {"is_plateau": flag}


def same_tokens(labels):
    """Return the labels of each layer as arrays, None where they are undefined; other tokens are a Refusal."""
    layers = [None if layer is None else as_labels(layer) for layer in labels]
    sizes = sorted({len(layer) for layer in layers if layer is not None})
    if len(sizes) > 1:
        raise Refusal(f"layers have {sizes[0]} and {sizes[-1]} tokens: they must be the same tokens")
    return layers


def _first(current, why_none):
    """The row of a layer that has none to compare with, and the age of each of its clusters."""
    ages = np.ones(np.unique(current[current != NOISE]).size)
    row = dict.fromkeys(COLUMNS) | {"mean_lifespan": _mean(ages)}
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


def _plateaus(counts, aris, count_tolerance, ari_tolerance):
    """Whether each layer belongs to a plateau. A run within tolerance is covered by its stretches of three layers."""
    flags = [False] * len(counts)
    for start in range(len(counts) - PLATEAU + 1):
        stop = start + PLATEAU
        numbers, steps = counts[start:stop], aris[start + 1 : stop]
        if None in numbers or 0 in numbers or None in steps:
            continue
        steady = max(numbers) - min(numbers) <= count_tolerance * max(numbers)
        if steady and min(steps) >= 1.0 - ari_tolerance:
            flags[start:stop] = [True] * PLATEAU
    return flags


def _mean(ages):
    return float(ages.mean()) if len(ages) else None


def _no_clusters(ages):
    return [] if len(ages) else ["mean_lifespan: no clusters"]
