import math

import numpy as np
import pytest
from clouds import laws, seeds
from hypothesis import given
from test_attention import heads, kinds

from collapse.attention import as_attention, restrict, uniform
from collapse.errors import Refusal
from collapse.metrics.attention_tokens import COLUMNS, attention_tokens

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


def received_of(A, is_causal):
    """The two columns as arrays."""
    rows = attention_tokens(A, is_causal)
    assert all(list(row) == [*COLUMNS, "undefined"] and row["undefined"] is None for row in rows)
    return tuple(np.array([row[name] for row in rows]) for name in COLUMNS)


def assert_null(rows, n, cause):
    assert len(rows) == n
    for row in rows:
        assert row["received"] is row["received_uniform"] is None
        assert cause in row["undefined"]


def slow(A):
    """Token by token, from the definition: the mean over heads and the n - 1 other queries, over the mean of all."""
    n = A.shape[1]
    A = [[[float(p) / math.fsum(row) for p in row] for row in head] for head in A]
    r = [math.fsum(head[i][j] for head in A for i in range(n) if i != j) / (len(A) * (n - 1)) for j in range(n)]
    return [x / (math.fsum(r) / n) for x in r]


@laws
@given(kinds, seeds)
def test_received_is_its_definition(kind, seed):
    n, is_causal, sharpness = kind
    A = heads(n, is_causal, sharpness, seed)
    received, received_uniform = received_of(A, is_causal)
    assert received == pytest.approx(slow(A), rel=1e-9, abs=1e-12)
    assert received_uniform == pytest.approx(slow(uniform(n, is_causal)[None]), rel=1e-12, abs=1e-12)


@laws
@given(kinds, seeds)
def test_the_mean_over_tokens_is_one_and_no_token_leaves_zero_to_n(kind, seed):
    n, is_causal, sharpness = kind
    for values in received_of(heads(n, is_causal, sharpness, seed), is_causal):
        assert values.shape == (n,)
        assert values.mean() == pytest.approx(1)
        assert values.min() >= 0
        assert values.max() <= n * (1 + 1e-12)


@pytest.mark.parametrize("n", [2, 3, 264, 467])
def test_uniform_causal_attention_decreases_as_harmonic_numbers(n):
    """Diagonal removed: position j (from 0) receives H_n - H_{j+1}, over the mean (n - H_n) / n."""
    harmonic = np.cumsum(1 / np.arange(1, n + 1))
    expected = (harmonic[-1] - harmonic) / (n - harmonic[-1]) * n
    received, received_uniform = received_of([uniform(n, True)], True)
    np.testing.assert_allclose(received, expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(received, received_uniform, rtol=1e-12)
    assert received[-1] == received_uniform[-1] == 0


@pytest.mark.parametrize("n", [2, 5, 40])
def test_without_a_mask_uniform_attention_is_received_alike(n):
    received, received_uniform = received_of(np.tile(uniform(n, False), (4, 1, 1)), False)
    np.testing.assert_allclose(received, 1, rtol=1e-12)
    np.testing.assert_allclose(received_uniform, 1, rtol=1e-12)


def test_the_control_follows_the_mask_and_the_number_of_tokens_alone():
    first, second = (received_of(heads(8, True, 3.0, seed), True) for seed in (0, 1))
    assert np.array_equal(first[1], second[1])
    assert not np.allclose(first[0], second[0])


@pytest.mark.parametrize("sink", [0, 3, 5])
def test_a_token_that_all_others_attend_to_alone_receives_n(sink):
    received, _ = received_of([np.eye(6)[[sink] * 6]], False)
    assert received.tolist() == [6.0 if j == sink else 0.0 for j in range(6)]


def test_attention_to_oneself_counts_for_nothing():
    """Half of every row moved to the diagonal changes no share of what others give."""
    A = as_attention(heads(7, False, 3.0))
    np.testing.assert_allclose(received_of((A + np.eye(7)) / 2, False)[0], received_of(A, False)[0])


@laws
@given(seeds)
def test_the_order_of_tokens_carries_over_without_a_mask(seed):
    A = heads(9, False, 3.0, seed)
    order = np.random.default_rng(seed).permutation(9)
    permuted, _ = received_of(A[:, order][:, :, order], False)
    np.testing.assert_allclose(permuted, received_of(A, False)[0][order], rtol=1e-12)


@laws
@given(seeds)
def test_heads_count_alike_whatever_their_order(seed):
    A = heads(6, True, 3.0, seed, count=5)
    np.testing.assert_allclose(received_of(A[::-1], True)[0], received_of(A, True)[0], rtol=1e-12)
    np.testing.assert_allclose(received_of(np.repeat(A, 2, axis=0), True)[0], received_of(A, True)[0])


def test_special_tokens_take_what_is_left_to_the_others_only_under_the_rule_all_SK14():
    A = np.full((2, 6, 6), 0.02)
    A[:, :, -1] = 0.9
    received, _ = received_of(A, False)
    assert received[-1] == pytest.approx(6 * 5 * 0.9 / (5 * 0.9 + 25 * 0.02))
    cut, _ = received_of(restrict(as_attention(A), np.arange(6) < 5), False)
    np.testing.assert_allclose(cut, 1, rtol=1e-12)


@pytest.mark.parametrize("n", [0, 1])
def test_fewer_than_two_tokens_are_undefined(n):
    assert_null(attention_tokens(np.ones((3, n, n)), True), n, "token")


@pytest.mark.parametrize("is_causal", [True, False])
def test_tokens_that_attend_to_themselves_alone_are_undefined(is_causal):
    assert_null(attention_tokens(np.tile(np.eye(4), (3, 1, 1)), is_causal), 4, "itself alone")


def test_little_attention_beside_much_to_oneself_keeps_its_digits():
    A = np.eye(3)
    A[2] = [1e-20, 3e-20, 1]
    assert received_of([A], True)[0] == pytest.approx([0.75, 2.25, 0])


def test_two_causal_tokens():
    received, received_uniform = received_of([[[1, 0], [0.1, 0.9]]], True)
    assert received.tolist() == received_uniform.tolist() == [2, 0]


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
        received_of(A, is_causal)


def test_the_input_is_left_as_it_was():
    A = as_attention(heads(5, True))
    before = A.copy()
    received_of(A, True)
    assert np.array_equal(A, before)
