"""Results tables: described column by column, and refused where they say what cannot be."""

import copy
import importlib
import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from collapse import registry, tables
from collapse.errors import Refusal
from collapse.metrics import clusters, duplicate_tokens

ALL = tables.description()["tables"]
# The contract of METRICS.md: keys, then these columns at least.
KEYS = ["model", "weights", "scheme", "seed", "prompt", "tokens", "layer", "stage", "depth"]
CONTRACT = {
    "inner_products": ["mean_inner_product", "sd_inner_product", "mass_near_one", "histogram", "n_pairs"],
    "energy": ["energy", "log_energy", "change", "relative_change", "is_drop"],
    "effective_rank": [
        "effective_rank_raw",
        "effective_rank_sphere",
        "effective_rank_centred",
        "spectral_entropy_rank",
        "participation_ratio",
    ],
    "cka": ["cka_biased", "cka_debiased"],
    "nn_stability": ["nn_stability"],
    "clusters": [
        "n_clusters",
        "noise_fraction",
        "mean_cluster_size",
        "null_n_clusters",
        "null_noise_fraction",
        "row_order_ari",
    ],
    "cluster_labels": ["position", "label", "probability"],
    "cluster_life": ["births", "deaths", "merges", "splits", "adjacent_ari"],
    "pair_groups": ["group", "mean_inner_product", "mass_near_one", "share_of_pairs"],
    "spectral_k": ["spectral_k", "gap", "gap_ratio"],
    "fiedler": [
        "head",
        "fiedler_published",
        "fiedler_published_uniform",
        "fiedler_symmetric",
        "fiedler_symmetric_uniform",
        "fiedler_symmetric_sinkhorn",
        "fiedler_symmetric_sinkhorn_uniform",
        "sinkhorn_residual",
        "sinkhorn_rounds",
        "converged",
        "n_components",
    ],
    "attention_tokens": ["position", "received", "received_uniform"],
    "attention_received": ["group", "received", "received_mask_corrected", "share_of_tokens"],
    "attention_entropy": ["head", "entropy", "entropy_uniform"],
    "projections": ["position", "method", "x", "y"],
}


def keys(**changes):
    run = {"model": "m", "weights": "norm-matched-s0", "scheme": "norm-matched", "seed": 0, "prompt": "p"}
    return run | {"tokens": "all", "layer": 1, "stage": "block", "depth": 0.5} | changes


def nn(**changes):
    return keys() | {"nn_stability": 0.5, "n_compared": 4, "undefined": None} | changes


def energy(**changes):
    values = {
        "energy": 1.5,
        "log_energy": 0.4,
        "change": 0.1,
        "relative_change": 0.1,
        "is_drop": False,
        "undefined": None,
    }
    return keys(beta=1.0) | values | changes


def a_histogram(**changes):
    means = dict.fromkeys(registry_columns("inner_products"), 0.25)
    return keys() | means | {"histogram": [0, 3], "n_pairs": 3, "undefined": None} | changes


def registry_columns(metric):
    return importlib.import_module(registry.module(metric)).COLUMNS


def names(directory):
    return sorted(path.name for path in directory.iterdir())


# The description


@pytest.mark.parametrize("metric", registry.METRICS)
def test_the_columns_of_every_metric_are_those_described(metric):
    # The script adds what the tokens of a cluster say, which a cloud of points cannot know.
    added = duplicate_tokens.COLUMNS if metric == "clusters" else ()
    # These say which token a row is of, and by which method.
    described = [name for name in ALL[metric]["columns"] if name not in ("position", "method")]
    assert [*registry_columns(metric), *added] == described


def test_the_columns_of_a_token_are_those_described():
    row = {"undefined": "none"}
    (token,) = clusters.token_rows(row, None, None, [True])
    for metric in registry.METRICS.values():
        if metric.token_table:
            assert list(token) == [*ALL[metric.token_table]["columns"], "undefined"]


def test_every_table_belongs_to_a_metric_to_the_runs_or_to_the_claims():
    token_tables = {metric.token_table for metric in registry.METRICS.values() if metric.token_table}
    assert set(ALL) == {"runs", "claims"} | set(registry.METRICS) | token_tables


@pytest.mark.parametrize("table", CONTRACT)
def test_a_table_has_its_keys_in_order_and_its_columns(table):
    found = list(tables.columns(table))
    assert found[: len(KEYS)] == KEYS
    assert (found[len(KEYS)] == "beta") == (table == "energy")
    assert found[-1] == "undefined"
    assert set(CONTRACT[table]) <= set(found)


@pytest.mark.parametrize("table", ALL)
def test_every_column_has_a_type_a_unit_and_a_meaning(table):
    for name, spec in tables.columns(table).items():
        assert set(spec) <= {"type", "unit", "range", "nullable", "meaning"}, name
        assert spec["type"] in tables.TYPES, name
        assert spec["unit"].strip() and spec["meaning"].strip(), name
        assert spec.get("nullable") in (None, "with reason", "always"), name
        if "range" in spec:
            low, high = spec["range"]
            assert float(low) < float(high), name
    assert ALL[table]["title"].strip()


@pytest.mark.parametrize("table", ALL)
def test_the_schema_is_the_description(table):
    assert [(field.name, field.type) for field in tables.schema(table)] == [
        (name, tables.TYPES[spec["type"]]) for name, spec in tables.columns(table).items()
    ]


def test_an_unknown_table_is_refused_with_the_known_ones():
    with pytest.raises(Refusal, match="'energies'.*energy"):
        tables.columns("energies")


# Rows in, rows out


def test_rows_come_back_as_they_were(tmp_path):
    rows = [nn(), nn(layer=2, depth=1.0, nn_stability=None, undefined="degenerate"), nn(seed=None, scheme="trained")]
    path = tmp_path / "m" / "t.parquet"
    tables.write(path, "nn_stability", rows, {"code": "c"})
    assert tables.read(path, "nn_stability").to_pylist() == rows
    assert tables.record(path) == {"code": "c", "table": "nn_stability", "table_schema_version": 1}


def test_lists_and_tables_come_back_as_they_were(tmp_path):
    rows = [a_histogram(), a_histogram(histogram=list(range(50)))]
    tables.write(tmp_path / "a.parquet", "inner_products", rows, {})
    table = tables.read(tmp_path / "a.parquet", "inner_products")
    assert table.to_pylist() == rows
    tables.write(tmp_path / "b.parquet", "inner_products", table, {})
    assert tables.read(tmp_path / "b.parquet", "inner_products").equals(table)


def test_columns_are_ordered_by_the_description_and_not_by_the_rows(tmp_path):
    tables.write(tmp_path / "t.parquet", "nn_stability", [dict(reversed(nn().items()))], {})
    assert pq.read_schema(tmp_path / "t.parquet").names == [*KEYS, "nn_stability", "n_compared", "undefined"]


def test_the_table_of_runs_has_no_reasons():
    assert "undefined" not in tables.columns("runs")
    assert "undefined" in tables.columns("energy")


# What is refused when it is written


def refused(tmp_path, table, rows, match):
    with pytest.raises(Refusal, match=match) as refusal:
        tables.write(tmp_path / "t.parquet", table, rows, {})
    assert names(tmp_path) == []
    return str(refusal.value)


def test_a_null_without_a_reason_is_refused_with_table_column_and_count(tmp_path):
    rows = [nn(), nn(nn_stability=None), nn(nn_stability=None), nn(nn_stability=None, undefined="degenerate")]
    message = refused(tmp_path, "nn_stability", rows, "nn_stability.nn_stability is null without a reason in 2 rows")
    assert str(tmp_path / "t.parquet") in message


def test_the_reason_must_stand_in_the_row_of_the_null(tmp_path):
    rows = [nn(nn_stability=None), nn(undefined="a reason for nothing")]
    refused(tmp_path, "nn_stability", rows, "without a reason in 1 rows")


@pytest.mark.parametrize("reason", ["", " "])
def test_an_empty_reason_is_none(tmp_path, reason):
    refused(tmp_path, "nn_stability", [nn(nn_stability=None, undefined=reason)], "without a reason")


@pytest.mark.parametrize("key", [key for key in KEYS if key != "seed"])
def test_a_key_is_never_null_whatever_the_reason(tmp_path, key):
    refused(tmp_path, "nn_stability", [nn(**{key: None}, undefined="a reason")], rf"nn_stability\.{key} has 1 nulls")


def test_a_seed_may_be_null(tmp_path):
    tables.write(tmp_path / "t.parquet", "nn_stability", [nn(seed=None, scheme="trained")], {})
    assert tables.read(tmp_path / "t.parquet", "nn_stability")["seed"].to_pylist() == [None]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("nn_stability", -0.01),
        ("nn_stability", 1.01),
        ("nn_stability", 1 + 1e-6),
        ("nn_stability", math.inf),
        ("n_compared", -1),
        ("depth", 1.5),
        ("layer", -1),
        ("seed", -1),
    ],
)
def test_a_value_outside_its_range_is_refused_with_column_range_and_value(tmp_path, column, value):
    message = refused(tmp_path, "nn_stability", [nn(), nn(**{column: value})], f"{column} leaves its range")
    assert "[0, " in message
    assert f"{float(value)}" in message


def test_one_value_outside_among_nulls_is_refused(tmp_path):
    rows = [nn(nn_stability=None, undefined="degenerate"), nn(nn_stability=2.0)]
    refused(tmp_path, "nn_stability", rows, "leaves its range")


def test_rounding_at_the_edge_of_a_range_is_not_refused(tmp_path):
    tables.write(tmp_path / "t.parquet", "nn_stability", [nn(nn_stability=1 + 1e-12), nn(nn_stability=-1e-12)], {})
    assert len(tables.read(tmp_path / "t.parquet", "nn_stability")) == 2


@pytest.mark.parametrize("column", ["energy", "log_energy", "change", "relative_change", "beta"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nan_and_infinity_are_refused_in_every_column(tmp_path, column, value):
    # An undefined value is a null with a reason, never a number that is none.
    refused(tmp_path, "energy", [energy(**{column: value})], column)


def test_a_column_that_is_not_described_is_refused(tmp_path):
    refused(
        tmp_path, "nn_stability", [nn(extra=1)], r"\['extra'\].*nn_stability.*not described in tables.yaml: add them"
    )


@pytest.mark.parametrize("column", ["model", "layer", "nn_stability", "n_compared"])
def test_a_row_that_lacks_a_column_is_refused(tmp_path, column):
    row = nn()
    del row[column]
    refused(tmp_path, "nn_stability", [row], column)


@pytest.mark.parametrize("column", [*KEYS, "nn_stability", "undefined"])
def test_a_table_that_lacks_a_column_is_refused(tmp_path, column):
    table = pa.Table.from_pylist([nn()], schema=tables.schema("nn_stability"))
    refused(tmp_path, "nn_stability", table.drop_columns(column), rf"missing \['{column}'\]")


def test_a_table_with_another_column_order_or_type_is_refused(tmp_path):
    table = pa.Table.from_pylist([nn()], schema=tables.schema("nn_stability"))
    refused(tmp_path, "nn_stability", table.append_column("extra", pa.array([1])), r"not described \['extra'\]")
    refused(tmp_path, "nn_stability", table.select(list(reversed(table.column_names))), "another order or type")
    wider = table.set_column(6, "layer", table["layer"].cast(pa.int64()))
    refused(tmp_path, "nn_stability", wider, "another order or type")


def test_rows_of_another_table_are_refused(tmp_path):
    refused(tmp_path, "nn_stability", [energy()], "not described")


def test_refused_rows_leave_the_old_table(tmp_path):
    path = tmp_path / "t.parquet"
    tables.write(path, "nn_stability", [nn()], {})
    before = path.read_bytes()
    with pytest.raises(Refusal):
        tables.write(path, "nn_stability", [nn(nn_stability=3.0)], {})
    assert path.read_bytes() == before
    assert names(tmp_path) == ["t.parquet"]


def test_a_write_that_fails_half_way_leaves_the_old_table(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    tables.write(path, "nn_stability", [nn()], {})
    before = path.read_bytes()

    def fail(data, target, **options):
        target.write_bytes(b"PAR1 half")
        raise OSError("disk full")

    monkeypatch.setattr(pq, "write_table", fail)
    with pytest.raises(OSError, match="disk full"):
        tables.write(path, "nn_stability", [nn(nn_stability=0.25)], {})
    assert path.read_bytes() == before
    assert names(tmp_path) == ["t.parquet"]


# What is refused when it is read


def not_read(path, table, match="Delete it and run again"):
    with pytest.raises(Refusal, match=match) as refusal:
        tables.read(path, table)
    assert str(path) in str(refusal.value)


def test_another_table_is_refused(tmp_path):
    tables.write(tmp_path / "t.parquet", "nn_stability", [nn()], {})
    not_read(tmp_path / "t.parquet", "energy")
    with pytest.raises(Refusal, match="not a energy table"):
        tables.read(tmp_path / "t.parquet", "energy")


@pytest.mark.parametrize("version", [0, 2, None])
def test_another_schema_version_is_refused(tmp_path, monkeypatch, version):
    with monkeypatch.context() as patched:
        patched.setattr(tables, "SCHEMA_VERSION", version)
        tables.write(tmp_path / "t.parquet", "nn_stability", [nn()], {})
    not_read(tmp_path / "t.parquet", "nn_stability")


@pytest.mark.parametrize("kept", [0, 4, 100, -20, -1])
def test_a_table_cut_short_is_refused(tmp_path, kept):
    path = tmp_path / "t.parquet"
    tables.write(path, "nn_stability", [nn()], {})
    path.write_bytes(path.read_bytes()[:kept])
    not_read(path, "nn_stability")


def test_a_flipped_bit_is_refused_or_changes_nothing(tmp_path):
    path = tmp_path / "t.parquet"
    tables.write(path, "nn_stability", [nn()], {"versions": {"numpy": "2.4.6"}})
    content, n_refused = path.read_bytes(), 0
    expected = tables.read(path, "nn_stability").to_pylist(), tables.record(path)
    for position in range(0, len(content), 3):
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        try:
            found = tables.read(path, "nn_stability").to_pylist(), tables.record(path)
            assert found == expected, position
        except Refusal as refusal:
            assert str(path) in str(refusal) and "Delete it and run again" in str(refusal)
            n_refused += 1
    assert n_refused > 0.5 * len(content) / 3


def test_a_missing_file_and_a_foreign_file_are_refused(tmp_path):
    not_read(tmp_path / "t.parquet", "nn_stability")
    pq.write_table(pa.table({"layer": [1]}), tmp_path / "t.parquet")
    not_read(tmp_path / "t.parquet", "nn_stability")


def described(monkeypatch, change):
    """Let `change` edit a copy of the description."""
    spec = copy.deepcopy(tables.description())
    change(spec)
    monkeypatch.setattr(tables, "description", lambda: spec)


def test_a_file_that_the_present_description_would_refuse_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    tables.write(path, "nn_stability", [nn(nn_stability=0.75)], {})

    def narrow(spec):
        spec["tables"]["nn_stability"]["columns"]["nn_stability"]["range"] = [0, 0.5]

    described(monkeypatch, narrow)
    not_read(path, "nn_stability", "leaves its range")


# What a table's files depend on


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c["nn_stability"].update(type="int64"),
        lambda c: c["nn_stability"].update(range=[0, 2]),
        lambda c: c["nn_stability"].pop("range"),
        lambda c: c["nn_stability"].update(nullable="always"),
        lambda c: c["nn_stability"].pop("nullable"),
        lambda c: c.update(another={"type": "bool", "unit": "none", "meaning": "Another."}),
        lambda c: c.update(renamed=c.pop("nn_stability")),
        lambda c: c.update(nn_stability=c.pop("nn_stability")),
    ],
    ids=["type", "range", "no range", "nullable", "not nullable", "column", "name", "order"],
)
def test_the_hash_of_the_types_changes_with_names_types_ranges_and_nulls(monkeypatch, change):
    before = tables.type_hash("nn_stability")
    described(monkeypatch, lambda spec: change(spec["tables"]["nn_stability"]["columns"]))
    assert tables.type_hash("nn_stability") != before


def test_the_hash_of_the_types_changes_with_the_keys(monkeypatch):
    before = tables.type_hash("nn_stability")
    described(monkeypatch, lambda spec: spec["keys"]["layer"].update(type="int32"))
    assert tables.type_hash("nn_stability") != before


def test_the_hash_of_the_types_does_not_change_with_words_or_with_other_tables(monkeypatch):
    before = tables.type_hash("nn_stability")

    def words(spec):
        spec["tables"]["nn_stability"]["title"] = "Another title"
        spec["tables"]["nn_stability"]["columns"]["nn_stability"] |= {"meaning": "Another meaning.", "unit": "percent"}
        spec["tables"]["energy"]["columns"]["energy"]["type"] = "int64"

    described(monkeypatch, words)
    assert tables.type_hash("nn_stability") == before


def test_hashes_of_types_are_8_hexadecimal_digits_and_differ_between_tables():
    hashes = {tables.type_hash(table) for table in ALL}
    assert len(hashes) == len(ALL)
    assert all(len(digits) == 8 and int(digits, 16) >= 0 for digits in hashes)
