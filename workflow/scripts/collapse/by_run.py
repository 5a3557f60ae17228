"""A results table read run by run: what is in memory is a few row groups, however many runs the table has."""

from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from collapse import tables
from collapse.errors import Refusal
from collapse.parquet import readable

RUN_KEYS = ("model", "weights", "prompt")


class ByRun:
    """A results table opened for reading.

    Runs are read fastest in the order of the table. Where it has a further axis (beta, method), a run lies in one
    stretch for each of its values, and as many row groups are kept.

    Attributes
    ----------
    runs : list of (str, str, str)
        Model, weights and prompt of every run, in order.

    Raises
    ------
    Refusal
        If the file is cut short or has changed on the disk, or is another table.
    """

    def __init__(self, path, table):
        tables.require_table(path, table, tables.record(path))
        self.path, self.table = path, table
        with readable(path):
            self._file = pq.ParquetFile(path, page_checksum_verification=True)
            self._stretches = self._find_runs()
        self.runs = list(self._stretches)
        most = max((len(stretches) for stretches in self._stretches.values()), default=0)
        self._group = lru_cache(maxsize=most + 1)(self._file.read_row_group)

    def read(self, run):
        """Return all rows of a run as a pyarrow.Table, checked against the description of the table."""
        if run not in self._stretches:
            raise Refusal(f"{self.path}: holds nothing of the run {'/'.join(run)}. Delete it and run again.")
        with readable(self.path):
            parts = [self._group(group).slice(start, n) for group, start, n in self._stretches[run]]
        return tables.checked(self.path, self.table, pa.concat_tables(parts))

    def _find_runs(self):
        """{run: [(row group, first row, number of rows), ...]}."""
        stretches = {}
        for group in range(self._file.num_row_groups):
            keys = self._file.read_row_group(group, columns=list(RUN_KEYS))
            columns = [keys[name].combine_chunks().dictionary_encode() for name in RUN_KEYS]
            codes = np.stack([column.indices.to_numpy() for column in columns])
            starts = np.flatnonzero(np.append(True, (codes[:, 1:] != codes[:, :-1]).any(axis=0)))
            for start, end in zip(starts.tolist(), [*starts[1:].tolist(), codes.shape[1]]):
                run = tuple(column[start].as_py() for column in columns)
                stretches.setdefault(run, []).append((group, start, end - start))
        return stretches
