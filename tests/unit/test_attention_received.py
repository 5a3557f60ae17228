import math

import numpy as np
import pytest
from clouds import assert_close, assert_honest, assert_null, laws, seeds
from hypothesis import given
from hypothesis import strategies as st
from test_attention import heads
from test_attention_tokens import received_of

from collapse.attention import uniform
from collapse.errors import Refusal
from collapse.metrics.attention_received import GROUPS, attention_received

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


def tokens(n, seed, is_causal=True):
    """Attention received by n tokens of a random layer, which are punctuation, and their clusters."""
    rng = np.random.default_rng(seed)
    received = received_of(heads(n, is_causal, 3.0, seed), is_causal)
    return *received, rng.random(n) < 0.3, rng.integers(-1, 3, size=n)


def by_group(rows):
    assert [row["group"] for row in rows] == list(GROUPS)
    return {row["group"]: {name: value for name, value in row.items() if name != "group"} for row in rows}


def slow(received, received_uniform, members):
    """One group, from the definition."""
    row = {"received": None, "received_mask_corrected": None, "share_of_tokens": len(members) / len(received)}
    if members:
        row["received"] = math.fsum(received[j] for j in members) / len(members)
        expected = math.fsum(received_uniform[j] for j in members) / len(members)
        row["received_mask_corrected"] = row["received"] / expected if expected else None
    return row


@laws
@given(st.integers(2, 25), st.booleans(), seeds)
def test_every_group_has_its_definition_or_a_reason(n, is_causal, seed):
    received, received_uniform, is_punctuation, labels = tokens(n, seed, is_causal)
    rows = by_group(attention_received(received, received_uniform, is_punctuation, labels))
    members = {
        "clustered": [j for j in range(n) if labels[j] >= 0],
        "noise": [j for j in range(n) if labels[j] == -1],
        "punctuation": [j for j in range(n) if is_punctuation[j]],
        "other": [j for j in range(n) if not is_punctuation[j]],
    }
    for group, row in rows.items():
        assert_honest(row)
        expected = slow(received, received_uniform, members[group])
        assert_close(row, expected | {"undefined": row["undefined"]}, rel=1e-12)


@laws
@given(seeds)
def test_each_pair_of_groups_splits_all_tokens_whose_mean_is_one(seed):
    rows = by_group(attention_received(*tokens(30, seed)))
    for pair in (("clustered", "noise"), ("punctuation", "other")):
        share = [rows[group]["share_of_tokens"] for group in pair]
        assert sum(share) == pytest.approx(1)
        assert sum(s * rows[group]["received"] for s, group in zip(share, pair)) == pytest.approx(1)


@laws
@given(st.booleans(), seeds)
def test_uniform_attention_is_one_for_every_group_once_corrected(is_causal, seed):
    _, _, is_punctuation, labels = tokens(30, seed)
    received, received_uniform = received_of([uniform(30, is_causal)], is_causal)
    for row in attention_received(received, received_uniform, is_punctuation, labels):
        assert row["received_mask_corrected"] == pytest.approx(1, rel=1e-12)


def test_a_mask_alone_favours_a_group_at_the_start_and_the_correction_takes_it_back():
    received, received_uniform = received_of([uniform(100, True)], True)
    labels = np.where(np.arange(100) < 10, 0, -1)
    rows = by_group(attention_received(received, received_uniform, np.zeros(100, dtype=bool), labels))
    assert rows["clustered"]["received"] > 4 * rows["noise"]["received"]
    assert rows["clustered"]["received_mask_corrected"] == pytest.approx(1)
    assert rows["noise"]["received_mask_corrected"] == pytest.approx(1)


def test_late_tokens_that_are_looked_at_stand_out_once_corrected():
    """Raw, they receive less than the mean; of what their positions allow, they receive twice as much."""
    received_uniform = received_of([uniform(50, True)], True)[1]
    late = np.arange(50) >= 40
    received = np.where(late, 2 * received_uniform, received_uniform)
    rows = by_group(attention_received(received, received_uniform, late, None))
    assert rows["punctuation"]["received"] < rows["other"]["received"]
    assert rows["punctuation"]["received_mask_corrected"] == pytest.approx(2)
    assert rows["other"]["received_mask_corrected"] == pytest.approx(1)


def test_known_groups():
    rows = by_group(attention_received([3, 1, 0, 0], [2, 1.5, 0.5, 0], np.array([0, 0, 1, 1], bool), [0, 0, -1, 0]))
    assert rows["clustered"] == pytest.approx(
        {"received": 4 / 3, "received_mask_corrected": 4 / 3.5, "share_of_tokens": 0.75, "undefined": None}
    )
    assert rows["noise"]["received"] == rows["noise"]["received_mask_corrected"] == 0
    assert rows["punctuation"]["received"] == 0
    assert rows["other"] == pytest.approx(
        {"received": 2, "received_mask_corrected": 2 / 1.75, "share_of_tokens": 0.5, "undefined": None}
    )


@laws
@given(seeds)
def test_neither_the_order_of_tokens_nor_the_numbers_of_clusters_matter(seed):
    received, received_uniform, is_punctuation, labels = tokens(20, seed)
    rows = attention_received(received, received_uniform, is_punctuation, labels)
    order = np.random.default_rng(seed).permutation(20)
    renamed = np.where(labels >= 0, 7 - labels, -1)
    columns = (received, received_uniform, is_punctuation, renamed)
    others = by_group(attention_received(*(column[order] for column in columns)))
    for group, row in by_group(rows).items():
        assert_close(row, others[group], rel=1e-12)


def test_empty_groups_have_a_share_of_zero_and_no_value():
    received, received_uniform, _, _ = tokens(6, 0)
    rows = by_group(attention_received(received, received_uniform, np.zeros(6, dtype=bool), np.full(6, -1)))
    for group in ("clustered", "punctuation"):
        assert rows[group]["share_of_tokens"] == 0
        assert rows[group]["received"] is rows[group]["received_mask_corrected"] is None
        assert "no token is in this group" in rows[group]["undefined"]
    for group in ("noise", "other"):
        assert rows[group]["share_of_tokens"] == 1
        assert rows[group]["received"] == pytest.approx(1)
        assert rows[group]["undefined"] is None


def test_without_clusters_their_groups_are_null_and_the_others_are_not():
    received, received_uniform, is_punctuation, labels = tokens(12, 3)
    with_labels = by_group(attention_received(received, received_uniform, is_punctuation, labels))
    rows = by_group(attention_received(received, received_uniform, is_punctuation, None))
    for group in ("clustered", "noise"):
        assert_null(rows[group], "clusters are undefined")
    for group in ("punctuation", "other"):
        assert rows[group] == with_labels[group]


def test_without_attention_received_the_shares_are_still_known():
    _, _, is_punctuation, labels = tokens(12, 3)
    rows = by_group(attention_received(None, None, is_punctuation, labels))
    for row in rows.values():
        assert_honest(row)
        assert row["received"] is None
        assert "attention received is undefined" in row["undefined"]
    assert rows["other"]["share_of_tokens"] == np.mean(~is_punctuation)


def test_a_group_that_the_mask_hides_has_a_raw_value_alone():
    """The last token of a causal prompt is seen by no other: 0 over 0 is no number."""
    received, received_uniform = received_of([uniform(4, True)], True)
    rows = by_group(attention_received(received, received_uniform, np.array([False, False, False, True]), None))
    assert rows["punctuation"]["received"] == 0
    assert rows["punctuation"]["received_mask_corrected"] is None
    assert "received_mask_corrected: the mask lets no other token see" in rows["punctuation"]["undefined"]


GOOD = ([1.5, 0.5], [2.0, 0.0], [False, True], [0, -1])


@pytest.mark.parametrize(
    ("place", "value", "cause"),
    [
        (0, [1.0, 1.0, 1.0], "received must be 2 finite numbers"),
        (0, [np.nan, 1.0], "received must be 2 finite numbers"),
        (0, [-0.1, 2.1], "received must be 2 finite numbers"),
        (0, None, "together or not at all"),
        (1, [np.inf, 1.0], "received_uniform must be 2 finite numbers"),
        (1, None, "together or not at all"),
        (2, [0, 1], "is_punctuation must be one bool per token"),
        (2, [], "is_punctuation must be one bool per token"),
        (2, [[True, False]], "is_punctuation must be one bool per token"),
        (3, [0], "1 cluster labels for 2 tokens"),
        (3, [0.0, -1.0], "must be a vector of integers, found float64"),
        (3, [-2, 0], "start at -1, which is noise: found -2"),
    ],
)
def test_what_does_not_fit_together_is_refused(place, value, cause):
    arguments = list(GOOD)
    attention_received(*arguments)
    arguments[place] = value
    with pytest.raises(Refusal, match=cause):
        attention_received(*arguments)
