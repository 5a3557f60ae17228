import math

import numpy as np
import pytest
from clouds import laws, seeds
from hypothesis import given
from hypothesis import strategies as st

from collapse.attention import as_attention, null_heads, restrict, uniform, with_mean
from collapse.errors import Refusal, Undefined

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

# Tokens, whether the model is causal, and how peaked its attention is: from nearly uniform to nearly one-hot.
kinds = st.tuples(st.integers(2, 12), st.booleans(), st.sampled_from([0.5, 3.0, 20.0]))


def softmax(scores, is_causal, dtype=np.float32):
    """Attention as a model makes it: float32 softmax over keys, later tokens masked out."""
    scores = np.asarray(scores, dtype=dtype)
    n = scores.shape[-1]
    scores = np.where(np.tri(n, dtype=bool) | (not is_causal), scores, dtype(-np.inf))
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def heads(n, is_causal, sharpness=1.0, seed=0, count=3):
    return softmax(sharpness * np.random.default_rng(seed).normal(size=(count, n, n)), is_causal)


@laws
@given(kinds, seeds)
def test_float32_rows_become_float64_rows_that_sum_to_one_exactly(kind, seed):
    n, is_causal, sharpness = kind
    A = heads(n, is_causal, sharpness, seed)
    found = as_attention(A, is_causal)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found.sum(axis=2), 1.0, rtol=1e-15)
    np.testing.assert_allclose(found, A.astype(float), rtol=1e-6)


@laws
@given(kinds, seeds)
def test_validating_twice_changes_nothing_but_rounding(kind, seed):
    A = as_attention(heads(*kind, seed))
    np.testing.assert_allclose(as_attention(A), A, rtol=1e-15)


def test_lists_and_integers_are_attention_too():
    assert as_attention([[[1, 0], [0, 1]]], is_causal=True).tolist() == [[[1, 0], [0, 1]]]


@pytest.mark.parametrize("off", [-0.9e-4, 0.9e-4])
def test_a_row_sum_within_1e_4_is_rounding_and_is_mended(off):
    A = np.full((1, 4, 4), 0.25)
    A[0, 2] *= 1 + off
    np.testing.assert_allclose(as_attention(A), 0.25, rtol=1e-15)


@pytest.mark.parametrize("off", [-1.1e-4, 1.1e-4, -1.0, 1.0])
def test_a_row_sum_further_off_is_refused_with_head_and_row(off):
    A = np.full((3, 4, 4), 0.25)
    A[1, 2] *= 1 + off
    with pytest.raises(Refusal, match=r"head 1, row 2 does not sum to 1 .*\(1 such rows\)"):
        as_attention(A)


@pytest.mark.parametrize(
    ("value", "cause"),
    [(np.nan, "NaN or infinity"), (np.inf, "NaN or infinity"), (-np.inf, "NaN or infinity"), (-1e-9, "is negative")],
)
def test_broken_entries_are_refused_with_head_and_row(value, cause):
    A = np.full((3, 4, 4), 0.25)
    A[2, 1, 3] = value
    with pytest.raises(Refusal, match=f"head 2, row 1 .*{cause}"):
        as_attention(A)


@pytest.mark.parametrize("shape", [(), (4,), (4, 4), (2, 3, 4), (1, 2, 3, 3), (0, 3, 3)])
def test_other_shapes_are_refused_with_the_shape(shape):
    with pytest.raises(Refusal, match="heads x queries x keys.*found shape"):
        as_attention(np.full(shape, 0.25))


def test_scores_before_softmax_are_refused():
    with pytest.raises(Refusal, match="head 0, row 0"):
        as_attention(np.random.default_rng(0).normal(size=(2, 5, 5)))


def test_attention_to_a_later_token_is_refused_in_a_causal_model_alone():
    A = np.array([np.eye(3), np.eye(3)])
    A[1, 0] = [0.5, 0.0, 0.5]
    assert as_attention(A).shape == (2, 3, 3)
    with pytest.raises(Refusal, match="head 1, row 0 reaches a later token"):
        as_attention(A, is_causal=True)


def test_no_tokens_is_undefined():
    with pytest.raises(Undefined, match="no tokens"):
        as_attention(np.empty((4, 0, 0)))


def test_validation_leaves_its_input_as_it_was():
    A = heads(5, True).astype(float)
    before = A.copy()
    as_attention(A, True)
    assert np.array_equal(A, before)


@laws
@given(kinds, seeds)
def test_cut_rows_are_the_shares_among_the_tokens_kept(kind, seed):
    n, is_causal, sharpness = kind
    A = as_attention(heads(n, is_causal, min(sharpness, 3.0), seed))
    mask = np.random.default_rng(seed).random(n) < 0.6
    mask[-1] = True
    kept = np.flatnonzero(mask)
    found = restrict(A, mask)
    assert found.shape == (len(A), len(kept), len(kept))
    for head in range(len(A)):
        for a, i in enumerate(kept):
            mass = math.fsum(A[head, i, j] for j in kept)
            assert found[head, a] == pytest.approx([A[head, i, j] / mass for j in kept], rel=1e-12)


@laws
@given(kinds, seeds)
def test_cutting_in_two_steps_is_cutting_at_once(kind, seed):
    """So it does not matter that [CLS] and [SEP] are cut together."""
    n, is_causal, _ = kind
    A = as_attention(heads(n + 2, is_causal, 1.0, seed))
    first = np.arange(n + 2) != 0
    last = np.arange(n + 1) != n
    both = first & (np.arange(n + 2) != n + 1)
    np.testing.assert_allclose(restrict(restrict(A, first), last), restrict(A, both), rtol=1e-12)


def test_keeping_all_tokens_changes_nothing_but_rounding():
    A = as_attention(heads(6, True))
    np.testing.assert_allclose(restrict(A, np.ones(6, dtype=bool)), A, rtol=1e-15)


def test_special_tokens_are_cut_with_rows_and_columns_and_rows_sum_to_one_again_SK14():
    """SK14: most of BERT's attention goes to [SEP]; without [CLS] and [SEP] there are two tokens less."""
    scores = np.zeros((1, 6, 6))
    scores[0, :, -1] = 3.0
    A = as_attention(softmax(scores, False))
    mask = np.array([False, True, True, True, True, False])
    cut = restrict(A, mask)
    assert A[0, :, -1].min() > 0.5
    assert cut.shape == (1, 4, 4)
    np.testing.assert_allclose(cut, 0.25, rtol=1e-12)


def test_the_first_token_kept_of_a_causal_head_attends_to_itself():
    cut = restrict(as_attention(heads(5, True)), np.array([False, True, True, True, True]))
    np.testing.assert_allclose(cut[:, 0], [[1, 0, 0, 0]] * 3, rtol=1e-15)
    assert as_attention(cut, is_causal=True).shape == (3, 4, 4)


def test_a_row_with_little_left_keeps_its_proportions():
    """Softmax is exact to float32 far below 1, so what is left is still what the head says."""
    cut = restrict(as_attention([[[1, 0, 0], [1, 2e-30, 0], [1, 1e-30, 3e-30]]]), np.array([False, True, True]))
    np.testing.assert_allclose(cut[0], [[1, 0], [0.25, 0.75]], rtol=1e-12)


@pytest.mark.parametrize("left", [0.0, 1e-45, 1e-39])
def test_a_row_with_nothing_left_is_undefined_and_named_by_its_position(left):
    """1e-45 is the smallest float32: it has one digit, and renormalised would look like attention."""
    A = np.tile(uniform(4, False), (3, 1, 1))
    A[2, 3] = [1.0, 0.0, left, 0.0]
    with pytest.raises(Undefined, match=r"head 2, row 3 attends to nothing .*\(1 such rows\)"):
        restrict(as_attention(A), np.array([False, True, True, True]))


def test_a_row_that_is_cut_may_have_nothing_left():
    A = np.tile(uniform(3, False), (1, 1, 1))
    A[0, 0] = [1, 0, 0]
    np.testing.assert_allclose(restrict(A, np.array([False, True, True])), [[[0.5, 0.5]] * 2])


def test_keeping_no_token_is_undefined():
    with pytest.raises(Undefined, match="no tokens"):
        restrict(as_attention(heads(3, True)), np.zeros(3, dtype=bool))


@pytest.mark.parametrize("mask", [[True, True], [1, 1, 0], [[True, False, True]], True])
def test_masks_that_are_not_one_bool_per_token_are_refused(mask):
    with pytest.raises(Refusal, match="mask must be 3 booleans"):
        restrict(as_attention(heads(3, True)), mask)


def test_the_cut_leaves_its_input_as_it_was():
    A = as_attention(heads(5, False))
    before = A.copy()
    restrict(A, np.array([True, False, True, True, True]))
    assert np.array_equal(A, before)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_uniform_attention_has_equal_weights_on_what_the_mask_shows(n):
    assert uniform(n, False).tolist() == [[1 / n] * n] * n
    assert uniform(n, True).tolist() == [[1 / (i + 1)] * (i + 1) + [0] * (n - i - 1) for i in range(n)]


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("dropped", [[0], [0, 8], [1, 2, 5]])
def test_uniform_attention_under_a_token_rule_is_uniform_over_the_tokens_kept(is_causal, dropped):
    mask = ~np.isin(np.arange(9), dropped)
    cut = restrict(uniform(9, is_causal)[None], mask)
    np.testing.assert_allclose(cut[0], uniform(9 - len(dropped), is_causal), rtol=1e-14)


@pytest.mark.parametrize(("n", "known"), [(264, 6.16), (467, 6.72)])
def test_uniform_causal_attention_favours_the_first_token_six_to_one(n, known):
    """Known answer, diagonal kept: the column mean of position 0 over that of all."""
    columns = uniform(n, True).mean(axis=0)
    assert columns[0] / columns.mean() == pytest.approx(known, abs=0.005)


@pytest.mark.parametrize("n", [2, 3, 10, 100])
def test_the_unnormalised_laplacian_of_uniform_causal_attention_has_its_known_spectrum_SK07(n):
    """SK07: 1/2 + (H_n - H_m) / 2 for m = 2..n and 0, so the second eigenvalue is 0.5 for every n."""
    W = (uniform(n, True) + uniform(n, True).T) / 2
    found = np.linalg.eigvalsh(np.diag(W.sum(axis=1)) - W)
    expected = sorted([0.0, *(0.5 + math.fsum(0.5 / k for k in range(m + 1, n + 1)) for m in range(2, n + 1))])
    np.testing.assert_allclose(found, expected, atol=1e-13)
    assert found[1] == pytest.approx(0.5, abs=1e-13)


def test_the_mean_row_has_the_means_and_whether_all_heads_have_a_property():
    rows = [{"x": 1.0, "k": 2, "b": True, "undefined": None}, {"x": 4.0, "k": 3, "b": False, "undefined": None}]
    first, second, mean = with_mean(rows, ("x", "k", "b"))
    assert first == {"head": 0} | rows[0]
    assert second == {"head": 1} | rows[1]
    assert mean == {"head": -1, "x": 2.5, "k": 2.5, "b": False, "undefined": None}
    assert with_mean(rows[:1], ("b",))[-1]["b"] is True


def test_the_mean_of_a_value_that_one_head_lacks_is_null_with_the_reason():
    rows = [{"x": 1.0, "y": None, "undefined": "why"}, {"x": 4.0, "y": 3.0, "undefined": None}]
    mean = with_mean(rows, ("x", "y"))[-1]
    assert mean == {"head": -1, "x": 2.5, "y": None, "undefined": "y: undefined in 1 of 2 heads"}


def test_null_heads_are_a_row_per_head_and_the_mean():
    row = {"x": None, "undefined": "why"}
    assert null_heads(2, ("x",), Undefined("why")) == [{"head": h} | row for h in (0, 1, -1)]
