"""Clusters of tokens on the sphere: HDBSCAN on the precomputed cosine distances 1 - G of one layer.

`label` -1 is noise. Three controls stand beside the counts, because a count alone says little:

* a **null**: the same call on clouds in which each coordinate of X is permuted over the tokens, independently, and
  rows are normalised again. It keeps every coordinate's distribution and destroys what tokens have in common;
  structure is what exceeds it.
* the **row order**: equal distances (repeated tokens) are resolved by row order. `row_order_ari` is the mean adjusted
  Rand index between the labels and those of shuffled rows; 1 means that the order did not matter.
* the share of tied distances. Without any, the order can still matter: HDBSCAN works on mutual reachability, where
  distances tie that differ as cosines. Only `row_order_ari` tells.

Traps: HDBSCAN gives 0 clusters both for total collapse and for pure noise: read a count only beside the mean inner
product. With `min_cluster_size` 2 even noise has many clusters. hdbscan and scikit-learn disagree on what
`min_samples` counts: this is hdbscan's own, on a float64 matrix, which is symmetric with a zero diagonal.

Source: Campello et al., PAKDD 2013; McInnes et al., JOSS 2(11), 2017; HDBSCAN on the sphere as in the study reproduced.
"""

import hdbscan
import numpy as np
from sklearn.metrics import adjusted_rand_score

from collapse.errors import Undefined
from collapse.geometry import cosines, nulls, on_sphere, pairs

# Distances below this are the same direction: float32 states that point the same way differ by less.
ROUNDING = 1e-13
TIE_DECIMALS = 12
COLUMNS = (
    "n_clusters",
    "noise_fraction",
    "mean_cluster_size",
    "largest_cluster_share",
    "mean_inner_product",
    "null_n_clusters",
    "null_noise_fraction",
    "row_order_ari",
    "tied_share",
)


def clusters(layers, min_cluster_size, min_samples, null_draws, row_orders, seed):
    """Cluster each layer of a trajectory and put its controls beside it.

    Parameters
    ----------
    layers : iterable of arrays, shape (n, d)
        Raw states, in order of depth.
    min_cluster_size : int
        Smallest cluster, >= 2.
    min_samples : int or None
        HDBSCAN's min_samples; None means min_cluster_size.
    null_draws, row_orders : int
        Number of permuted clouds, and of shuffled row orders, per layer; >= 1.
    seed : int
        Seed of both. Layer l draws from the stream (seed, l), so that layers can be recomputed alone.

    Yields
    ------
    (dict, labels, probabilities)
        The row: `n_clusters`, `noise_fraction` in [0, 1], `mean_cluster_size` and
        `largest_cluster_share` in [0, 1] (null without clusters), `mean_inner_product`, `null_n_clusters` and
        `null_noise_fraction` (means over draws), `row_order_ari` in [-1, 1], `tied_share` in [0, 1], `undefined`.
        `labels` (int, -1 noise) and `probabilities` (float in [0, 1]) have length n, or are None where the row is null.
    """
    for index, H in enumerate(layers):
        try:
            X = on_sphere(H)
            if len(X) < 3:
                raise Undefined(f"{len(X)} tokens: HDBSCAN needs at least 3 to tell a cluster from noise")
        except Undefined as reason:
            yield nulls(COLUMNS, reason), None, None
            continue
        rng = np.random.default_rng([seed, index])
        options = {"min_cluster_size": min_cluster_size, "min_samples": min_samples}
        yield _cluster_layer(X, rng, null_draws, row_orders, options)


def _cluster_layer(X, rng, null_draws, row_orders, options):
    G = cosines(X)
    labels, probabilities = hdbscan_on_sphere(G, **options)
    null_counts, null_noise = _null_summary(X, rng, null_draws, options)
    agreements = []
    for _ in range(row_orders):
        order = rng.permutation(len(G))
        shuffled, _ = hdbscan_on_sphere(G[np.ix_(order, order)], **options)
        agreements.append(adjusted_rand_score(labels[order], shuffled))
    count, noise = _summary(labels)
    sizes = np.bincount(labels[labels >= 0], minlength=count)
    values = pairs(G)
    row = {
        "n_clusters": count,
        "noise_fraction": noise,
        "mean_cluster_size": float(sizes.mean()) if count else None,
        "largest_cluster_share": float(sizes.max() / len(labels)) if count else None,
        "mean_inner_product": float(values.mean()),
        "null_n_clusters": null_counts,
        "null_noise_fraction": null_noise,
        "row_order_ari": float(np.mean(agreements)),
        "tied_share": 1.0 - len(np.unique(values.round(TIE_DECIMALS))) / len(values),
    }
    reasons = [] if count else ["mean_cluster_size, largest_cluster_share: no clusters"]
    if null_counts is None:
        reasons.append("null_n_clusters, null_noise_fraction: permuting coordinates leaves fewer than 3 directions")
    row["undefined"] = "; ".join(reasons) or None
    return row, labels, probabilities


def hdbscan_on_sphere(G, min_cluster_size, min_samples):
    """Run HDBSCAN on 1 - G.

    Parameters
    ----------
    G : array, shape (n, n)
        Cosines, symmetric, n >= 3.

    Returns
    -------
    (labels, probabilities)
        Integers with -1 for noise, and floats in [0, 1]; length n.
    """
    distances = 1.0 - G
    # Copies of one direction differ by rounding, which HDBSCAN would take for structure.
    distances[distances < ROUNDING] = 0.0
    np.fill_diagonal(distances, 0.0)
    labels, probabilities, *_ = hdbscan.hdbscan(
        distances,
        metric="precomputed",
        min_cluster_size=min_cluster_size,
        min_samples=min_samples,
        cluster_selection_method="eom",
    )
    return labels, probabilities


def _null_summary(X, rng, draws, options):
    """Mean count and noise fraction over permuted clouds, (None, None) where a draw leaves too few directions."""
    found = []
    for cloud in _null_clouds(X, rng, draws):
        if len(cloud) < 3:
            return None, None
        found.append(_summary(hdbscan_on_sphere(cosines(cloud), **options)[0]))
    counts, noise = zip(*found)
    return float(np.mean(counts)), float(np.mean(noise))


def _null_clouds(X, rng, draws):
    for _ in range(draws):
        cloud = rng.permuted(X, axis=0)
        # Sparse coordinates can leave a row of zeros, which has no direction: the null goes without it.
        yield on_sphere(cloud[cloud.any(axis=1)])


def _summary(labels):
    return int(labels.max()) + 1, float(np.mean(labels < 0))


def token_rows(row, labels, probabilities, mask):
    """Return one dict per token that the mask keeps: `position`, `label`, `probability`, and `undefined` where null."""
    positions = np.flatnonzero(mask).tolist()
    if labels is None:
        return [{"position": p, "label": None, "probability": None, "undefined": row["undefined"]} for p in positions]
    found = zip(positions, labels.tolist(), probabilities.tolist(), strict=True)
    return [{"position": p, "label": label, "probability": w, "undefined": None} for p, label, w in found]
