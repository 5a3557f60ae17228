"""One finished run of the whole workflow on a tiny GPT-2, shared by all tests of this folder and by all workers."""

import json

import pytest
from faults import make_small
from filelock import FileLock
from project import Project
from tiny_models import make_model, pins


@pytest.fixture(scope="session")
def shared(tmp_path_factory, worker_id):
    """The directory that all workers of this test run share."""
    base = tmp_path_factory.getbasetemp()
    return base if worker_id == "master" else base.parent


@pytest.fixture(scope="session")
def tiny_gpt2(shared):
    directory = shared / "models" / "tiny-gpt2"
    with FileLock(shared / "tiny-gpt2.lock"):
        if not directory.exists():
            make_model("gpt2", directory)
    return directory, pins(directory)


@pytest.fixture(scope="session")
def finished(shared, tiny_gpt2):
    """A project whose workflow ran to the report. Copy it before changing anything."""
    project, output = Project(shared / "finished" / "project"), shared / "finished.json"
    with FileLock(shared / "finished.lock"):
        if not output.exists():
            Project.create(project.root, {"tiny": tiny_gpt2})
            done = project.snakemake()
            output.write_text(json.dumps([done.returncode, done.stdout]))
    code, project.output = json.loads(output.read_text())
    assert code == 0, project.output
    return project


@pytest.fixture(scope="session")
def small(finished, shared):
    """One prompt, three weights and one metric per rule, run to the report: what faults are compared with. Copy it."""
    project = Project(shared / "small" / "project")
    with FileLock(shared / "small.lock"):
        if not project.root.exists():
            finished.copy(project.root)
            make_small(project)
            done = project.snakemake()
            assert done.returncode == 0, done.stdout
    return project


@pytest.fixture
def changed(finished, tmp_path):
    """A copy of the finished project, to change."""
    return finished.copy(tmp_path / "project")
