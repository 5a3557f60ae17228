"""Files are either whole or absent, whatever happens while they are written."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from collapse.atomic import replacing, write_text


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_a_file_appears_only_after_all_of_it_is_written(tmp_path):
    path = tmp_path / "deep" / "er" / "table.parquet"
    with replacing(path) as temporary:
        temporary.write_bytes(b"half")
        assert not path.exists()
        temporary.write_bytes(b"half and half")
    assert path.read_bytes() == b"half and half"
    assert names(path.parent) == ["table.parquet"]


def test_the_temporary_lies_hidden_beside_the_file(tmp_path):
    with replacing(tmp_path / "table.parquet") as temporary:
        temporary.touch()
        # Another directory could be another file system, where a replacement copies.
        assert temporary.parent == tmp_path
        assert temporary.name.startswith(".")
        assert not temporary.match("*.parquet")


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, failure):
    path = tmp_path / "table.parquet"
    path.write_bytes(b"old")
    with pytest.raises(failure), replacing(path) as temporary:
        temporary.write_bytes(b"new")
        raise failure
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["table.parquet"]


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_failure_where_nothing_was_leaves_nothing(tmp_path, failure):
    with pytest.raises(failure), replacing(tmp_path / "checkpoint") as temporary:
        temporary.mkdir()
        (temporary / "model.safetensors").write_bytes(b"half")
        raise failure
    assert names(tmp_path) == []


def test_a_directory_takes_the_place_of_all_of_the_old_one(tmp_path):
    path = tmp_path / "checkpoint"
    path.mkdir()
    (path / "stale.safetensors").write_bytes(b"old")
    with replacing(path) as temporary:
        temporary.mkdir()
        (temporary / "model.safetensors").write_bytes(b"new")
        assert names(path) == ["stale.safetensors"]
    assert names(path) == ["model.safetensors"]
    assert names(tmp_path) == ["checkpoint"]


def test_a_failure_leaves_the_old_directory(tmp_path):
    path = tmp_path / "checkpoint"
    path.mkdir()
    (path / "model.safetensors").write_bytes(b"old")
    with pytest.raises(ValueError), replacing(path) as temporary:
        temporary.mkdir()
        (temporary / "model.safetensors").write_bytes(b"new")
        raise ValueError
    assert (path / "model.safetensors").read_bytes() == b"old"
    assert names(tmp_path) == ["checkpoint"]


def test_replacing_a_link_leaves_what_it_points_to(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").write_bytes(b"kept")
    path = tmp_path / "checkpoint"
    path.symlink_to(elsewhere)
    with replacing(path) as temporary:
        temporary.mkdir()
    assert not path.is_symlink() and names(path) == []
    assert names(elsewhere) == ["kept"]


def test_links_inside_a_failed_directory_are_not_followed(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "weights").write_bytes(b"kept")
    with pytest.raises(ValueError), replacing(tmp_path / "out" / "checkpoint") as temporary:
        temporary.mkdir()
        (temporary / "link").symlink_to(kept)
        raise ValueError
    assert (kept / "weights").read_bytes() == b"kept"


def test_what_a_killed_job_left_is_removed_by_the_next_attempt(tmp_path):
    path = tmp_path / "table.parquet"
    host, dead, alive = socket.gethostname(), 2**22 + 1, os.getppid()
    (tmp_path / f".table.parquet.partial-{host}-{dead}").write_bytes(b"half")
    (tmp_path / f".table.parquet.partial-{host}-{dead + 1}").mkdir()
    (tmp_path / f".table.parquet.partial-{host}-{dead + 1}" / "half").write_bytes(b"half")
    kept = [f".other.parquet.partial-{host}-{dead}", f".table.parquet.partial-{host}-{alive}"]
    kept.append(".table.parquet.partial-elsewhere-1")
    for name in kept:
        (tmp_path / name).write_bytes(b"of another job")
    with replacing(path) as temporary:
        temporary.write_bytes(b"whole")
    assert names(tmp_path) == sorted([*kept, "table.parquet"])


def test_a_killed_process_leaves_no_file_under_the_name(tmp_path):
    program = (
        "import os, signal, sys\n"
        "from collapse.atomic import replacing\n"
        "with replacing(sys.argv[1]) as temporary:\n"
        "    temporary.write_bytes(b'half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = tmp_path / "table.parquet"
    done = subprocess.run(
        [sys.executable, "-c", program, path], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert done.returncode == -signal.SIGKILL
    assert not path.exists()
    write_text(path, "whole")
    assert names(tmp_path) == ["table.parquet"]


def test_a_block_that_writes_nothing_is_an_error_and_leaves_the_old_file(tmp_path):
    path = tmp_path / "table.parquet"
    path.write_bytes(b"old")
    with pytest.raises(FileNotFoundError), replacing(path):
        pass
    assert path.read_bytes() == b"old"


def test_text_is_utf8_byte_for_byte(tmp_path):
    path = tmp_path / "record.json"
    write_text(path, "Brontë «—»\n\r\n")
    assert path.read_bytes() == "Brontë «—»\n\r\n".encode()
