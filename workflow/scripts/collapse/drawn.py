"""Checkpoints that a seed draws again: they go when a workflow has succeeded, but not from under a job that uses one.

Snakemake's lock is on files, so two workflows whose outputs differ run in one directory at once, and may share weights.
"""

import fcntl
import os
from pathlib import Path

from collapse.atomic import remove

IN_USE = ".in-use"


def keep(checkpoint):
    """Keep `discard` from a checkpoint until this process ends, however it ends."""
    # Not closed: the lock lives as long as the descriptor.
    fcntl.flock(os.open(Path(checkpoint).with_name(IN_USE), os.O_RDWR | os.O_CREAT, 0o666), fcntl.LOCK_SH)


def discard(checkpoint):
    """Remove a checkpoint that no job uses. It leaves its name in one step: a kill leaves no half of it there."""
    checkpoint = Path(checkpoint)
    if not checkpoint.parent.is_dir():
        return
    with open(checkpoint.with_name(IN_USE), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # A job of another workflow uses it; that workflow discards it.
            return
        discarded = checkpoint.with_name(".discarded")
        remove(discarded)
        if checkpoint.exists():
            checkpoint.rename(discarded)
            remove(discarded)
