import math

import numpy as np
import pytest
from clouds import assert_close, assert_honest, assert_null, laws, seeds
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import laplacian
from test_attention import heads, softmax
from threadpoolctl import threadpool_limits

from collapse.attention import as_attention, restrict, uniform
from collapse.compiled import deflated, symmetric_part
from collapse.errors import Refusal
from collapse.metrics import fiedler as module
from collapse.metrics.fiedler import COLUMNS, VALUES, fiedler

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

PUBLISHED, SYMMETRIC, SYMMETRIC_SINKHORN = VALUES


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Thousands of small products: with threads that share cores, waiting for each other takes ten times the work."""
    with threadpool_limits(1):
        yield


sizes = st.integers(2, 16)
sharpnesses = st.sampled_from([0.3, 1.0, 3.0, 8.0, 30.0])


def one(A, is_causal=True, rounds=100, tolerance=1e-6):
    """The row of a single head."""
    row, mean = fiedler([A], is_causal, rounds, tolerance)
    assert_close(mean, row | {"head": -1}, ignore=["undefined"])
    return row


def known_shapes(n, seed=0):
    """Causal heads as trained models have them, soft and extreme: sinks, the token before, itself, local, chaos."""
    noise = np.random.default_rng(seed).normal(size=(n, n))
    distance = np.subtract.outer(np.arange(n), np.arange(n))
    first = np.arange(n) == 0
    scores = {f"sink-{g}": noise + g * first for g in (3, 10, 40, 80)}
    scores |= {f"previous-{g}": noise + g * (distance == 1) for g in (3, 8, 15)}
    scores |= {f"self-{g}": noise + g * (distance == 0) for g in (5, 20, 50)}
    scores |= {f"chaos-{g}": g * noise for g in (5, 20)}
    scores |= {"local": noise - 0.5 * np.abs(distance), "previous-or-sink": noise + 10 * (distance == 1) + 6 * first}
    return {name: softmax(values, True) for name, values in scores.items()}


# ---- slow, independent implementations, straight from the definitions ----


def in_place(M, rounds, tolerance):
    """Rewrite M round by round, rows and then columns; return it with the rounds done and whether it settled."""
    M = np.array(M, dtype=float)
    for done in range(1, rounds + 1):
        before = M.copy()
        M /= M.sum(axis=1, keepdims=True)
        M /= M.sum(axis=0, keepdims=True)
        if np.abs(M - before).max() < tolerance:
            return M, done, True
    return M, rounds, False


def dense_second(W, loops):
    """All eigenvalues of I - D^-1/2 W D^-1/2, built entry by entry; the second smallest."""
    n = len(W)
    W = [[W[i][j] if loops or i != j else 0.0 for j in range(n)] for i in range(n)]
    d = [math.fsum(row) for row in W]
    L = [[(i == j) - W[i][j] / math.sqrt(d[i]) / math.sqrt(d[j]) for j in range(n)] for i in range(n)]
    return np.linalg.eigvalsh(L)[1]


def slow_published(A, rounds, tolerance):
    M, done, settled = in_place(np.where(A < 1e-12, 1e-12, A), rounds, tolerance)
    residual = max(abs(math.fsum(line) - 1) for line in [*M, *M.T])
    return dense_second((M + M.T) / 2, loops=False), done, settled, residual


def slow_symmetric_sinkhorn(A, rounds=20_000):
    M, _, settled = in_place((A + A.T) / 2, rounds, 1e-16)
    assert settled or np.abs(M.sum(axis=1) - 1).max() < 1e-13
    return dense_second((M + M.T) / 2, loops=True)


def second_eigenvalue(M):
    """The second eigenvalue of (M + M^T) / 2, self-loops kept, as the metric has it."""
    one = np.ones(len(M))
    return module._second_eigenvalue(*symmetric_part(M, one, one, module.UNMASKED, True))


def unnormalised(M):
    """Spectrum of D - W of the symmetrised M, the Laplacian in which many values are known by hand."""
    W = (M + M.T) / 2
    return np.linalg.eigvalsh(np.diag(W.sum(axis=1)) - W)


def after(A, rounds, row_step=False):
    """A after rounds of the scaling under test, without a clip, and one more row normalisation if asked."""
    A = np.asarray(A, dtype=float)
    r, c, done, settled = module._sinkhorn(A, rounds, 0.0)
    assert (done, settled) == (rounds, False)
    if row_step:
        r = 1 / (A @ c)
    return r[:, None] * A * c


# ---- known answers ----


@pytest.mark.parametrize(
    ("n", "rounds", "known"),
    [
        (20, 100, 0.108894),
        (242, 100, 0.063979),
        (467, 100, 0.065448),
        (512, 100, 0.065752),
        (20, 500, 0.108889),
        (242, 500, 0.063993),
        (467, 500, 0.065458),
        (512, 500, 0.065761),
    ],
)
def test_published_value_of_uniform_causal_attention(n, rounds, known):
    """Only rows before columns, and a stop by the change over a whole round, give all eight to six digits."""
    row = one(uniform(n, True), rounds=rounds)
    assert round(row[PUBLISHED], 6) == known
    assert row[f"{PUBLISHED}_uniform"] == pytest.approx(row[PUBLISHED], abs=1e-9)
    assert row["converged"] is (rounds == 500)
    assert row["sinkhorn_rounds"] < 500
    assert row["sinkhorn_residual"] > 1e-8


@pytest.mark.parametrize(
    ("n", "known"), [(3, 0.555316), (4, 0.566247), (20, 0.583885), (64, 0.578674), (512, 0.568888)]
)
def test_symmetric_value_of_uniform_causal_attention_SK07(n, known):
    row = one(uniform(n, True))
    assert round(row[SYMMETRIC], 6) == known
    assert row[f"{SYMMETRIC}_uniform"] == pytest.approx(row[SYMMETRIC], abs=1e-12)


@pytest.mark.parametrize(("n", "known"), [(3, 0.5645), (4, 0.5882), (8, 0.6271), (64, 0.6629)])
def test_symmetrised_then_sinkhorn_of_uniform_causal_attention_SK07(n, known):
    row = one(uniform(n, True))
    assert round(row[SYMMETRIC_SINKHORN], 4) == known
    assert row[f"{SYMMETRIC_SINKHORN}_uniform"] == pytest.approx(row[SYMMETRIC_SINKHORN], abs=1e-12)


@pytest.mark.parametrize("n", [2, 3, 10, 100])
def test_uniform_attention_without_a_mask_is_a_complete_graph(n):
    """Without self-loops K_n has n / (n - 1); with them all tokens are one, and the value is 1."""
    row = one(uniform(n, False), is_causal=False)
    assert row[PUBLISHED] == pytest.approx(n / (n - 1), abs=1e-12)
    assert [row[SYMMETRIC], row[SYMMETRIC_SINKHORN]] == pytest.approx([1, 1], abs=1e-12)
    assert (row["sinkhorn_rounds"], row["converged"], row["n_components"]) == (1, True, 1)


@pytest.mark.parametrize(("n", "weight"), [(3, 2), (5, 4), (12, 11)])
def test_a_complete_graph_has_n(n, weight):
    """D - W of K_n has n; divided by the degree n - 1 in the normalised Laplacian. It is doubly stochastic already."""
    row = one((np.ones((n, n)) - np.eye(n)) / (n - 1), is_causal=False)
    for name in VALUES:
        assert row[name] * weight == pytest.approx(n, abs=1e-8)


@pytest.mark.parametrize("n", [4, 5, 12, 60])
def test_a_cycle_has_2_minus_2_cos(n):
    A = (np.roll(np.eye(n), 1, axis=1) + np.roll(np.eye(n), -1, axis=1)) / 2
    row = one(A, is_causal=False)
    for name in VALUES:
        assert row[name] * 2 == pytest.approx(2 - 2 * math.cos(2 * math.pi / n), abs=1e-8)


def test_a_directed_cycle_is_the_same_graph_once_symmetrised():
    A = np.roll(np.eye(7), 1, axis=1)
    for name in VALUES:
        assert one(A, False)[name] == pytest.approx(one((A + A.T) / 2, False)[name], abs=1e-9)


PAIRS = np.array([[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]], dtype=float)
OTHER_PAIRS = PAIRS[[0, 2, 1, 3]][:, [0, 2, 1, 3]]


def test_two_separate_pairs_have_zero_and_not_two():
    row = one(PAIRS, is_causal=False)
    assert (row[SYMMETRIC], row[SYMMETRIC_SINKHORN], row["n_components"]) == (0, 0, 2)
    assert 0 < row[PUBLISHED] < 1e-11


def test_the_mean_of_the_values_is_not_the_value_of_the_mean_SK13():
    """SK13: one head links {1,2},{3,4}, the other {2,3},{1,4}: 0 each, and 1 for their mean, a cycle of weights 1/2."""
    heads_of_pairs = np.array([PAIRS, OTHER_PAIRS])
    first, second, mean = fiedler(heads_of_pairs, False, 100, 1e-6)
    assert first[SYMMETRIC] == second[SYMMETRIC] == mean[SYMMETRIC] == 0
    assert mean["n_components"] == 2
    assert unnormalised(heads_of_pairs.mean(axis=0))[1] == pytest.approx(1)
    assert one(heads_of_pairs.mean(axis=0), False)[SYMMETRIC] == pytest.approx(1)


@pytest.mark.parametrize(("k", "known"), [(10, 0.04572), (100, 0.004861), (1000, 0.0004973)])
def test_the_unclipped_value_of_a_causal_head_counts_its_rounds_SK01(k, known):
    """SK01: about 1 / (2 k), for the uniform head and for heads that are nothing like it: the limit is the identity."""
    assert unnormalised(after(uniform(4, True), k))[1] == pytest.approx(known, rel=2e-4)
    sink = [[1, 0, 0, 0], [0.9, 0.1, 0, 0], [0.9, 0.05, 0.05, 0], [0.9, 0.02, 0.03, 0.05]]
    local = [[1, 0, 0, 0], [0.05, 0.95, 0, 0], [0, 0.1, 0.9, 0], [0, 0, 0.2, 0.8]]
    if k == 1000:
        for A in (sink, local):
            assert unnormalised(after(A, k))[1] == pytest.approx(1 / (2 * k), rel=0.02)


def test_causal_heads_are_flagged_and_carry_a_control_that_moves_with_the_rounds_SK01():
    A = heads(20, True, 3.0, count=1)[0]
    few, many = one(A, rounds=10), one(A, rounds=40)
    assert few["converged"] is many["converged"] is False
    assert (few["sinkhorn_rounds"], many["sinkhorn_rounds"]) == (10, 40)
    assert many["sinkhorn_residual"] < few["sinkhorn_residual"]
    for name in (PUBLISHED, f"{PUBLISHED}_uniform"):
        assert few[name] != pytest.approx(many[name], rel=0.01)
    for name in (SYMMETRIC, SYMMETRIC_SINKHORN):
        assert few[name] == many[name]
        assert few[f"{name}_uniform"] == many[f"{name}_uniform"]


@pytest.mark.parametrize(
    ("a", "k", "row_step", "column_step"),
    [(0.5, 10, 0.0454545, 0.0476190), (0.1, 10, 0.0333333, 0.0344828), (0.9, 50, 0.00989011, 0.00998890)],
)
def test_two_causal_tokens_have_a_closed_form_that_depends_on_the_last_half_step_SK02(a, k, row_step, column_step):
    """SK02: 1 / (1/a + 2k) after one more row step; the rounds of the published definition end on the column step."""
    A = [[1, 0], [a, 1 - a]]
    assert unnormalised(after(A, k, row_step=True))[1] == pytest.approx(row_step, rel=1e-5)
    assert unnormalised(after(A, k, row_step=True))[1] == pytest.approx(1 / (1 / a + 2 * k), rel=1e-12)
    assert unnormalised(after(A, k))[1] == pytest.approx(column_step, rel=1e-5)


@pytest.mark.parametrize(
    ("eps", "known", "diagonal"),
    [(1e-12, 0.0448, 0.34), (1e-9, 0.0853, 0.26), (1e-6, 0.2025, 0.18), (1e-3, 0.5779, 0.08)],
)
def test_the_converged_value_of_a_causal_head_is_set_by_the_clip_SK04(eps, known, diagonal):
    """SK04: a small constant in masked entries lets Sinkhorn converge, to a number that the constant chose."""
    A = uniform(64, True) + eps
    r, c, _, _ = module._sinkhorn(A, 1000, 0.0)
    P = r[:, None] * A * c
    assert np.abs(P.sum(axis=1) - 1).max() < 1e-12
    assert unnormalised(P)[1] == pytest.approx(known, abs=5e-5)
    assert P.diagonal().mean() == pytest.approx(diagonal, abs=0.005)


def test_degrees_are_row_sums_and_not_one_SK05():
    """SK05: after one round W is not doubly stochastic: I - W has a negative eigenvalue, D - W has not."""
    P = after(uniform(4, True), 1)
    W = (P + P.T) / 2
    assert np.linalg.eigvalsh(np.eye(4) - W)[:2] == pytest.approx([-0.1507, 0.3890], abs=5e-5)
    assert unnormalised(P)[:2] == pytest.approx([0, 0.3316], abs=5e-5)
    expected = dense_second(W, loops=False)
    assert one(uniform(4, True), rounds=1)[PUBLISHED] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("s", [0.5, 0.9, 1.0])
def test_a_token_that_all_attend_to_holds_any_graph_together_SK08(s):
    """SK08: D - W has s/2 and the normalised Laplacian without self-loops 1, whatever s; without the token it is 0."""
    A = (1 - s) * np.eye(64)
    A[:, 0] = s
    A[0] = np.eye(64)[0]
    W = (A + A.T) / 2
    assert unnormalised(A)[1] == pytest.approx(s / 2)
    assert second_eigenvalue(W - np.diag(W.diagonal())) == pytest.approx(1)
    row = one(A)
    assert row[SYMMETRIC] == pytest.approx(dense_second(W, loops=True), abs=1e-12)
    assert row[SYMMETRIC] > 0.3
    assert row["n_components"] == 1
    if s < 1:
        cut = one(restrict(as_attention([A]), np.arange(64) > 0)[0])
        assert (cut[SYMMETRIC], cut[SYMMETRIC_SINKHORN], cut["n_components"]) == (0, 0, 63)


def test_special_tokens_set_the_value_of_a_head_that_attends_to_them_SK14():
    """SK14: two sentences that share nothing but [SEP]."""
    scores = np.full((9, 9), -200.0)
    scores[:4, :4] = scores[4:8, 4:8] = 0
    scores[:, 8] = 2
    A = as_attention([softmax(scores, False)])
    cut = restrict(A, np.arange(9) < 8)
    assert one(A[0], False)[SYMMETRIC] > 0.4
    assert one(cut[0], False)[SYMMETRIC] == 0
    assert one(cut[0], False)["n_components"] == 2


def test_one_triangle_of_a_matrix_is_not_its_symmetric_part_SK10():
    """SK10: eigvalsh of the un-symmetrised Laplacian reads one triangle; here W is (T + T^T) / 2, not their sum."""
    T = uniform(3, True)
    L = laplacian(T)
    assert np.linalg.eigvalsh(L, UPLO="L") == pytest.approx([-0.451, 0.463, 1.154], abs=1e-3)
    assert np.linalg.eigvalsh(L, UPLO="U") == pytest.approx([0, 0.333, 0.833], abs=1e-3)
    assert np.linalg.eigvalsh(laplacian(T, symmetrized=True)) == pytest.approx([0, 1, 1.333], abs=1e-3)
    assert unnormalised(T) == pytest.approx([0, 0.5, 0.667], abs=1e-3)
    assert second_eigenvalue(T) == pytest.approx(dense_second((T + T.T) / 2, loops=True), abs=1e-12)


def test_an_isolated_token_is_a_component_and_no_division_by_zero_SK11():
    """SK11: three tokens fully linked and one alone: 0 and 2 components. In attention it can only attend to itself."""
    W = np.ones((4, 4)) - np.eye(4)
    W[3] = W[:, 3] = 0
    assert unnormalised(W) == pytest.approx([0, 0, 3, 3])
    assert np.linalg.eigvalsh(laplacian(W, normed=True)) == pytest.approx([0, 0, 1.5, 1.5])
    assert second_eigenvalue(W) == 0
    A = W / 2
    A[3, 3] = 1
    row = one(A, is_causal=False)
    assert (row[SYMMETRIC], row[SYMMETRIC_SINKHORN], row["n_components"]) == (0, 0, 2)
    assert 0 < row[PUBLISHED] < 2
    assert row["undefined"] is None


# ---- against the slow implementations ----


@settings(laws, max_examples=60)
@given(sizes, st.booleans(), sharpnesses, st.sampled_from([(100, 1e-6), (40, 1e-3), (300, 1e-9), (7, 0.0)]), seeds)
def test_all_values_are_their_definitions(n, is_causal, sharpness, rule, seed):
    A = as_attention(heads(n, is_causal, sharpness, seed, count=1))
    row = one(A[0], is_causal, *rule)
    value, done, settled, residual = slow_published(A[0], *rule)
    assert row[PUBLISHED] == pytest.approx(value, abs=1e-10)
    assert (row["sinkhorn_rounds"], row["converged"]) == (done, settled)
    assert row["sinkhorn_residual"] == pytest.approx(residual, abs=1e-10)
    assert row[SYMMETRIC] == pytest.approx(dense_second((A[0] + A[0].T) / 2, loops=True), abs=1e-10)


@pytest.mark.parametrize("name", known_shapes(24))
def test_peaked_causal_heads_are_their_definitions(name):
    A = as_attention([known_shapes(24)[name]])[0]
    row = one(A)
    value, done, settled, residual = slow_published(A, 100, 1e-6)
    assert row[PUBLISHED] == pytest.approx(value, abs=1e-10)
    assert (row["sinkhorn_rounds"], row["converged"]) == (done, settled)
    assert row["sinkhorn_residual"] == pytest.approx(residual, abs=1e-10)
    assert row[SYMMETRIC] == pytest.approx(dense_second((A + A.T) / 2, loops=True), abs=1e-10)
    assert row[SYMMETRIC_SINKHORN] is not None


@pytest.mark.parametrize(("is_causal", "above"), [(False, module.UNMASKED), (True, module.CLIP)])
def test_a_head_of_full_length_stops_in_the_round_of_the_in_place_version(is_causal, above):
    """Near the stop the witness changes, so a rule that is only nearly the same would be a round off."""
    A = as_attention([softmax(2 * np.random.default_rng(5).normal(size=(200, 200)), is_causal)])[0]
    for tolerance in (1e-3, 1e-5, 1e-8, 1e-12):
        M, done, settled = in_place(np.maximum(A, 1e-12), 200, tolerance)
        r, c, rounds, converged = module._sinkhorn(np.maximum(A, 1e-12), 200, tolerance, above)
        assert (rounds, converged) == (done, settled)
        np.testing.assert_allclose(r[:, None] * np.maximum(A, 1e-12) * c, M, atol=1e-14)


def test_a_change_of_exactly_the_tolerance_is_no_stop():
    """Strictly below, so a tolerance of 0 means: all rounds, also where nothing moves any more."""
    row = one(uniform(4, False), False, rounds=5, tolerance=0.0)
    assert (row["sinkhorn_rounds"], row["converged"], row["sinkhorn_residual"]) == (5, False, 0)


@pytest.mark.parametrize("is_causal", [True, False])
def test_the_published_value_is_that_of_scipys_laplacian(is_causal):
    """As in the source study: scipy's normalised Laplacian, which leaves self-loops out of the degrees."""
    A = as_attention(heads(30, is_causal, 2.0, count=1))[0]
    M, _, _ = in_place(np.maximum(A, 1e-12), 100, 1e-6)
    expected = np.linalg.eigvalsh(laplacian((M + M.T) / 2, normed=True))[1]
    assert one(A, is_causal)[PUBLISHED] == pytest.approx(expected, abs=1e-10)


@laws
@given(sizes, st.booleans(), st.sampled_from([0.3, 1.0]), seeds)
def test_the_scaling_of_the_symmetrised_head_is_the_limit_of_sinkhorns_rounds(n, is_causal, sharpness, seed):
    A = as_attention(heads(n, is_causal, sharpness, seed, count=1))[0]
    assert one(A, is_causal)[SYMMETRIC_SINKHORN] == pytest.approx(slow_symmetric_sinkhorn(A), abs=1e-10)


@pytest.mark.parametrize("name", ["sink-3", "sink-10", "sink-40", "previous-3", "previous-8", "self-5"])
def test_peaked_heads_have_the_limit_of_sinkhorns_rounds_too(name):
    A = as_attention([known_shapes(10)[name]])[0]
    assert one(A)[SYMMETRIC_SINKHORN] == pytest.approx(slow_symmetric_sinkhorn(A), abs=1e-10)


@settings(laws, max_examples=60)
@given(sizes, st.booleans(), sharpnesses, seeds)
def test_the_scaling_is_doubly_stochastic_which_makes_it_the_only_one(n, is_causal, sharpness, seed):
    """Sinkhorn and Knopp: D1 W D2 with unit row and column sums is unique. Where rounds take forever, this decides."""
    A = as_attention(heads(n, is_causal, sharpness, seed, count=1))[0]
    W = (A + A.T) / 2
    x = module._balance(W)
    P = x[:, None] * W * x
    assert x.min() > 0
    np.testing.assert_allclose(P.sum(axis=1), 1, atol=1e-12)
    assert one(A, is_causal)[SYMMETRIC_SINKHORN] == pytest.approx(dense_second(P, loops=True), abs=1e-10)


@pytest.mark.parametrize("n", [8, 64, 200])
def test_every_shape_of_head_is_scaled(n):
    for A in known_shapes(n).values():
        W = as_attention([A])[0]
        W = (W + W.T) / 2
        x = module._balance(W)
        np.testing.assert_allclose(x * (W @ x), 1, atol=1e-12)


# ---- the largest eigenvalue is proven ----


def normalised(A):
    """The arguments of `_largest_eigenvalue` for a head, and all eigenvalues of that matrix by definition."""
    one = np.ones(len(A))
    W, degrees = symmetric_part(A, one, one, module.UNMASKED, True)
    known = np.sqrt(degrees / degrees.sum())
    scale = 1 / np.sqrt(degrees)
    whole = scale[:, None] * (A + A.T) / 2 * scale - 2 * np.outer(known, known)
    return deflated(W, scale, known), np.linalg.eigvalsh(whole)


@pytest.fixture
def ways(monkeypatch):
    """Which of its dearer ways `_largest_eigenvalue` took."""
    taken = []

    def spy(holder, name):
        own = getattr(holder, name)
        monkeypatch.setattr(holder, name, lambda *args, **options: taken.append(name) or own(*args, **options))

    spy(module, "dpotrf")
    spy(np.linalg, "eigvalsh")
    return taken


@pytest.mark.parametrize(
    ("shape", "way"),
    [
        ("uniform", []),
        ("sink-3", ["dpotrf"]),
        ("local", ["dpotrf"]),
        ("previous-15", ["eigvalsh"]),
        ("self-20", ["eigvalsh"]),
    ],
)
def test_a_largest_eigenvalue_is_that_of_all_eigenvalues_whichever_way_proves_it(shape, way, ways):
    A = uniform(200, True) if shape == "uniform" else known_shapes(200)[shape]
    (S, squares), everything = normalised(A)
    ways.clear()
    assert module._largest_eigenvalue(S, squares) == pytest.approx(everything[-1], abs=1e-10)
    # By the way that decided: where Lanczos' method stops at one of many close eigenvalues, a proof may fail first.
    assert ways[-1:] == way


@pytest.mark.parametrize("rest", [0.0, 0.6])
@pytest.mark.parametrize("n_missed", [1, 40])
def test_an_eigenvalue_that_lanczos_missed_is_never_left_out(rest, n_missed, monkeypatch, ways):
    """Started apart from their vectors, Lanczos' method cannot know of the larger ones: both proofs do."""
    values = np.array([0.5] + [0.7] * n_missed + [rest] * (199 - n_missed))
    S = np.diag(values)
    monkeypatch.setattr(module, "_lanczos", lambda S: (0.5, np.array([0.5]), np.array([0.0])))
    assert module._largest_eigenvalue(S, (values**2).sum()) == 0.7
    assert ways == ["dpotrf", "eigvalsh"]


@pytest.mark.parametrize("n", [512, 2216])
@pytest.mark.parametrize("lam", [2e-7, 9e-7])
def test_what_is_left_over_is_never_lost_in_the_rounding_of_its_sum(n, lam):
    """Uniform but for two tokens that Lanczos' start hardly tells apart: the norm must show what it did not find."""
    start = np.random.default_rng(0).normal(size=n)
    order = np.argsort(start)
    place = np.abs(np.diff(start[order])).argmin()
    two = order[place : place + 2]
    A = np.full((n, n), 1 / n)
    A[np.ix_(two, two)] += lam / 2 * np.array([[1, -1], [-1, 1]])
    assert second_eigenvalue(A) == pytest.approx(1 - lam, abs=1e-10)


def test_what_is_not_finite_is_no_graph_that_falls_apart():
    W = np.ones((4, 4))
    W[2, 1] = np.nan
    with pytest.raises(AssertionError, match="not finite"):
        module._second_eigenvalue(W, np.full(4, 4.0))


def test_what_is_left_over_beside_what_was_found_counts_in_the_proof(monkeypatch, ways):
    """T alone says 0.5; its link of 0.1 to the rest, of which 0.4 is all there is, makes it 0.56."""
    S = np.diag([0.5] + [0.4] + [0.0] * 198)
    S[1, 0] = 0.1
    monkeypatch.setattr(module, "_lanczos", lambda S: (0.5, np.array([0.5]), np.array([0.1])))
    largest = 0.45 + math.sqrt(0.05**2 + 0.1**2)
    assert module._largest_eigenvalue(S, 0.5**2 + 0.4**2 + 2 * 0.1**2) == pytest.approx(largest, abs=1e-12)
    assert ways == ["dpotrf", "eigvalsh"]


# ---- laws ----


@laws
@given(sizes, sharpnesses, seeds)
def test_the_order_of_tokens_does_not_matter_without_a_mask(n, sharpness, seed):
    A = as_attention(heads(n, False, sharpness, seed))
    order = np.random.default_rng(seed).permutation(n)
    for row, other in zip(fiedler(A, False, 50, 1e-6), fiedler(A[:, order][:, :, order], False, 50, 1e-6)):
        assert_close(row, other, rel=1e-8)


@laws
@given(sizes, st.booleans(), sharpnesses, seeds)
def test_values_stay_in_their_ranges_and_reasons_are_given(n, is_causal, sharpness, seed):
    rows = fiedler(heads(n, is_causal, sharpness, seed), is_causal, 60, 1e-6)
    assert [row["head"] for row in rows] == [0, 1, 2, -1]
    for row in rows:
        assert_honest(row)
        assert list(row) == ["head", *COLUMNS, "undefined"]
        for name in VALUES:
            # The trace of the Laplacian bounds n - 1 eigenvalues that are at least the second.
            assert 0 <= row[name] <= n / (n - 1) + 1e-9
        assert 0 <= row["sinkhorn_residual"] <= n
        assert 1 <= row["sinkhorn_rounds"] <= 60
        assert 1 <= row["n_components"] <= n


@laws
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.booleans(), seeds)
def test_the_value_is_zero_if_and_only_if_the_graph_falls_apart(parts, is_causal, seed):
    n = sum(parts) + (sum(parts) < 2)
    part = np.repeat(np.arange(len(parts)), parts)[:n]
    part = np.append(part, [part[-1]] * (n - len(part)))
    scores = np.random.default_rng(seed).normal(size=(n, n))
    scores[part[:, None] != part] = -np.inf
    row = one(softmax(scores, is_causal), is_causal)
    assert row["n_components"] == len(parts)
    for name in (SYMMETRIC, SYMMETRIC_SINKHORN):
        assert (row[name] == 0) == (len(parts) > 1)


def test_the_weaker_a_bridge_the_smaller_the_value():
    found = []
    for bridge in (0.1, 1e-3, 1e-5):
        A = np.kron(np.eye(2), np.full((4, 4), 0.25 * (1 - bridge))) + np.kron(
            1 - np.eye(2), np.full((4, 4), bridge / 4)
        )
        row = one(A, is_causal=False)
        # Two blocks joined with weight b have the eigenvalue 2 b; A is doubly stochastic as it stands.
        assert [row[SYMMETRIC], row[SYMMETRIC_SINKHORN]] == pytest.approx([2 * bridge] * 2, abs=1e-12)
        found.append(row[PUBLISHED])
    assert found[0] > found[1] > found[2] > 0


@pytest.mark.parametrize("is_causal", [True, False])
def test_a_head_that_attends_to_itself_alone_is_nothing_but_the_clip_as_published(is_causal):
    """Without self-loops the clip constants are all that is left, and they look perfectly connected."""
    row = one(np.eye(6), is_causal)
    assert row[PUBLISHED] == pytest.approx(6 / 5, abs=1e-9)
    assert (row[SYMMETRIC], row[SYMMETRIC_SINKHORN], row["n_components"]) == (0, 0, 6)


@pytest.mark.parametrize("a", [1e-30, 0.1, 0.5, 1.0])
def test_two_tokens_always_have_the_published_value_two(a):
    assert one([[1, 0], [a, 1 - a]])[PUBLISHED] == pytest.approx(2, abs=1e-12)


def test_the_mean_row_is_the_mean_of_the_heads():
    rows = fiedler(np.concatenate([heads(12, False, s, 1) for s in (0.1, 1.0, 4.0)]), False, 30, 1e-6)
    mean = rows.pop()
    for name in set(COLUMNS) - {"converged"}:
        assert mean[name] == pytest.approx(np.mean([row[name] for row in rows]), rel=1e-12)
    assert {row["converged"] for row in rows} == {True, False}
    assert mean["converged"] is False


def test_the_control_is_that_of_the_mask_and_the_tokens_kept():
    A = as_attention(heads(12, True, 2.0))
    cut = restrict(A, np.arange(12) > 0)
    row, expected = fiedler(cut, True, 100, 1e-6)[0], one(uniform(11, True))
    masked, open_ = one(uniform(12, True)), one(uniform(12, False), False)
    for name in VALUES:
        assert row[f"{name}_uniform"] == pytest.approx(expected[name], abs=1e-9)
        assert masked[f"{name}_uniform"] != pytest.approx(open_[f"{name}_uniform"], rel=0.01)


def test_the_control_is_computed_once_for_all_layers():
    """Both token rules of a layer, layer after layer; and never one control for another mask, rounds or tolerance."""
    module._uniform_values.cache_clear()
    for seed in range(4):
        for n in (9, 8):
            fiedler(heads(n, True, 1.0, seed), True, 20, 1e-6)
    assert module._uniform_values.cache_info().misses == 2
    fiedler(heads(9, True), True, 21, 1e-6)
    fiedler(heads(9, True), True, 21, 1e-7)
    fiedler(heads(9, True), False, 21, 1e-7)
    assert module._uniform_values.cache_info().misses == 5


def test_float32_attention_is_measured_in_float64():
    A = heads(15, True, 2.0)
    assert A.dtype == np.float32
    assert fiedler(A, True, 100, 1e-6) == fiedler(A.astype(float), True, 100, 1e-6)


def test_the_input_is_left_as_it_was():
    A = as_attention(heads(6, True))
    before = A.copy()
    fiedler(A, True, 10, 1e-6)
    assert np.array_equal(A, before)


# ---- degenerate and hostile input ----


@pytest.mark.parametrize(("n", "cause"), [(0, "no tokens"), (1, "1 token")])
def test_fewer_than_two_tokens_give_null_rows_with_the_reason(n, cause):
    rows = fiedler(np.ones((3, n, n)), True, 100, 1e-6)
    assert [row.pop("head") for row in rows] == [0, 1, 2, -1]
    for row in rows:
        assert set(row) == {*COLUMNS, "undefined"}
        assert_null(row, cause)


def test_a_star_has_no_doubly_stochastic_scaling_and_that_value_alone_is_null():
    """All attend to token 0 and not to themselves: its column would have to sum to n - 1."""
    star = np.eye(5)[[0] * 5]
    first, second, mean = fiedler([uniform(5, True), star], True, 100, 1e-6)
    assert first["undefined"] is None
    assert second[SYMMETRIC_SINKHORN] is None
    assert second["undefined"].startswith(f"{SYMMETRIC_SINKHORN}: some tokens are linked only to fewer others")
    assert mean[SYMMETRIC_SINKHORN] is None
    assert mean["undefined"] == f"{SYMMETRIC_SINKHORN}: undefined in 1 of 2 heads"
    for row in (first, second, mean):
        assert_honest(row)
        assert None not in [row[name] for name in COLUMNS if name != SYMMETRIC_SINKHORN]


def test_links_that_no_doubly_stochastic_matrix_can_keep_vanish_as_in_sinkhorns_limit():
    """Token 0 attends to itself, 1 to 0, 2 to 1: the only scaling pairs 1 with 2, and leaves 0 alone."""
    row = one([[1, 0, 0], [1, 0, 0], [0, 1, 0]])
    assert row[SYMMETRIC] > 0.5
    assert row[SYMMETRIC_SINKHORN] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("left", [1e-100, 1e-300])
def test_a_scaling_that_is_not_found_is_null_with_its_error(left):
    """Far below what float32 holds: the scaling exists, with entries that float64 cannot tell from nothing."""
    A = left * np.eye(5)
    A[:, 0] = 1
    row = one(A)
    assert row[SYMMETRIC_SINKHORN] is None
    assert "no doubly stochastic scaling found, sums stay off by" in row["undefined"]
    assert "nan" not in row["undefined"]
    assert row[SYMMETRIC] > 0.3


@pytest.mark.parametrize("n", [3, 5, 12, 100])
@pytest.mark.parametrize("left", [1e-12, 1e-30, 1e-45])
def test_a_sink_head_is_scaled_down_to_the_smallest_self_attention_that_float32_knows(left, n):
    """The limit is P_0i = 1 / (n - 1) and P_ii = 1 - 1 / (n - 1), so the value is 1 / (n - 1), which rounds get right
    only with what is left on the diagonal: without it there is no scaling.
    """
    A = left * np.eye(n)
    A[:, 0] = 1
    row = one(A)
    assert row["undefined"] is None
    assert row[SYMMETRIC_SINKHORN] == pytest.approx(1 / (n - 1), abs=1e-9)


@pytest.mark.parametrize(
    ("A", "is_causal", "cause"),
    [
        ([[[0.5, 0.4], [0, 1]]], False, "head 0, row 0 does not sum to 1"),
        ([[[np.nan, 1], [0, 1]]], False, "NaN or infinity"),
        ([[[1.5, -0.5], [0, 1]]], False, "is negative"),
        ([[[0.5, 0.5], [0, 1]]], True, "later token"),
        ([[0.5, 0.5], [0, 1]], False, "found shape"),
        (np.empty((0, 3, 3)), False, "found shape"),
    ],
)
def test_what_is_no_attention_is_refused(A, is_causal, cause):
    with pytest.raises(Refusal, match=cause):
        fiedler(A, is_causal, 100, 1e-6)


@pytest.mark.parametrize(("rounds", "tolerance"), [(0, 1e-6), (-1, 1e-6), (100, -1e-9), (100, math.nan)])
def test_rounds_and_tolerances_that_mean_nothing_are_refused(rounds, tolerance):
    with pytest.raises(Refusal, match="rounds must be at least 1 and tolerance at least 0"):
        fiedler([uniform(3, True)], True, rounds, tolerance)
