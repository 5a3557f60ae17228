"""Weights of a run: the trained ones, or matrices drawn anew at the trained norms.

`norm-matched`: every weight matrix (two or more dimensions) is redrawn from a Gaussian and scaled to the Frobenius norm
of the trained tensor; a fused tensor part by part (queries, keys, values). Norm gains and biases are vectors, not
matrices: they stay as trained (`norms: keep`), or the norms are reset to gain 1 and bias 0 (`norms: reset`). Tensors
that are copies of each other (tied) get one draw. A block that several layers share is one tensor, so it is drawn once.

Each tensor draws from its own stream, named by the seed and the tensor: the same seed gives the same weights on every
machine, whatever the order, the depth, or other tensors in the file.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from collapse.architectures import HEADS, architecture, fused_parts
from collapse.atomic import replacing, write_text
from collapse.checkpoint import as_float32, content_hash, convert_gguf, frobenius, model_type, tensors, weights_hash
from collapse.drawn import keep
from collapse.errors import Refusal
from collapse.files import WEIGHT_SUFFIXES, file_record, sha256_of

# Old BERT checkpoints call them gamma and beta.
NORM_GAIN = re.compile(r"(norm|ln_\d|ln_f)\w*\.(weight|gamma)$", re.IGNORECASE)
NORM_BIAS = re.compile(r"(norm|ln_\d|ln_f)\w*\.(bias|beta)$", re.IGNORECASE)
NORM_TOLERANCE = 1e-6


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


def norm_matched(trained_checkpoint, trained_record, seed, norms, checkpoint, record_path):
    """Draw a norm-matched checkpoint.

    Parameters
    ----------
    trained_checkpoint, trained_record : path
        The trained weights and their record.
    seed : int
        Seed of the draw, >= 0.
    norms : str
        `keep` or `reset`.
    checkpoint, record_path : path
        Outputs.

    Raises
    ------
    Refusal
        If a redrawn tensor equals the trained one or misses its norm, which would make the baseline a lie.
    """
    require_unchanged(trained_checkpoint, trained_record)
    source = json.loads(Path(trained_record).read_text(encoding="utf-8"))
    entry = architecture(model_type(trained_checkpoint), trained_checkpoint)
    arrays, records, first_of = {}, {}, _first_copies(source["tensors"])
    for name, tensor in tensors(trained_checkpoint):
        array = as_float32(tensor)
        if array is None or (entry.buffers and re.search(entry.buffers, name)):
            continue
        before = source["tensors"][name]
        if array.ndim >= 2:
            first = first_of[before["sha256"]]
            split = fused_parts(entry, first)
            arrays[name] = arrays[first] if first in arrays else redraw(array, seed, first, *split)
            records[name] = _proof(name, array, arrays[name], before, split)
            if first != name:
                records[name]["tied_to"] = first
        else:
            arrays[name], action = _vector(name, array, norms)
            records[name] = {"action": action, "sha256": content_hash(arrays[name]), "norm": frobenius(arrays[name])}
        records[name]["shape"] = list(array.shape)
    with replacing(checkpoint) as directory:
        directory.mkdir()
        _link_all(Path(trained_checkpoint), directory, but=WEIGHT_SUFFIXES + (".index.json",))
        save_file(arrays, directory / "model.safetensors", {"format": "pt"})
    definition = {"scheme": "norm-matched", "seed": seed, "norms": norms}
    _write_record(record_path, source, definition, records, ["float32"])


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
            norm_matched(trained_checkpoint, trained_record, record["seed"], record["norms"], drawn, again)
            found = json.loads(again.read_text(encoding="utf-8"))["weights_hash"]
            again.unlink()
            if found != record["weights_hash"]:
                shutil.rmtree(drawn)
                raise Refusal(
                    f"{checkpoint}: seed {record['seed']} draws weights {found} today, and {record['weights_hash']} "
                    f"when its record was made. Delete {checkpoint.parent} and all its states, and run again."
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


def redraw(array, seed, name, axis=0, parts=1):
    """Return Gaussian numbers of an array's shape, each of `parts` equal parts along `axis` at its own trained norm.

    A part whose norm is zero stays zero.
    """
    key = hashlib.sha256(f"{seed}\n{name}".encode()).digest()
    rng = np.random.Generator(np.random.PCG64(int.from_bytes(key[:16], "big")))
    drawn = rng.standard_normal(array.shape, dtype=np.float32)
    for target, part in zip(np.split(array, parts, axis), np.split(drawn, parts, axis)):
        part *= np.float32(frobenius(target) / frobenius(part))
        # The float32 factor is off by up to 6e-8; the rounding of the entries averages out.
    return drawn


def _proof(name, before, after, record, split):
    """Record, per part, the norms before and after and how far the draw is from the trained tensor."""
    axis, parts = split
    proof = {"action": "redrawn", "sha256": content_hash(after), "parts": []}
    for old, new in zip(np.split(before, parts, axis), np.split(after, parts, axis)):
        norm_before, norm_after = frobenius(old), frobenius(new)
        if abs(norm_after - norm_before) > NORM_TOLERANCE * norm_before:
            raise Refusal(f"{name}: drawn at norm {norm_after}, trained at {norm_before}")
        distance = frobenius(new - old) / norm_before if norm_before else None
        proof["parts"].append({"norm_before": norm_before, "norm_after": norm_after, "relative_distance": distance})
    if proof["sha256"] == record["sha256"] and record["norm"] > 0:
        raise Refusal(f"{name}: the random tensor equals the trained one")
    return proof


def _vector(name, array, norms):
    if norms == "reset" and NORM_GAIN.search(name):
        return np.ones_like(array), "reset"
    if norms == "reset" and NORM_BIAS.search(name):
        return np.zeros_like(array), "reset"
    return array, "kept"


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
    """Over all redrawn parts: the largest relative error of a norm, the smallest distance from the trained tensor."""
    parts = [part for record in records.values() for part in record.get("parts", ()) if part["norm_before"]]
    return {
        "n_redrawn": len(parts),
        "max_norm_error": max((abs(p["norm_after"] / p["norm_before"] - 1) for p in parts), default=None),
        "min_relative_distance": min((p["relative_distance"] for p in parts), default=None),
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
