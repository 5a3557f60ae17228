"""The straightforward way to the numbers of the workflow: what a loop over layers computes, written for reading.

One function per metric, from arrays to rows with the columns of workflow/schemas/tables.yaml (its `undefined` aside, so
for states and attention without zero rows), and `run_states` and `run_attention`, which call them for a whole run. The
loop forms X and G = X X^T once per state, as any loop would; within a metric nothing is clever: Sinkhorn rewrites the
matrix, Fiedler takes all eigenvalues, effective rank an SVD, CKA products of d x d, groups of pairs a loop in Python.

Values are those of the workflow within rounding, but for three: HDBSCAN runs as its documentation shows it, in its
Euclidean mode, whose distances grow with 1 - G but not in proportion, so that clusters can differ; t-SNE and UMAP are
called with `metric="cosine"`; and Sinkhorn of a symmetric head gives up after `SYMMETRIC_ROUNDS`, where the workflow
goes on to the limit.
"""

import math
import time
from collections import Counter
from itertools import combinations

import hdbscan
import numpy as np
from scipy.sparse.csgraph import connected_components
from sklearn.metrics import adjusted_rand_score

SYMMETRIC_ROUNDS = 1000
DEGENERATE_RANK = 3.0


def on_sphere(H):
    return H / np.linalg.norm(H, axis=1, keepdims=True)


def cosines(X):
    return np.clip(X @ X.T, -1.0, 1.0)


def pairs(G):
    return G[np.triu_indices(len(G), k=1)]


# ---- from states ----


def inner_products(X, G):
    centred = on_sphere(X - X.mean(axis=0))
    added = X.sum(axis=0) ** 2 - (X**2).sum(axis=0)
    without_rogue = on_sphere(np.delete(X, np.argsort(-added)[:3], axis=1))
    values = pairs(G)
    row = {
        "mean_inner_product": values.mean(),
        "sd_inner_product": values.std(),
        "mass_near_one": (values > 0.9).mean(),
        "histogram": np.histogram(values, bins=50, range=(-1, 1))[0].tolist(),
        "n_pairs": len(values),
        "mean_inner_product_centred": pairs(cosines(centred)).mean(),
        "mean_inner_product_without_rogue": pairs(cosines(without_rogue)).mean(),
    }
    return row | {f"quantile_{q:02d}": np.quantile(values, q / 100) for q in (5, 25, 50, 75, 95)}


def energy(G, beta):
    return np.exp(beta * G).sum() / (2 * beta * len(G) ** 2)


def energy_steps(energies, tolerance):
    rows = []
    for before, value in zip([None, *energies], energies):
        row = {"energy": value, "log_energy": math.log(value), "change": None, "relative_change": None, "is_drop": None}
        if before is not None:
            row["change"] = value - before
            row["relative_change"] = (value - before) / before
            row["is_drop"] = row["relative_change"] < -tolerance
        rows.append(row)
    return rows


def entropy_rank(weights):
    p = weights[weights > 0] / weights.sum()
    return np.exp(-(p * np.log(p)).sum())


def participation_ratio(weights):
    return weights.sum() ** 2 / (weights**2).sum()


def effective_rank(H, X):
    raw = np.linalg.svd(H, compute_uv=False)
    sphere = np.linalg.svd(X, compute_uv=False)
    centred = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)
    # What rounding makes of a rank that the centred matrix lacks is no direction.
    centred = centred[centred > centred[0] * 1e-13 * len(X)]
    return {
        "effective_rank_raw": entropy_rank(raw),
        "effective_rank_sphere": entropy_rank(sphere),
        "effective_rank_centred": entropy_rank(centred),
        "spectral_entropy_rank": entropy_rank(raw**2),
        "participation_ratio": participation_ratio(raw**2),
        "spectral_entropy_rank_sphere": entropy_rank(sphere**2),
        "participation_ratio_sphere": participation_ratio(sphere**2),
    }


def cka(X, Y):
    """Of the features: |Y^T X|^2 over |X^T X| |Y^T Y|, and the unbiased estimators of the same three."""
    X, Y = X - X.mean(axis=0), Y - Y.mean(axis=0)
    xy, xx, yy = (((B.T @ A) ** 2).sum() for A, B in ((X, Y), (X, X), (Y, Y)))
    row = {"cka_biased": xy / math.sqrt(xx * yy)}
    x, y = (X**2).sum(axis=1), (Y**2).sum(axis=1)
    xy, xx, yy = unbiased(xy, x, y), unbiased(xx, x, x), unbiased(yy, y, y)
    return row | {"cka_debiased": xy / math.sqrt(xx * yy)}


def unbiased(product, x, y):
    """n (n - 3) times the unbiased HSIC, from the squared cross-product and the squared lengths of centred rows."""
    n = len(x)
    return product - n / (n - 2) * (x * y).sum() + x.sum() * y.sum() / ((n - 1) * (n - 2))


def nearest_neighbours(G):
    found = []
    for i, row in enumerate(G):
        order = [j for j in np.argsort(-row, kind="stable") if j != i]
        found.append(int(order[0]) if row[order[0]] - row[order[1]] > 1e-12 else None)
    return found


def nn_stability(before, current):
    compared = [(a, b) for a, b in zip(before, current) if a is not None and b is not None]
    share = sum(a == b for a, b in compared) / len(compared) if compared else None
    return {"nn_stability": share, "n_compared": len(compared)}


def spectral_k(G):
    W = np.maximum(G, 0)
    degrees = W.sum(axis=1)
    L = np.eye(len(W)) - W / np.sqrt(np.outer(degrees, degrees))
    gaps = np.diff(np.sort(np.linalg.eigvalsh(L))[:31])
    second, first = np.sort(gaps)[-2:]
    return {"spectral_k": int(np.argmax(gaps > first - 1e-6)) + 1, "gap": first, "gap_ratio": first / second}


def clusters(X, G, index, token_ids, min_cluster_size, min_samples, null_draws, row_orders, seed):
    """One row, and the label of each token."""

    def fit(cloud):
        return hdbscan.HDBSCAN(min_cluster_size=min_cluster_size, min_samples=min_samples).fit(cloud).labels_

    labels = fit(X)
    rng = np.random.default_rng([seed, index])
    nulls = [fit(on_sphere(rng.permuted(X, axis=0))) for _ in range(null_draws)]
    agreements = []
    for _ in range(row_orders):
        order = rng.permutation(len(X))
        agreements.append(adjusted_rand_score(labels[order], fit(X[order])))
    sizes = Counter(labels[labels >= 0].tolist())
    copies = [c for c, size in sizes.items() if size > 1 and len(set(token_ids[labels == c].tolist())) == 1]
    values = pairs(G)
    row = {
        "n_clusters": len(sizes),
        "noise_fraction": (labels < 0).mean(),
        "mean_cluster_size": sum(sizes.values()) / len(sizes) if sizes else None,
        "largest_cluster_share": max(sizes.values()) / len(X) if sizes else None,
        "mean_inner_product": values.mean(),
        "null_n_clusters": np.mean([null.max() + 1 for null in nulls]),
        "null_noise_fraction": np.mean([(null < 0).mean() for null in nulls]),
        "row_order_ari": np.mean(agreements),
        "tied_share": 1 - len(np.unique(values.round(12))) / len(values),
        "n_duplicate_clusters": len(copies),
        "duplicate_token_share": sum(sizes[c] for c in copies) / sum(sizes.values()) if sizes else None,
    }
    return row, labels


def pair_groups(G, labels):
    n_pairs = len(G) * (len(G) - 1) // 2
    values = {"within": [], "between": [], "noise_clustered": [], "noise_noise": []}
    for i, j in combinations(range(len(G)), 2):
        if labels[i] == -1 and labels[j] == -1:
            group = "noise_noise"
        elif labels[i] == -1 or labels[j] == -1:
            group = "noise_clustered"
        else:
            group = "within" if labels[i] == labels[j] else "between"
        values[group].append(G[i, j])
    return [
        {
            "group": group,
            "mean_inner_product": sum(found) / len(found) if found else None,
            "mass_near_one": sum(value > 0.9 for value in found) / len(found) if found else None,
            "share_of_pairs": len(found) / n_pairs,
            "n_pairs": len(found),
        }
        for group, found in values.items()
    ]


def cluster_life(labels, ranks, count_tolerance, ari_tolerance, rank_tolerance):
    """One row per layer, from the labels and the effective rank of the directions of each."""
    names = ("births", "deaths", "merges", "splits", "survivors", "adjacent_ari")
    rows, before, ages = [], None, {}
    for layer, own in enumerate(labels):
        current = [frozenset(np.flatnonzero(own == c).tolist()) for c in range(own.max() + 1)]
        row, new_ages = dict.fromkeys(names), dict.fromkeys(current, 1)
        if before is not None:
            links = [(a, b) for a in before for b in current if 2 * len(a & b) > min(len(a), len(b))]
            out_of, into = Counter(a for a, _ in links), Counter(b for _, b in links)
            kept = [(a, b) for a, b in links if out_of[a] == into[b] == 1]
            new_ages |= {b: ages[a] + 1 for a, b in kept}
            row |= {
                "births": sum(into[b] == 0 for b in current),
                "deaths": sum(out_of[a] == 0 for a in before),
                "merges": sum(into[b] > 1 for b in current),
                "splits": sum(out_of[a] > 1 for a in before),
                "survivors": len(kept),
                "adjacent_ari": adjusted_rand_score(labels[layer - 1], own) if before or current else None,
            }
        row["mean_lifespan"] = sum(new_ages.values()) / len(current) if current else None
        rows.append(row | {"clusters_are_steady": False, "rank_is_steady": False})
        before, ages = current, new_ages
    for start in range(len(rows) - 2):
        counts = [own.max() + 1 for own in labels[start : start + 3]]
        aris = [row["adjacent_ari"] for row in rows[start + 1 : start + 3]]
        steady_count = min(counts) > 0 and max(counts) - min(counts) <= count_tolerance * max(counts)
        some = ranks[start : start + 3]
        for row in rows[start : start + 3]:
            if steady_count and None not in aris and min(aris) >= 1 - ari_tolerance - 1e-12:
                row["clusters_are_steady"] = True
            if max(some) - min(some) <= rank_tolerance * max(some):
                row["rank_is_steady"] = True
    return [row | {"is_plateau": row["clusters_are_steady"] and row["rank_is_steady"]} for row in rows]


def cluster_membership(labels):
    return [{"clustered_share": share} for share in np.mean([own != -1 for own in labels], axis=0)]


def pca(X):
    U, sigma, _ = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)
    places = U[:, :2] * sigma[:2]
    share = (sigma[:2] ** 2).sum() / (sigma**2).sum()
    return [{"method": "pca", "x": x, "y": y, "explained_variance_ratio": share} for x, y in places]


def tsne(X, seed, perplexity):
    from sklearn.manifold import TSNE

    perplexity = min(perplexity, (len(X) - 1) / 3)
    places = TSNE(metric="cosine", perplexity=perplexity, random_state=seed).fit_transform(X)
    return [{"method": "tsne", "x": x, "y": y, "neighbourhood": perplexity} for x, y in places]


def umap(X, seed, n_neighbors):
    from umap import UMAP

    n_neighbors = min(n_neighbors, len(X) - 1)
    places = UMAP(metric="cosine", n_neighbors=n_neighbors, random_state=seed, n_jobs=1).fit_transform(X)
    return [{"method": "umap", "x": x, "y": y, "neighbourhood": n_neighbors} for x, y in places]


# ---- from attention ----


def sinkhorn(M, rounds, tolerance):
    """Normalise the rows and then the columns of M in place; return the rounds done and whether they settled."""
    for done in range(1, rounds + 1):
        before = M.copy()
        M /= M.sum(axis=1, keepdims=True)
        M /= M.sum(axis=0, keepdims=True)
        if np.abs(M - before).max() < tolerance:
            return done, True
    return rounds, False


def second_eigenvalue(W):
    degrees = W.sum(axis=1)
    if not degrees.all():
        return 0.0
    L = np.eye(len(W)) - W / np.sqrt(np.outer(degrees, degrees))
    return max(0.0, np.linalg.eigvalsh(L)[1])


def fiedler_published(A, rounds, tolerance):
    M = np.maximum(A, 1e-12)
    done, converged = sinkhorn(M, rounds, tolerance)
    W = (M + M.T) / 2
    np.fill_diagonal(W, 0)
    residual = max(np.abs(M.sum(axis=0) - 1).max(), np.abs(M.sum(axis=1) - 1).max())
    row = {"fiedler_published": second_eigenvalue(W), "sinkhorn_residual": residual}
    return row | {"sinkhorn_rounds": done, "converged": converged}


def fiedler_symmetric(A):
    return second_eigenvalue((A + A.T) / 2)


def fiedler_symmetric_sinkhorn(A):
    W = (A + A.T) / 2
    sinkhorn(W, SYMMETRIC_ROUNDS, 1e-15)
    return second_eigenvalue((W + W.T) / 2)


def fiedler(A, is_causal, rounds, tolerance):
    """One row per head and their mean; the uniform control once per layer, where a loop meets it."""
    rows = []
    for head in [*A, uniform(A.shape[1], is_causal)]:
        row = fiedler_published(head, rounds, tolerance)
        row["n_components"] = connected_components(head + head.T, directed=False)[0]
        connected = row["n_components"] == 1
        row["fiedler_symmetric"] = fiedler_symmetric(head) if connected else 0.0
        row["fiedler_symmetric_sinkhorn"] = fiedler_symmetric_sinkhorn(head) if connected else 0.0
        rows.append(row)
    control = {f"{name}_uniform": value for name, value in rows.pop().items() if name.startswith("fiedler")}
    return with_mean([row | control for row in rows])


def uniform(n, is_causal):
    A = np.tril(np.ones((n, n))) if is_causal else np.ones((n, n))
    return A / A.sum(axis=1, keepdims=True)


def with_mean(rows):
    mean = {name: np.mean([row[name] for row in rows]) for name in rows[0]}
    if "converged" in mean:
        mean["converged"] = all(row["converged"] for row in rows)
    return [{"head": head} | row for head, row in enumerate(rows)] + [{"head": -1} | mean]


def entropy(A):
    terms = np.zeros_like(A)
    terms[A > 0] = A[A > 0] * np.log(A[A > 0])
    return -terms.sum(axis=1).mean()


def attention_entropy(A, is_causal):
    control = entropy(uniform(A.shape[1], is_causal))
    return with_mean([{"entropy": entropy(head), "entropy_uniform": control} for head in A])


def received(A):
    A = A.copy()
    np.fill_diagonal(A, 0)
    return A.sum(axis=0) / A.sum(axis=0).mean()


def attention_tokens(A, is_causal):
    found = zip(received(A.mean(axis=0)), received(uniform(A.shape[1], is_causal)))
    return [{"received": own, "received_uniform": control} for own, control in found]


def attention_received(tokens, is_punctuation, labels):
    own, control = (np.array([row[name] for row in tokens]) for name in ("received", "received_uniform"))
    members = {"clustered": labels >= 0, "noise": labels < 0}
    members |= {"punctuation": is_punctuation, "other": ~is_punctuation}
    rows = []
    for group, inside in members.items():
        row = {"group": group, "received": None, "received_mask_corrected": None, "share_of_tokens": inside.mean()}
        if inside.any():
            row["received"] = own[inside].mean()
            expected = control[inside].mean()
            row["received_mask_corrected"] = row["received"] / expected if expected else None
        rows.append(row)
    return rows


# ---- whole runs ----


class Seconds(Counter):
    """CPU seconds of this process by metric, added up."""

    def call(self, metric, function, *arguments, **options):
        before = time.process_time()
        result = function(*arguments, **options)
        self[metric] += time.process_time() - before
        return result


def run_states(states, masks, token_ids, options, layout_places=()):
    """All metrics of the states of one run.

    Parameters
    ----------
    states : list of (int, str, array of shape (n, d))
        Layer, stage and raw states, in order of depth.
    masks : dict
        Token rule to boolean mask of length n.
    token_ids : array of int, shape (n,)
    options : dict
        The sections `energy`, `clusters`, `cluster_life` and `projections` of a validated config.
    layout_places : sequence of int
        Places in `states` at which t-SNE and UMAP run, under the token rules of `projections`.

    Returns
    -------
    rows : dict
        Metric to its rows, in order of token rule and state; `cluster_labels` maps token rules to labels per state.
    seconds : Seconds
        What each metric took; X and G, which all share, stand under `shared`.
    """
    rows, seconds = {"cluster_labels": {}}, Seconds()
    for rule, mask in masks.items():
        places = layout_places if rule in options["projections"]["tokens"] else ()
        of_rule = _run_rule(states, mask, token_ids[mask], options, places, seconds)
        rows["cluster_labels"][rule] = of_rule.pop("cluster_labels")
        for metric, found in of_rule.items():
            rows.setdefault(metric, []).extend(found)
    return rows, seconds


def _run_rule(states, mask, token_ids, options, layout_places, seconds):
    call, layouts = seconds.call, options["projections"]
    rows, labels, ranks = {}, [], []
    energies = {beta: [] for beta in options["energy"]["betas"]}
    before = None

    def add(metric, found):
        rows.setdefault(metric, []).extend(found if isinstance(found, list) else [found])

    for place, (_, _, H) in enumerate(states):
        H = H[mask].astype(np.float64)
        X = call("shared", on_sphere, H)
        G = call("shared", cosines, X)
        add("inner_products", call("inner_products", inner_products, X, G))
        for beta, values in energies.items():
            values.append(call("energy", energy, G, beta))
        add("effective_rank", call("effective_rank", effective_rank, H, X))
        ranks.append(rows["effective_rank"][-1]["effective_rank_sphere"])
        neighbours = call("nn_stability", nearest_neighbours, G)
        if before is None or min(ranks[-2:]) < DEGENERATE_RANK - 1e-9:
            add("cka", {"cka_biased": None, "cka_debiased": None})
            add("nn_stability", {"nn_stability": None, "n_compared": None})
        else:
            add("cka", call("cka", cka, before[0], X))
            add("nn_stability", call("nn_stability", nn_stability, before[1], neighbours))
        add("spectral_k", call("spectral_k", spectral_k, G))
        row, own = call("clusters", clusters, X, G, place, token_ids, **options["clusters"])
        add("clusters", row)
        labels.append(own)
        add("pair_groups", call("pair_groups", pair_groups, G, own))
        add("projections", call("projections", pca, X))
        if place in layout_places:
            add("projections", call("projections", tsne, X, layouts["seed"], layouts["perplexity"]))
            add("projections", call("projections", umap, X, layouts["seed"], layouts["n_neighbors"]))
        before = X, neighbours
    for values in energies.values():
        add("energy", energy_steps(values, options["energy"]["tolerance"]))
    of_layers = [own for own, (_, stage, _) in zip(labels, states) if stage != "final_norm"]
    layer_ranks = ranks[: len(of_layers)]
    add("cluster_life", call("cluster_life", cluster_life, of_layers, layer_ranks, **options["cluster_life"]))
    add("cluster_membership", call("cluster_membership", cluster_membership, of_layers))
    return rows | {"cluster_labels": labels}


def run_attention(blocks, masks, is_causal, is_punctuation, labels, options):
    """All metrics of the attention of one run.

    Parameters
    ----------
    blocks : iterable of arrays, shape (heads, n, n)
        Attention, block by block.
    masks : dict
        Token rule to boolean mask of length n.
    is_causal : bool
    is_punctuation : array of bool, shape (n,)
    labels : dict
        `cluster_labels` of `run_states`.
    options : dict
        The section `fiedler` of a validated config.

    Returns
    -------
    rows, seconds
        As `run_states`; rows in order of block and token rule.
    """
    rows, seconds = {}, Seconds()
    call = seconds.call
    for block, whole in enumerate(blocks):
        for rule, mask in masks.items():
            A = whole.astype(np.float64)[:, mask][:, :, mask]
            A /= A.sum(axis=2, keepdims=True)
            tokens = call("attention_tokens", attention_tokens, A, is_causal)
            found = {
                "fiedler": call("fiedler", fiedler, A, is_causal, **options["fiedler"]),
                "attention_entropy": call("attention_entropy", attention_entropy, A, is_causal),
                "attention_tokens": tokens,
                "attention_received": call(
                    "attention_received", attention_received, tokens, is_punctuation[mask], labels[rule][block]
                ),
            }
            for metric, own in found.items():
                rows.setdefault(metric, []).extend(own)
    return rows, seconds
