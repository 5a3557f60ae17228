"""Parquet files that are not what was written: cut short, or changed on the disk."""

import contextlib

import pyarrow as pa

from collapse.errors import Refusal


@contextlib.contextmanager
def readable(path):
    """Turn whatever is found wrong with a parquet file while it is read into a Refusal that names it."""
    try:
        yield
    # A flipped bit can make the libraries stumble anywhere; a record that does not match its digest is a ValueError.
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Refusal(f"{path}: cannot be read as parquet ({error}). Delete it and run again.") from error
