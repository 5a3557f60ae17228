"""Results tables: tidy parquet whose every column is described in workflow/schemas/tables.yaml.

Tables are checked against that description when they are written and when they are read: names, order, types,
ranges, and that a null comes with a reason. Keys come first, in one order, in every table.
"""

import hashlib
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from collapse.atomic import replacing
from collapse.errors import Refusal
from collapse.parquet import readable
from collapse.provenance import pack, unpack

SCHEMA_VERSION = 1
DESCRIPTION = Path(__file__).resolve().parents[2] / "schemas" / "tables.yaml"
TYPES = {
    "string": pa.string(),
    "bool": pa.bool_(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "list<int64>": pa.list_(pa.int64()),
}


@cache
def description():
    """Return the parsed tables.yaml: `keys`, `undefined` and `tables`, each column with type, unit, range, meaning."""
    return yaml.load(DESCRIPTION.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def columns(table):
    """Return {name: description} of a table's columns, in order: keys, values, and `undefined` for a metric."""
    spec = description()
    if table not in spec["tables"]:
        raise Refusal(
            f"no table {table!r} in {DESCRIPTION.name}: add it there, or use one of {', '.join(spec['tables'])}"
        )
    own = spec["tables"][table]
    names = {key: spec["keys"][key] for key in own["keys"]} | own["columns"]
    return names | {"undefined": spec["undefined"]} if own.get("undefined", True) else names


def schema(table):
    """Return the Arrow schema of a table."""
    return pa.schema([pa.field(name, TYPES[spec["type"]]) for name, spec in columns(table).items()])


def type_hash(table):
    """Return a hash of a table's column names, types and ranges: what, beside code, its files depend on."""
    rules = [(name, spec["type"], spec.get("range"), spec.get("nullable")) for name, spec in columns(table).items()]
    return hashlib.sha256(repr(rules).encode()).hexdigest()[:8]


def description_hash():
    """Return a hash of everything that tables.yaml says: what the report's definitions depend on."""
    return hashlib.sha256(repr(description()).encode()).hexdigest()[:8]


def write(path, table, rows, record):
    """Check rows (a list of dicts or a pyarrow.Table) against the description and write them atomically.

    Parameters
    ----------
    record : dict
        Provenance, stored in the file; the table's name and schema version are added.
    """
    data = rows if isinstance(rows, pa.Table) else _from_rows(table, rows)
    check(table, data, path)
    record = record | {"table": table, "table_schema_version": SCHEMA_VERSION}
    data = data.replace_schema_metadata(pack(record))
    with replacing(path) as temporary:
        pq.write_table(data, temporary, compression="zstd", write_page_checksum=True)


def read(path, table):
    """Read a table, checked against its description.

    Raises
    ------
    Refusal
        If the file is cut short or has changed on the disk, is another table, or does not match the description.
    """
    data, record = _open(path)
    require_table(path, table, record)
    return checked(path, table, data)


def require_table(path, table, record):
    """Refuse a file whose record is not that of this table in this schema version."""
    if (record or {}).get("table") != table or record.get("table_schema_version") != SCHEMA_VERSION:
        raise Refusal(f"{path}: is not a {table} table of schema version {SCHEMA_VERSION}. Delete it and run again.")


def checked(path, table, data):
    """Return what was read of a table; refuse it, with what to do, if it does not match the description."""
    try:
        check(table, data, path)
    except Refusal as refusal:
        raise Refusal(f"{refusal}. Delete it and run again.") from refusal
    return data


def record(path):
    """Return the provenance stored in a table."""
    with readable(path):
        return unpack(pq.read_schema(path).metadata)


def check(table, data, where):
    """Refuse data that does not match the description of `table`."""
    expected = schema(table)
    found = data.schema.remove_metadata()
    if found != expected:
        missing = [name for name in expected.names if name not in found.names]
        extra = [name for name in found.names if name not in expected.names]
        raise Refusal(
            f"{where}: columns do not match the description of {table!r} in {DESCRIPTION.name} (missing {missing}, "
            f"not described {extra}, or another order or type)"
        )
    for name, spec in columns(table).items():
        _check_column(table, name, spec, data, where)


def _check_column(table, name, spec, data, where):
    column = data[name]
    if column.null_count and spec.get("nullable") != "always":
        # A null is a statement: it needs its reason, in the row itself.
        if spec.get("nullable") != "with reason":
            raise Refusal(f"{where}: {table}.{name} has {column.null_count} nulls and may have none")
        unexplained = _unexplained(data, name)
        if unexplained:
            raise Refusal(f"{where}: {table}.{name} is null without a reason in {unexplained} rows")
    if _is_number(column.type) and column.null_count < len(column):
        # Nulls are NaN here, and the only ones that may be.
        values = column.to_numpy().astype(np.float64)
        finite = values[np.isfinite(values)]
        low, high = (float(bound) for bound in spec.get("range", (-np.inf, np.inf)))
        # Ranges are exact in theory and rounded in practice.
        slack = 1e-9 * max([1.0, *(abs(bound) for bound in (low, high) if np.isfinite(bound))])
        is_whole = len(finite) == len(column) - column.null_count
        if not (is_whole and finite.min() >= low - slack and finite.max() <= high + slack):
            found = f"{finite.min()} to {finite.max()}" if is_whole else "NaN or infinity"
            raise Refusal(f"{where}: {table}.{name} leaves its range [{low:g}, {high:g}]: {found}")


def _unexplained(data, name):
    """The number of nulls of a column without a reason beside them.

    In Python, piece by piece: to import pyarrow.compute takes a third of the start of a job.
    """
    count = 0
    for batch in data.select([name, "undefined"]).to_batches(max_chunksize=2**16):
        values, reasons = batch.columns
        if values.null_count:
            pairs = zip(values.to_pylist(), reasons.to_pylist())
            count += sum(value is None and not (reason or "").strip() for value, reason in pairs)
    return count


def _is_number(kind):
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def _from_rows(table, rows):
    expected = schema(table)
    names = set(expected.names)
    for row in rows:
        unknown = row.keys() - names
        if unknown:
            raise Refusal(
                f"columns {sorted(unknown)} of {table!r} are not described in {DESCRIPTION.name}: add them there"
            )
        lacking = names - row.keys()
        if lacking:
            raise Refusal(
                f"a row of {table!r} lacks {sorted(lacking)}: a value that is undefined is None, with a reason"
            )
    return pa.Table.from_pylist(rows, schema=expected)


def _open(path):
    with readable(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        return file.read(), unpack(file.schema_arrow.metadata)
