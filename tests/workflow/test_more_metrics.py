"""Metrics that the config adds to a finished run: they run alone, and hold what they say of states and labels."""

import json
import re

import numpy as np
import pytest
import torch
from transformers import AutoModel

from collapse import tables
from collapse.attention_groups import attention_groups
from collapse.measure import cluster_labels
from collapse.metrics.pair_groups import GROUPS, pair_groups
from collapse.metrics.projections import projections
from collapse.registry import FIGURES, METRICS
from collapse.states import StatesFile
from collapse.weights import restore

FIRST = ["inner_products", "energy", "effective_rank", "cka", "nn_stability", "clusters"]
# attention_tokens is not asked for: attention_received brings it along.
MORE = [
    *("pair_groups", "cluster_life", "cluster_membership", "spectral_k", "projections"),
    *("fiedler", "attention_entropy", "attention_received"),
]
EXPLORER = "results/report/explorer.html"
WEIGHTS = ["trained", "norm-matched-s0", "norm-matched-s1", "identity-b1"]


@pytest.fixture(scope="module")
def extended(finished, tmp_path_factory):
    project = finished.copy(tmp_path_factory.mktemp("extended") / "project")
    config = project.config()
    config["metrics"] = [*FIRST, *MORE]
    config["prompts"] = ["fox"]
    project.write_config(config)
    # Four runs, one of them the theory's; the tables of before lose a prompt.
    assert project.planned("tables") == {
        "metric": 4,
        "metric_of_clusters": 12,
        "projections": 12,
        "attention": 3,
        "identity_attention": 1,
        "attention_received": 4,
        "runs_table": 1,
        "aggregate": 7 + len(MORE),
        "tables": 1,
    }
    done = project.snakemake("tables", "figures", EXPLORER)
    assert done.returncode == 0, done.stdout
    return project


def rows_of(project, name, **where):
    rows = tables.read(project.root / f"results/tables/{name}.parquet", name).to_pylist()
    return [row for row in rows if all(row[key] == value for key, value in where.items())]


def run_file(project, table, weights="trained"):
    return project.root / "results" / table / "tiny" / weights / "fox.parquet"


def test_every_metric_of_the_schema_is_in_this_test_or_the_first_run():
    assert {*FIRST, *MORE, "attention_tokens"} == set(METRICS)


@pytest.mark.parametrize(
    ("name", "per_state"), [("pair_groups", 4), ("cluster_life", 1), ("spectral_k", 1)], ids=lambda value: str(value)
)
def test_added_tables_hold_the_whole_grid(extended, name, per_state):
    # Two token rules; five states of the model with each of three weights, four of the theory.
    assert len(rows_of(extended, name)) == per_state * 2 * (3 * 5 + 4)


@pytest.mark.parametrize(("name", "heads", "theory"), [("fiedler", 5, 2), ("attention_entropy", 5, 2)])
def test_attention_has_a_row_per_block_and_head_and_the_mean_of_heads(extended, name, heads, theory):
    """Three blocks and four heads; the theory has one head."""
    assert len(rows_of(extended, name)) == 2 * 3 * (3 * heads + theory)
    for weights in WEIGHTS:
        rows = rows_of(extended, name, weights=weights, tokens="all", layer=1)
        assert [row["head"] for row in rows] == ([0, 1, 2, 3, -1] if weights != "identity-b1" else [0, -1])


def test_labels_of_tokens_follow_the_tokens(extended):
    states = StatesFile(run_file(extended, "states"))
    n = {rule: int(states.mask(rule).sum()) for rule in ("all", "content")}
    assert len(rows_of(extended, "cluster_membership")) == 4 * sum(n.values())
    # PCA at all states, the others at three depths of three blocks: layers 0, 2 and 3.
    for method, places in (("pca", 5), ("tsne", 3), ("umap", 3)):
        rows = rows_of(extended, "projections", weights="trained", method=method, tokens="content")
        assert len(rows) == places * n["content"]
        # Only PCA runs under both token rules.
        rest = rows_of(extended, "projections", weights="trained", method=method, tokens="all")
        assert len(rest) == (places * n["all"] if method == "pca" else 0)
    assert sorted({row["layer"] for row in rows}) == [0, 2, 3]


def test_pair_groups_are_those_of_the_stored_labels(extended):
    labels = cluster_labels(run_file(extended, "metrics/cluster_labels", "norm-matched-s0"))
    states = StatesFile(run_file(extended, "states", "norm-matched-s0"))
    rows = rows_of(extended, "pair_groups", weights="norm-matched-s0", tokens="all")
    for index, (layer, stage) in enumerate(states.states):
        expected = pair_groups(states.read(index).astype(np.float64), labels["all", layer, stage])
        found = rows[index * len(GROUPS) : (index + 1) * len(GROUPS)]
        assert [{key: row[key] for key in expected[0]} for row in found] == expected


def test_attention_is_that_of_the_library_with_the_run_s_own_weights(extended):
    """Entropy from the library's attentions, row by row."""
    place = extended.root / "results/weights/tiny"
    trained = place / "trained/checkpoint", place / "trained/weights.json"
    for weights in ("trained", "norm-matched-s1"):
        states = StatesFile(run_file(extended, "states", weights))
        ids = states.tokens()["token_id"].to_pylist()
        checkpoint = place / weights / "checkpoint"
        if weights != "trained":
            # Discarded when the workflow was done; a seed draws it again.
            assert not checkpoint.exists()
            record = json.loads((place / weights / "weights.json").read_text())
            restore(record, *trained, checkpoint)
        model = AutoModel.from_pretrained(checkpoint, attn_implementation="eager").eval()
        with torch.inference_mode():
            attentions = model(torch.tensor([ids]), output_attentions=True).attentions
        for layer, attention in enumerate(attentions):
            rows = rows_of(extended, "attention_entropy", weights=weights, tokens="all", layer=layer)
            for row, A in zip(rows, attention[0].double().numpy()):
                expected = -np.where(A > 0, A * np.log(np.where(A > 0, A, 1)), 0).sum(axis=1).mean()
                assert row["entropy"] == pytest.approx(expected, abs=1e-6)


def test_attention_received_needs_the_tables_of_tokens_and_clusters_alone(extended):
    for weights in WEIGHTS:
        expected = attention_groups(
            run_file(extended, "states", weights),
            run_file(extended, "metrics/cluster_labels", weights),
            run_file(extended, "metrics/attention_tokens", weights),
        )
        assert rows_of(extended, "attention_received", weights=weights) == expected


def test_projections_are_those_of_the_stored_states(extended):
    states = StatesFile(run_file(extended, "states"))
    rows = rows_of(extended, "projections", weights="trained", tokens="all", method="pca", layer=2, stage="block")
    expected = projections(states.read(2), "pca")
    assert [{key: row[key] for key in expected[0]} for row in rows] == expected


def test_every_figure_of_the_registry_is_drawn(extended):
    drawn = {
        path.relative_to(extended.root / "results/figures").parts[0]
        for path in extended.root.glob("results/figures/**/*.md")
    }
    assert {name.removesuffix(".md") for name in drawn} == set(FIGURES)


def test_causal_and_bidirectional_heads_are_never_on_one_axis_as_published(extended):
    """Each model has a figure of its own, so the only axes are of one mask."""
    figures = extended.root / "results/figures/fiedler_published"
    assert (figures / "tiny.svg").is_file() and (figures / "tiny.png").is_file()
    assert "uniform attention under the same mask" in (figures / "tiny.md").read_text()


def test_the_record_says_how_attention_was_computed(extended):
    record = tables.record(run_file(extended, "metrics/fiedler"))
    assert record["attention"]["device"] == "cpu" and record["attention"]["dtype"] == "float32"
    received = tables.record(run_file(extended, "metrics/attention_received"))
    assert received["attention"] == record["attention"]
    for name in ("fiedler", "attention_received"):
        gathered = tables.record(extended.root / f"results/tables/{name}.parquet")
        passed = {key: record["attention"][key] for key in ("device", "dtype", "versions")}
        assert gathered["attention"] == passed and gathered["states"]["dtype"] == "float32"
    assert record["options"] == {"rounds": 100, "tolerance": 1e-6}
    assert {"scipy", "numpy"} <= set(record["versions"])
    weights = json.loads((extended.root / "results/weights/tiny/trained/weights.json").read_text())
    assert record["states"]["weights_hash"] == weights["weights_hash"]


def test_the_explorer_holds_every_run_with_every_method(extended):
    page = (extended.root / EXPLORER).read_text()
    found = dict(re.findall(r'<script type="application/json" data-run="([^"]+)">(.*?)</script>', page, re.DOTALL))
    assert found.keys() == {f"tiny/{weights}/fox" for weights in WEIGHTS}
    for weights in WEIGHTS:
        run, states = json.loads(found[f"tiny/{weights}/fox"]), StatesFile(run_file(extended, "states", weights))
        assert run["text"] == states.tokens()["token"].to_pylist()
        assert [(layer, stage) for layer, stage, _ in run["states"]] == states.states
        for rule in run["rules"].values():
            assert [len(method["frames"]) for method in rule["methods"].values()] == [len(states), 3, 3]
        reasons = {frame["undefined"] for frame in run["rules"]["all"]["methods"]["tsne"]["frames"]}
        assert reasons == {"not computed under this token rule, see projections.tokens of the config"}


def test_the_explorer_runs_again_alone_where_only_it_changed(extended, tmp_path):
    extended = extended.copy(tmp_path / "project")
    (extended.root / "workflow/report/explorer.js").touch()
    assert extended.planned(EXPLORER) == {}
    for path, old, new in (
        ("report/explorer.js", "const STEP_MS = 600;", "const STEP_MS = 700;"),
        ("report/explorer.css", "--line: #dcdce0;", "--line: #dcdce1;"),
        ("report/explorer.html.j2", "<h1>Explorer</h1>", "<h1>The explorer</h1>"),
        ("scripts/collapse/pictures.py", "STEPS = 32767", "STEPS = 32766"),
    ):
        extended.edit(f"workflow/{path}", old, new)
        assert extended.planned("tables", EXPLORER) == {"write_explorer": 1}
        extended.edit(f"workflow/{path}", new, old)
    assert extended.planned("tables", EXPLORER) == {}


def test_what_a_change_reruns(extended, tmp_path):
    extended = extended.copy(tmp_path / "project")
    assert extended.planned("tables") == {}
    before = extended.config()

    def planned(**sections):
        extended.write_config(before | sections)
        return extended.planned("tables")

    assert planned(cluster_life={"ari_tolerance": 0.3}) == {"metric_of_clusters": 4, "aggregate": 1, "tables": 1}
    # The perplexity is t-SNE's alone, the seed also UMAP's, and neither is PCA's.
    assert planned(projections={"perplexity": 5}) == {"projections": 4, "aggregate": 1, "tables": 1}
    assert planned(projections={"seed": 1}) == {"projections": 8, "aggregate": 1, "tables": 1}
    assert planned(projections={"tokens": ["all", "content"]}) == {"projections": 8, "aggregate": 1, "tables": 1}
    assert planned(projections={"methods": ["pca"]}) == {"aggregate": 1, "tables": 1}
    # One pass yields all that is measured on attention, and never runs extraction.
    attention = {"attention": 3, "identity_attention": 1, "attention_received": 4}
    assert planned(fiedler={"rounds": 50}) == attention | {"aggregate": 3, "tables": 1}
    extended.write_config(before)
    entropy = "workflow/scripts/collapse/metrics/attention_entropy.py"
    extended.edit(entropy, "return max(0.0, ", "return max(0.0, 1.0 * ")
    assert extended.planned("tables") == attention | {"aggregate": 3, "tables": 1}
    extended.edit(entropy, "return max(0.0, 1.0 * ", "return max(0.0, ")
    labels = {"clusters": 4, "metric_of_clusters": 12, "attention_received": 4}
    assert planned(clusters={"min_cluster_size": 3}) == labels | {"aggregate": 6, "tables": 1}
    extended.write_config(before)
    extended.edit(
        "workflow/scripts/collapse/metrics/attention_received.py", "float(inside.mean())", "1.0 * float(inside.mean())"
    )
    assert extended.planned("tables") == {"attention_received": 4, "aggregate": 1, "tables": 1}
