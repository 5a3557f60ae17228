"""Projections: pictures of a layer in two dimensions, by PCA, t-SNE and UMAP, all of cosine geometry.

With X the unit rows, Xc = X minus its mean, and D_ij = 1 - <x_i, x_j> = |x_i - x_j|^2 / 2:

* `pca`: the two leading columns of U sqrt(Lambda), where Xc Xc^T = U Lambda U^T: coordinates in units of X, linear,
  distances at most the true ones. The token furthest from 0 on an axis (the first of equals) lies on its positive side.
  `explained_variance_ratio` is the share of Lambda that the two axes have;
* `tsne`: t-SNE of D with the given perplexity;
* `umap`: UMAP of D with the given number of neighbours.

Both layouts start from the PCA coordinates, as Kobak and Linderman advise, so that the large arrangement is that of
the data and not of the seed. D is divided by its maximum, which neither method sees in exact arithmetic and which keeps
narrow cones out of the rounding of float32. What n tokens do not allow is reduced: perplexity to (n - 1) / 3 and
neighbours to n - 1; `neighbourhood` is what was used.

Reading: groups that lie apart in a PCA picture with a high explained variance are apart. In t-SNE and UMAP, sizes of
groups, gaps between them and densities mean nothing, and noise shows groups too.

Source: van der Maaten and Hinton, JMLR 9, 2008; McInnes et al., arXiv 1802.03426; Kobak and Linderman, Nature
Biotechnology 39, 2021.

Traps: t-SNE of identical points, started from their PCA, kills the process without a traceback, and UMAP fails on three
tokens: spread and number are checked first. Results of t-SNE and UMAP agree between runs on one machine with one
number of threads, and can differ between machines. Orientation is arbitrary: compare groups, not sides. numba compiles
UMAP for 12 seconds, which umap-learn leaves to every process: here it is kept, in NUMBA_CACHE_DIR, which is the job's
to set, or else beside the package.
"""

import warnings

import numpy as np
from scipy.linalg import eigh

from collapse.errors import Refusal, Undefined
from collapse.geometry import SAME_DIRECTION, nulls, on_sphere, pairs

METHODS = ("pca", "tsne", "umap")
# (n - 1) / 3 is then at least 2, the smallest perplexity that tells near from far.
MIN_TOKENS = 7
# Numbers whose relative difference is smaller are equal: float32 states round at 6e-8.
EQUAL = 1e-6
# Shares of the largest variance or distance that rounding makes out of zero.
ROUNDING = 1e-12
COLUMNS = ("x", "y", "explained_variance_ratio", "neighbourhood")


def projections(H, method, seed=0, perplexity=30, n_neighbors=15):
    """Project the tokens of one layer to the plane.

    Parameters
    ----------
    H : array, shape (n, d)
        Raw states.
    method : str
        One of `METHODS`. A library is imported only for the method that needs it.
    seed : int
        Seed of t-SNE and UMAP, and of the small jitter of where they start.
    perplexity : float
        Of t-SNE, >= 2.
    n_neighbors : int
        Of UMAP, >= 2.

    Returns
    -------
    list of dict
        One per token in the order of H: `method`, `x`, `y`, `explained_variance_ratio` in [0, 1] (PCA alone) and
        `neighbourhood` in tokens (t-SNE and UMAP alone), which are null without a reason for a method that has none,
        and `undefined`.
        `x` and `y` are null for a zero row, one token, tokens that all point the same way; for PCA where the axes are
        not unique; for t-SNE and UMAP with fewer than 7 tokens or where all are equally far apart.

    Raises
    ------
    Refusal
        If the method is unknown, perplexity or n_neighbors is below 2, or H is no finite matrix.
    """
    if method not in METHODS:
        raise Refusal(f"no projection {method!r}: use {', '.join(METHODS)}")
    if not (perplexity >= 2 and n_neighbors >= 2):
        raise Refusal(f"perplexity and n_neighbors are at least 2, found {perplexity} and {n_neighbors}")
    try:
        gram = _centred_gram(H)
    except Undefined as reason:
        return [{"method": method} | nulls(COLUMNS, reason) for _ in range(len(H))]
    return _rows(method, gram, {"seed": seed, "perplexity": perplexity, "n_neighbors": n_neighbors})


def _centred_gram(H):
    """Xc Xc^T: in narrow cones it keeps the digits that 1 - G loses."""
    X = on_sphere(H)
    if len(X) < 2:
        raise Undefined("1 token: nothing to project")
    centred = X - X.mean(axis=0)
    gram = centred @ centred.T
    if np.sqrt(np.diag(gram).mean()) < SAME_DIRECTION:
        raise Undefined("all tokens point the same way")
    return gram


def _rows(method, gram, settings):
    try:
        places, extra = _pca(gram) if method == "pca" else _layout(method, gram, **settings)
    except Undefined as reason:
        return [{"method": method} | nulls(COLUMNS, reason) for _ in gram]
    row = {"method": method, **dict.fromkeys(COLUMNS), **extra, "undefined": None}
    return [row | {"x": x, "y": y} for x, y in places.tolist()]


def _principal(gram):
    """Coordinates on the two leading axes (n x 2), and the variances of the three leading ones, descending."""
    n = len(gram)
    # All n take three times as long, but where many are equal LAPACK may find fewer than it was asked for.
    variances, axes = eigh(gram, subset_by_index=[max(n - 3, 0), n - 1])
    if len(variances) < min(n, 3):
        variances, axes = np.linalg.eigh(gram)
    variances, axes = np.maximum(variances[::-1], 0.0), axes[:, :-3:-1]
    places = axes * np.sqrt(variances[:2])
    for axis in places.T:
        size = np.abs(axis)
        # The first of equals, up to rounding: which of +a and -a is larger must not depend on the machine.
        axis *= np.sign(axis[np.flatnonzero(size >= (1.0 - EQUAL) * size.max())[0]])
    return places, variances


def _pca(gram):
    places, variances = _principal(gram)
    first, second, third = np.append(variances, 0.0)[:3]
    if second < ROUNDING * first:
        # An axis without variance is no axis: all tokens are at 0 on it, whatever its direction.
        places[:, 1] = 0.0
    elif first - second < EQUAL * first or second - third < EQUAL * second:
        raise Undefined("principal axes are not unique: equal variances, any directions among them would do")
    return places, {"explained_variance_ratio": float(min(variances[:2].sum() / np.trace(gram), 1.0))}


def _layout(method, gram, seed, perplexity, n_neighbors):
    n = len(gram)
    if n < MIN_TOKENS:
        raise Undefined(f"{n} tokens: {method} needs at least {MIN_TOKENS}")
    distances = _distances(gram)
    if pairs(distances).min() > 1.0 - EQUAL:
        raise Undefined("all pairs of tokens are equally far apart: no arrangement is closer to that than another")
    places, _ = _principal(gram)
    # The jitter parts copies, and gives tokens on one line a second dimension to move in.
    start = places / places[:, 0].std() + np.random.default_rng(seed).normal(scale=1e-2, size=places.shape)
    if method == "tsne":
        perplexity = min(float(perplexity), (n - 1) / 3)
        return _tsne(distances, 1e-4 * start, seed, perplexity), {"neighbourhood": perplexity}
    n_neighbors = min(n_neighbors, n - 1)
    return _umap(distances, start, seed, n_neighbors), {"neighbourhood": float(n_neighbors)}


def _distances(gram):
    """1 - G over its maximum: zero diagonal, symmetric, zero between copies."""
    lengths = np.diag(gram)
    distances = (lengths[:, None] + lengths[None, :]) / 2 - gram
    distances /= distances.max()
    # Copies of one direction differ by rounding, which the methods would take for structure.
    distances[distances < ROUNDING] = 0.0
    np.fill_diagonal(distances, 0.0)
    return distances


def _tsne(distances, start, seed, perplexity):
    from sklearn.manifold import TSNE

    model = TSNE(metric="precomputed", init=start.astype(np.float32), perplexity=perplexity, random_state=seed)
    return model.fit_transform(distances).astype(np.float64)


def _keep_compiled(*modules):
    """Have numba store what it compiles of some modules, and load it where that is done: results are the same."""
    from numba.core.dispatcher import Dispatcher

    for module in modules:
        for function in vars(module).values():
            if isinstance(function, Dispatcher):
                function.enable_caching()


def _umap(distances, start, seed, n_neighbors):
    import umap

    _keep_compiled(umap.utils, umap.umap_, umap.layouts)
    model = umap.UMAP(
        metric="precomputed",
        init=start.astype(np.float32),
        n_neighbors=n_neighbors,
        random_state=seed,
        n_jobs=1,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="using precomputed metric; inverse_transform will be unavailable")
        return model.fit_transform(distances).astype(np.float64)
