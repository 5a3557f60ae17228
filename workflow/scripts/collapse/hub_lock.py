"""The lock file: what the first fetch of a hub model found, which holds from then on.

A config can name a branch or tag of a repository on the hub, or nothing but the repository, and cannot know the hashes
of files that it has never seen. The first fetch resolves the name to a commit, and writes that with the sha256 of every
file to one YAML file beside the configs, to be committed with them. Later fetches, here and elsewhere, take that commit
and refuse other contents.
"""

import errno
import fcntl
import os
from pathlib import Path

import yaml

from collapse.atomic import write_text
from collapse.errors import Refusal

KEYS = {"commit", "sha256"}
NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
HEADER = (
    "# Written by the first fetch of each model of the hub: the commit that its name stood for, and the sha256 of its\n"
    "# files. Commit this file with the config. To take a model anew, delete its entry and run with --forcerun fetch.\n"
)


def key(source):
    """Return the name under which a hub source is locked: what the config asks for.

    Of a GGUF file its name too, since one repository holds several, each with the rest of its files.
    """
    return "/".join([f"{source['id']}@{source['revision']}", *filter(None, [source.get("gguf_file")])])


def locked(path, source):
    """Return the entry of a source, `commit` and `sha256` of every file by name, or None where it has none.

    Raises
    ------
    Refusal
        If the file is no lock file.
    """
    return _read(Path(path)).get(key(source))


def lock(path, source, commit, files):
    """Write an entry, or refuse if another fetch has meanwhile written another one.

    Parameters
    ----------
    path : path
        The lock file. Beside it, a hidden file keeps fetches that run at the same time apart.
    source : dict
        The source section of the config.
    commit : str
        What its revision stood for.
    files : dict
        sha256 of every file by name.

    Raises
    ------
    Refusal
        If another fetch wrote another entry, or the file may not be written here.
    """
    entry = {"commit": commit, "sha256": dict(sorted(files.items()))}
    try:
        _add(Path(path), source, entry)
    except OSError as error:
        if error.errno not in NOT_ALLOWED:
            raise
        raise Refusal(
            f"{path}: the commit of {key(source)} could not be written: {os.strerror(error.errno)}. In a checkout that "
            "you may not write, set hub_lock in your config to an absolute path of your own, and run again."
        ) from error


def _add(path, source, entry):
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f".{path.name}.writing"), "w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        entries = _read(path)
        if entries.setdefault(key(source), entry) != entry:
            raise Refusal(
                f"{path}: {key(source)} was locked at {entries[key(source)]['commit']} by another fetch while this one "
                f"brought {entry['commit']}. Run again."
            )
        write_text(path, HEADER + yaml.safe_dump(dict(sorted(entries.items()))))


def _read(path):
    if not path.is_file():
        return {}
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        whole = all(set(entry) == KEYS and isinstance(entry["sha256"], dict) for entry in entries.values())
    except (yaml.YAMLError, AttributeError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise Refusal(f"{path}: is no lock file ({reason}). Restore it from git, or delete it.") from error
    if not whole:
        raise Refusal(f"{path}: an entry has not the keys commit and sha256. Restore it from git, or delete it.")
    return entries
