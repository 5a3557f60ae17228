"""Models that run deeper than they were trained, kinds of weights, models of the hub: as a user runs them."""

import json
import os
import shutil

import pytest
import yaml
from project import Project
from tiny_models import make_model, pins

from collapse import tables

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WEIGHTS = [
    {"scheme": "trained"},
    {"scheme": "norm-matched", "seeds": [0], "components": ["qk"], "biases": "zero"},
    {"scheme": "orthogonal", "seeds": [0]},
    {"scheme": "library-init", "seeds": [0]},
    {"scheme": "identity", "betas": [1], "step": 0.5, "steps": 9},
]
SLUGS = ["trained", "norm-matched-qk-zero-bias-s0", "orthogonal-s0", "library-init-s0", "identity-b1-step0.5-n9"]


def small(project, **changes):
    project.write_config(project.config() | {"prompts": ["fox"], "metrics": ["inner_products"]} | changes)
    return project


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """An ALBERT of 3 iterations, run to 6, with weights of several kinds, to the report."""
    root = tmp_path_factory.mktemp("deep")
    directory = make_model("albert", root / "albert")
    project = small(Project.create(root / "project", {"albert": (directory, pins(directory))}), weights=WEIGHTS)
    config = project.config()
    config["models"][0] |= {"depth": 6, "trained_depth": 3}
    project.write_config(config)
    done = project.snakemake()
    assert done.returncode == 0, done.stdout
    return project


def test_a_deep_model_and_every_kind_of_weights_reach_the_report(deep):
    runs = tables.read(deep.root / "results/tables/runs.parquet", "runs").to_pylist()
    assert [run["weights"] for run in runs] == SLUGS
    assert [run["scheme"] for run in runs] == [*(slug.removesuffix("-s0") for slug in SLUGS[:-1]), "identity"]
    assert [run["n_blocks"] for run in runs] == [6, 6, 6, 6, 9]
    assert [run["trained_depth"] for run in runs] == [3] * 5
    assert len({run["weights_hash"] for run in runs[:-1]}) == 4
    page = (deep.root / "results/report/index.html").read_text()
    assert "6 blocks (trained with 3)" in page and "random orthogonal weights" in page
    # The theory's particles are float64 in every grid: no mixture of forward passes.
    assert "this table mixes" not in page


def test_depth_is_the_layer_over_the_blocks_or_steps_that_ran(deep):
    rows = tables.read(deep.root / "results/tables/inner_products.parquet", "inner_products").to_pylist()
    for slug in SLUGS:
        found = {row["layer"]: row["depth"] for row in rows if row["weights"] == slug}
        n = 9 if slug.startswith("identity") else 6
        assert found == {layer: pytest.approx(layer / n) for layer in range(n + 1)}


def test_another_depth_extracts_and_draws_no_weights(deep, tmp_path):
    project = deep.copy(tmp_path / "project")
    config = project.config()
    config["models"][0]["depth"] = 12
    project.write_config(config)
    assert project.planned("states") == {"extract": 4, "identity_states": 1, "states": 1}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A project with a model of the hub, and a cache with its files that no network stands behind."""
    directory = make_model("gpt_neox", tmp_path / "pythia")
    snapshot = tmp_path / "home" / "hub" / "models--someone--pythia" / "snapshots" / COMMIT
    snapshot.parent.mkdir(parents=True)
    shutil.copytree(directory, snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "step1000").write_text(COMMIT)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    project = small(Project.create(tmp_path / "project", {"pythia": (directory, {})}), weights=[{"scheme": "trained"}])
    config = project.config()
    config["models"] = [{"name": "pythia", "source": {"kind": "hub", "id": "someone/pythia", "revision": "step1000"}}]
    project.write_config(config)
    return project


def test_a_training_checkpoint_of_the_hub_is_four_lines_of_config_and_locked_by_its_first_fetch(hub):
    done = hub.snakemake("states")
    assert done.returncode == 0, done.stdout
    lock = yaml.safe_load((hub.root / "config/hub.lock.yaml").read_text())
    assert lock["someone/pythia@step1000"]["commit"] == COMMIT
    record = json.loads((hub.root / "results/models/pythia/source.json").read_text())
    assert record["revision"] == f"someone/pythia@{COMMIT}"
    # Written by a job, read by the next fetch alone: nothing has to run again.
    assert hub.planned("states") == {}


def test_the_lock_may_lie_anywhere_and_its_place_is_nothing_to_models_that_it_does_not_hold(hub, tmp_path):
    directory = tmp_path / "pythia"
    config = hub.config() | {"hub_lock": str(tmp_path / "mine" / "lock.yaml")}
    config["models"].append({"name": "own", "source": {"kind": "local", "path": str(directory)}})
    config["models"][1]["source"]["sha256"] = pins(directory)
    hub.write_config(config)
    records = [f"results/models/{name}/source.json" for name in ("pythia", "own")]
    done = hub.snakemake(*records)
    assert done.returncode == 0, done.stdout
    assert yaml.safe_load((tmp_path / "mine/lock.yaml").read_text())["someone/pythia@step1000"]["commit"] == COMMIT
    hub.write_config(config | {"hub_lock": "config/ours.yaml"})
    assert hub.planned(*records) == {"fetch": 1}


def test_a_lock_file_with_another_commit_is_said_with_the_command_and_runs_nothing(hub):
    target, lock = "results/models/pythia/source.json", hub.root / "config/hub.lock.yaml"
    done = hub.snakemake(target)
    assert done.returncode == 0 and "other commits" not in done.stdout, done.stdout
    lock.write_text(lock.read_text().replace(COMMIT, "f" * 40))
    done = hub.snakemake("--dry-run", target)
    assert "Nothing to be done" in done.stdout
    assert f"  * pythia: fetched someone/pythia@{COMMIT}, locked someone/pythia@{'f' * 40}" in done.stdout
    assert f"--forcerun {target}" in done.stdout
    assert hub.planned(target, "--forcerun", target) == {"fetch": 1}
    lock.write_text("- no lock\n")
    done = hub.snakemake("--dry-run", target)
    assert done.returncode == 1
    assert "config/hub.lock.yaml: is no lock file" in done.stdout and "Traceback" not in done.stdout


def test_without_the_hub_the_first_job_says_at_once_what_is_missing_and_how_to_provide_it(hub, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "empty"))
    assert hub.planned("states")["fetch"] == 1
    done = hub.snakemake("states")
    assert done.returncode == 1
    assert "pythia: someone/pythia at step1000 is not whole in the local Hugging Face cache" in done.stdout
    assert "hf download someone/pythia --revision step1000" in done.stdout
    assert "Traceback" not in done.stdout
    assert not os.path.exists(hub.root / "config/hub.lock.yaml")


def test_the_paper_s_grid_plans_without_network_or_models(hub):
    jobs = hub.planned("states", config="config/paper.yaml")
    # 8 models and 9 prompts; 7 kinds of weights run through the model, 4 betas of the theory do not.
    assert jobs == {
        "fetch": 8,
        "trained_weights": 8,
        "draw_weights": 48,
        "extract": 504,
        "identity_states": 288,
        "states": 1,
    }


def test_what_needs_an_entry_of_the_table_is_refused_by_its_name_and_the_rest_runs(tmp_path):
    directory = make_model("phi", tmp_path / "phi")
    project = small(Project.create(tmp_path / "project", {"phi": (directory, pins(directory))}))
    project.write_config(
        project.config() | {"weights": [{"scheme": "trained"}, {"scheme": "library-init", "seeds": [0]}]}
    )
    assert project.snakemake("tables").returncode == 0
    for entry, job in (
        ({"scheme": "norm-matched", "seeds": [0]}, "results/weights/phi/norm-matched-s0/weights.json"),
        ({"scheme": "identity", "betas": [1]}, "results/states/phi/identity-b1/fox.parquet"),
    ):
        project.write_config(project.config() | {"weights": [entry]})
        done = project.snakemake(job)
        assert done.returncode == 1
        assert "model type 'phi' has no entry in ARCHITECTURES of collapse/architectures.py" in done.stdout
