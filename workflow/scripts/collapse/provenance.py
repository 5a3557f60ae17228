"""Which library versions made a file."""

import json
import platform
from importlib.metadata import version

METADATA_KEY = b"token_collapse"


def versions(*packages):
    """Return {package: installed version} with Python's own, without importing any of them."""
    return {"python": platform.python_version()} | {package: version(package) for package in packages}


def pack(record):
    """Encode a record as Arrow schema metadata."""
    return {METADATA_KEY: json.dumps(record, sort_keys=True).encode()}


def unpack(metadata):
    """Decode what `pack` wrote; None where a file carries none."""
    packed = (metadata or {}).get(METADATA_KEY)
    return None if packed is None else json.loads(packed)
