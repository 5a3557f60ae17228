"""Attention metrics over one run: each block's attention is measured as it appears, under both token rules.

The attention of block l (counted from 1) belongs to the state that enters it: it stands in the tables at layer l - 1,
so there is none at the last layer and none after the final norm. A metric of the kind `attention` is a function
(A, is_causal, **options) of heads x n x n attention that returns one row per head, or one per token where its table
has a position.
"""

import importlib
import time

from collapse import tables
from collapse.attention import as_attention, null_heads, restrict
from collapse.errors import Refusal, Undefined
from collapse.geometry import nulls
from collapse.measure import layer_keys, metric_record, rows_of, run_keys
from collapse.states import StatesFile
from collapse.token_rules import TOKEN_RULES


class AttentionTables:
    """Measures the attention of one run, block by block, and writes one table per metric.

    Parameters
    ----------
    states : path
        The run's states file: its tokens, mask and keys.
    metrics : list of dict
        For each metric `name`, `module` and `packages`.
    options : dict
        For each metric's name, its keyword arguments.
    """

    def __init__(self, states, metrics, options):
        self._path = states
        self._metrics = metrics
        self._options = options
        self._states = StatesFile(states)
        self._masks = {rule: self._states.mask(rule) for rule in TOKEN_RULES}
        modules = {metric["name"]: importlib.import_module(metric["module"]) for metric in metrics}
        self._functions = {name: getattr(module, name) for name, module in modules.items()}
        self._columns = {name: module.COLUMNS for name, module in modules.items()}
        self._rows = {(name, rule): [] for name in modules for rule in TOKEN_RULES}
        self._blocks = 0
        self._started = time.monotonic()

    def take(self, block, A):
        """Measure the attention of one block (counted from 0; heads x n x n). Nothing of A is kept.

        Raises
        ------
        Refusal
            If blocks do not come one after the other, or A is not the attention of the run's tokens: another number of
            them, rows that do not sum to 1, a later token seen by a causal model.
        """
        metadata = self._states.metadata
        layer, stage = self._states.states[block]
        if block != self._blocks or layer != block:
            raise Refusal(f"{self._path}: attention of block {block} came where block {self._blocks} was expected")
        A = as_attention(A, metadata["is_causal"])
        if A.shape[1] != metadata["n_tokens"]:
            expected = metadata["n_tokens"]
            raise Refusal(f"{self._path}: has {expected} tokens, the attention of block {block} {A.shape[1]}")
        keys = layer_keys(layer, stage, metadata["n_blocks"])
        for rule, mask in self._masks.items():
            for name, found in self._measure(A, mask).items():
                row_keys = run_keys(metadata) | {"tokens": rule} | keys
                self._rows[name, rule] += rows_of([(row_keys, found, mask)], name)
        self._blocks += 1
        seconds = time.monotonic() - self._started
        print(f"attention of block {self._blocks} of {metadata['n_blocks']} measured, {seconds:.1f} s")

    def _measure(self, A, mask):
        """Return {metric: rows} of one block under one token rule."""
        try:
            cut = A if mask.all() else restrict(A, mask)
        except Undefined as reason:
            return {name: self._null_rows(name, len(A), int(mask.sum()), reason) for name in self._functions}
        is_causal = self._states.metadata["is_causal"]
        return {name: function(cut, is_causal, **self._options[name]) for name, function in self._functions.items()}

    def _null_rows(self, name, n_heads, n_tokens, reason):
        if "position" in tables.columns(name):
            return [nulls(self._columns[name], reason) for _ in range(n_tokens)]
        return null_heads(n_heads, self._columns[name], reason)

    def write(self, outputs, code, run_record):
        """Write one table per metric.

        Parameters
        ----------
        outputs : mapping
            Path of each metric's table, by name.
        code : dict
            Hash of each metric's code, by name.
        run_record : dict
            Device, dtype and versions of the pass that yielded the attention.

        Raises
        ------
        Refusal
            If fewer blocks attended than the run has.
        """
        n_blocks = self._states.metadata["n_blocks"]
        if self._blocks != n_blocks:
            raise Refusal(f"{self._path}: {self._blocks} of {n_blocks} blocks attended: nothing is written")
        for metric in self._metrics:
            name = metric["name"]
            record = metric_record(self._path, metric, self._options[name], code[name]) | {"attention": run_record}
            rows = [row for rule in TOKEN_RULES for row in self._rows[name, rule]]
            tables.write(outputs[name], name, rows, record)
