"""Results that other library versions made than those installed: said, never recomputed unasked.

A new version of numpy would otherwise rerun everything, and an old one mixed with a new would go unnoticed.
"""

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from collapse.lock import same_command
from collapse.provenance import unpack

STATES = "states"


def outdated(paths):
    """Compare the versions that results tables record with those installed.

    Parameters
    ----------
    paths : list of path
        The tables of the config, whether they are there or not. Broken ones are left to their readers, who refuse.

    Returns
    -------
    dict
        {table: {package: (recorded versions, installed version or None)}} of what differs; the table `states` stands
        for the forward passes behind all others.
    """
    found = {}
    for path in filter(Path.is_file, map(Path, paths)):
        try:
            record = unpack(pq.read_schema(path).metadata) or {}
        except (pa.ArrowException, OSError, ValueError):
            continue
        _compare(found, path.stem, record.get("versions"))
        _compare(found, path.stem, record.get("attention", {}).get("versions"))
        _compare(found, STATES, record.get("states", {}).get("versions"))
    return found


def describe(found, rules, arguments):
    """Return what `outdated` found as one message, with the command that computes it again; empty if it is nothing.

    Parameters
    ----------
    found : dict
        What `outdated` returned.
    rules : callable
        rules(table) lists the rules that compute it.
    arguments : list of str
        The command line of this Snakemake, program first: the new one has the same config.
    """
    if not found:
        return ""
    lines = []
    for table, packages in found.items():
        words = [f"{name} {' and '.join(old)}, now {new or 'missing'}" for name, (old, new) in packages.items()]
        lines.append(f"  * {table}: {'; '.join(words)}")
    names = sorted({rule for table in found for rule in rules(table)})
    return (
        "Some results were made with other library versions than those installed:\n"
        + "\n".join(lines)
        + f"\nNothing runs again for that. To compute them anew: {same_command(arguments)} --forcerun {' '.join(names)}"
    )


def _compare(found, table, recorded):
    """Add to `found` what differs; a table gathered from parts of several versions records a list of them."""
    for versions in recorded if isinstance(recorded, list) else [recorded or {}]:
        for package, old in versions.items():
            new = _installed(package)
            if old != new:
                packages = found.setdefault(table, {})
                packages[package] = (sorted({old, *packages.get(package, ((), None))[0]}), new)


def _installed(package):
    if package == "python":
        return platform.python_version()
    try:
        return version(package)
    except PackageNotFoundError:
        return None
