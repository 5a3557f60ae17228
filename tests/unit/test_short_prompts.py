"""Every figure of prompts of one to four tokens, measured as the workflow measures them: most of it is undefined."""

import importlib

import pyarrow as pa
import pytest
from test_attention import heads
from test_attention_tables import BLOCKS, states_file
from test_figures import LAYOUTS, outside, overlaps

from collapse import tables
from collapse.attention_groups import attention_groups
from collapse.attention_tables import AttentionTables
from collapse.config import schema
from collapse.figures import style
from collapse.measure import measure, rows_of, rule_by_rule
from collapse.metrics.clusters import clusters, token_rows
from collapse.metrics.duplicate_tokens import duplicate_clusters
from collapse.registry import FIGURES, METHOD_OPTIONS, METRICS, module
from collapse.states import StatesFile

style.apply()
LENGTHS = (1, 2, 3, 4)


@pytest.fixture(scope="module")
def frames(tmp_path_factory):
    """Every results table of trained and random weights on four prompts, of which content leaves 0 to 3 tokens."""
    rows = {}
    for seed in (None, 0):
        weights = "trained" if seed is None else f"norm-matched-s{seed}"
        for n in LENGTHS:
            folder = tmp_path_factory.mktemp("run")
            run = {"weights": weights, "scheme": weights.removesuffix("-s0"), "seed": seed, "prompt": f"tokens_{n}"}
            path = states_file(folder / "s.parquet", n=n, record=run)
            for table, found in run_tables(path, folder, n).items():
                rows.setdefault(table, []).extend(found)
    return {table: checked(table, found) for table, found in rows.items()}


def run_tables(path, folder, n):
    """{table: rows} of one run: as the scripts of the rules do it."""
    found = {"clusters": [], "cluster_labels": []}
    ids = StatesFile(path).tokens()["token_id"].to_numpy()
    for keys, (values, *tokens), mask in measure(path, clusters, "trajectory", options("clusters")):
        copies = duplicate_clusters(tokens[0], ids[mask])
        found["clusters"].append(keys | copies | values | {"undefined": values["undefined"] or copies["undefined"]})
        found["cluster_labels"] += [keys | token for token in token_rows(values, *tokens, mask)]
    found = {table: rule_by_rule(rows) for table, rows in found.items()}
    labels = folder / "labels.parquet"
    tables.write(labels, "cluster_labels", found["cluster_labels"], {})
    for metric, entry in METRICS.items():
        if entry.over in ("attention", "groups") or metric == "clusters":
            continue
        function = getattr(importlib.import_module(module(metric)), metric)
        own = None if entry.over in ("layer", "trajectory") else labels
        axes = {"beta": [{"beta": 1.0}], "method": [{"method": method} for method in METHOD_OPTIONS]}
        for axis in axes.get(entry.axis, [{}]):
            given = options(metric, METHOD_OPTIONS.get(axis.get("method"))) | axis
            part = {key: given.pop(key) for key in ("depths", "tokens") if key in given}
            beta = {key: axis[key] for key in axis if key == "beta"}
            measured = measure(path, function, entry.over, given, beta, own, **part)
            found.setdefault(metric, []).extend(rows_of(measured, metric))
    names = [name for name, entry in METRICS.items() if entry.over == "attention"]
    passed = AttentionTables(
        path, [{"name": name, "module": module(name), "packages": []} for name in names], {n: options(n) for n in names}
    )
    for block in range(BLOCKS):
        passed.take(block, heads(n, True, 3.0, block))
    outputs = {name: folder / name / "p.parquet" for name in names}
    passed.write(outputs, dict.fromkeys(names, "0"), {"device": "cpu"})
    found |= {name: tables.read(outputs[name], name).to_pylist() for name in names}
    found["attention_received"] = attention_groups(path, labels, outputs["attention_tokens"])
    return found


def options(metric, used=None):
    """The config's defaults of a metric, or of one of its methods."""
    section = schema()["properties"].get(metric, {}).get("properties", {})
    wanted = set(section) - {"betas", "methods"} if used is None else used
    return {key: section[key]["default"] for key in sorted(wanted)}


def checked(table, rows):
    columns = tables.schema(table)
    data = pa.Table.from_pylist([{name: row.get(name) for name in columns.names} for row in rows], schema=columns)
    tables.check(table, data, "short prompts")
    return data.to_pandas()


def drawing(name, frames):
    entry = FIGURES[name]
    subject = {"model": "m", "beta": "b1"}.get(entry.per, "")
    return importlib.import_module(f"collapse.figures.{entry.module}").draw(
        name, subject, {table: frames[table] for table in entry.tables}, {}
    )


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_shows_every_prompt_however_short_and_says_what_is_undefined(frames, name):
    drawn = drawing(name, frames)
    assert all(f"tokens_{n}" in drawn.caption for n in LENGTHS)
    assert name not in LAYOUTS or overlaps(drawn.figure) == [] == outside(drawn.figure)
    # Of the histograms no depth is undefined where others are not, and an empty panel says so.
    said = [text.get_text() for axis in drawn.figure.axes for text in axis.texts]
    assert "ndefined" in drawn.caption + drawn.alternative or "undefined" in said


@pytest.mark.parametrize("name", sorted(LAYOUTS))
def test_the_shortest_prompt_alone_is_drawn(frames, name):
    """Content leaves it no token: no row in the tables of tokens, and nothing else but nulls."""
    one = {table: frame[frame["prompt"] == "tokens_1"] for table, frame in frames.items()}
    drawn = drawing(name, one)
    assert "tokens_1" in drawn.caption and "random (norm-matched)" in drawn.caption
    assert overlaps(drawn.figure) == [] == outside(drawn.figure)


def test_two_opposite_tokens_have_a_mean_cosine_that_the_axis_reaches(frames):
    """The limits that suit a long prompt would cut it off."""
    table = frames["inner_products"].copy()
    table.loc[table["prompt"] == "tokens_3", "mean_inner_product"] = -1.0
    axis = drawing("mean_inner_product", frames | {"inner_products": table}).figure.axes[0]
    assert axis.get_ylim()[0] <= -1.0
