"""The kernels, each beside its straightforward form: what is timed, on what, and how far the two values are apart.

The two forms take turns, one call each, and the least CPU time of all turns counts: what else runs on the machine can
only add to it. Both keep freed memory, as the workflow's jobs do, which the straightforward form alone would not have.
"""

import time
from dataclasses import dataclass

import numpy as np
import straightforward as plain

from collapse.compiled import symmetric_part
from collapse.geometry import cosines, on_sphere, pairs
from collapse.job import keep_memory
from collapse.metrics import cka, effective_rank, energy, fiedler, inner_products, pair_groups

BETAS = (0.1, 1.0, 2.0, 5.0)
ROUNDS, TOLERANCE = 100, 1e-6


@dataclass(frozen=True)
class Kernel:
    """A kernel: both forms return what is compared; `target` is the least ratio, `error` the most difference."""

    plain: object
    ours: object
    target: float | None
    error: float
    relative: bool = False


def attention(n, is_causal, seed=0):
    """One head (n x n): softmax of random scores, with a preference for near tokens and one for the first."""
    rng = np.random.default_rng(seed)
    place = np.arange(n)
    scores = rng.normal(size=(n, n)) - np.abs(place[:, None] - place) / 32 + 3.0 * (place == 0)
    if is_causal:
        scores[np.triu_indices(n, k=1)] = -np.inf
    A = np.exp(scores - scores.max(axis=1, keepdims=True))
    return A / A.sum(axis=1, keepdims=True)


def states(n, d, seed=0):
    """Raw states (n x d): a common direction, unequal dimensions and lengths, as trained states have."""
    rng = np.random.default_rng(seed)
    H = rng.normal(size=(n, d)) * rng.lognormal(size=d) + rng.normal(size=d)
    return (H * rng.lognormal(sigma=0.3, size=(n, 1))).astype(np.float32).astype(np.float64)


def trajectory(n, d, n_layers=2, seed=0):
    """States layer by layer, each a small step from the one before."""
    layers = [states(n, d, seed)]
    for layer in range(1, n_layers):
        layers.append(layers[-1] + 0.3 * states(n, d, seed + layer))
    return layers


def kernels(n, d, wide):
    """Return {name: Kernel} for n tokens, states of dimension d, and CKA at dimension `wide`."""
    A, W, one = attention(n, True), attention(n, True) + attention(n, True).T, np.ones(n)
    H, G = states(n, d), cosines(on_sphere(states(n, d)))
    labels = np.random.default_rng(1).integers(-1, n // 8, size=n)
    X, Y = map(on_sphere, trajectory(n, wide))
    prepared = cka._prepare(X), cka._prepare(Y)

    def plain_sinkhorn():
        M = np.maximum(A, 1e-12)
        plain.sinkhorn(M, ROUNDS, TOLERANCE)
        return M

    def our_sinkhorn():
        M = np.maximum(A, 1e-12)
        r, c, *_ = fiedler._sinkhorn(M, ROUNDS, TOLERANCE, fiedler.CLIP)
        return r[:, None] * M * c

    def plain_rank():
        return list(plain.effective_rank(H, on_sphere(H)).values())

    def our_rank():
        row = effective_rank.effective_rank(H)
        return [row[name] for name in effective_rank.COLUMNS]

    def plain_sums():
        values = pairs(G)
        energies = [plain.energy(G, beta) for beta in BETAS]
        return [*energies, *np.histogram(values, bins=50, range=(-1, 1))[0], (values > 0.9).mean()]

    def our_sums():
        energies = [np.exp(energy._log_energy(G, beta)) for beta in BETAS]
        values = pairs(G)
        histogram, _ = np.histogram(values, bins=inner_products.BINS, range=(-1.0, 1.0))
        return [*energies, *histogram, np.mean(values > inner_products.NEAR_ONE)]

    def numbers(rows):
        return [0.0 if value is None else value for row in rows for name, value in row.items() if name in numeric]

    numeric = set(pair_groups.COLUMNS)
    return {
        "Sinkhorn, 100 rounds, causal head": Kernel(plain_sinkhorn, our_sinkhorn, 15, 1e-10),
        "Fiedler value of a head": Kernel(
            lambda: plain.second_eigenvalue(W),
            lambda: fiedler._second_eigenvalue(*symmetric_part(W, one, one, fiedler.UNMASKED, True)),
            1.3,
            1e-10,
        ),
        "three Fiedler values of a head": Kernel(
            lambda: all_values(plain_head(A)),
            lambda: all_values(fiedler._head(A, True, ROUNDS, TOLERANCE)),
            None,
            1e-10,
        ),
        f"effective ranks, d = {d}": Kernel(plain_rank, our_rank, 3, 1e-6, relative=True),
        f"CKA of a pair of layers, d = {wide}, Grams shared": Kernel(
            lambda: list(plain.cka(X, Y).values()), lambda: cka_values(cka._compare(*prepared)), 40, 1e-10
        ),
        f"CKA of a pair of layers, d = {wide}, with the Gram of one": Kernel(
            lambda: list(plain.cka(X, Y).values()),
            lambda: cka_values(cka._compare(prepared[0], cka._prepare(Y))),
            None,
            1e-10,
        ),
        "groups of pairs": Kernel(
            lambda: numbers(plain.pair_groups(G, labels)), lambda: numbers(pair_groups._summaries(G, labels)), 20, 1e-12
        ),
        "four energies, histogram, mass near one": Kernel(plain_sums, our_sums, None, 1e-12, relative=True),
    }


def plain_head(A):
    row = plain.fiedler_published(A, ROUNDS, TOLERANCE)
    symmetric = {"fiedler_symmetric": plain.fiedler_symmetric(A)}
    return row | symmetric | {"fiedler_symmetric_sinkhorn": plain.fiedler_symmetric_sinkhorn(A)}


def all_values(row):
    return [row[name] for name in fiedler.VALUES]


def cka_values(row):
    return [row["cka_biased"], row["cka_debiased"]]


def difference(kernel):
    """Largest difference of the two forms, relative where the kernel says so."""
    slow, fast = (np.asarray(form(), dtype=np.float64) for form in (kernel.plain, kernel.ours))
    off = np.abs(slow - fast)
    return float((off / np.maximum(np.abs(slow), 1e-300))[off > 0].max(initial=0.0) if kernel.relative else off.max())


def compare(n, d, wide, turns):
    """Yield (name, kernel, CPU seconds of the straightforward form, of the workflow's, difference) of each kernel."""
    keep_memory()
    for name, kernel in kernels(n, d, wide).items():
        slow, fast = least_seconds([kernel.plain, kernel.ours], turns)
        yield name, kernel, slow, fast, difference(kernel)


def least_seconds(calls, turns, clock=time.process_time):
    """The least seconds of each call, by default of the CPU, over so many turns in which all are called once."""
    least = [np.inf] * len(calls)
    for _ in range(turns):
        for place, call in enumerate(calls):
            before = clock()
            call()
            least[place] = min(least[place], clock() - before)
    return least


def pipelines(n, d, n_layers):
    """Yield (metric, straightforward CPU seconds, workflow's) of the state metrics of one run of content tokens.

    Both in this process, with memory kept. The straightforward loop forms X and G once per layer for all metrics; every
    metric of the workflow is a job of its own and forms what it needs itself.
    """
    from collapse.metrics.clusters import clusters
    from collapse.metrics.nn_stability import nn_stability
    from collapse.metrics.projections import projections
    from collapse.metrics.spectral_k import spectral_k

    keep_memory()
    layers = trajectory(n, d, n_layers)
    options = {
        "energy": {"betas": list(BETAS), "tolerance": 1e-6},
        "clusters": {"min_cluster_size": 2, "min_samples": None, "null_draws": 3, "row_orders": 1, "seed": 0},
        "cluster_life": {"count_tolerance": 0.1, "ari_tolerance": 0.2, "rank_tolerance": 0.1},
        "projections": {"seed": 0, "perplexity": 30, "n_neighbors": 15, "tokens": ["content"]},
    }
    named = [(layer, "block", H) for layer, H in enumerate(layers)]
    masks = {"all": np.ones(n, dtype=bool)}
    rows, seconds = plain.run_states(named, masks, np.arange(n), options)
    labels = rows["cluster_labels"]["all"]
    ours = {
        "inner_products": lambda: [inner_products.inner_products(H) for H in layers],
        "energy": lambda: [row for beta in BETAS for row in energy.energy(layers, beta, 1e-6)],
        "effective_rank": lambda: [effective_rank.effective_rank(H) for H in layers],
        "cka": lambda: list(cka.cka(layers)),
        "nn_stability": lambda: list(nn_stability(layers)),
        "spectral_k": lambda: [spectral_k(H) for H in layers],
        "clusters": lambda: list(clusters(layers, **options["clusters"])),
        "pair_groups": lambda: [row for H, own in zip(layers, labels) for row in pair_groups.pair_groups(H, own)],
        "projections": lambda: [projections(H, "pca") for H in layers],
    }
    for metric, function in ours.items():
        before = time.process_time()
        function()
        yield metric, seconds[metric], time.process_time() - before
    yield "shared by all", seconds["shared"], 0.0
