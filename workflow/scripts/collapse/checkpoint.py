"""Checkpoints: safetensors directories with config and tokenizer, and their loading into the base model.

A checkpoint is loaded whole or not at all: a tensor that the model misses, or that it cannot place, is refused,
since transformers would otherwise fill the gap with fresh random numbers and go on.
"""

import hashlib
import json
import os
import re
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from collapse.architectures import ARCHITECTURES, HEADS
from collapse.blocks import find_blocks
from collapse.errors import Refusal
from collapse.files import VOCABULARIES


def model_config(directory):
    """Return what a checkpoint's config.json says."""
    path = Path(directory) / "config.json"
    if not path.is_file():
        raise Refusal(f"{directory}: has no config.json, so it is no checkpoint that transformers can load")
    return json.loads(path.read_text(encoding="utf-8"))


def tensors(directory):
    """Yield (name, tensor on the CPU) of every tensor in a checkpoint's safetensors files, file by file.

    Files are mapped, so only one tensor is in memory at a time.
    """
    where = {}
    for path in weight_files(directory):
        with _opened(path) as file:
            for name in file.keys():  # noqa: SIM118 - no mapping
                if name in where:
                    raise Refusal(f"{directory}: tensor {name} is in {where[name].name} and in {path.name}")
                where[name] = path
    if not where:
        raise Refusal(f"{directory}: has no *.safetensors file with tensors")
    for name in sorted(where, key=lambda key: (where[key], key)):
        # Opened for each, since what was read stays mapped, and counts as memory, until its file is closed.
        with _opened(where[name]) as file:
            yield name, file.get_tensor(name)


def weight_files(directory):
    """Return the safetensors files that transformers loads: the shards of the index, or the one file."""
    directory = Path(directory)
    index = directory / "model.safetensors.index.json"
    if index.is_file() and not (directory / "model.safetensors").is_file():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        missing = [name for name in names if not (directory / name).is_file()]
        if missing:
            raise Refusal(f"{directory}: its index names {missing[0]}, which is not there. Fetch the model again.")
        return [directory / name for name in names]
    return sorted(directory.glob("model.safetensors")) or sorted(directory.glob("*.safetensors"))


def _opened(path):
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise Refusal(f"{path}: is no whole safetensors file ({error}). Fetch it again.") from error


def as_float32(tensor):
    """Return a floating tensor as a float32 array (fp16 and bf16 are cast), or None for any other type."""
    return tensor.to(torch.float32).numpy() if tensor.is_floating_point() else None


def content_hash(array):
    """Return the sha256 of an array's shape and bytes."""
    digest = hashlib.sha256(repr((array.shape, str(array.dtype))).encode())
    digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def weights_hash(tensor_records):
    """Return one sha256 over the names and content hashes of the base model's tensors, which alone make the states.

    Heads do not count, and what all other names begin with (`transformer.`) is cut off: a checkpoint that was saved
    with a head has the hash of the same one without.
    """
    own = {name: record for name, record in tensor_records.items() if not HEADS.search(name)}
    shared = len(os.path.commonprefix([name.split(".")[:-1] for name in own]))
    hashes = {".".join(name.split(".")[shared:]): record["sha256"] for name, record in own.items()}
    lines = (f"{name} {digest}\n" for name, digest in sorted(hashes.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def frobenius(array):
    """Return the Frobenius norm, summed in float64 without a float64 copy of the whole array."""
    flat = array.reshape(-1)
    return float(np.sqrt(sum(np.square(flat[part], dtype=np.float64).sum() for part in _chunks(flat))))


def distance(a, b):
    """Return the Frobenius norm of a - b, likewise."""
    a, b = a.reshape(-1), b.reshape(-1)
    return float(np.sqrt(sum(np.square(a[part] - b[part], dtype=np.float64).sum() for part in _chunks(a))))


def _chunks(flat):
    return [slice(start, start + (1 << 22)) for start in range(0, flat.size, 1 << 22)]


def load_model(directory, device, depth=None):
    """Load a checkpoint's base model: float32, eager attention, eval mode. Its file is mapped, not copied.

    Parameters
    ----------
    directory : path
        The checkpoint.
    device : str
        `cpu` or `cuda`.
    depth : int, optional
        Blocks to run of a model that shares its block, see `collapse.depth`; as many as config.json says if not given.

    Returns
    -------
    (model, Architecture)

    Raises
    ------
    Refusal
        If a tensor is missing, has the wrong shape or is left over, the config makes a decoder of a model type that the
        table of architectures says is not causal, this transformers does not know the model type, or
        the type has no entry in the table of architectures and its blocks cannot be found without one.
    """
    from transformers import AutoModel
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    config = model_config(directory)
    kind = config.get("model_type")
    entry = ARCHITECTURES.get(kind)
    if entry and not entry.is_causal and config.get("is_decoder"):
        raise Refusal(
            f"{directory}: config.json says is_decoder, which makes a causal model of {kind}, and ARCHITECTURES of "
            "collapse/architectures.py says that it is none. Set is_decoder to false there if it was trained to see "
            "later tokens; as a causal model it is not supported."
        )
    if not weight_files(directory):
        raise Refusal(f"{directory}: has no *.safetensors file")
    options = dict(entry.load) if entry else {}
    if depth is not None:
        options["num_hidden_layers"] = depth
    try:
        model, report = AutoModel.from_pretrained(
            directory,
            dtype=torch.float32,
            attn_implementation="eager",
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            # Reported and refused below, by name.
            ignore_mismatched_sizes=True,
            **options,
        )
    except (RuntimeError, SafetensorError) as error:
        raise Refusal(f"{directory}: transformers could not load it: {error}") from error
    except (ValueError, KeyError) as error:
        raise Refusal(
            f"{directory}: this transformers has no base model with eager attention for model type {kind!r}. Code that "
            f"a checkpoint brings is never run. ({error})"
        ) from error
    _require_complete(directory, report, entry, model.base_model_prefix)
    model = model.to(device).eval()
    entry = entry or find_blocks(model, directory)
    if entry.final_norm and attrgetter(entry.final_norm)(model) is None:
        entry = replace(entry, final_norm=None)
    return model, entry


def _require_complete(directory, report, entry, prefix):
    missing = sorted(report["missing_keys"])
    if missing:
        raise Refusal(
            f"{directory}: {len(missing)} tensors are missing, first {missing[0]}: they would be random. The "
            "checkpoint and its config.json (number of layers?) do not belong together."
        )
    if report["mismatched_keys"]:
        raise Refusal(
            f"{directory}: tensors whose shape differs from config.json: {sorted(report['mismatched_keys'])[:3]}"
        )
    left = [key for key in report["unexpected_keys"] if not HEADS.search(key)]
    if entry is None:
        left = _in_base_model(left, directory, prefix)
    elif entry.buffers:
        left = [key for key in left if not re.search(entry.buffers, key)]
    if left:
        raise Refusal(
            f"{directory}: {len(left)} tensors have no place in the model, first {min(left)}. The checkpoint and its "
            "config.json (number of layers?) do not belong together."
        )


def _in_base_model(keys, directory, prefix):
    """Of the tensors of an unknown model type, those that its base model should have had a place for.

    Where names have the base model's prefix, a head's have not.
    """
    own = [name for name, _ in tensors(directory) if name.startswith(f"{prefix}.")]
    return [key for key in keys if key.startswith(f"{prefix}.") or not own]


def load_tokenizer(directory):
    """Load a checkpoint's fast tokenizer: slow ones split some text differently.

    Raises
    ------
    Refusal
        If there is none.
    """
    from transformers import AutoTokenizer

    # Without a vocabulary transformers would make an empty tokenizer, to which every word is unknown.
    if not any((Path(directory) / name).is_file() for name in VOCABULARIES):
        raise Refusal(f"{directory}: has no tokenizer: none of {', '.join(VOCABULARIES)}")
    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise Refusal(f"{directory}: its tokenizer cannot be loaded: {error}") from error
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise Refusal(f"{directory}: its tokenizer has no words: the vocabulary file is not of this model's kind")
    if not tokenizer.is_fast:
        raise Refusal(f"{directory}: has only a slow tokenizer; a tokenizer.json is needed")
    return tokenizer


def convert_gguf(snapshot, gguf_file, directory):
    """De-quantise a GGUF file into a float32 safetensors checkpoint.

    transformers cannot save what it read from GGUF as it is: the quantisation entry of the config is dropped, and a
    tied output head is not written a second time.
    """
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, report = AutoModelForCausalLM.from_pretrained(
        snapshot, gguf_file=gguf_file, dtype=torch.float32, local_files_only=True, output_loading_info=True
    )
    if report["missing_keys"]:
        raise Refusal(f"{gguf_file}: lacks {', '.join(sorted(report['missing_keys'])[:3])}: they would be random")
    state = model.state_dict()
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight")
    save_file({name: t.contiguous() for name, t in state.items()}, directory / "model.safetensors", {"format": "pt"})
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.config.save_pretrained(directory)
    AutoTokenizer.from_pretrained(snapshot, gguf_file=gguf_file, local_files_only=True).save_pretrained(directory)
