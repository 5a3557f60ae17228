"""Drawn checkpoints go when nobody uses them, in one step."""

import os
import signal
import subprocess
import sys

import pytest

from collapse.drawn import discard


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / "norm-matched-s0" / "checkpoint"
    path.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (path / name).write_text(name)
    (path.parent / "weights.json").write_text("{}")
    return path


def visible(directory):
    return sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))


def process(program, checkpoint):
    program = f"import os, shutil, signal, sys\nfrom collapse import atomic, drawn\n{program}"
    return subprocess.Popen(
        [sys.executable, "-c", program, checkpoint],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_a_checkpoint_goes_and_its_record_stays(checkpoint):
    discard(checkpoint)
    assert visible(checkpoint.parent) == ["weights.json"]
    assert not (checkpoint.parent / ".discarded").exists()


def test_what_is_not_there_is_discarded(checkpoint, tmp_path):
    discard(checkpoint)
    discard(checkpoint)
    discard(tmp_path / "never" / "checkpoint")
    assert visible(tmp_path) == ["norm-matched-s0"]


def test_a_checkpoint_stays_while_any_job_uses_it(checkpoint):
    user = "drawn.keep(sys.argv[1])\nprint('kept', flush=True)\nsys.stdin.read()"
    users = [process(user, checkpoint) for _ in range(2)]
    for using in users:
        with using:
            assert using.stdout.readline() == "kept\n"
            discard(checkpoint)
            assert visible(checkpoint) == ["config.json", "model.safetensors", "tokenizer.json"]
            # However it ends.
            using.kill() if using is users[0] else using.stdin.close()
    discard(checkpoint)
    assert not checkpoint.exists()


def test_a_kill_leaves_no_half_of_a_checkpoint(checkpoint):
    killed = (
        "def half(path, *_, **__):\n"
        "    os.unlink(os.path.join(path, 'tokenizer.json'))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "shutil.rmtree = half\n"
        "drawn.discard(sys.argv[1])"
    )
    with process(killed, checkpoint) as discarding:
        pass
    assert discarding.returncode == -signal.SIGKILL
    assert visible(checkpoint.parent) == ["weights.json"]
    assert (checkpoint.parent / ".discarded").is_dir()
    # Drawn again and discarded: nothing is left of either.
    checkpoint.mkdir()
    discard(checkpoint)
    assert visible(checkpoint.parent) == ["weights.json"]
    assert not (checkpoint.parent / ".discarded").exists()
