"""What a change runs: exactly what it affects. Eight runs: one model, four weights, two prompts.

Each test holds a row of docs/reruns.md.
"""

import os
import re
import subprocess
import time

import pyarrow.parquet as pq
from project import REPOSITORY, Project
from tiny_models import make_model, pins

from collapse.provenance import pack, unpack

METRICS = "workflow/scripts/collapse/metrics"
DRAWN_FROM_ALL = {"score_claims": 1, "draw_figure": 17, "write_report": 1, "all": 1}
ONE_PROMPT = {
    "extract": 3,
    "identity_states": 1,
    "metric": 16,
    "metric_at_beta": 8,
    "clusters": 4,
    "runs_table": 1,
    "aggregate": 7,
    **DRAWN_FROM_ALL,
}
# These are held elsewhere: four need metrics that the finished run has not, test_more_metrics.py; test_claims_run.py.
ROWS = {"edit an attention metric", "change t-SNE's perplexity", "add or change a claim", "edit the explorer's page"}
ROWS |= {"change the token rules of t-SNE and UMAP"}
# And this needs a model of the hub, test_models_and_weights.py.
ROWS |= {"bring a lock file with another commit"}


def row(change):
    """Mark a test as that of a row of the page."""

    def mark(test):
        ROWS.add(change)
        return test

    return mark


def test_every_row_of_the_page_has_its_test():
    page = (REPOSITORY / "docs" / "reruns.md").read_text()
    cells = re.findall(r"^\| ([^|]+?) \|", page, flags=re.MULTILINE)
    assert cells[0] == "change" and len(cells) > 20
    assert set(cells[1:]) == ROWS


def touch_everything(project):
    later = time.time() + 60
    for part in ("Snakefile", "workflow", "config", "prompts", "profiles", "resources", "results"):
        path = project.root / part
        for file in [path, *path.rglob("*")]:
            # Not what links lead to: the model is everybody's.
            os.utime(file, (later, later), follow_symlinks=False)


@row("nothing")
def test_nothing_has_to_run(changed):
    assert changed.planned() == {}


@row("touch any file")
def test_touching_every_file_runs_nothing(changed):
    touch_everything(changed)
    assert changed.planned() == {}


@row("edit a comment, a docstring, or how jobs log")
def test_editing_comments_and_docstrings_runs_nothing(changed):
    for path in (changed.root / "workflow/scripts").rglob("*.py"):
        text = path.read_text().replace('"""', '"""Reworded. ', 1)
        path.write_text(text + "\n# a remark\n")
    assert changed.planned() == {}


@row("check out another branch and come back")
def test_a_checkout_of_another_branch_and_back_runs_nothing(changed):
    def git(*arguments):
        names = ["-c", "user.name=test", "-c", "user.email=test"]
        subprocess.run(["git", *names, *arguments], cwd=changed.root, check=True, capture_output=True)

    parts = ["Snakefile", "workflow", "profiles", "config", "prompts", "tiny.yaml"]
    git("init", "-q", "-b", "first")
    git("add", *parts)
    git("commit", "-q", "-m", "first")
    git("checkout", "-q", "-b", "second")
    changed.edit(f"{METRICS}/energy.py", "2.0 * np.exp(", "2.000001 * np.exp(")
    (changed.root / "prompts/fox.txt").write_text("Another text about the dog .\n")
    git("commit", "-q", "-a", "-m", "second")
    assert changed.planned()["metric_at_beta"] == 16
    git("checkout", "-q", "first")
    assert changed.planned() == {}


@row("edit a metric's module")
def test_editing_a_metric_runs_it_and_what_is_drawn_from_it(changed):
    """SM01: Snakemake sees no change in an imported module; the hash in the parameters does."""
    changed.edit(f"{METRICS}/energy.py", "2.0 * np.exp(", "2.000001 * np.exp(")
    assert changed.planned() == {
        "metric_at_beta": 16,
        "aggregate": 1,
        "score_claims": 1,
        "draw_figure": 3,
        "write_report": 1,
        "all": 1,
    }


@row("edit a helper that two metrics share")
def test_editing_a_helper_that_two_metrics_share_runs_both(changed):
    changed.edit("workflow/scripts/collapse/adjacent.py", "DEGENERATE_RANK - 1e-9", "DEGENERATE_RANK - 1e-8")
    assert changed.planned() == {
        "metric": 16,
        "aggregate": 2,
        "score_claims": 1,
        "draw_figure": 3,
        "write_report": 1,
        "all": 1,
    }


@row("edit the geometry that all share")
def test_editing_the_geometry_runs_all_metrics_and_the_theory_but_no_forward_pass(changed):
    changed.edit("workflow/scripts/collapse/geometry.py", "np.clip(G, -1.0, 1.0, out=G)", "np.clip(G, -1, 1, out=G)")
    jobs = changed.planned()
    assert jobs == {
        "identity_states": 2,
        "metric": 32,
        "metric_at_beta": 16,
        "clusters": 8,
        "runs_table": 1,
        "aggregate": 7,
        **DRAWN_FROM_ALL,
    }


@row("add a beta")
def test_a_new_beta_computes_only_itself(changed):
    config = changed.config()
    config["energy"]["betas"] = [0.5, 2, 7]
    changed.write_config(config)
    # The energy table has new rows, so the figures drawn from it are drawn again.
    assert changed.planned() == {
        "metric_at_beta": 8,
        "aggregate": 1,
        "score_claims": 1,
        "draw_figure": 4,
        "write_report": 1,
        "all": 1,
    }


@row("remove a beta")
def test_a_beta_less_computes_nothing_and_leaves_the_tables(changed):
    config = changed.config()
    config["energy"]["betas"] = [2]
    changed.write_config(config)
    assert changed.planned() == {"aggregate": 1, "score_claims": 1, "draw_figure": 2, "write_report": 1, "all": 1}


@row("add a prompt")
def test_a_new_prompt_runs_itself_alone(changed):
    config = changed.config()
    config["prompts"].append("third")
    changed.write_config(config)
    assert changed.planned() == ONE_PROMPT


@row("remove a prompt")
def test_a_prompt_less_leaves_the_tables(changed):
    config = changed.config()
    config["prompts"].remove("markup")
    changed.write_config(config)
    assert changed.planned() == {"runs_table": 1, "aggregate": 7, **DRAWN_FROM_ALL}


@row("change a prompt's text")
def test_another_text_of_a_prompt_runs_that_prompt(changed):
    (changed.root / "prompts/fox.txt").write_text("Another text about the dog .\n")
    assert changed.planned() == ONE_PROMPT


@row("add a model")
def test_a_new_model_runs_itself_alone(changed, tmp_path):
    directory = make_model("bert", tmp_path / "bert")
    config = changed.config()
    source = {"kind": "local", "path": str(directory), "sha256": pins(directory)}
    config["models"].append({"name": "other", "source": source})
    changed.write_config(config)
    assert changed.planned() == {
        "fetch": 1,
        "trained_weights": 1,
        "draw_weights": 2,
        "extract": 6,
        "identity_states": 2,
        "metric": 32,
        "metric_at_beta": 16,
        "clusters": 8,
        "runs_table": 1,
        "aggregate": 7,
        # Three figures that each model has of its own.
        **DRAWN_FROM_ALL | {"draw_figure": 20},
    }


@row("remove a model")
def test_a_model_less_leaves_the_tables(tiny_gpt2, tmp_path):
    directory = make_model("bert", tmp_path / "bert")
    project = Project.create(tmp_path / "project", {"tiny": tiny_gpt2, "other": (directory, pins(directory))})
    config = project.config() | {"metrics": ["spectral_k"], "prompts": ["fox"], "weights": [{"scheme": "trained"}]}
    project.write_config(config)
    done = project.snakemake("tables")
    assert done.returncode == 0, done.stdout
    project.write_config(config | {"models": config["models"][:1]})
    assert project.planned("tables") == {"runs_table": 1, "aggregate": 1, "tables": 1}
    assert project.snakemake("tables").returncode == 0
    for table in ("runs", "spectral_k"):
        assert set(pq.read_table(project.root / f"results/tables/{table}.parquet")["model"].to_pylist()) == {"tiny"}


@row("add a seed")
def test_a_new_seed_draws_and_runs_itself_alone(changed):
    config = changed.config()
    config["weights"][1]["seeds"] = [0, 1, 2]
    changed.write_config(config)
    assert changed.planned() == {
        "draw_weights": 1,
        "extract": 2,
        "metric": 8,
        "metric_at_beta": 4,
        "clusters": 2,
        "runs_table": 1,
        "aggregate": 7,
        **DRAWN_FROM_ALL,
    }


def test_the_theory_alone_still_finds_the_trained_states_it_starts_from(changed):
    config = changed.config()
    config["weights"] = [{"scheme": "identity", "betas": [1]}]
    changed.write_config(config)
    assert changed.planned("states") == {}
    for weights in ("trained", "identity-b1"):
        (changed.root / f"results/states/tiny/{weights}/fox.parquet").unlink()
    assert changed.planned("states") == {"extract": 1, "identity_states": 1, "states": 1}


@row("change HDBSCAN's parameters")
def test_other_cluster_options_run_the_clusters(changed):
    """SM02: a value of the config that a script would read by itself reruns nothing; as a parameter it does."""
    config = changed.config()
    config["clusters"] = {"min_cluster_size": 3}
    changed.write_config(config)
    assert changed.planned() == {
        "clusters": 8,
        "aggregate": 2,
        "score_claims": 1,
        "draw_figure": 3,
        "write_report": 1,
        "all": 1,
    }


@row("change a figure's style")
def test_another_style_draws_the_figures(changed):
    changed.edit("workflow/scripts/collapse/figures/style.py", '"grid.linewidth": 0.5', '"grid.linewidth": 0.6')
    assert changed.planned() == {"draw_figure": 17, "write_report": 1, "all": 1}


@row("another order of keys in the config")
def test_another_order_of_keys_runs_nothing(changed):
    """SM07: Snakemake compares parameters as text."""
    config = changed.config()
    config["models"][0]["source"] = dict(reversed(config["models"][0]["source"].items()))
    changed.write_config(dict(reversed(config.items())))
    assert changed.planned() == {}


@row("change the description of a column")
def test_another_word_in_the_description_of_a_column_writes_the_report(changed):
    changed.edit("workflow/schemas/tables.yaml", "Share of tokens in no cluster.", "Share of tokens in none.")
    assert changed.planned() == {"write_report": 1, "all": 1}


@row("edit a comment, a docstring, or how jobs log")
def test_how_jobs_log_runs_nothing(changed):
    changed.edit("workflow/scripts/collapse/job.py", "Refused: ", "Refused, since: ")
    assert changed.planned() == {}


@row("delete a table")
def test_a_deleted_table_is_made_again_with_what_depends_on_it(changed):
    (changed.root / "results/tables/cka.parquet").unlink()
    assert changed.planned() == {"aggregate": 1, "score_claims": 1, "draw_figure": 2, "write_report": 1, "all": 1}


@row("delete a file between")
def test_a_deleted_file_between_is_made_again_when_something_asks_for_it(changed):
    (changed.root / "results/metrics/cka/tiny/trained/fox.parquet").unlink()
    assert changed.planned() == {}
    assert changed.planned("metrics") == {"metric": 1, "metrics": 1}


@row("cut a file short")
def test_a_file_cut_short_is_read_by_what_depends_on_it_which_refuses_it(changed):
    path = changed.root / "results/metrics/cka/tiny/trained/fox.parquet"
    os.truncate(path, path.stat().st_size // 2)
    after = {"aggregate": 1, "score_claims": 1, "draw_figure": 2, "write_report": 1, "all": 1}
    assert changed.planned() == after
    done = changed.snakemake()
    assert done.returncode != 0
    assert "results/metrics/cka/tiny/trained/fox.parquet: cannot be read as parquet" in done.stdout
    assert "Delete it and run again." in done.stdout
    path.unlink()
    assert changed.planned() == {"metric": 1} | after


@row("install another version of a library")
def test_another_version_of_a_library_is_said_and_runs_nothing(changed):
    path = changed.root / "results/tables/clusters.parquet"
    data, times = pq.read_table(path), (path.stat().st_atime, path.stat().st_mtime)
    record = unpack(data.schema.metadata)
    record["versions"]["hdbscan"] = "0.8.1"
    pq.write_table(data.replace_schema_metadata(pack(record)), path)
    os.utime(path, times)
    done = changed.snakemake("--dry-run")
    assert "Nothing to be done" in done.stdout
    assert re.search(r"\* clusters: hdbscan 0\.8\.1, now 0\.8\.\d+", done.stdout)
    assert "--forcerun clusters" in done.stdout
    assert changed.planned("--forcerun", "clusters") == {
        "clusters": 8,
        "aggregate": 2,
        "score_claims": 1,
        "draw_figure": 3,
        "write_report": 1,
        "all": 1,
    }


@row("move the checkout with its results")
def test_a_checkout_that_moves_with_its_results_runs_nothing(finished, tmp_path):
    moved = finished.copy(tmp_path / "elsewhere" / "deeper")
    assert moved.planned() == {}


def test_a_plan_needs_neither_network_nor_models(changed):
    # The demo's own config, planned in a directory that has none of its results.
    jobs = changed.planned(config="config/config.yaml")
    assert (jobs["fetch"], jobs["draw_weights"], jobs["extract"], jobs["metric"]) == (2, 4, 24, 128)
    assert (jobs["projections"], jobs["write_explorer"]) == (32, 1)
