"""One cluster for all tests of this folder, and one finished run of a tiny grid that was submitted to it."""

import signal

import pytest
from cluster import Cluster
from project import Project
from submission import Submission
from tiny_models import make_model, pins


@pytest.fixture(scope="session")
def cluster():
    # A time limit's SIGTERM then ends the cluster like Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Cluster() as running:
        yield running


@pytest.fixture(scope="session")
def finished(cluster, tmp_path_factory):
    """A project that was submitted from nothing to the report, with its plan. Copy it before changing anything."""
    base = tmp_path_factory.mktemp("slurm")
    model = make_model("gpt2", base / "tiny-gpt2")
    project = Project.create(base / "project", {"tiny": (model, pins(model))})
    config = project.config()
    config["prompts"] = ["fox"]
    config["weights"][1]["seeds"] = [0]
    config["metrics"] = ["energy", "clusters", "cluster_life"]
    config["energy"]["betas"] = [2]
    project.write_config(config)
    # On the login node, as docs/cluster.md says; from here on no job needs the network.
    fetched = project.snakemake("--until", "fetch")
    assert fetched.returncode == 0, fetched.stdout
    project.plan = project.planned()
    project.submission = Submission(cluster, project).wait()
    assert project.submission.code == 0, project.submission.output()
    return project


@pytest.fixture
def changed(finished, tmp_path):
    """A copy of the finished project, to change."""
    return finished.copy(tmp_path / "project")
