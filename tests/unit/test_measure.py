"""One metric over one states file: which states it sees, how it is called, and the keys of its rows."""

import numpy as np
import pytest
from test_attention_tables import BLOCKS, N, labels_file, states_file

from collapse.measure import measure, places_at, rows_of
from collapse.states import StatesFile

RULES = ("all", "content")
PLACES = [(0, "embedding"), (1, "block"), (2, "block"), (2, "final_norm")]


@pytest.fixture
def path(tmp_path):
    return states_file(tmp_path / "s.parquet", special=(N - 1,))


def places(measured):
    return [(keys["tokens"], keys["layer"], keys["stage"]) for keys, _, _ in measured]


def test_a_metric_over_layers_sees_every_state_in_float64_under_both_rules(path):
    found = list(measure(path, lambda H: (H.copy(), H.dtype), "layer", {}))
    assert places(found) == [(rule, *place) for place in PLACES for rule in RULES]
    states = StatesFile(path)
    for (keys, (H, dtype), mask), place in zip(found, [0, 0, 1, 1, 2, 2, 3, 3], strict=True):
        assert dtype == np.float64 and np.array_equal(H, states.read(place)[mask])
        assert keys["depth"] == keys["layer"] / BLOCKS
        assert mask.sum() == (N if keys["tokens"] == "all" else N - 2)


def test_a_metric_over_trajectories_is_called_once_per_rule(path):
    calls = []

    def lengths(states, option):
        calls.append(option)
        return [len(H) for H in states]

    found = list(measure(path, lengths, "trajectory", {"option": 3}, {"beta": 2.0}))
    assert calls == [3, 3]
    assert [(keys["beta"], n) for keys, n, _ in found] == [(2.0, N), (2.0, N - 2)] * 4


@pytest.mark.parametrize(
    ("depths", "expected"),
    [
        ([0.07], [0]),
        ([0.07, 0.6, 1.0], [0, 1, 2]),
        ([0.25], [1]),
        ([0.24], [0]),
        ([1.0, 0.9, 0], [0, 2]),
        ([0.75], [2]),
    ],
)
def test_depths_choose_the_nearest_layers_never_the_state_after_the_norm(path, depths, expected):
    assert places_at(StatesFile(path), depths) == expected
    found = list(measure(path, len, "layer", {}, depths=depths))
    assert places(found) == [(rule, *PLACES[place]) for place in expected for rule in RULES]


@pytest.fixture
def decoded(monkeypatch):
    """The places of the states that are decoded, in order."""
    found, original = [], StatesFile._state
    monkeypatch.setattr(StatesFile, "_state", lambda self, place: found.append(place) or original(self, place))
    return found


def test_only_the_chosen_layers_are_read(path, decoded):
    list(measure(path, len, "layer", {}, depths=[0.5]))
    assert decoded == [1]


@pytest.mark.parametrize("over", ["layer", "trajectory", "layer_labels", "trajectory_labels"])
def test_a_state_is_read_once_for_both_rules(path, decoded, over):
    """All but the state after the final norm for the metrics that leave it out."""

    def trajectory(states, *_):
        for H in states:
            yield {"value": len(H), "undefined": None}

    function = trajectory if over.startswith("trajectory") else lambda H, *_: len(H)
    assert len(list(measure(path, function, over, {}))) == 8
    assert decoded == ([0, 1, 2] if over == "trajectory_labels" else [0, 1, 2, 3])


def test_states_that_a_metric_looks_ahead_to_are_read_again_rather_than_kept(path, decoded):
    def ahead(states):
        return [len(H) for H in states]

    assert [n for _, n, _ in measure(path, ahead, "trajectory", {})] == [N, N - 2] * 4
    assert decoded == [0, 1, 2, 3] * 2


def test_a_metric_that_loses_a_state_is_an_error(path):
    with pytest.raises(ValueError, match="shorter"):
        list(measure(path, lambda states: [len(H) for H in states][1:], "trajectory", {}))


@pytest.mark.parametrize("tokens", [["content"], ["all"], ["all", "content"], ["content", "all"]], ids=" ".join)
@pytest.mark.parametrize("over", ["layer", "trajectory"])
def test_only_the_chosen_token_rules_are_measured_with_the_same_values_in_the_same_order(path, over, tokens):
    function = (lambda H: float(H.sum())) if over == "layer" else lambda states: [float(H.sum()) for H in states]
    whole = [(keys, value, mask.tolist()) for keys, value, mask in measure(path, function, over, {})]
    found = [(keys, value, mask.tolist()) for keys, value, mask in measure(path, function, over, {}, tokens=tokens)]
    assert found == [row for row in whole if row[0]["tokens"] in tokens]


def test_labels_per_token_are_those_of_the_layers_without_the_state_after_the_norm(path, tmp_path):
    labels = labels_file(tmp_path / "l.parquet", path, lambda rule, place, n: np.full(n, place) if place else None)
    seen = []

    def count(layers, n_tokens):
        seen.append((n_tokens, [None if layer is None else layer.tolist() for layer in layers]))
        return [{"value": i} for i in range(n_tokens)]

    found = list(measure(path, count, "labels_per_token", {}, labels=labels))
    assert seen == [(n, [None, [1] * n, [2] * n]) for n in (N, N - 2)]
    rows = rows_of(found, "cluster_membership")
    assert [row["position"] for row in rows] == [*range(N), *range(1, N - 1)]
    assert "layer" not in rows[0] and rows[0]["prompt"] == "p"


def test_rows_of_tokens_have_the_position_in_the_prompt_and_other_rows_have_none(path):
    per_token = measure(path, lambda H: [{"x": i} for i in range(len(H))], "layer", {}, depths=[1.0])
    assert [row["position"] for row in rows_of(per_token, "projections")] == [*range(N), *range(1, N - 1)]
    per_group = measure(path, lambda H: [{"group": "a"}, {"group": "b"}], "layer", {}, depths=[1.0])
    rows = rows_of(per_group, "pair_groups")
    assert [(row["tokens"], row["group"]) for row in rows] == [
        ("all", "a"),
        ("all", "b"),
        ("content", "a"),
        ("content", "b"),
    ]
    assert "position" not in rows[0]
    per_state = measure(path, lambda H: {"value": len(H)}, "layer", {})
    assert [row["value"] for row in rows_of(per_state, "spectral_k")] == [N] * 4 + [N - 2] * 4


def test_a_metric_that_loses_a_token_is_an_error(path):
    with pytest.raises(ValueError, match="shorter"):
        rows_of(measure(path, lambda H: [{"x": 0}], "layer", {}), "projections")
