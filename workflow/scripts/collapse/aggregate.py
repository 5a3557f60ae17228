"""From one file per run to one table per metric. A run that is missing is an error, never an absent row."""

import json

import pyarrow as pa
import pyarrow.compute as pc

from collapse import tables
from collapse.errors import Refusal
from collapse.provenance import versions
from collapse.states import StatesFile

RUN_KEYS = ("model", "weights", "prompt")
MIXABLE = ("versions", "device", "dtype")


def aggregate(paths, table, runs, output):
    """Gather the files of one table.

    Parameters
    ----------
    paths : list of path
        One file per run (and beta).
    table : str
        Name of the table.
    runs : list of str
        Every run that must be there, as model/weights/prompt.
    output : path
        The table. Its record says which code, options and versions made its parts: one, or a list where they differ.

    Raises
    ------
    Refusal
        If a run is missing, or a file holds another run than its path says.
    """
    parts, records = [], []
    for path in paths:
        part = tables.read(path, table)
        record = tables.record(path)
        run = "/".join(record["states"][key] for key in RUN_KEYS)
        if not str(path).endswith(f"{run}.parquet"):
            raise Refusal(f"{path}: holds the run {run}. Delete it and run again.")
        parts.append(part)
        records.append((run, record))
    found = {run for run, _ in records}
    missing = [run for run in runs if run not in found]
    if missing or len(records) % len(runs):
        raise Refusal(f"table {table}: {len(missing)} runs of the grid are missing, first {missing[:1]}")
    states = [record["states"] for _, record in records]
    summary = {
        "n_runs": len(found),
        "code": _distinct(record["code"] for _, record in records),
        "options": _distinct(record["options"] for _, record in records),
        "versions": _distinct(record["versions"] for _, record in records),
        "states": {key: _distinct(state[key] for state in states) for key in MIXABLE},
        "weights_hashes": dict(sorted({f"{s['model']}/{s['weights']}": s["weights_hash"] for s in states}.items())),
        "prompt_hashes": dict(sorted({s["prompt"]: s["prompt_hash"] for s in states}.items())),
        "gathered_with": versions("pyarrow"),
    }
    tables.write(output, table, pa.concat_tables(part.replace_schema_metadata(None) for part in parts), summary)


def runs_table(paths, output):
    """List every run: one row per states file, with the whole of its record."""
    rows = []
    for path in paths:
        states = StatesFile(path)
        record = states.metadata
        if len(states) != record["n_states"]:
            raise Refusal(
                f"{path}: has {len(states)} states, its record says {record['n_states']}. Delete it and run again."
            )
        content = pc.sum(pa.array(states.mask("content"))).as_py()
        row = {key: record.get(key) for key in tables.schema("runs").names}
        rows.append(row | {"n_content_tokens": content, "record": json.dumps(record, sort_keys=True)})
    tables.write(output, "runs", rows, {"n_runs": len(rows), "gathered_with": versions("pyarrow")})


def _distinct(values):
    """The one value that all share, or the sorted list of those that occur."""
    distinct = sorted({json.dumps(value, sort_keys=True): value for value in values}.items())
    return distinct[0][1] if len(distinct) == 1 else [value for _, value in distinct]
