"""A lock left behind comes with the command that clears it."""

import shlex
import sys

import pytest

from collapse.lock import explanation

PROGRAM = "/some where/bin/snakemake"


@pytest.fixture
def locks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".snakemake/locks").mkdir(parents=True)
    return tmp_path / ".snakemake/locks"


def test_without_a_lock_there_is_nothing_to_say(locks, tmp_path):
    assert explanation([PROGRAM, "--cores", "2"]) is None
    locks.rmdir()
    assert explanation([PROGRAM, "--cores", "2"]) is None


def test_the_command_is_the_one_given_with_unlock(locks, tmp_path):
    (locks / "0.output.lock").touch()
    told = explanation([PROGRAM, "tables", "--configfile", "my own.yaml"])
    assert str(tmp_path) in told
    (command,) = [line for line in told.splitlines() if line.startswith("    ")]
    assert shlex.split(command) == [PROGRAM, "tables", "--configfile", "my own.yaml", "--unlock"]


def test_a_module_is_run_as_one(locks):
    (locks / "0.input.lock").touch()
    command = explanation(["/lib/snakemake/__main__.py", "--cores", "2"]).splitlines()[1]
    assert shlex.split(command) == [sys.executable, "-m", "snakemake", "--cores", "2", "--unlock"]


def test_a_lock_that_is_being_cleared_is_not_explained(locks):
    (locks / "0.output.lock").touch()
    assert explanation([PROGRAM, "--unlock"]) is None
