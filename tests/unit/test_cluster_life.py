from itertools import combinations

import numpy as np
import pytest
from clouds import assert_close, assert_honest, assert_null, laws, lengths, seeds
from hypothesis import given, settings
from sklearn.metrics import adjusted_rand_score

from collapse.errors import Refusal
from collapse.metrics.cluster_life import COLUMNS, FOLLOWED, STEP_COLUMNS, cluster_life, follow

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

EVENTS = ("births", "deaths", "merges", "splits", "survivors")
TOLERANCES = {"count_tolerance": 0.1, "ari_tolerance": 0.2}


def life(layers, **tolerances):
    return list(follow(layers, **TOLERANCES | tolerances))


def step(before, current):
    """Births, deaths, merges, splits, survivors between two layers."""
    row = life([before, current])[1]
    return tuple(row[name] for name in EVENTS)


def column(layers, name, **tolerances):
    return [row[name] for row in life(layers, **tolerances)]


def trajectory(seed, undefined=False):
    """Layers that each change some labels of the one before, with all kinds of events, and some layers undefined."""
    rng = np.random.default_rng(seed)
    n, depth = rng.integers(1, 25), rng.integers(1, 9)
    layers = [rng.integers(-1, 5, size=n)]
    for _ in range(depth):
        layer = layers[-1].copy()
        changed = rng.random(n) < rng.choice([0.0, 0.1, 0.5])
        layer[changed] = rng.integers(-1, 7, size=changed.sum())
        if rng.random() < 0.3:
            layer[layer == rng.integers(0, 5)] = rng.integers(-1, 5)
        layers.append(layer)
    return [None if undefined and rng.random() < 0.2 else layer for layer in layers]


def groups(labels):
    """The clusters of a layer as sets of tokens."""
    found = {}
    for token, label in enumerate(labels):
        if label >= 0:
            found.setdefault(int(label), set()).add(token)
    return list(found.values())


def slow_ari(a, b):
    """Hubert and Arabie's formula, pair by pair: (agreement - expected) / (largest - expected)."""
    pairs = list(combinations(range(len(a)), 2))
    in_a, in_b = [a[i] == a[j] for i, j in pairs], [b[i] == b[j] for i, j in pairs]
    both, first, second = sum(x and y for x, y in zip(in_a, in_b)), sum(in_a), sum(in_b)
    expected = first * second / len(pairs) if pairs else 0
    largest = (first + second) / 2
    return 1.0 if largest == expected else (both - expected) / (largest - expected)


def slow(layers, count_tolerance, ari_tolerance):
    rows, before, ages = [], None, {}
    for index, labels in enumerate(layers):
        if labels is None:
            rows.append(dict.fromkeys(FOLLOWED))
            before = None
            continue
        current = groups(labels)
        row, new_ages = dict.fromkeys(FOLLOWED), {frozenset(b): 1 for b in current}
        if before is not None:
            links = [(a, b) for a in before for b in current if 2 * len(a & b) > min(len(a), len(b))]
            after = {frozenset(a): [y for x, y in links if x == a] for a in before}
            prior = {frozenset(b): [x for x, y in links if y == b] for b in current}
            row["births"] = sum(not found for found in prior.values())
            row["deaths"] = sum(not found for found in after.values())
            row["merges"] = sum(len(found) > 1 for found in prior.values())
            row["splits"] = sum(len(found) > 1 for found in after.values())
            row["survivors"] = 0
            for a, b in links:
                if len(after[frozenset(a)]) == len(prior[frozenset(b)]) == 1:
                    row["survivors"] += 1
                    new_ages[frozenset(b)] = ages[frozenset(a)] + 1
            if current or before:
                row["adjacent_ari"] = slow_ari(layers[index - 1], labels)
        row["mean_lifespan"] = sum(new_ages.values()) / len(current) if current else None
        row["clusters_are_steady"] = False
        rows.append(row)
        before, ages = current, new_ages
    for start in range(len(layers)):
        for stop in range(start + 3, len(layers) + 1):
            counts = [None if labels is None else len(groups(labels)) for labels in layers[start:stop]]
            aris = [row["adjacent_ari"] for row in rows[start + 1 : stop]]
            # Whole runs of any length, not only stretches of three, but within tolerance in every stretch of three.
            if None in counts or 0 in counts or None in aris or min(aris) < 1 - ari_tolerance - 1e-12:
                continue
            stretches = [counts[i : i + 3] for i in range(len(counts) - 2)]
            if all(max(c) - min(c) <= count_tolerance * max(c) for c in stretches):
                for row in rows[start:stop]:
                    row["clusters_are_steady"] = True
    return rows


@settings(laws, max_examples=150)
@given(seeds)
def test_every_column_is_its_definition_in_sets_of_tokens(seed):
    layers = trajectory(seed, undefined=True)
    tolerances = {"count_tolerance": 0.3, "ari_tolerance": 0.6}
    for row, expected in zip(life(layers, **tolerances), slow(layers, **tolerances), strict=True):
        assert_honest(row)
        assert_close({name: row[name] for name in FOLLOWED}, expected)


@laws
@given(seeds)
def test_neither_the_order_of_tokens_nor_the_numbers_of_clusters_matter(seed):
    layers, rng = trajectory(seed), np.random.default_rng(seed)
    rows = life(layers)
    order = rng.permutation(len(layers[0]))
    # Label -1 stays: noise is no number among others.
    names = [np.append(rng.permutation(50)[:20], -1) for _ in layers]
    assert life([layer[order] for layer in layers]) == rows
    assert life([name[layer] for name, layer in zip(names, layers)]) == rows


@laws
@given(seeds)
def test_backwards_births_are_deaths_and_merges_are_splits(seed):
    layers = trajectory(seed)
    for a, b in zip(layers, layers[1:]):
        births, deaths, merges, splits, survivors = step(a, b)
        assert step(b, a) == (deaths, births, splits, merges, survivors)
        assert life([a, b])[1]["adjacent_ari"] == life([b, a])[1]["adjacent_ari"]


@laws
@given(seeds)
def test_a_layer_that_repeats_keeps_every_cluster(seed):
    labels = trajectory(seed)[0]
    count = len(groups(labels))
    rows = life([labels] * 4)
    for age, row in enumerate(rows[1:], start=2):
        assert tuple(row[name] for name in EVENTS) == (0, 0, 0, 0, count)
        assert row["adjacent_ari"] == (1 if count else None)
        assert row["mean_lifespan"] == (age if count else None)
    assert {row["clusters_are_steady"] for row in rows} == {count > 0}


@settings(laws, max_examples=100)
@given(seeds)
def test_the_adjusted_rand_index_is_that_of_sklearn_with_noise_as_a_label(seed):
    layers = trajectory(seed)
    for a, b, row in zip(layers, layers[1:], life(layers)[1:]):
        if row["adjacent_ari"] is None:
            assert set(a) == set(b) == {-1}
        else:
            assert row["adjacent_ari"] == pytest.approx(adjusted_rand_score(a, b), abs=1e-12)


def test_the_adjusted_rand_index_of_many_tokens_does_not_overflow():
    a = np.repeat([0, 1], 100_000)
    b = np.roll(a, 1_000)
    assert life([a, b])[1]["adjacent_ari"] == pytest.approx(adjusted_rand_score(a, b), abs=1e-12)


@pytest.mark.parametrize(
    ("before", "current", "events"),
    [
        ([0, 0, 1, 1], [5, 5, 2, 2], (0, 0, 0, 0, 2)),
        ([0, 0, 1, 1], [0, 0, 0, 0], (0, 0, 1, 0, 0)),
        ([0, 0, 0, 0], [0, 0, 1, 1], (0, 0, 0, 1, 0)),
        ([-1, -1, 1, 1], [0, 0, 1, 1], (1, 0, 0, 0, 1)),
        ([0, 0, 1, 1], [-1, -1, 1, 1], (0, 1, 0, 0, 1)),
        ([0, 0, 1, 1], [0, 1, 0, 1], (2, 2, 0, 0, 0)),
        ([0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 1], (0, 0, 0, 0, 2)),
        ([-1] * 4, [-1] * 4, (0, 0, 0, 0, 0)),
        ([0, 0, 1, 1, 2, 2, 2, 2], [0, 0, 0, 0, 1, 1, 2, 2], (0, 0, 1, 1, 0)),
        ([0, 0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 1, 1, 1], (0, 0, 1, 1, 0)),
    ],
    ids=["survive", "merge", "split", "birth", "death", "redrawn", "one-moves", "noise", "merge-and-split", "exchange"],
)
def test_events_by_hand(before, current, events):
    assert step(before, current) == events


def test_half_of_the_smaller_cluster_is_no_link_and_more_than_half_is_one():
    three, two = [0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1, 1]
    assert step(three, two) == (0, 0, 0, 0, 2)
    assert step([0, 0, 0, 0, -1, -1], [0, 0, -1, -1, 0, 0]) == (1, 1, 0, 0, 0)
    assert step([0, 0, 0, 0, -1, -1], [0, 0, 0, -1, 0, -1]) == (0, 0, 0, 0, 1)


def test_noise_is_no_cluster_that_lives():
    assert step([-1, -1, -1, 0, 0], [-1, -1, -1, 0, 0]) == (0, 0, 0, 0, 1)
    assert step([-1] * 3 + [0] * 2, [0] * 3 + [-1] * 2) == (1, 1, 0, 0, 0)


def test_ages_grow_with_survival_and_start_anew_with_birth_merge_and_split():
    layers = [
        [0, 0, 1, 1, 2, 2, -1, -1],
        [0, 0, 1, 1, 2, 2, 3, 3],  # 0, 1, 2 survive: 2, 2, 2; 3 is born: 1
        [0, 0, 0, 0, 2, 2, 3, 3],  # merged: 1; 2 and 3 survive: 3, 2
        [0, 0, 1, 1, 2, 2, -1, -1],  # split: 1, 1; 2 survives: 4
    ]
    assert column(layers, "mean_lifespan") == [1, pytest.approx(7 / 4), 2, 2]


def test_the_first_layer_has_no_step_but_an_age():
    first = life([[0, 0, 1, 1, -1]])[0]
    assert_honest(first)
    assert {first[name] for name in STEP_COLUMNS} == {None}
    assert first["undefined"] == "births, deaths, merges, splits, survivors, adjacent_ari: no layer before the first"
    assert (first["mean_lifespan"], first["clusters_are_steady"]) == (1, False)


def test_an_undefined_layer_is_null_and_the_next_one_starts_anew():
    labels = [0, 0, 1, 1]
    rows = life([labels, labels, None, labels, labels])
    assert_null(rows[2], "the clusters of this layer are undefined")
    assert {rows[3][name] for name in STEP_COLUMNS} == {None}
    assert "the clusters of the layer before are undefined" in rows[3]["undefined"]
    assert [row["mean_lifespan"] for row in rows] == [1, 2, None, 1, 2]
    assert [row["clusters_are_steady"] for row in rows] == [False, False, None, False, False]


def test_without_clusters_on_either_side_there_is_no_agreement_to_speak_of():
    """Collapse and pure noise: scikit-learn's convention would say 1, perfect stability."""
    noise, some = [-1] * 6, [0, 0, 0, 1, 1, 1]
    rows = life([noise, noise, noise, some, noise])
    assert [row["adjacent_ari"] for row in rows] == [None, None, None, 0, 0]
    assert rows[1]["undefined"] == "adjacent_ari: no clusters in either layer; mean_lifespan: no clusters"
    assert [row["clusters_are_steady"] for row in rows] == [False] * 5
    assert column([noise, some, noise], "clusters_are_steady", count_tolerance=1.0, ari_tolerance=1.0) == [False] * 3
    assert [row["mean_lifespan"] for row in rows] == [None, None, None, 1, None]


def test_one_cluster_of_everything_agrees_with_itself():
    rows = life([[0] * 5] * 3)
    assert [row["adjacent_ari"] for row in rows] == [None, 1, 1]
    assert [row["clusters_are_steady"] for row in rows] == [True] * 3


def numbered(count, n=240):
    """n tokens in `count` clusters of equal size."""
    return np.arange(n) % count


def test_a_plateau_is_at_least_three_layers():
    a, b = numbered(4), numbered(4) // 2
    assert column([a, a, b, b], "clusters_are_steady") == [False] * 4
    assert column([a, a, a, b, b], "clusters_are_steady") == [True] * 3 + [False] * 2
    assert column([b, a, a, a, a, b], "clusters_are_steady") == [False, True, True, True, True, False]
    assert column([a, a], "clusters_are_steady") == [False, False]


def test_a_plateau_needs_both_signals():
    same = numbered(4)
    moved = np.roll(same.reshape(2, -1), 1, axis=0).reshape(-1)
    regrouped = np.arange(240) // 60
    assert set(column([same, moved, same], "clusters_are_steady")) == {True}
    # The same number of clusters, other tokens in them.
    assert column([same, regrouped, same], "adjacent_ari")[1] < 0.1
    assert set(column([same, regrouped, same], "clusters_are_steady", count_tolerance=0.0)) == {False}
    # Nearly the same tokens together, another number of clusters.
    pieces = np.where(np.arange(240) < 8, 4 + np.arange(240) // 2, same)
    assert min(column([same, pieces, same], "adjacent_ari")[1:]) > 0.9
    assert set(column([same, pieces, same], "clusters_are_steady", count_tolerance=0.4)) == {False}
    assert set(column([same, pieces, same], "clusters_are_steady", count_tolerance=0.5)) == {True}


def test_tolerances_count_their_own_value_as_within():
    ten, nine = [np.arange(10), np.minimum(np.arange(10), 8)]
    ari = column([ten, nine], "adjacent_ari")[1]
    assert ari == 0
    assert set(column([ten, nine, ten], "clusters_are_steady", count_tolerance=0.1, ari_tolerance=1.0)) == {True}
    assert set(column([ten, nine, ten], "clusters_are_steady", count_tolerance=0.09, ari_tolerance=1.0)) == {False}


def test_zero_tolerance_asks_for_the_same_clusters():
    a = numbered(6)
    b = a.copy()
    b[0] = -1
    assert set(column([a, a, a], "clusters_are_steady", count_tolerance=0.0, ari_tolerance=0.0)) == {True}
    assert set(column([a, b, a], "clusters_are_steady", count_tolerance=0.0, ari_tolerance=0.0)) == {False}


@pytest.mark.parametrize("n", [0, 1, 2, 3])
@pytest.mark.parametrize("label", [-1, 0])
def test_few_tokens_are_no_crash(n, label):
    rows = life([np.full(n, label)] * 3)
    for row in rows:
        assert_honest(row)
    assert rows[2]["survivors"] == (n > 0 and label == 0)


def test_no_layers_are_no_rows():
    assert life([]) == []


@pytest.mark.parametrize(
    ("layers", "cause"),
    [
        ([[0, 0], [0, 0, 1]], "2 and 3 tokens"),
        ([[0, 0], None, [0]], "1 and 2 tokens"),
        ([[0.0, np.nan]], "vector of integers, found float64"),
        ([[True, False]], "vector of integers, found bool"),
        ([[[0, 1]]], r"vector of integers, found int64 of shape \(1, 2\)"),
        ([[0, -2]], "start at -1, which is noise: found -2"),
    ],
    ids=["more-tokens", "fewer-tokens", "nan", "bool", "2-D", "below-noise"],
)
def test_labels_that_cannot_be_are_refused(layers, cause):
    with pytest.raises(Refusal, match=cause):
        life(layers)


def test_layers_can_come_one_by_one():
    layers = trajectory(3)
    assert life(iter(layers)) == life(layers)


# Plateaus: what clusters and states say, together


def of_rank(rank, n=12, d=16, seed=0):
    """A layer whose directions have about this effective rank: copies of `rank` orthogonal ones."""
    return lengths(n, seed) * np.eye(d)[np.arange(n) % rank]


def both(ranks, layers, rank_tolerance=0.1):
    states = [of_rank(rank, n=len(layers[0])) for rank in ranks]
    return list(cluster_life(states, layers, **TOLERANCES, rank_tolerance=rank_tolerance))


STILL = [np.array([0] * 6 + [1] * 6)] * 6


def test_rows_have_what_follows_clusters_and_the_plateaus():
    rows = both([4] * 6, STILL)
    for row, followed in zip(rows, life(STILL), strict=True):
        assert set(row) == {*COLUMNS, "undefined"}
        assert {name: row[name] for name in FOLLOWED} == {name: followed[name] for name in FOLLOWED}


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([4, 4, 4, 4, 4, 4], [True] * 6),
        ([2, 4, 4, 4, 8, 12], [False, True, True, True, False, False]),
        ([2, 3, 4, 6, 8, 12], [False] * 6),
        ([4, 4, 8, 8, 4, 4], [False] * 6),
    ],
)
def test_a_plateau_needs_three_layers_of_steady_rank_where_clusters_stand_still(ranks, expected):
    rows = both(ranks, STILL)
    assert all(row["clusters_are_steady"] for row in rows)
    assert [row["rank_is_steady"] for row in rows] == [row["is_plateau"] for row in rows] == expected


def test_steady_states_with_clusters_drawn_anew_are_no_plateau():
    rng = np.random.default_rng(0)
    rows = both([4] * 6, [rng.permutation(STILL[0]) for _ in range(6)])
    assert [row["rank_is_steady"] for row in rows] == [True] * 6
    assert [row["is_plateau"] for row in rows] == [False] * 6


def test_collapse_is_steady_in_rank_and_no_plateau():
    rows = both([1] * 6, [np.full(12, -1)] * 6)
    assert [row["rank_is_steady"] for row in rows] == [True] * 6
    assert [row["is_plateau"] for row in rows] == [False] * 6


def test_the_rank_may_vary_by_the_tolerance_and_no_more():
    """Ranks 6 and 12: half of the larger."""
    assert [row["rank_is_steady"] for row in both([6, 12, 6], STILL[:3], rank_tolerance=0.51)] == [True] * 3
    assert [row["rank_is_steady"] for row in both([6, 12, 6], STILL[:3], rank_tolerance=0.49)] == [False] * 3


def test_a_layer_without_directions_has_no_plateau_and_ends_those_around_it():
    states = [of_rank(4) for _ in range(5)]
    states[2] = np.zeros((12, 16))
    rows = list(cluster_life(states, STILL[:5], **TOLERANCES, rank_tolerance=0.1))
    assert [row["rank_is_steady"] for row in rows] == [False, False, None, False, False]
    assert (
        rows[2]["is_plateau"] is None and "rank_is_steady, is_plateau: row 0 is a zero vector" in rows[2]["undefined"]
    )


def test_a_layer_whose_clusters_are_undefined_has_no_plateau():
    rows = both([4] * 3, [STILL[0], None, STILL[0]])
    assert [row["is_plateau"] for row in rows] == [False, None, False]
    assert [row["rank_is_steady"] for row in rows] == [True] * 3


def test_another_number_of_layers_than_of_labels_is_an_error():
    with pytest.raises(ValueError, match="shorter"):
        both([4] * 3, STILL)
