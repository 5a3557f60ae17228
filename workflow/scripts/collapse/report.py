"""The report: one HTML page that holds everything, from tables, figures and captions."""

import base64
import json
import re
from collections import Counter, defaultdict
from itertools import groupby
from pathlib import Path

import jinja2

from collapse import tables as results
from collapse.atomic import write_text
from collapse.captions import read_caption
from collapse.provenance import versions
from collapse.reasons import FIRST_LAYER, reason_kind
from collapse.registry import METRICS
from collapse.scorecard import scorecard
from collapse.summary import QUANTITIES, headline, sentences

SUMMARIZED = {table for table, *_ in QUANTITIES}


def write_report(tables, claims, figures, explorer, config, template, output):
    """Write the report.

    Parameters
    ----------
    tables : list of path
        Every results table of the grid.
    claims : path
        The table of claims.
    figures : dict
        Name of each figure -> the question under which it stands; its files lie in figures/ beside tables/.
    explorer : list of str
        The explorer's page, which lies beside this one; empty where there is none.
    config : dict
        The validated config.
    template : path
        A Jinja template. Everything from data is escaped: a prompt or token with HTML in it is shown, not run.
    output : path
        The page.
    """
    folder = Path(tables[0]).parents[1]
    frames, undefined = look_through(tables)
    records = {Path(path).stem: results.record(path) for path in [*tables, claims]}
    runs = [row | {"record": json.loads(row["record"])} for row in frames["runs"].to_pylist()]
    sections = [
        {"question": question, "figures": [_figure(folder / "figures", name) for name, _ in members]}
        for question, members in groupby(figures.items(), key=lambda item: item[1])
    ]
    last_blocks = headline(frames)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(template).parent), autoescape=True, undefined=jinja2.StrictUndefined
    )
    page = environment.get_template(Path(template).name).render(
        scorecard=scorecard(results.read(claims, "claims").to_pylist(), list(figures)),
        headline=last_blocks,
        found=sentences(last_blocks),
        sections=sections,
        explorer=explorer,
        runs=runs,
        models=list(dict.fromkeys(run["model"] for run in runs)),
        weights=list(dict.fromkeys(run["weights"] for run in runs)),
        prompts=list(dict.fromkeys(run["prompt"] for run in runs)),
        undefined=undefined,
        gaps=gaps_of_runs(undefined),
        not_computed=sorted(set(METRICS) - set(records)),
        mixed=mixed_runs(runs),
        definitions=[_definition(name) | {"made_on": made_on(record)} for name, record in records.items()],
        provenance=records,
        config=config,
        versions=versions("snakemake", "matplotlib", "pandas", "numpy", "pyarrow"),
    )
    write_text(output, page)


def look_through(tables):
    """Read tables one at a time, since those with a row per token have millions of rows; keep only small ones.

    Returns
    -------
    frames : dict of pyarrow.Table
        `runs` and the tables that `headline` looks at, by name.
    undefined : list of dict
        What `undefined_states` says of every metric's table, the largest share of undefined values first.
    """
    frames, undefined = {}, []
    for path in tables:
        name = Path(path).stem
        frame = results.read(path, name)
        # Labels are null exactly where their clusters are.
        if name not in ("runs", "cluster_labels"):
            undefined += undefined_states(name, frame)
        if name == "runs" or name in SUMMARIZED:
            frames[name] = frame
        # Before the next one is read.
        del frame
    return frames, sorted(undefined, key=lambda row: -row["n_undefined"] / row["n_rows"])


def undefined_states(table, frame):
    """Count, per run of a metric's table, the states with a null, each run with its most frequent reason.

    Returns
    -------
    list of dict
        `run`, `table`, `n_rows`, `n_undefined`, `reason`, in the table's order; only what no first layer explains.
    """
    keys = ["model", "weights", "prompt", "undefined"]
    # On one thread groups come in the order of the table.
    counted = frame.group_by(keys, use_threads=False).aggregate([([], "count_all")])
    n_rows, told = Counter(), defaultdict(Counter)
    for row in counted.to_pylist():
        run = (row["model"], row["weights"], row["prompt"])
        n_rows[run] += row["count_all"]
        kinds = told[run]
        if row["undefined"] and FIRST_LAYER not in row["undefined"]:
            kinds[reason_kind(row["undefined"])] += row["count_all"]
    return [
        {
            "run": "/".join(run),
            "table": table,
            "n_rows": n_rows[run],
            "n_undefined": kinds.total(),
            "reason": max(sorted(kinds), key=kinds.get),
        }
        for run, kinds in told.items()
        if kinds
    ]


def gaps_of_runs(undefined):
    """Return {(model, weights, prompt): [{table, share of its values that are undefined}]}, the largest share first."""
    gaps = {}
    for row in undefined:
        gap = {"table": row["table"], "share": row["n_undefined"] / row["n_rows"]}
        gaps.setdefault(tuple(row["run"].split("/")), []).append(gap)
    return gaps


def mixed_runs(runs):
    """Return what should be one thing over all forward passes and is not: devices, number types, library versions."""
    passes = [run for run in runs if run["record"]["attention"] != "identity"]
    seen = {
        "device": {run["device"] for run in passes},
        "dtype": {run["dtype"] for run in passes},
        "versions": {json.dumps(run["record"]["versions"], sort_keys=True) for run in passes},
    }
    return {key: sorted(values) for key, values in seen.items() if len(values) > 1}


def made_on(record):
    """Say on which devices and in which number types forward passes made what a table holds, and whether it mixes them.

    Parameters
    ----------
    record : dict
        The table's record. Those of runs and claims have no `states`: each run says so for itself, and claims are
        scored from tables.
    """
    if "states" not in record:
        return "The table of runs gives the device and number type of each."
    passes = {"States made": record["states"]}
    if "attention" in record:
        passes["attention"] = record["attention"]
    words = "; ".join(
        f"{what} on {', '.join(_listed(made['device']))}, in {', '.join(_listed(made['dtype']))}"
        for what, made in passes.items()
    )
    kinds = {"devices": "device", "number types": "dtype"}
    mixed = [name for name, key in kinds.items() if len({v for m in passes.values() for v in _listed(m[key])}) > 1]
    return f"{words}: this table mixes {' and '.join(mixed)}." if mixed else f"{words}."


def _listed(value):
    return value if isinstance(value, list) else [value]


def _figure(folder, name):
    title, caption, alternative = read_caption(folder / f"{name}.md")
    drawn = (folder / f"{name}.svg").read_bytes()
    return {
        "name": name,
        "anchor": name.replace("/", "-"),
        "title": title,
        "caption": caption,
        "alternative": alternative,
        "svg": base64.b64encode(drawn).decode(),
        # In points, as it was drawn, so that its words are as large as they were meant to be.
        "width": re.search(rb'<svg [^>]*?width="([\d.]+pt)"', drawn, re.DOTALL).group(1).decode(),
    }


def _definition(table):
    spec = results.description()["tables"][table]
    return {"table": table, "title": spec["title"], "columns": spec["columns"]}
