"""Weights of a run: the trained ones, or matrices drawn anew.

Every weight matrix (two or more dimensions) of the components that a scheme names is redrawn, as collapse/schemes.py
says; a fused tensor part by part (queries, keys, values). Norm gains and biases are vectors, not matrices: they stay as
trained, or the norms are reset to gain 1 and bias 0 (`norms: reset`), or the other biases of those components to 0
(`biases: zero`). Tensors that are copies of each other (tied) get one draw. A block that several layers share is one
tensor, so it is drawn once.

Tensors are read, drawn and written one by one: a checkpoint never stands in memory.
"""

import fcntl
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np

from collapse.architectures import ARCHITECTURES, HEADS, architecture, fused, role
from collapse.atomic import replacing, write_text
from collapse.checkpoint import (
    as_float32,
    content_hash,
    convert_gguf,
    distance,
    frobenius,
    model_config,
    tensors,
    weights_hash,
)
from collapse.components import ALL, belongs, scheme_name
from collapse.drawn import keep
from collapse.errors import Refusal
from collapse.files import WEIGHT_SUFFIXES, file_record, sha256_of
from collapse.library_init import base_name, fill, recipes
from collapse.safetensors_file import writing
from collapse.schemes import expected_norm, parts, redraw, stream

# Old BERT checkpoints call them gamma and beta.
NORM_GAIN = re.compile(r"(norm|ln_\d|ln_f)\w*\.(weight|gamma)$", re.IGNORECASE)
NORM_BIAS = re.compile(r"(norm|ln_\d|ln_f)\w*\.(bias|beta)$", re.IGNORECASE)
DEFINITION = ("scheme", "seed", "components", "norms", "biases")
# Of float32 entries that one factor scaled, or that LAPACK made.
NORM_TOLERANCE = {"norm-matched": 1e-6, "shuffled": 1e-6, "orthogonal": 1e-5, "spectrum-matched": 1e-5}


def trained(snapshot, source_record, checkpoint, record_path):
    """Make the checkpoint directory of the trained weights: links to the snapshot, or a conversion from GGUF."""
    snapshot = Path(snapshot)
    source = json.loads(Path(source_record).read_text(encoding="utf-8"))
    with replacing(checkpoint) as directory:
        directory.mkdir()
        gguf_file = source["source"].get("gguf_file")
        if gguf_file:
            convert_gguf(snapshot, gguf_file, directory)
        else:
            _link_all(snapshot, directory)
        files = {path.name: file_record(path) for path in sorted(directory.iterdir()) if path.is_file()}
        records, dtypes = {}, set()
        for name, tensor in tensors(directory):
            dtypes.add(str(tensor.dtype).removeprefix("torch."))
            array = as_float32(tensor)
            if array is not None:
                _require_finite(name, array)
                records[name] = {"shape": list(array.shape), "sha256": content_hash(array), "norm": frobenius(array)}
    if dtypes != {"float32"}:
        print(f"{source['model']}: stored as {', '.join(sorted(dtypes))}; floating numbers are cast to float32")
    _write_record(record_path, source, {"scheme": "trained", "seed": None, "files": files}, records, sorted(dtypes))


def require_unchanged(checkpoint, trained_record):
    """Refuse a checkpoint whose files are not those that its record describes.

    They may be links to a directory of the user's, where anything can change them. A file with the recorded size and
    time is taken as unchanged; any other is hashed.
    """
    record = json.loads(Path(trained_record).read_text(encoding="utf-8"))
    for name, expected in record["files"].items():
        path = Path(checkpoint) / name
        if not path.is_file():
            raise Refusal(
                f"{path}: is gone since the model was fetched. Put it back, or run again with --forcerun fetch"
            )
        same = os.stat(path).st_size == expected["size"] and os.stat(path).st_mtime_ns == expected["mtime_ns"]
        if not same and sha256_of(path) != expected["sha256"]:
            raise Refusal(
                f"{path.resolve()}: has changed since {record['model']} was fetched: its sha256 was "
                f"{expected['sha256']}. Put the old file back, or run again with --forcerun fetch to use the new one."
            )


def draw(trained_checkpoint, trained_record, definition, checkpoint, record_path):
    """Draw a random checkpoint.

    Parameters
    ----------
    trained_checkpoint, trained_record : path
        The trained weights and their record.
    definition : dict
        The scheme: `scheme`, `seed` (>= 0), `components` (of `collapse.components.COMPONENTS`, or `all`), and but for
        `library-init` `norms` (`keep` or `reset`) and `biases` (`keep` or `zero`).
    checkpoint, record_path : path
        Outputs.

    Raises
    ------
    Refusal
        If a redrawn tensor equals the trained one or misses the norm that its scheme gives it, which would make the
        baseline a lie; if the model type has no entry in the table of architectures and the scheme needs one.
    """
    require_unchanged(trained_checkpoint, trained_record)
    source = json.loads(Path(trained_record).read_text(encoding="utf-8"))
    drawer = _Drawer(trained_checkpoint, source["tensors"], definition)
    shapes = {name: record["shape"] for name, record in source["tensors"].items() if not drawer.is_buffer(name)}
    records = {}
    with replacing(checkpoint) as directory:
        directory.mkdir()
        _link_all(Path(trained_checkpoint), directory, but=WEIGHT_SUFFIXES + (".index.json",))
        with writing(directory / "model.safetensors", shapes) as write:
            for name, tensor in tensors(trained_checkpoint):
                if name in shapes:
                    array, records[name] = drawer.draw(name, as_float32(tensor))
                    write(name, array)
        _require_something_redrawn(trained_checkpoint, definition, records)
    _write_record(record_path, source, definition, records, ["float32"])


class _Drawer:
    """One scheme on one checkpoint: makes each tensor, with the record that says what was done to it."""

    def __init__(self, checkpoint, trained_records, definition):
        config = model_config(checkpoint)
        kind, scheme = config.get("model_type"), definition["scheme"]
        self.entry = ARCHITECTURES.get(kind)
        self.library = recipes(checkpoint) if scheme == "library-init" else None
        # What the library draws needs no knowledge of ours, unless it is asked of some components alone.
        if self.library is None or ALL not in definition["components"]:
            self.entry = architecture(kind, checkpoint, f"fused tensors and components, which {scheme} weights need")
        self.heads = config.get("num_attention_heads")
        self.trained = trained_records
        self.first_of = _first_copies(trained_records)
        self.definition = definition

    def is_buffer(self, name):
        """Tell whether a tensor is no weight, such as the masks in old checkpoints."""
        return bool(self.entry and self.entry.buffers and re.search(self.entry.buffers, name))

    def draw(self, name, array):
        """Return the tensor that takes the place of a trained one, and its record."""
        first = self.first_of[self.trained[name]["sha256"]] if array.ndim >= 2 else name
        # A head belongs to what it is tied to.
        place = first if HEADS.search(name) else name
        split = fused(self.entry, place) if self.entry else None
        roles = split.roles if split else (role(self.entry, place) if self.entry else None,)
        chosen = [belongs(part, self.definition) for part in roles]
        if self.library is not None:
            new, action = self._from_library(first, array, chosen, split)
        elif array.ndim >= 2:
            new, action = self._redrawn(first, array, chosen, split)
        else:
            new, action = self._vector(name, array, chosen, split)
        record = {"action": action, "sha256": content_hash(new), "shape": list(array.shape)}
        if action == "redrawn" and array.ndim >= 2:
            record["parts"] = self._proof(name, array, new, chosen, split)
            if record["sha256"] == self.trained[name]["sha256"] and self.trained[name]["norm"] > 0:
                raise Refusal(f"{name}: the random tensor equals the trained one")
            if first != name:
                record["tied_to"] = first
        else:
            record["norm"] = frobenius(new)
        return new, record

    def _redrawn(self, first, array, chosen, split):
        if not any(chosen):
            return array, "kept"
        new = redraw(self.definition["scheme"], array, self.definition["seed"], first, split, self.heads)
        return self._keep_others(array, new, chosen, split), "redrawn"

    def _from_library(self, first, array, chosen, split):
        known = base_name(first, self.library)
        if known is None and not HEADS.search(first):
            raise Refusal(f"{first}: transformers does not say how it initialises this tensor")
        if known is None or not any(chosen):
            return array, "kept"
        # The name in the base model, so that a checkpoint with a head draws like one without.
        new = fill(self.library[known], array.shape, stream(self.definition["seed"], known), known)
        return self._keep_others(array, new, chosen, split), "redrawn" if array.ndim >= 2 else "reset"

    def _vector(self, name, array, chosen, split):
        is_norm = NORM_GAIN.search(name) or NORM_BIAS.search(name)
        if is_norm and self.definition["norms"] == "reset":
            return np.full_like(array, 1 if NORM_GAIN.search(name) else 0), "reset"
        is_bias = not is_norm and name.endswith("bias")
        if is_bias and any(chosen) and self.definition["biases"] == "zero":
            return self._keep_others(array, np.zeros_like(array), chosen, split), "zeroed"
        return array, "kept"

    def _keep_others(self, array, new, chosen, split):
        """Put the trained values back into the parts of a fused tensor that the scheme leaves alone."""
        for old, part, is_chosen in zip(*(parts(tensor, split, self.heads) for tensor in (array, new)), chosen):
            if not is_chosen:
                part[...] = old
        return new

    def _proof(self, name, before, after, chosen, split):
        """Per redrawn part, the norms before and after and how far the draw is from the trained tensor."""
        scheme, proof = self.definition["scheme"], []
        for old, new, is_chosen in zip(*(parts(t, split, self.heads) for t in (before, after)), chosen):
            if not is_chosen:
                continue
            norm_before, norm_after, expected = frobenius(old), frobenius(new), expected_norm(scheme, old)
            if expected is not None and abs(norm_after - expected) > NORM_TOLERANCE[scheme] * expected:
                raise Refusal(f"{name}: drawn at norm {norm_after}, where {scheme} gives {expected}")
            proof.append(
                {
                    "norm_before": norm_before,
                    "norm_after": norm_after,
                    "norm_error": None if not expected else abs(norm_after / expected - 1),
                    "relative_distance": distance(new, old) / norm_before if norm_before else None,
                }
            )
        return proof


def _require_something_redrawn(checkpoint, definition, records):
    if not any(record["action"] == "redrawn" for record in records.values()):
        raise Refusal(
            f"{checkpoint}: no matrix belongs to {', '.join(definition['components'])}, so {scheme_name(definition)} "
            "would be the trained weights"
        )


def checkpoint_of_run(record_path, trained_checkpoint, trained_record, drawn_checkpoint):
    """Return (checkpoint, record) of a run's weights: the trained ones as they were fetched, or those drawn from them.

    Raises
    ------
    Refusal
        If the trained files have changed, or the draw is not the recorded one.
    """
    record = json.loads(Path(record_path).read_text(encoding="utf-8"))
    require_unchanged(trained_checkpoint, trained_record)
    if record["seed"] is None:
        return trained_checkpoint, record
    return restore(record, trained_checkpoint, trained_record, drawn_checkpoint), record


def restore(record, trained_checkpoint, trained_record, checkpoint):
    """Return the checkpoint that a record describes, drawing it again where it was discarded.

    Snakemake's `temp` would do this by rerunning the rule, and with it every other run of the same weights. Two jobs
    may come here at once: one draws, the other waits. The checkpoint stays while this process lives.

    Raises
    ------
    Refusal
        If the new draw is not the recorded one (another numpy?).
    """
    checkpoint = Path(checkpoint)
    keep(checkpoint)
    with open(checkpoint.parent / ".drawing", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not checkpoint.exists():
            drawn, again = checkpoint.with_name(".drawn"), checkpoint.with_name(".drawn.json")
            definition = {key: record[key] for key in DEFINITION if key in record}
            draw(trained_checkpoint, trained_record, definition, drawn, again)
            found = json.loads(again.read_text(encoding="utf-8"))["weights_hash"]
            again.unlink()
            if found != record["weights_hash"]:
                shutil.rmtree(drawn)
                raise Refusal(
                    f"{checkpoint}: seed {record['seed']} draws weights {found} today, and {record['weights_hash']} "
                    "when its record was made (another numpy or torch; for orthogonal and spectrum-matched, another "
                    f"kind of CPU). Delete {checkpoint.parent} and all its states, and run again."
                )
            drawn.rename(checkpoint)
    return checkpoint


def _first_copies(records):
    """For each content, the tensor that draws: tied tensors are copies of each other in the file and share a draw.

    A head is never the first, so that a checkpoint which stores a tied head draws like one that does not.
    """
    first = {}
    for name in sorted(records, key=lambda name: (bool(HEADS.search(name)), name)):
        first.setdefault(records[name]["sha256"], name)
    return first


def _require_finite(name, array):
    if not np.isfinite(array).all():
        raise Refusal(f"tensor {name} holds NaN or infinity: the checkpoint is broken")


def _link_all(source, directory, but=()):
    """Link a checkpoint's files into `directory`: relatively, so that the results folder can move as a whole."""
    for path in sorted(source.iterdir()):
        if path.is_file() and not path.name.startswith(".") and not (but and path.name.endswith(but)):
            target, start = path.resolve(), directory.resolve()
            if target.is_relative_to(start.parents[3]):
                target = Path(os.path.relpath(target, start))
            (directory / path.name).symlink_to(target)


def _summary(records):
    """Over all redrawn parts: the largest relative error of a norm that the scheme sets (None where it sets none), the
    smallest distance from the trained tensor.
    """
    redrawn = [part for record in records.values() for part in record.get("parts", ()) if part["norm_before"]]
    errors = [part["norm_error"] for part in redrawn if part["norm_error"] is not None]
    return {
        "n_redrawn": len(redrawn),
        "max_norm_error": max(errors, default=None),
        "min_relative_distance": min((part["relative_distance"] for part in redrawn), default=None),
    }


def _write_record(path, source, definition, tensor_records, dtypes):
    record = {
        "model": source["model"],
        "source": source["source"],
        "revision": source["revision"],
        **definition,
        "weights_hash": weights_hash(tensor_records),
        "proof": _summary(tensor_records),
        "checkpoint_dtypes": dtypes,
        "tensors": tensor_records,
    }
    write_text(path, json.dumps(record, indent=1, sort_keys=True) + "\n")
