import math

import numpy as np
import pyarrow as pa
import pytest
from clouds import broken, cloud, dot, laws, lengths, rotation, seeds, shapes, unit
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from collapse.errors import Refusal, Undefined
from collapse.geometry import cosines, pairs
from collapse.metrics.energy import energy
from collapse.states import StatesFile, writing
from collapse.theory import identity_dynamics, identity_states

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

masks = st.booleans()
betas = st.sampled_from([0.0, 0.1, 1.0, 5.0, 50.0])
steps = st.sampled_from([0.01, 0.3, 1.0, 4.0])


def run(H, beta, n_steps, is_causal=False, step=1.0):
    return list(identity_dynamics(H, beta, n_steps, is_causal, step))


def slow_step(X, beta, is_causal, step=1.0):
    moved = []
    for i, x in enumerate(X):
        seen = range(i + 1) if is_causal else range(len(X))
        weights = [math.exp(beta * dot(x, X[j])) for j in seen]
        pull = sum(w * X[j] for w, j in zip(weights, seen)) / math.fsum(weights)
        moved.append(x + step * pull)
    return unit(moved)


@laws
@given(shapes, seeds, betas, masks, steps)
def test_each_step_is_the_formula(shape, seed, beta, is_causal, step):
    H = cloud(*shape, seed)
    expected = unit(H)
    for X in run(H, beta, 3, is_causal, step):
        np.testing.assert_allclose(X, expected, atol=1e-10)
        expected = slow_step(expected, beta, is_causal, step)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("n_steps", [0, 1, 12])
def test_there_is_one_state_per_step_and_the_start(n_steps, is_causal):
    H = cloud(5, 4)
    states = run(H, 1.0, n_steps, is_causal)
    assert len(states) == n_steps + 1
    np.testing.assert_allclose(states[0], unit(H), rtol=1e-14)


@laws
@given(shapes, seeds, betas, masks)
def test_particles_stay_on_the_sphere(shape, seed, beta, is_causal):
    for X in run(cloud(*shape, seed), beta, 10, is_causal):
        np.testing.assert_allclose(np.linalg.norm(X, axis=1), 1.0, rtol=1e-14)


@laws
@given(shapes, seeds, betas, masks)
def test_only_the_directions_of_the_start_count(shape, seed, beta, is_causal):
    H = cloud(*shape, seed)
    scaled = run(lengths(shape[0], seed) * H, beta, 4, is_causal)
    np.testing.assert_allclose(scaled, run(H, beta, 4, is_causal), atol=1e-11)


@laws
@given(shapes, seeds, betas, masks)
def test_a_turned_cloud_moves_in_the_same_way(shape, seed, beta, is_causal):
    H, Q = cloud(*shape, seed), rotation(shape[1], seed)
    np.testing.assert_allclose(run(H @ Q, beta, 4, is_causal), np.array(run(H, beta, 4, is_causal)) @ Q, atol=1e-10)


@laws
@given(shapes, seeds, betas, steps)
def test_without_a_mask_particles_do_not_know_their_order(shape, seed, beta, step):
    H = cloud(*shape, seed)
    order = np.random.default_rng(seed).permutation(shape[0])
    permuted, whole = run(H[order], beta, 5, step=step), run(H, beta, 5, step=step)
    np.testing.assert_allclose(permuted, np.array(whole)[:, order], atol=1e-10)


def test_with_a_mask_order_matters():
    H = cloud(6, 4)
    assert np.abs(run(H[::-1], 1.0, 1, True)[1][::-1] - run(H, 1.0, 1, True)[1]).max() > 0.1


@laws
@given(shapes, seeds, betas)
def test_with_a_mask_the_first_particle_never_moves(shape, seed, beta):
    states = run(cloud(*shape, seed), beta, 20, True)
    np.testing.assert_allclose([X[0] for X in states], [states[0][0]] * 21, rtol=1e-13)


@laws
@given(shapes, seeds, betas, st.integers(1, 7))
def test_with_a_mask_the_first_k_particles_do_not_see_the_rest(shape, seed, beta, k):
    H = cloud(*shape, seed)
    whole, part = run(H, beta, 6, True), run(H[:k], beta, 6, True)
    np.testing.assert_allclose(np.array(whole)[:, :k], part, atol=1e-10)


@pytest.mark.parametrize("beta", [0.01, 0.1, 1.0, 5.0, 50.0, 1000.0])
@pytest.mark.parametrize(("n", "d"), [(2, 2), (12, 3), (30, 2), (9, 40)])
def test_without_a_mask_energy_never_falls_at_any_beta(n, d, beta):
    """Also with steps of size one, not only in the flow of continuous time.

    With phi the feature map of exp(beta <x, y>), the energy is |sum_i phi(x_i)|^2, so it does not fall where
    sum_i f(x_i) does not, f(y) = sum_j exp(beta <y, x_j>). f is convex with gradient proportional to the attention
    m_i at x_i, and <m_i, x_i' - x_i> >= 0, since x_i' = normalise(x_i + m_i) maximises <x_i + m_i, y> on the sphere.
    """
    for seed in range(5):
        rows = list(energy(identity_dynamics(cloud(n, d, seed), beta, 20, False), beta, 1e-12))
        assert not any(row["is_drop"] for row in rows[1:])
        # At a larger beta what self-pairs leave to the others is lost in rounding.
        assert beta > 5 or rows[-1]["log_energy"] > rows[0]["log_energy"]


@pytest.mark.parametrize("step", [0.001, 0.05, 0.5])
@pytest.mark.parametrize("beta", [0.1, 1.0, 5.0, 50.0])
def test_without_a_mask_energy_never_falls_at_small_steps(beta, step):
    for seed in range(3):
        rows = list(energy(identity_dynamics(cloud(12, 3, seed), beta, 40, False, step), beta, 1e-13))
        assert not any(row["is_drop"] for row in rows[1:])


def flow(y, beta, n, time):
    """The common inner product of n particles that start mutually orthogonal, after a time of the flow."""

    def slope(_, y):
        return 2 * (1 - y) * ((n - 1) * y + 1) / (np.exp(beta * (1 - y)) + n - 1)

    return solve_ivp(slope, (0, time), [y], rtol=1e-11, atol=1e-13).y[0, -1]


@pytest.mark.parametrize("n", [2, 5, 40])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0, 4.0])
def test_from_orthogonal_starts_the_common_inner_product_is_the_flow_s_as_the_step_goes_to_zero(beta, n):
    time, errors = 1.5, []
    for step in (0.1, 0.05, 0.025):
        X = run(rotation(n), beta, round(time / step), step=step)[-1]
        values = pairs(cosines(X))
        # Symmetry: they keep one common inner product.
        assert np.ptp(values) < 1e-12
        errors.append(abs(values.mean() - flow(0.0, beta, n, time)))
    assert errors[0] < 0.06
    # The error of explicit steps is of first order.
    for coarse, fine in zip(errors, errors[1:]):
        assert 1.7 < coarse / fine < 2.3


def test_at_beta_zero_the_flow_of_two_particles_has_a_closed_form():
    # y' = (1 - y)(1 + y), so y = tanh(t).
    X = run(rotation(2), 0.0, 20000, step=1e-4)[-1]
    assert pairs(cosines(X))[0] == pytest.approx(math.tanh(2.0), abs=1e-4)


@pytest.mark.parametrize("step", [0.2, 1.0])
@pytest.mark.parametrize("is_causal", [False, True])
def test_all_tokens_meet_at_last_and_with_a_mask_at_the_first_one(is_causal, step):
    # In more dimensions than two, all starts but those of measure zero do.
    for seed in range(3):
        states = run(cloud(10, 6, seed), 1.0, round(400 / step), is_causal, step)
        assert pairs(cosines(states[-1])).min() > 1 - 1e-6
        if is_causal:
            np.testing.assert_allclose(states[-1], np.tile(states[0][0], (10, 1)), atol=2e-3)


@pytest.mark.parametrize("step", [0.0, -1.0, math.inf, math.nan])
def test_a_step_that_is_none_is_refused(step):
    with pytest.raises(Refusal, match="size of a step"):
        run(cloud(3, 3), 1.0, 2, step=step)


# The states that a run of the theory stores


@pytest.fixture
def start(tmp_path):
    """Write the states of a trained run with `n_blocks` blocks, of which the theory reads layer 0 and the record."""

    def write(**changes):
        n, d = 6, 5
        columns = dict.fromkeys(("is_special", "is_first", "is_punctuation"), [False] * n)
        tokens = pa.table({"position": range(n), "token_id": range(n), "token": list("abcdef")} | columns)
        record = {"model": "m", "weights": "trained", "prompt": "p", "scheme": "trained", "n_blocks": 2, "n_states": 3}
        record |= {"model_type": "gpt2", "is_causal": True, "device": "cpu", "dtype": "float32", "versions": {}}
        with writing(tmp_path / "trained.parquet", tokens, d, record | changes) as put:
            for layer in range(3):
                put(layer, "block" if layer else "embedding", cloud(n, d, layer))
        return tmp_path / "trained.parquet"

    return write


@pytest.mark.parametrize(("steps", "n_steps"), [(None, 2), (7, 7)])
def test_there_are_as_many_steps_as_the_config_says_or_the_model_has_blocks(start, tmp_path, steps, n_steps):
    source = start()
    identity_states(source, "identity-b2", 2.0, 0.5, steps, tmp_path / "identity.parquet")
    file = StatesFile(tmp_path / "identity.parquet")
    assert file.states == [(0, "embedding"), *((layer, "block") for layer in range(1, n_steps + 1))]
    assert (file.metadata["n_blocks"], file.metadata["step"], file.metadata["beta"]) == (n_steps, 0.5, 2.0)
    expected = run(StatesFile(source).read(0), 2.0, n_steps, True, 0.5)
    for layer, X in enumerate(expected):
        np.testing.assert_allclose(file.read(layer), X, atol=1e-6)


def test_a_model_of_which_nobody_knows_whether_it_is_causal_is_refused_with_the_missing_entry(start, tmp_path):
    source = start(is_causal=None, model_type="phi")
    with pytest.raises(Refusal, match="model type 'phi' has no entry in ARCHITECTURES"):
        identity_states(source, "identity-b1", 1.0, 1.0, None, tmp_path / "identity.parquet")
    assert not (tmp_path / "identity.parquet").exists()


def test_without_a_mask_and_at_beta_zero_the_mean_only_grows():
    lengths_of_mean = [np.linalg.norm(X.mean(axis=0)) for X in run(cloud(20, 10), 0.0, 30)]
    assert np.all(np.diff(lengths_of_mean) > -1e-14)
    assert lengths_of_mean[-1] == pytest.approx(1, abs=1e-6)


def test_with_a_mask_energy_can_fall():
    """The law above is one of attention without a mask: three particles in a plane are enough to break it."""
    H = [(math.cos(a), math.sin(a)) for a in np.deg2rad([0, 150, 255])]
    rows = list(energy(identity_dynamics(H, 1.0, 1, True), 1.0, 1e-6))
    assert rows[1]["relative_change"] == pytest.approx(-0.00322, abs=1e-5)
    assert rows[1]["is_drop"] is True


@pytest.mark.parametrize("is_causal", [False, True])
def test_particles_that_start_in_one_open_hemisphere_collapse_to_one_point(is_causal):
    lowest = [pairs(cosines(X)).min() for X in run(np.abs(cloud(15, 5)), 1.0, 300, is_causal)]
    assert lowest[0] < 0.5
    assert lowest[-1] > 1 - 1e-6


@pytest.mark.parametrize("beta", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("angle", [10, 90, 170])
def test_two_particles_approach_as_the_closed_form_says(angle, beta):
    c = math.cos(math.radians(angle))
    states = run([[1, 0], [c, math.sin(math.radians(angle))]], beta, 4)
    for X in states:
        assert pairs(cosines(X))[0] == pytest.approx(c, abs=1e-12)
        own = 1 / (1 + math.exp(beta * (c - 1)))
        a, b = 1 + own, 1 - own
        c = ((a * a + b * b) * c + 2 * a * b) / (a * a + b * b + 2 * a * b * c)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("H", [np.ones((4, 3)), [[2.0, 0.0, 0.0]], [[0, 1], [0, -2]]], ids=["equal", "one", "opposite"])
def test_what_has_nowhere_to_go_stays(H, is_causal):
    """Collapsed, alone, or opposite (an equilibrium, though not a stable one)."""
    states = run(H, 1.0, 5, is_causal)
    np.testing.assert_allclose(states, [unit(H)] * 6, atol=1e-14)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("beta", [800.0, 1e6])
def test_a_large_beta_does_not_overflow_and_leaves_each_particle_to_itself(beta, is_causal):
    H = rotation(10)
    np.testing.assert_allclose(run(H, beta, 3, is_causal), [H] * 4, atol=1e-12)
    for X in run(cloud(10, 3), beta, 3, is_causal):
        np.testing.assert_allclose(np.linalg.norm(X, axis=1), 1.0, rtol=1e-14)


def test_float32_and_whole_numbers_are_computed_in_float64():
    H = np.arange(1, 13).reshape(3, 4) % 5
    states = run(H.astype(np.float32), 1.0, 3)
    assert {X.dtype for X in states} == {np.dtype(np.float64)}
    assert np.array_equal(states, run(H, 1.0, 3))


def test_earlier_states_and_the_start_are_left_as_they_were():
    H = cloud(6, 4)
    before = H.copy()
    kept = [(X, X.copy()) for X in identity_dynamics(H, 1.0, 5, True)]
    assert np.array_equal(H, before)
    assert all(np.array_equal(X, copy) for X, copy in kept)


@broken
def test_a_broken_start_is_refused(H, cause):
    with pytest.raises(Refusal, match=cause):
        run(H, 1.0, 2)


@pytest.mark.parametrize(
    ("H", "cause"),
    [
        (np.empty((0, 4)), "no tokens"),
        ([[1.0, 2.0], [0.0, 0.0]], r"row 1 is a zero vector \(1 of 2\)"),
        (np.zeros((3, 4)), r"row 0 is a zero vector \(3 of 3\)"),
    ],
    ids=["no-tokens", "zero-row", "all-zero"],
)
def test_a_start_without_directions_is_undefined_with_the_cause_ME11(H, cause):
    with pytest.raises(Undefined, match=cause):
        run(H, 1.0, 2)
