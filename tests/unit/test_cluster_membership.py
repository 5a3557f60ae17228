import numpy as np
import pytest
from clouds import laws, seeds
from hypothesis import given

from collapse.errors import Refusal
from collapse.metrics.cluster_membership import COLUMNS, cluster_membership


def shares(layers, n):
    rows = cluster_membership(layers, n)
    assert all(list(row) == [*COLUMNS, "undefined"] and row["undefined"] is None for row in rows)
    return [row["clustered_share"] for row in rows]


def trajectory(seed, n=9, layers=6):
    return list(np.random.default_rng(seed).integers(-1, 3, size=(layers, n)))


def test_layers_count_where_their_clusters_are_defined():
    layers = [[0, 0, -1, -1], None, [0, 0, 0, -1], [-1, 3, 3, -1], [-1, 0, 0, -1]]
    assert shares(layers, 4) == [0.5, 1, 0.75, 0]


@laws
@given(seeds)
def test_the_share_is_a_count_per_token(seed):
    layers = trajectory(seed)
    expected = [sum(layer[i] >= 0 for layer in layers) / len(layers) for i in range(9)]
    assert shares(layers, 9) == pytest.approx(expected)


@laws
@given(seeds)
def test_names_of_clusters_and_order_of_layers_do_not_count(seed):
    layers = trajectory(seed)
    renamed = [np.where(layer < 0, layer, 7 - layer) for layer in reversed(layers)]
    assert shares(renamed, 9) == pytest.approx(shares(layers, 9))
    assert shares(iter(layers), 9) == shares(layers, 9)


@pytest.mark.parametrize("layers", [[], [None], [None, None]])
@pytest.mark.parametrize("n", [0, 1, 3])
def test_without_a_layer_of_defined_clusters_every_token_is_null_with_the_cause(layers, n):
    rows = cluster_membership(layers, n)
    assert rows == [{"clustered_share": None, "undefined": "the clusters of every layer are undefined"}] * n


@pytest.mark.parametrize(
    ("layers", "cause"),
    [
        ([[0, 0], [0, 0, 1]], "2 and 3 tokens"),
        ([[0, 0], None], "labels are of 2 tokens, expected 3"),
        ([[0.0, np.nan, 1.0]], "vector of integers, found float64"),
        ([[0, -2, 0]], "start at -1, which is noise: found -2"),
    ],
)
def test_labels_that_cannot_be_are_refused(layers, cause):
    with pytest.raises(Refusal, match=cause):
        cluster_membership(layers, 3)
