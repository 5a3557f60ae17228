"""What a job says, and where, whatever happens in it."""

import os
import subprocess
import sys

import pytest

REFUSE = "raise Refusal('x.parquet: found 1, expected 2')"
FULL = "raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))"


def run(body, log, packages=None, options="", **environment):
    """Run a job with a log in a process of its own; return its exit code and what the terminal got."""
    program = (
        "import errno, os, sys, sysconfig, types\n"
        f"sysconfig.get_path = lambda _: {packages!r} or sysconfig.get_paths()['purelib']\n"
        "from collapse.errors import Refusal\n"
        "from collapse.job import job\n"
        f"with job(types.SimpleNamespace(log=[sys.argv[1]]){options}):\n"
        f"    {body}\n"
    )
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", program, log],
        env=os.environ | {"PYTHONPATH": path} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


def test_a_refusal_is_one_message_in_the_log(tmp_path):
    assert run(f"print('so far'); {REFUSE}", tmp_path / "log") == (1, "")
    assert (tmp_path / "log").read_text() == "so far\nRefused: x.parquet: found 1, expected 2\n"


def test_pandas_is_imported_only_where_it_is_asked_for(tmp_path):
    assert run("import pandas", tmp_path / "log") == (1, "")
    assert "this job does without pandas" in (tmp_path / "log").read_text()
    # As by pyarrow, which makes arrays all the same.
    assert run("import pyarrow; pyarrow.array([1.0]); print('pandas' in sys.modules)", tmp_path / "log") == (0, "")
    assert (tmp_path / "log").read_text() == "False\n"
    assert run("import pandas", tmp_path / "log", options=", needs_pandas=True") == (0, "")


def test_any_other_error_is_a_traceback_in_the_log(tmp_path):
    assert run("1 / 0", tmp_path / "log") == (1, "")
    log = (tmp_path / "log").read_text()
    assert log.startswith("Traceback") and "ZeroDivisionError" in log


def test_what_cannot_be_logged_on_a_full_disk_goes_to_the_terminal():
    assert run(REFUSE, "/dev/full") == (1, "Refused: x.parquet: found 1, expected 2\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_log_that_does_not_fit_on_the_disk_is_named(unbuffered):
    code, told = run("print('a line')", "/dev/full", PYTHONUNBUFFERED=unbuffered)
    assert code != 0
    assert "Refused: /dev/full: could not be written: No space left on device." in told
    assert "Traceback" not in told


def test_a_full_disk_is_no_traceback_whoever_wrote(tmp_path):
    assert run(FULL, tmp_path / "log") == (1, "")
    assert "No space left on device" in (tmp_path / "log").read_text()
    assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.mark.parametrize("own", [None, "own"])
def test_numba_has_a_place_where_neither_packages_nor_home_can_be_written_EM06(tmp_path, monkeypatch, own):
    """As in a container: of the places that numba tries, only the one it is told is left."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    environment = {"NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator"}
    environment |= {"NUMBA_CACHE_DIR": str(tmp_path / own)} if own else {}
    body = "import numba, collapse.reasons; numba.njit(cache=True)(collapse.reasons.reason_kind)"
    # Root may write anywhere, but not where nothing is.
    code, told = run(body, tmp_path / "log", "/nowhere", **environment)
    assert code == 0, (tmp_path / "log").read_text() + told
    assert list((tmp_path / (own or ".snakemake/numba")).iterdir())
