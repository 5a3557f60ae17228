"""Files that are either whole or absent."""

import contextlib
import errno
import os
import shutil
import socket
from pathlib import Path

from collapse.errors import Refusal

# A limit of the disk, of a quota, of `ulimit -f`.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def replacing(path):
    """Yield a temporary name beside `path`; on success it takes the place of `path`, on failure it vanishes.

    Works for a file and for a directory. A killed job leaves at most a hidden temporary, which no reader opens
    and which the next attempt removes.

    Raises
    ------
    Refusal
        If the disk has no room for the file.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    host = socket.gethostname()
    temporary = path.with_name(f".{path.name}.partial-{host}-{os.getpid()}")
    for stale in path.parent.glob(f".{path.name}.partial-{host}-*"):
        # Not the file of a second writer that is still alive.
        if stale == temporary or not Path(f"/proc/{stale.name.rpartition('-')[2]}").exists():
            remove(stale)
    try:
        yield temporary
        if temporary.is_dir():
            for inner in temporary.rglob("*"):
                if inner.is_file() and not inner.is_symlink():
                    _to_disk(inner)
            if path.exists() or path.is_symlink():
                remove(path)
        else:
            _to_disk(temporary)
        os.replace(temporary, path)
    except BaseException as error:
        remove(temporary)
        if refusal := no_room(path, error):
            raise refusal from error
        raise


def write_text(path, text):
    """Write `text` as UTF-8, atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def no_room(path, error):
    """Return the Refusal to write `path` that `error` amounts to, or None where it is not about room on a disk."""
    # By its words: safetensors raises an error of its own, and pyarrow's and Python's do not name the file.
    for reason in map(os.strerror, NO_ROOM):
        if reason in str(error) and not isinstance(error, Refusal):
            return Refusal(f"{path}: could not be written: {reason}. Nothing of it was kept. Make room and run again.")
    return None


def remove(path):
    """Remove a file, a link, or a directory with all it holds; nothing where nothing is."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _to_disk(path):
    with open(path, "rb") as handle:
        os.fsync(handle.fileno())
