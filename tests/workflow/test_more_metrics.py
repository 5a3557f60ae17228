"""Metrics that the config adds to a finished run: they run alone, and hold what they say of states and labels."""

import numpy as np
import pytest

from collapse import tables
from collapse.measure import cluster_labels
from collapse.metrics.pair_groups import GROUPS, pair_groups
from collapse.states import StatesFile

MORE = ["pair_groups", "cluster_life", "spectral_k"]


@pytest.fixture(scope="module")
def extended(finished, tmp_path_factory):
    project = finished.copy(tmp_path_factory.mktemp("extended") / "project")
    config = project.config()
    config["metrics"] = ["inner_products", "energy", "effective_rank", "cka", "nn_stability", "clusters", *MORE]
    project.write_config(config)
    assert project.planned("tables") == {"metric": 8, "metric_of_clusters": 16, "aggregate": 3, "tables": 1}
    done = project.snakemake("tables")
    assert done.returncode == 0, done.stdout
    return project


@pytest.mark.parametrize(("name", "per_state"), [("pair_groups", 4), ("cluster_life", 1), ("spectral_k", 1)])
def test_added_tables_hold_the_whole_grid(extended, name, per_state):
    data = tables.read(extended.root / f"results/tables/{name}.parquet", name)
    # Two prompts, two token rules; five states of the model with each of three weights, four of the theory.
    assert data.num_rows == per_state * 2 * 2 * (3 * 5 + 4)


def test_pair_groups_are_those_of_the_stored_labels(extended):
    run = "tiny/norm-matched-s0/fox.parquet"
    labels = cluster_labels(extended.root / "results/metrics/cluster_labels" / run)
    states = StatesFile(extended.root / "results/states" / run)
    rows = tables.read(extended.root / "results/metrics/pair_groups" / run, "pair_groups").to_pylist()
    rows = [row for row in rows if row["tokens"] == "all"]
    for index, (layer, stage) in enumerate(states.states):
        expected = pair_groups(states.read(index).astype(np.float64), labels["all", layer, stage])
        found = rows[index * len(GROUPS) : (index + 1) * len(GROUPS)]
        assert [{key: row[key] for key in expected[0]} for row in found] == expected


def test_other_labels_rerun_what_is_measured_on_them(extended):
    config = extended.config()
    config["cluster_life"] = {"ari_tolerance": 0.3}
    extended.write_config(config)
    assert extended.planned("tables") == {"metric_of_clusters": 8, "aggregate": 1, "tables": 1}
    config["clusters"] = {"min_cluster_size": 3}
    extended.write_config(config)
    assert extended.planned("tables") == {"clusters": 8, "metric_of_clusters": 16, "aggregate": 4, "tables": 1}
