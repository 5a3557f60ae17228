"""From one file per run to one table per metric. A run that is missing is an error, never an absent row."""

import json
from pathlib import Path

import pyarrow as pa

from collapse import tables
from collapse.errors import Refusal
from collapse.provenance import versions
from collapse.states import StatesFile

RUN_KEYS = ("model", "weights", "prompt")
MIXABLE = ("device", "dtype")


def aggregate(paths, table, runs, output):
    """Gather the files of one table.

    Parameters
    ----------
    paths : list of path
        One file per run (and beta, or method).
    table : str
        Name of the table.
    runs : list of str
        Every run that must be there, as model/weights/prompt.
    output : path
        The table. Its record says which code, options and versions made its parts, and on which devices and in which
        number types forward passes yielded states and attention: one, or a list where they differ.

    Raises
    ------
    Refusal
        If a run is missing, a file holds another run than its path says, or two runs have the same weights.
    """
    parts, records, found = [], [], {}
    for path in map(Path, paths):
        part, record = tables.read(path, table), tables.record(path)
        run = "/".join(record["states"][key] for key in RUN_KEYS)
        beta, method = record["options"].get("beta"), record["options"].get("method")
        place = path.with_suffix("").parts
        if "/".join(place[-3:]) != run:
            raise Refusal(f"{path}: holds the run {run}. Delete it and run again.")
        if beta is not None and float(place[-4].removeprefix("b")) != beta:
            raise Refusal(f"{path}: holds beta {beta}. Delete it and run again.")
        if method is not None and place[-4] != method:
            raise Refusal(f"{path}: holds the method {method}. Delete it and run again.")
        axis = method if beta is None else beta
        if (run, axis) in found:
            raise Refusal(f"table {table}: the run {run} is given twice, in {found[run, axis]} and {path}")
        found[run, axis] = path
        parts.append(part)
        records.append(record)
    places = {axis for _, axis in found}
    missing = [run for run in runs for axis in places if (run, axis) not in found]
    if missing:
        raise Refusal(f"table {table}: {len(missing)} runs of the grid are missing, first {missing[0]}")
    states = [record["states"] for record in records]
    # The theory's particles are float64 by definition, and no forward pass.
    passes = [state for state in states if state["scheme"] != "identity"] or states
    attention = [record["attention"] for record in records if "versions" in record.get("attention", ())]
    _require_distinct_weights(states)
    summary = {
        "n_runs": len(runs),
        "code": _distinct(record["code"] for record in records),
        "options": _distinct(record["options"] for record in records),
        "versions": _distinct(record["versions"] for record in records),
        "states": {
            "versions": _distinct(state["versions"] for state in states),
            **{key: _distinct(state[key] for state in passes) for key in MIXABLE},
        },
        "weights_hashes": _one_each(table, ((f"{s['model']}/{s['weights']}", s["weights_hash"]) for s in states)),
        "prompt_hashes": _one_each(table, ((s["prompt"], s["prompt_hash"]) for s in states)),
        "gathered_with": versions("pyarrow"),
    }
    if attention:
        summary["attention"] = {key: _distinct(found[key] for found in attention) for key in (*MIXABLE, "versions")}
    tables.write(output, table, pa.concat_tables(part.replace_schema_metadata(None) for part in parts), summary)


def runs_table(paths, output):
    """List every run: one row per states file, with the whole of its record.

    Raises
    ------
    Refusal
        If two runs have the same weights.
    """
    rows, records = [], []
    for path in paths:
        states = StatesFile(path)
        record = states.metadata
        content = int(states.mask("content").sum())
        row = {key: record.get(key) for key in tables.schema("runs").names}
        records.append(record)
        rows.append(row | {"n_content_tokens": content, "record": json.dumps(record, sort_keys=True)})
    _require_distinct_weights(records)
    tables.write(output, "runs", rows, {"n_runs": len(rows), "gathered_with": versions("pyarrow")})


def _require_distinct_weights(records):
    """Refuse two names for one thing: schemes that came out as the same tensors, or checkpoints of a model that are.

    Counted twice, one of them would look like a confirmation of the other.
    """
    first = {}
    for record in records:
        name = f"{record['model']}/{record['weights']}"
        dynamics = [record.get(key) for key in ("beta", "step", "n_blocks")] if record["scheme"] == "identity" else None
        other = first.setdefault((record["weights_hash"], str(dynamics)), name)
        if other != name:
            raise Refusal(
                f"{other} and {name} have the same weights, to the last bit ({record['weights_hash']}): one of them "
                "shows nothing of its own. Take one out of the config."
            )


def _one_each(table, pairs):
    """{name: hash}; two hashes under one name mean that a file is left from other weights or another text."""
    hashes = {}
    for name, digest in pairs:
        if hashes.setdefault(name, digest) != digest:
            raise Refusal(
                f"table {table}: the runs of {name} were not all made from the same contents ({hashes[name]} and "
                f"{digest}). Delete the states of the older ones and run again."
            )
    return dict(sorted(hashes.items()))


def _distinct(values):
    """The one value that all share, or the sorted list of those that occur."""
    distinct = sorted({json.dumps(value, sort_keys=True): value for value in values}.items())
    return distinct[0][1] if len(distinct) == 1 else [value for _, value in distinct]
