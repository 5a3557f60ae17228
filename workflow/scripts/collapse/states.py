"""The states table: the residual stream of one model on one prompt, one parquet file per run.

One row per (layer, token), sorted; one row group per state, so that a layer is read alone. Columns as in `schema`.
`state` is the raw float32 vector: norms are data. Layer 0 is the embedding output, layer l the output of block l
before any final norm; a pre-norm model has one more state of the last layer, with the stage `final_norm`.
"""

import contextlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from collapse.atomic import replacing
from collapse.errors import Refusal
from collapse.parquet import readable
from collapse.provenance import pack, unpack
from collapse.token_rules import token_mask

SCHEMA_VERSION = 1
STAGES = ("embedding", "block", "final_norm")
TOKEN_COLUMNS = ("position", "token_id", "token", "is_special", "is_first", "is_punctuation")


def schema(d):
    """Return the Arrow schema of a states table of dimension d."""
    return pa.schema(
        [
            pa.field("layer", pa.int16(), nullable=False),
            pa.field("stage", pa.string(), nullable=False),
            pa.field("position", pa.int32(), nullable=False),
            pa.field("token_id", pa.int32(), nullable=False),
            pa.field("token", pa.string(), nullable=False),
            pa.field("is_special", pa.bool_(), nullable=False),
            pa.field("is_first", pa.bool_(), nullable=False),
            pa.field("is_punctuation", pa.bool_(), nullable=False),
            pa.field("state", pa.list_(pa.field("element", pa.float32(), nullable=False), d), nullable=False),
        ]
    )


@contextlib.contextmanager
def writing(path, tokens, d, metadata):
    """Write a states table state by state; the file appears only when all of it is written.

    Parameters
    ----------
    path : path
        Where it goes.
    tokens : pyarrow.Table
        The columns `TOKEN_COLUMNS`, one row per token.
    d : int
        Dimension of the states.
    metadata : dict
        The run's record; `schema_version`, `n_tokens` and `dimension` are added.

    Yields
    ------
    callable
        `write(layer, stage, H)`, H of shape (n, d), to be called in order of depth.
    """
    record = metadata | {"schema_version": SCHEMA_VERSION, "n_tokens": len(tokens), "dimension": d}
    with replacing(path) as temporary:
        writer = pq.ParquetWriter(
            temporary,
            schema(d).with_metadata(pack(record)),
            compression="zstd",
            use_dictionary=["stage", "token"],
            use_byte_stream_split=["state.list.element"],
            write_page_checksum=True,
        )
        written = 0

        def write(layer, stage, H):
            nonlocal written
            writer.write_table(_state_table(layer, stage, H, tokens, d), row_group_size=len(tokens))
            written += 1

        with writer:
            yield write
        if written != record.get("n_states", written):
            raise Refusal(f"{path}: {written} of {record['n_states']} states were written: nothing is kept")


def _state_table(layer, stage, H, tokens, d):
    H = np.ascontiguousarray(H, dtype=np.float32)
    n = len(tokens)
    if H.shape != (n, d) or stage not in STAGES:
        raise ValueError(f"state {layer} ({stage}) has shape {H.shape}, expected {(n, d)} and a stage of {STAGES}")
    broken = np.flatnonzero(~np.isfinite(H).all(axis=1))
    if len(broken):
        raise Refusal(
            f"layer {layer} ({stage}) holds NaN or infinity, first at position {broken[0]} ({len(broken)} of {n} "
            "tokens): the weights or the dtype overflow; nothing was written"
        )
    fields = schema(d)
    columns = [
        pa.array(np.full(n, layer, dtype=np.int16)),
        pa.array([stage] * n),
        *(tokens[name].combine_chunks().cast(fields.field(name).type) for name in TOKEN_COLUMNS),
        pa.FixedSizeListArray.from_arrays(pa.array(H.reshape(-1)), type=fields.field("state").type),
    ]
    return pa.Table.from_arrays(columns, schema=fields)


class StatesFile:
    """A states table opened for reading, one layer at a time.

    Attributes
    ----------
    metadata : dict
        The run's record.
    states : list of (int, str)
        Layer and stage of each stored state, in order of depth.

    Raises
    ------
    Refusal
        If the file is cut short or has changed on the disk, is no states table, or has a schema version that this
        code does not know.
    """

    def __init__(self, path):
        self.path = path
        with readable(path):
            self._file = pq.ParquetFile(path, page_checksum_verification=True)
            self.metadata = unpack(self._file.schema_arrow.metadata)
        version = (self.metadata or {}).get("schema_version")
        if version != SCHEMA_VERSION:
            raise Refusal(
                f"{path}: schema version {version!r} is not the {SCHEMA_VERSION} that this code reads. Delete it and "
                "run again, or use the code that wrote it."
            )
        if self._file.schema_arrow.remove_metadata() != schema(self.metadata["dimension"]):
            raise Refusal(f"{path}: its columns are not those of a states table. Delete it and run again.")
        expected = self.metadata.get("n_states", self._file.num_row_groups)
        if self._file.num_row_groups != expected:
            raise Refusal(f"{path}: has {self._file.num_row_groups} states of {expected}. Delete it and run again.")
        self.states = [self._layer_and_stage(group) for group in range(self._file.num_row_groups)]
        self._last = None, None

    def __len__(self):
        return len(self.states)

    def tokens(self):
        """Return the token columns (one row per token) as a pyarrow.Table."""
        return self._read(0, list(TOKEN_COLUMNS))

    def mask(self, rule):
        """Return the boolean mask of the tokens that a token rule keeps."""
        flags = self._read(0, ["is_first", "is_special"])
        return token_mask(rule, flags["is_first"].to_numpy(), flags["is_special"].to_numpy())

    def read(self, index):
        """Return the state at `index` of `states`, as float32 of shape (n, d); the last one read is not read again."""
        if self._last[0] != index:
            # Let go first: never two of them in memory.
            self._last = None, None
            self._last = index, self._state(index)
        return self._last[1]

    def trajectory(self, rule, places=None):
        """Yield states in order of depth as float64, all or those at `places`, restricted to the tokens of `rule`.

        Trajectories of a file that are followed in step read each state once.
        """
        keep = self.mask(rule)
        for index in range(len(self)) if places is None else places:
            yield self.read(index)[keep].astype(np.float64)

    def _state(self, index):
        column = self._read(index, ["state"])["state"].combine_chunks()
        if column.null_count:
            raise Refusal(f"{self.path}: state {index} has {column.null_count} nulls. Delete it and run again.")
        return column.values.to_numpy().reshape(len(column), self.metadata["dimension"])

    def _layer_and_stage(self, group):
        first = self._read(group, ["layer", "stage"]).slice(0, 1).to_pylist()[0]
        return first["layer"], first["stage"]

    def _read(self, group, columns):
        with readable(self.path):
            found = self._file.read_row_group(group, columns=columns)
        n = self.metadata["n_tokens"]
        if len(found) != n:
            raise Refusal(f"{self.path}: state {group} has {len(found)} rows for {n} tokens. Delete it and run again.")
        return found
