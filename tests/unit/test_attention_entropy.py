import math

import numpy as np
import pytest
from clouds import assert_close, assert_honest, assert_null, laws, seeds
from hypothesis import given
from test_attention import heads, kinds

from collapse.attention import as_attention, restrict, uniform
from collapse.errors import Refusal
from collapse.metrics.attention_entropy import attention_entropy

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


def slow(A):
    """Row by row, from the definition."""
    rows = [[float(p) / math.fsum(row) for p in row if p > 0] for row in A]
    return math.fsum(-math.fsum(p * math.log(p) for p in row) for row in rows) / len(rows)


def values(rows):
    return [row["entropy"] for row in rows]


@laws
@given(kinds, seeds)
def test_the_entropy_of_a_head_is_its_definition(kind, seed):
    n, is_causal, sharpness = kind
    A = heads(n, is_causal, sharpness, seed)
    rows = attention_entropy(A, is_causal)
    expected = [slow(head) for head in A]
    assert values(rows[:-1]) == pytest.approx(expected, abs=1e-12)
    assert rows[-1]["entropy"] == pytest.approx(math.fsum(expected) / len(A), abs=1e-12)
    assert [row["head"] for row in rows] == [0, 1, 2, -1]


@laws
@given(kinds, seeds)
def test_entropy_lies_between_zero_and_that_of_uniform_attention(kind, seed):
    n, is_causal, sharpness = kind
    for row in attention_entropy(heads(n, is_causal, sharpness, seed), is_causal):
        assert_honest(row)
        assert 0 <= row["entropy"] <= row["entropy_uniform"] + 1e-12
        assert row["entropy_uniform"] <= math.log(n) + 1e-12


@pytest.mark.parametrize("n", [1, 2, 50])
def test_uniform_attention_has_the_logarithm_of_the_row_lengths(n):
    (row, mean) = attention_entropy([uniform(n, False)], False)
    assert row["entropy"] == row["entropy_uniform"] == mean["entropy"] == pytest.approx(math.log(n), abs=1e-13)
    (row, _) = attention_entropy([uniform(n, True)], True)
    assert row["entropy"] == row["entropy_uniform"] == pytest.approx(math.lgamma(n + 1) / n, abs=1e-13)


def test_the_uniform_control_follows_the_mask_and_not_the_head():
    A = [uniform(20, True)]
    masked, open_ = attention_entropy(A, True)[0], attention_entropy(A, False)[0]
    assert masked["entropy"] == open_["entropy"]
    assert masked["entropy_uniform"] == pytest.approx(math.lgamma(21) / 20)
    assert open_["entropy_uniform"] == pytest.approx(math.log(20))


@pytest.mark.parametrize("A", [np.eye(5), np.eye(5)[[0, 0, 1, 2, 3]], np.eye(5)[[0] * 5]], ids=["self", "last", "sink"])
def test_one_hot_rows_have_entropy_zero_and_zero_log_zero_is_zero(A):
    assert attention_entropy([A], True)[0]["entropy"] == 0
    assert math.copysign(1, attention_entropy([A], True)[0]["entropy"]) == 1


def test_rows_that_float32_rounds_above_one_have_no_negative_entropy():
    assert attention_entropy([[[1 + 5e-5, 0], [0, 1 - 5e-5]]], False)[0]["entropy"] == 0


def test_known_rows():
    A = [[[1, 0, 0], [0.5, 0.5, 0], [0.25, 0.25, 0.5]]]
    assert attention_entropy(A, True)[0]["entropy"] == pytest.approx((0 + 1 + 1.5) * math.log(2) / 3)


@laws
@given(seeds)
def test_the_order_of_tokens_does_not_matter_without_a_mask(seed):
    A = heads(9, False, 3.0, seed)
    order = np.random.default_rng(seed).permutation(9)
    for row, other in zip(attention_entropy(A, False), attention_entropy(A[:, order][:, :, order], False)):
        assert_close(row, other)


def test_the_mean_of_heads_is_not_the_entropy_of_their_mean():
    A = np.array([np.eye(2), np.eye(2)[::-1]])
    assert values(attention_entropy(A, False)) == [0, 0, 0]
    assert attention_entropy([A.mean(axis=0)], False)[-1]["entropy"] == pytest.approx(math.log(2))


def test_a_hub_of_special_tokens_hides_the_spread_among_the_others_SK14():
    """SK14: a head with 99 % on [SEP] has little entropy; among the other tokens it is uniform."""
    A = np.full((1, 10, 10), 0.01 / 9)
    A[:, :, -1] = 0.99
    cut = restrict(as_attention(A), np.arange(10) < 9)
    assert attention_entropy(A, False)[0]["entropy"] < 0.1
    assert attention_entropy(cut, False)[0]["entropy"] == pytest.approx(math.log(9))


def test_one_token_has_entropy_zero():
    for row in attention_entropy([[[1.0]], [[1.0]]], True):
        assert (row["entropy"], row["entropy_uniform"], row["undefined"]) == (0, 0, None)


def test_no_tokens_gives_null_rows_with_the_reason():
    rows = attention_entropy(np.empty((2, 0, 0)), True)
    assert [row.pop("head") for row in rows] == [0, 1, -1]
    for row in rows:
        assert_null(row, "no tokens")


@pytest.mark.parametrize(
    ("A", "is_causal", "cause"),
    [
        ([[[0.5, 0.4], [0, 1]]], False, "head 0, row 0 does not sum to 1"),
        ([[[np.nan, 1], [0, 1]]], False, "NaN"),
        ([[[0.5, 0.5], [0, 1]]], True, "later token"),
        ([[0.5, 0.5], [0, 1]], False, "found shape"),
    ],
)
def test_what_is_no_attention_is_refused(A, is_causal, cause):
    with pytest.raises(Refusal, match=cause):
        attention_entropy(A, is_causal)


def test_the_input_is_left_as_it_was():
    A = heads(5, True)
    before = A.copy()
    attention_entropy(A, True)
    assert np.array_equal(A, before)
