"""Files are either whole or absent, whatever happens while they are written."""

import errno
import os
import signal
import socket
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from matplotlib.figure import Figure

from collapse.atomic import no_room, replacing, write_text
from collapse.errors import Refusal


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


def full(path, write):
    """Refuse to write `path` because the disk is full: the device that always is stands for the temporary file."""
    with pytest.raises(Refusal) as refusal, replacing(path) as temporary:
        temporary.symlink_to("/dev/full")
        write(temporary)
    assert str(refusal.value).startswith(f"{path}: could not be written: No space left on device.")


def write_states(path):
    table = pa.table({"a": np.arange(100_000)})
    with pq.ParquetWriter(path, table.schema) as writer:
        writer.write_table(table)


WRITERS = {
    "text": lambda path: path.write_text("text", encoding="utf-8"),
    "table": lambda path: pq.write_table(pa.table({"a": [1]}), path),
    "states": write_states,
    "svg": lambda path: Figure().savefig(path, format="svg"),
    "png": lambda path: Figure().savefig(path, format="png"),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_full_disk_is_refused_with_file_and_cause_and_leaves_the_old_file(tmp_path, writer):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    full(path, WRITERS[writer])
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_any_limit_of_room_is_one(tmp_path, reason):
    with pytest.raises(Refusal, match=os.strerror(reason)), replacing(tmp_path / "file"):
        # As safetensors has it.
        raise RuntimeError(f"Error while serializing: I/O error: {os.strerror(reason)} (os error {reason})")


def test_a_refusal_inside_keeps_its_words(tmp_path):
    with pytest.raises(Refusal, match="^inner: could not be written: No space"), replacing(tmp_path / "outer"):
        raise no_room("inner", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))


def test_other_errors_are_no_matter_of_room(tmp_path):
    with pytest.raises(PermissionError), replacing(tmp_path / "file"):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def test_text_is_utf8_byte_for_byte(tmp_path):
    path = tmp_path / "record.json"
    write_text(path, "Brontë «—»\n\r\n")
    assert path.read_bytes() == "Brontë «—»\n\r\n".encode()
