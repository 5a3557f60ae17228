import numpy as np
import pytest
from clouds import assert_honest, assert_null, laws, seeds
from hypothesis import given, settings

from collapse.errors import Refusal
from collapse.metrics.duplicate_tokens import duplicate_clusters

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


def values(labels, token_ids):
    row = duplicate_clusters(labels, token_ids)
    assert_honest(row)
    return row["n_duplicate_clusters"], row["duplicate_token_share"]


def random_layer(seed):
    """Labels and ids of which some clusters are repetitions."""
    rng = np.random.default_rng(seed)
    n = rng.integers(0, 30)
    labels, ids = rng.integers(-1, 6, size=n), rng.integers(0, 4, size=n) + 50_000
    same = np.isin(labels, rng.integers(0, 6, size=3))
    ids[same] = labels[same] + 9
    return labels, ids


def slow(labels, token_ids):
    members = {}
    for label, token_id in zip(labels.tolist(), token_ids.tolist()):
        if label != -1:
            members.setdefault(label, []).append(token_id)
    repeated = [ids for ids in members.values() if len(ids) > 1 and len(set(ids)) == 1]
    clustered = sum(len(ids) for ids in members.values())
    return len(repeated), sum(len(ids) for ids in repeated) / clustered if clustered else None


@settings(laws, max_examples=150)
@given(seeds)
def test_both_are_their_definition_cluster_by_cluster(seed):
    labels, ids = random_layer(seed)
    count, share = slow(labels, ids)
    assert values(labels, ids) == (count, share if share is None else pytest.approx(share))


@laws
@given(seeds)
def test_order_of_tokens_numbers_of_clusters_and_names_of_ids_do_not_matter(seed):
    (labels, ids), rng = random_layer(seed), np.random.default_rng(seed)
    expected = values(labels, ids)
    order, names = rng.permutation(len(labels)), np.append(rng.permutation(30)[:10], -1)
    assert values(labels[order], ids[order]) == expected
    assert values(names[labels], ids) == expected
    assert values(labels, -3 * ids) == expected


def test_by_hand():
    """Cluster 0 is one word three times, 1 two words, 2 another word twice; a word repeated in noise is no cluster."""
    labels = [0, 1, 0, 2, 1, 0, 2, -1, -1]
    words = [5, 5, 5, 8, 6, 5, 8, 5, 5]
    assert values(labels, words) == (2, pytest.approx(5 / 7))


def test_two_clusters_of_the_same_word_are_two():
    assert values([0, 0, 1, 1], [7, 7, 7, 7]) == (2, 1)


def test_a_cluster_of_different_words_is_none():
    assert values([0, 0, 0, 1, 1], [1, 2, 3, 1, 2]) == (0, 0)


def test_one_different_word_is_enough():
    assert values([0] * 10, [4] * 9 + [5]) == (0, 0)


def test_a_cluster_of_one_token_repeats_nothing():
    assert values([0, 1, 1], [4, 5, 5]) == (1, pytest.approx(2 / 3))


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_all_noise_has_no_clusters_and_no_share(n):
    row = duplicate_clusters([-1] * n, [3] * n)
    assert row == {
        "n_duplicate_clusters": 0,
        "duplicate_token_share": None,
        "undefined": "duplicate_token_share: no clusters",
    }


def test_where_clusters_are_undefined_all_is_null():
    assert_null(duplicate_clusters(None, [1, 1, 2]), "the clusters of this layer are undefined")


@pytest.mark.parametrize(
    ("labels", "token_ids", "cause"),
    [
        ([0, 0, 0], [1, 1], "3 cluster labels for 2 tokens"),
        ([0, 0], [1, 1, 1], "2 cluster labels for 3 tokens"),
        ([0.0, np.nan], [1, 1], "cluster labels must be a vector of integers, found float64"),
        ([0, -2], [1, 1], "start at -1, which is noise: found -2"),
        ([0, 0], [1.0, 1.0], "token ids must be a vector of integers, found float64"),
        ([0, 0], ["a", "a"], "token ids must be a vector of integers, found <U1"),
        ([0, 0], [[1, 1]], r"token ids must be a vector of integers, found int64 of shape \(1, 2\)"),
        (None, [1.5], "token ids must be a vector of integers"),
    ],
    ids=["fewer-ids", "more-ids", "nan-label", "below-noise", "float-ids", "words", "2-D", "float-ids-no-labels"],
)
def test_labels_and_ids_that_cannot_be_are_refused(labels, token_ids, cause):
    with pytest.raises(Refusal, match=cause):
        duplicate_clusters(labels, token_ids)


def test_the_input_is_left_as_it_was():
    labels, ids = np.array([0, 0, -1]), np.array([4, 4, 4])
    duplicate_clusters(labels, ids)
    assert (labels.tolist(), ids.tolist()) == ([0, 0, -1], [4, 4, 4])
