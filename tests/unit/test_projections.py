import math
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import yaml
from clouds import broken, cloud, coarse_cloud, copies, laws, lengths, rotation, seeds, shapes, unit
from hypothesis import given, settings
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from test_attention_tables import states_file
from threadpoolctl import threadpool_limits

from collapse.errors import Refusal
from collapse.measure import measure
from collapse.metrics import projections as module
from collapse.metrics.projections import COLUMNS, METHODS, projections
from collapse.registry import METHOD_OPTIONS
from collapse.token_rules import TOKEN_RULES

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning", "error::UserWarning", "error::FutureWarning")

SETTINGS = {"seed": 0, "perplexity": 30, "n_neighbors": 15}
LAYOUTS = ["tsne", "umap"]
SCRIPTS = Path(module.__file__).parents[2]


@pytest.fixture(autouse=True)
def one_thread():
    """As a rule's threads do. On shared cores, t-SNE's threads wait for each other 300 times longer than they work."""
    with threadpool_limits(1):
        yield


def one(method, H, **options):
    return projections(H, method, **SETTINGS | options)


def places(rows):
    return np.array([(row["x"], row["y"]) for row in rows])


def pca(H):
    rows = one("pca", H)
    return places(rows), rows[0]["explained_variance_ratio"]


def planted(size, d, spread=0.05, seed=0):
    """Three groups of tokens around orthogonal directions, in random order, with the group of each token."""
    rng = np.random.default_rng(seed)
    group = rng.permutation(np.repeat(np.arange(3), size))
    return np.eye(3, d)[group] + spread * rng.normal(size=(3 * size, d)), group


def apart(found, group):
    """Whether every token's nearest token in the picture is of its own group."""
    distances = np.linalg.norm(found[:, None] - found[None, :], axis=2)
    np.fill_diagonal(distances, np.inf)
    return bool((group[distances.argmin(axis=1)] == group).all())


def assert_row_is_honest(row):
    """Both coordinates are finite plain numbers, or both are null with a reason; the rest belongs to a method."""
    assert list(row) == ["method", *COLUMNS, "undefined"]
    for name in COLUMNS:
        assert row[name] is None or (type(row[name]) is float and math.isfinite(row[name])), name
    assert (row["x"] is None) == (row["y"] is None) == bool(row["undefined"])
    defined = row["x"] is not None
    assert (row["explained_variance_ratio"] is not None) == (defined and row["method"] == "pca")
    assert (row["neighbourhood"] is not None) == (defined and row["method"] in LAYOUTS)


def assert_null(rows, n, cause):
    assert len(rows) == n
    for row in rows:
        assert_row_is_honest(row)
        assert {row[name] for name in COLUMNS} == {None}
        assert cause in row["undefined"]


def slow_pca(H):
    """Eigenvectors of the d x d covariance, and X on them: no Gram matrix of tokens."""
    X = unit(H)
    X = X - X.mean(axis=0)
    values, vectors = np.linalg.eigh(X.T @ X)
    found = X @ vectors[:, :-3:-1]
    for axis in found.T:
        if max(axis, key=abs) < 0:
            axis *= -1
    return found, values[-2:].sum() / values.sum()


@laws
@given(shapes, seeds)
def test_pca_is_that_of_the_covariance_with_the_furthest_token_on_the_positive_side(shape, seed):
    H = cloud(*shape, seed)
    found, explained = pca(H)
    expected, share = slow_pca(H)
    assert explained == pytest.approx(share)
    np.testing.assert_allclose(found, expected, atol=1e-7)


@laws
@given(shapes, seeds)
def test_pca_is_that_of_sklearn_up_to_sign(shape, seed):
    H = cloud(*shape, seed)
    other = PCA(2, svd_solver="full").fit(unit(H))
    found, explained = pca(H)
    np.testing.assert_allclose(np.abs(found), np.abs(other.transform(unit(H))), atol=1e-7)
    assert explained == pytest.approx(other.explained_variance_ratio_.sum())


@laws
@given(shapes, seeds)
def test_pca_does_not_depend_on_order_rotation_or_the_length_of_tokens(shape, seed):
    n, d = shape
    H = cloud(n, d, seed)
    found, explained = pca(H)
    order = np.random.default_rng(seed).permutation(n)
    for other, expected in (
        (H[order], found[order]),
        (H @ rotation(d, seed), found),
        (lengths(n, seed) * H, found),
    ):
        moved, share = pca(other)
        np.testing.assert_allclose(moved, expected, atol=1e-7)
        assert share == pytest.approx(explained)


@laws
@given(shapes, seeds)
def test_pca_is_centred_uncorrelated_ordered_and_brings_no_two_tokens_further_apart(shape, seed):
    H = cloud(*shape, seed)
    found, _ = pca(H)
    assert found.mean(axis=0) == pytest.approx([0, 0], abs=1e-9)
    assert found[:, 0] @ found[:, 1] == pytest.approx(0, abs=1e-9)
    assert found[:, 0].std() >= found[:, 1].std()
    X = unit(H)
    shown = np.linalg.norm(found[:, None] - found[None, :], axis=2)
    true = np.linalg.norm(X[:, None] - X[None, :], axis=2)
    assert (shown <= true + 1e-9).all()


def test_pca_by_hand():
    """Angles 0, 90, 180: a triangle with its apex above; the mean is (0, 1/3)."""
    found, explained = pca([[1, 0], [0, 2], [-3, 0]])
    np.testing.assert_allclose(found, [[1, -1 / 3], [0, 2 / 3], [-1, -1 / 3]], atol=1e-12)
    assert explained == pytest.approx(1)


def test_two_tokens_are_one_axis_with_the_first_of_equals_on_the_positive_side():
    found, explained = pca([[1, 0], [0, 1]])
    np.testing.assert_allclose(found, [[math.sqrt(0.5), 0], [-math.sqrt(0.5), 0]], atol=1e-12)
    assert found[:, 1].tolist() == [0, 0]
    assert explained == pytest.approx(1)
    for seed in range(20):
        assert pca(cloud(2, 50, seed))[0][0, 0] > 0


@pytest.mark.parametrize("seed", range(5))
def test_tokens_on_one_line_of_directions_have_no_second_axis(seed):
    H = (cloud(2, 8, seed))[np.random.default_rng(seed).permutation([0] * 5 + [1] * 15)]
    found, explained = pca(lengths(20, seed) * H)
    assert set(found[:, 1].tolist()) == {0}
    assert explained == pytest.approx(1)


def test_a_small_second_axis_beside_an_outlier_is_kept():
    H = np.vstack([cloud(1, 8) + 1e-4 * cloud(30, 8, seed=1), -cloud(1, 8)])
    expected, _ = slow_pca(H)
    assert expected[:, 1].std() < 1e-4
    np.testing.assert_allclose(pca(H)[0], expected, atol=1e-7)


@pytest.mark.parametrize("exponent", [2, 4, 5])
def test_narrow_cones_keep_their_picture(exponent):
    """Taken from 1 - cosine, the picture of a cone of 1e-5 would be rounding."""
    H = cloud(1, 8, 5) + 10.0**-exponent * cloud(40, 8)
    expected, share = slow_pca(H)
    found, explained = pca(H)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-5 * np.abs(expected).max())
    assert explained == pytest.approx(share, rel=1e-6)


@pytest.mark.parametrize("n", [3, 4, 20, 129])
@pytest.mark.parametrize("seed", [None, 1])
def test_equal_variances_have_no_axes_of_their_own(n, seed):
    """Of 129 and more, LAPACK finds none if it is asked for three."""
    H = np.eye(n) if seed is None else rotation(n, seed)
    assert_null(one("pca", H), n, "principal axes are not unique")


@pytest.mark.parametrize("counts", [(3, 1, 1), (2, 2, 1)], ids=["second-and-third", "first-and-second"])
def test_two_equal_variances_are_enough(counts):
    axes = np.repeat(np.eye(3), counts, axis=0)
    H = np.vstack([axes, -axes])
    assert_null(one("pca", H), len(H), "principal axes are not unique")
    assert pca(np.repeat(H, [3] + [1] * (len(H) - 1), axis=0) + 0.01 * cloud(len(H) + 2, 3))[1] < 1


@pytest.mark.parametrize("method", LAYOUTS)
def test_layouts_are_given_cosine_distances_over_the_largest_and_exact_zeros_between_copies(method, monkeypatch):
    given_distances = []
    monkeypatch.setattr(module, f"_{method}", lambda D, start, *_: (given_distances.append(D), start)[1])
    for H in (cloud(9, 5), copies(9, 64) + np.repeat(cloud(3, 64, seed=1), 3, axis=0) * lengths(9)):
        one(method, H)
        X = unit(H)
        D = 1 - X @ X.T
        np.testing.assert_allclose(given_distances[-1], D / D.max(), atol=1e-12)
    H = lengths(30) * np.repeat(cloud(10, 64), 3, axis=0)
    one(method, H)
    same = np.repeat(np.repeat(np.eye(10), 3, axis=0), 3, axis=1) == 1
    assert np.array_equal(given_distances[-1] == 0, same)
    assert np.array_equal(given_distances[-1], given_distances[-1].T)


@pytest.mark.parametrize(("method", "width"), [("tsne", 1e-4), ("umap", 1)])
def test_layouts_start_from_pca_at_one_width_however_narrow_the_cone(method, width, monkeypatch):
    starts = []
    monkeypatch.setattr(module, f"_{method}", lambda D, start, *_: (starts.append(start), start)[1])
    for H in (cloud(200, 6), cloud(1, 6, 5) + 1e-4 * cloud(200, 6)):
        one(method, H)
        assert starts[-1].std(axis=0)[0] == pytest.approx(width, rel=0.02)
        for start, axis in zip(starts[-1].T, pca(H)[0].T):
            assert np.corrcoef(start, axis)[0, 1] > 0.99


@pytest.mark.parametrize("method", LAYOUTS)
def test_equal_distances_have_no_arrangement(method):
    assert_null(one(method, np.eye(20)), 20, "all pairs of tokens are equally far apart")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", [0, 1])
def test_three_planted_groups_are_apart_in_every_picture(method, seed):
    # Unequal groups, so that PCA has two axes of its own.
    H, group = planted(15, 12, seed=seed)
    keep = (group < 2) | (np.cumsum(group == 2) <= 10)
    H, group = H[keep], group[keep]
    for states in (H, lengths(len(H)) * H):
        rows = one(method, states, seed=seed, perplexity=10)
        for row in rows:
            assert_row_is_honest(row)
        assert apart(places(rows), group)


@pytest.mark.parametrize("method", LAYOUTS)
def test_angles_count_and_not_lengths(method):
    """Two groups of directions whose tokens, by Euclidean distance, would be grouped by length."""
    group = np.arange(30) % 2
    H = np.eye(2, 6)[group] + 0.05 * cloud(30, 6)
    H[15:] *= 1000
    assert apart(places(one(method, H, perplexity=4)), group)


def test_tsne_is_that_of_squared_cosine_distances():
    """The divergence that our layout reaches is the one that sklearn's own cosine metric reaches."""
    H, _ = planted(12, 8, spread=0.2)
    seen = {}

    class Spy(TSNE):
        def fit_transform(self, D):
            found = super().fit_transform(D)
            seen["divergence"] = self.kl_divergence_
            return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sklearn.manifold.TSNE", Spy)
        one("tsne", H, perplexity=8)
    other = TSNE(metric="cosine", perplexity=8, init="random", random_state=0).fit(H)
    assert seen["divergence"] == pytest.approx(other.kl_divergence_, rel=0.15)


@pytest.mark.parametrize("method", METHODS)
def test_the_same_call_gives_the_same_picture(method):
    H = cloud(30, 6)
    first, again = one(method, H), one(method, H)
    assert first == again
    assert (one(method, H, seed=1) == first) == (method == "pca")


@pytest.mark.parametrize("method", METHODS)
def test_the_global_random_state_is_neither_read_nor_moved(method):
    np.random.seed(0)  # noqa: NPY002
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    first = one(method, cloud(20, 5))
    assert np.array_equal(np.random.get_state()[1], state)  # noqa: NPY002
    np.random.seed(1)  # noqa: NPY002
    assert one(method, cloud(20, 5)) == first


@pytest.mark.parametrize("method", METHODS)
def test_the_options_of_a_method_are_those_that_change_its_picture(method):
    """`depths` and `tokens` choose what is laid out and are no options of the function; to the rest it must react."""
    H = cloud(40, 6)
    changes = {"seed": 1, "perplexity": 5, "n_neighbors": 4}
    sees = {name for name, value in changes.items() if one(method, H, **{name: value}) != one(method, H)}
    assert sees == set(METHOD_OPTIONS[method]) - {"depths", "tokens"}


def test_a_layout_under_one_token_rule_is_the_same_as_beside_the_other(tmp_path):
    path = states_file(tmp_path / "s.parquet", n=20)
    options = SETTINGS | {"method": "tsne"}
    both, content = (
        [(keys, rows) for keys, rows, _ in measure(path, projections, "layer", options, depths=[1.0], tokens=tokens)]
        for tokens in (["all", "content"], ["content"])
    )
    assert [(keys["tokens"], len(rows)) for keys, rows in both] == [("all", 20), ("content", 19)]
    assert content == both[1:] and content[0][1][0]["x"] is not None


def test_the_registry_and_the_config_know_all_methods_and_token_rules():
    spec = yaml.safe_load((SCRIPTS.parent / "schemas" / "config.schema.yaml").read_text())
    options = spec["properties"]["projections"]["properties"]
    assert list(METHOD_OPTIONS) == list(METHODS) == options["methods"]["items"]["enum"]
    assert list(TOKEN_RULES) == options["tokens"]["items"]["enum"]


@pytest.mark.parametrize(
    ("n", "asked", "used"), [(7, 30, 2), (23, 30, 22 / 3), (40, 30, 13), (40, 5, 5), (100, 30, 30), (91, 30, 30)]
)
def test_perplexity_is_reduced_to_what_the_tokens_allow_and_said(n, asked, used):
    """With 23 tokens sklearn refuses a perplexity of 30."""
    rows = one("tsne", cloud(n, 6), perplexity=asked)
    assert [row["neighbourhood"] for row in rows] == pytest.approx([used] * n)
    for row in rows:
        assert_row_is_honest(row)


@pytest.mark.parametrize(("n", "asked", "used"), [(7, 15, 6), (10, 15, 9), (16, 15, 15), (30, 15, 15), (30, 2, 2)])
def test_neighbours_are_reduced_to_what_the_tokens_allow_and_said_EM04(n, asked, used):
    """EM04: with 10 tokens UMAP truncates 15 neighbours and warns."""
    rows = one("umap", cloud(n, 6), n_neighbors=asked)
    assert {row["neighbourhood"] for row in rows} == {used}
    for row in rows:
        assert_row_is_honest(row)


@pytest.mark.parametrize("method", LAYOUTS)
@pytest.mark.parametrize("n", [2, 3, 4, 6])
def test_too_few_tokens_for_a_layout_are_null_with_the_number_EM04(method, n):
    """EM04: UMAP fails with 2 and 3 tokens, in two ways, and gives something for 1."""
    assert_null(one(method, cloud(n, 6)), n, f"{n} tokens: {method} needs at least 7")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "H",
    [
        np.ones((10, 3)),
        np.ones((64, 8)),
        copies(40, 768),
        copies(40, 768, dtype=np.float32),
        np.ones((40, 8)) + 1e-8 * cloud(40, 8),
        copies(40, 8, dtype=np.float32) * (1 + 1e-7 * cloud(40, 8)).astype(np.float32),
    ],
    ids=["ones-10", "ones-64", "copies", "float32-copies", "nearly", "float32-nearly"],
)
def test_tokens_that_point_the_same_way_are_null_and_do_not_kill_the_process_EM01(method, H):
    """EM01: t-SNE of identical points dies of a segmentation fault."""
    assert_null(one(method, H), len(H), "all tokens point the same way")


@pytest.mark.parametrize("method", LAYOUTS)
@pytest.mark.parametrize(
    "H",
    [
        cloud(2, 8)[np.arange(40) % 2],
        cloud(3, 8)[np.arange(40) % 3],
        np.vstack([np.tile(cloud(1, 8), (39, 1)), cloud(1, 8, 3)]),
        np.sign(cloud(40, 1)),
        cloud(1, 8, 5) + 1e-5 * cloud(40, 8),
        np.vstack([cloud(1, 8, 5) + 1e-4 * cloud(39, 8), -cloud(1, 8, 5)]),
        np.vstack([np.eye(12), -np.eye(12)]),
    ],
    ids=["two-directions", "three", "one-differs", "one-dimension", "narrow-cone", "cone-and-outlier", "axes"],
)
def test_copies_narrow_cones_and_outliers_have_finite_layouts_EM01(method, H):
    """EM01: what PCA says of where to start must never be NaN, and copies must not stay on one line."""
    for row in one(method, H):
        assert_row_is_honest(row)
        assert row["undefined"] is None
    assert (places(one(method, H)).std(axis=0) > 1e-3).all()


@pytest.mark.parametrize("method", LAYOUTS)
def test_the_libraries_have_nothing_to_warn_of_EM03(method):
    """EM03: renamed and removed keywords show as warnings before they show as errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=ImportWarning)
        assert len(one(method, cloud(20, 5))) == 20


@pytest.mark.parametrize("method", LAYOUTS)
def test_an_error_of_the_library_reaches_the_user(method, monkeypatch):
    def fails(*_, **__):
        raise TypeError("unexpected keyword")

    monkeypatch.setattr(module, f"_{method}", fails)
    with pytest.raises(TypeError, match="unexpected keyword"):
        one(method, cloud(20, 5))


@pytest.mark.parametrize(
    ("method", "loaded"),
    [("pca", []), ("tsne", ["sklearn"])],
)
def test_a_library_is_imported_only_for_its_method(method, loaded):
    code = (
        "import sys, numpy as np; from collapse.metrics.projections import projections;"
        f"projections(np.random.default_rng(0).normal(size=(9, 4)), {method!r}, 0, 5, 5);"
        "print([name for name in ('sklearn', 'umap', 'numba') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=SCRIPTS, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == repr(loaded)


def test_what_numba_compiles_of_umap_is_kept_for_the_next_process():
    import umap
    from numba.core.dispatcher import Dispatcher

    one("umap", cloud(20, 5))
    parts = [vars(part).values() for part in (umap.utils, umap.umap_, umap.layouts)]
    called = {f.__name__: f.stats for part in parts for f in part if isinstance(f, Dispatcher) and f.signatures}
    assert {"smooth_knn_dist", "compute_membership_strengths", "fast_knn_indices"} <= set(called)
    assert {name for name, stats in called.items() if stats.cache_path is None} == set()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("H", "cause"),
    [
        (np.empty((0, 4)), "no tokens"),
        ([[1.0, 2.0]], "1 token: nothing to project"),
        (np.vstack([cloud(8, 4), np.zeros((1, 4))]), "row 8 is a zero vector (1 of 9)"),
        (np.zeros((9, 4)), "row 0 is a zero vector (9 of 9)"),
    ],
    ids=["no-tokens", "one-token", "zero-row", "all-zero"],
)
def test_without_directions_every_token_is_null_with_the_cause_ME11(method, H, cause):
    assert_null(one(method, H), len(H), cause)


@broken
def test_broken_states_are_refused(H, cause):
    with pytest.raises(Refusal, match=cause):
        one("pca", H)


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"method": "isomap"}, "no projection 'isomap': use pca, tsne, umap"),
        ({"perplexity": 1}, "at least 2, found 1 and 15"),
        ({"perplexity": math.nan}, "at least 2, found nan and 15"),
        ({"n_neighbors": 1}, "at least 2, found 30 and 1"),
    ],
    ids=["method", "perplexity", "nan", "neighbours"],
)
def test_options_that_cannot_be_are_refused(options, cause):
    with pytest.raises(Refusal, match=cause):
        projections(cloud(20, 5), **SETTINGS | {"method": "pca"} | options)


@pytest.mark.parametrize("method", METHODS)
def test_the_input_is_left_as_it_was(method):
    H = cloud(12, 5)
    before = H.copy()
    one(method, H)
    assert np.array_equal(H, before)


@settings(laws, max_examples=100)
@given(seeds)
def test_coarse_clouds_get_finite_coordinates_or_a_reason(seed):
    H = coarse_cloud(seed)
    rows = one("pca", H)
    assert len(rows) == len(H)
    for row in rows:
        assert_row_is_honest(row)
