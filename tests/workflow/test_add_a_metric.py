"""docs/add-a-metric.md, followed word by word in a copy of a finished run."""

import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from project import REPOSITORY

from collapse.states import StatesFile

PAGE = REPOSITORY / "docs" / "add-a-metric.md"


@pytest.fixture(scope="module")
def followed(finished, tmp_path_factory):
    """The page's blocks, each in the file that its first line names: new files made, others appended to."""
    project = finished.copy(tmp_path_factory.mktemp("metric") / "project")
    shutil.copytree(REPOSITORY / "tests" / "unit", project.root / "tests" / "unit")
    blocks = re.findall(r"^```\w+ (\S+)\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert [path for path, _ in blocks] == [
        "workflow/scripts/collapse/metrics/norm_ratio.py",
        "workflow/schemas/tables.yaml",
        "my.yaml",
        "tests/unit/test_norm_ratio.py",
    ]
    shutil.copy(project.config_path, project.root / "my.yaml")
    for path, text in blocks:
        with open(project.root / path, "a") as file:
            file.write(text)
    project.config_path = project.root / "my.yaml"
    return project


def test_only_the_new_metric_runs(followed):
    assert followed.planned() == {"metric": 8, "aggregate": 1, "write_report": 1, "all": 1}


def test_its_tests_pass_and_its_style_is_ours(followed):
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-n",
        "0",
        "tests/unit/test_norm_ratio.py",
    ]
    environment = os.environ | {"PYTHONPATH": "workflow/scripts:tests/unit"}
    done = subprocess.run(command, cwd=followed.root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert re.search(r"\b\d+ passed", done.stdout)
    files = ["workflow/scripts/collapse/metrics/norm_ratio.py", "tests/unit/test_norm_ratio.py"]
    shutil.copy(REPOSITORY / "pyproject.toml", followed.root)
    for check in (["check"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *check, *files]
        done = subprocess.run(command, cwd=followed.root, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_its_table_holds_what_it_says(followed):
    done = followed.snakemake("results/tables/norm_ratio.parquet")
    assert done.returncode == 0, done.stdout
    rows = pq.read_table(followed.root / "results/tables/norm_ratio.parquet").to_pylist()
    assert len(rows) == 2 * 2 * (3 * 5 + 4)
    states = StatesFile(followed.root / "results/states/tiny/trained/fox.parquet")
    own = [row for row in rows if (row["weights"], row["prompt"], row["tokens"]) == ("trained", "fox", "all")]
    for place, row in enumerate(own):
        norms = np.linalg.norm(states.read(place).astype(float), axis=1)
        assert row["norm_ratio"] == pytest.approx(norms.max() / np.median(norms))
