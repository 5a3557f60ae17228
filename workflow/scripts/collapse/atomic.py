"""Files that are either whole or absent."""

import contextlib
import os
import shutil
import socket
from pathlib import Path


@contextlib.contextmanager
def replacing(path):
    """Yield a temporary name beside `path`; on success it takes the place of `path`, on failure it vanishes.

    Works for a file and for a directory. A killed job leaves at most a hidden temporary, which no reader opens
    and which the next attempt removes.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    host = socket.gethostname()
    temporary = path.with_name(f".{path.name}.partial-{host}-{os.getpid()}")
    for stale in path.parent.glob(f".{path.name}.partial-{host}-*"):
        # Not the file of a second writer that is still alive.
        if stale == temporary or not Path(f"/proc/{stale.name.rpartition('-')[2]}").exists():
            _remove(stale)
    try:
        yield temporary
        if temporary.is_dir():
            if path.exists() or path.is_symlink():
                _remove(path)
        else:
            with open(temporary, "rb") as handle:
                os.fsync(handle.fileno())
        os.replace(temporary, path)
    except BaseException:
        _remove(temporary)
        raise


def write_text(path, text):
    """Write `text` as UTF-8, atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _remove(path):
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
