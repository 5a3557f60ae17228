"""Pair groups: are tokens of one cluster closer than others, and which pairs carry the collapse?

The pairs i < j of a layer fall into four groups by the clusters of their tokens: `within` one cluster, `between` two,
`noise_clustered` (one of the two is noise) and `noise_noise`. For each, over its cosines G_ij:

* `mean_inner_product`;
* `mass_near_one`, the share of the group's pairs above 0.9;
* `share_of_pairs`, the group's pairs over all pairs, and `n_pairs`, their number.

`within` far above `between`: separate groups of directions. All four alike and high: one common direction, and the
clusters are details of it. Means and masses weighted by `share_of_pairs` add up to those of the whole layer, which is
also what every group would have if the labels were dealt out at random.

Source: METRICS.md of this project; the split follows the study reproduced, which takes clusters from HDBSCAN.

Traps: the labels come from these very cosines, so `within` exceeds `between` in clouds without any structure: compare
with the null of the clusters table. Pairs within clusters are few (a share near 1/k for k equal clusters, far less
with clusters of two), so their mean says little of the layer. A group without pairs has a share of 0 and no mean.
"""

import numpy as np

from collapse.errors import Undefined
from collapse.geometry import NEAR_ONE, cosines, nulls, on_sphere, pairs
from collapse.labels import NOISE, as_labels

GROUPS = ("within", "between", "noise_clustered", "noise_noise")
COLUMNS = ("mean_inner_product", "mass_near_one", "share_of_pairs", "n_pairs")


def pair_groups(H, labels):
    """Summarise the inner products of one layer by group of pairs.

    Parameters
    ----------
    H : array, shape (n, d)
        Raw states.
    labels : array of int, shape (n,), or None
        Cluster of each token, -1 for noise; None where the clusters of this layer are undefined.

    Returns
    -------
    list of dict
        One per group, in the order of `GROUPS`: `group`, `mean_inner_product` in [-1, 1], `mass_near_one` in [0, 1],
        `share_of_pairs` in [0, 1], `n_pairs`, `undefined`. Mean and mass are null for a group without pairs; all are
        null for fewer than two tokens, a zero row, or undefined clusters.

    Raises
    ------
    Refusal
        If H is no matrix or holds NaN or infinity, or labels are not one integer >= -1 per token.

    Examples
    --------
    >>> within, between, *_ = pair_groups([[1, 0], [2, 0], [0, 1], [0, 3]], [0, 0, 1, 1])
    >>> within["mean_inner_product"], between["mean_inner_product"], within["n_pairs"], between["n_pairs"]
    (1.0, 0.0, 2, 4)
    """
    try:
        X = on_sphere(H)
        if labels is None:
            raise Undefined("the clusters of this layer are undefined")
        labels = as_labels(labels, len(X))
        if len(X) < 2:
            raise Undefined("1 token: no pairs")
    except Undefined as reason:
        return [{"group": group} | nulls(COLUMNS, reason) for group in GROUPS]
    return _summaries(cosines(X), labels)


def _summaries(G, labels):
    """The rows of all groups, by counting."""
    values, codes = pairs(G), pairs(_group_codes(labels))
    counts = np.bincount(codes, minlength=len(GROUPS))
    sums = np.bincount(codes, weights=values, minlength=len(GROUPS))
    near_one = np.bincount(codes, weights=values > NEAR_ONE, minlength=len(GROUPS))
    return [_row(*group, len(values)) for group in zip(GROUPS, counts, sums, near_one)]


def _group_codes(labels):
    """Index in GROUPS of every pair of tokens, n x n."""
    noise = (labels == NOISE).astype(np.int8)
    n_noise = noise[:, None] + noise[None, :]
    return np.where(n_noise == 0, labels[:, None] != labels[None, :], n_noise + 1)


def _row(group, count, total, near_one, n_pairs):
    row = {"group": group} | dict.fromkeys(COLUMNS)
    row |= {"share_of_pairs": float(count / n_pairs), "n_pairs": int(count), "undefined": None}
    if count == 0:
        return row | {"undefined": "mean_inner_product, mass_near_one: no pairs in this group"}
    return row | {"mean_inner_product": float(total / count), "mass_near_one": float(near_one / count)}
