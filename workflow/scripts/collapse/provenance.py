"""Which library versions made a file, and records of that inside parquet files."""

import hashlib
import json
import platform
from importlib.metadata import version

METADATA_KEY = b"token_collapse"
# Parquet checks its pages, not its metadata.
DIGEST_KEY = b"token_collapse_sha256"


def versions(*packages):
    """Return {package: installed version} with Python's own, without importing any of them."""
    return {"python": platform.python_version()} | {package: version(package) for package in packages}


def pack(record):
    """Encode a record as Arrow schema metadata."""
    packed = json.dumps(record, sort_keys=True).encode()
    return {METADATA_KEY: packed, DIGEST_KEY: _digest(packed)}


def unpack(metadata):
    """Decode what `pack` wrote; None where a file carries none. A record that has changed since is a ValueError."""
    packed = (metadata or {}).get(METADATA_KEY)
    if packed is None:
        return None
    if metadata.get(DIGEST_KEY) != _digest(packed):
        raise ValueError("its record is not the one that was written")
    return json.loads(packed)


def _digest(packed):
    return hashlib.sha256(packed).hexdigest().encode()
