"""One finished run of the whole workflow on a tiny GPT-2, shared by all tests of this folder."""

import pytest
from project import Project
from tiny_models import make_model, pins


@pytest.fixture(scope="session")
def tiny_gpt2(tmp_path_factory):
    directory = tmp_path_factory.mktemp("models") / "tiny-gpt2"
    make_model("gpt2", directory)
    return directory, pins(directory)


@pytest.fixture(scope="session")
def finished(tmp_path_factory, tiny_gpt2):
    """A project whose workflow ran to the report. Copy it before changing anything."""
    project = Project.create(tmp_path_factory.mktemp("finished") / "project", {"tiny": tiny_gpt2})
    done = project.snakemake()
    assert done.returncode == 0, done.stdout
    project.output = done.stdout
    return project


@pytest.fixture
def changed(finished, tmp_path):
    """A copy of the finished project, to change."""
    return finished.copy(tmp_path / "project")
