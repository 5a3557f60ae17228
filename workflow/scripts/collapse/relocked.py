"""Models of the hub that the lock file holds at another commit than they were fetched at: said, never fetched unasked.

Such a lock file comes with a `git pull`. As a parameter of the fetch its content would make every first fetch, which
writes it, run a second time.
"""

import json
from pathlib import Path

from collapse.fetch import is_locked, revision
from collapse.hub_lock import locked
from collapse.lock import same_command


def relocked(sources, lock_file, records):
    """Compare the commits of fetched models with those of the lock file.

    Parameters
    ----------
    sources : dict
        Model name -> its source section.
    lock_file : path
        The lock file.
    records : str
        Path of a model's source.json, with `{model}` in it.

    Returns
    -------
    dict
        {model: (revision fetched, revision locked)} of what differs. A source that the config has changed since is not
        among them: that is fetched again.

    Raises
    ------
    Refusal
        If the lock file is none.
    """
    found = {}
    for model, source in sources.items():
        path = Path(records.format(model=model))
        if not is_locked(source) or not path.is_file():
            continue
        record, entry = json.loads(path.read_text(encoding="utf-8")), locked(lock_file, source)
        if entry and record["source"] == source and record["revision"] != revision(source, entry["commit"]):
            found[model] = (record["revision"], revision(source, entry["commit"]))
    return found


def describe_relocked(found, lock_file, records, arguments):
    """Return what `relocked` found as one message, with the command that fetches them; empty if it is nothing.

    `arguments` is the command line of this Snakemake, program first.
    """
    if not found:
        return ""
    lines = [f"  * {model}: fetched {old}, locked {new}" for model, (old, new) in found.items()]
    paths = " ".join(records.format(model=model) for model in found)
    return (
        f"{lock_file} holds models at other commits than the results were made from:\n"
        + "\n".join(lines)
        + f"\nNothing runs again for that. To compute them anew: {same_command(arguments)} --forcerun {paths}"
    )
