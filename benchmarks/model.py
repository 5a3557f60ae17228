"""A model of the shape of GPT-2 with random weights, and states as a run would store them: no hub, no download."""

import contextlib
import hashlib
import importlib.util
import json
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import yaml
from kernels import trajectory

from collapse.states import writing

REPOSITORY = Path(__file__).resolve().parents[1]


def snapshot(directory, width, n_blocks, n_heads, positions):
    """Make a directory with a model and its tokenizer, of bytes, as a source of models holds them; return it."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    transformers.utils.logging.disable_progress_bar()
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: place for place, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    sizes = {"n_embd": width, "n_layer": n_blocks, "n_head": n_heads, "n_positions": positions}
    config = transformers.GPT2Config(vocab_size=len(letters), bos_token_id=0, eos_token_id=0, **sizes)
    torch.manual_seed(0)
    transformers.GPT2Model(config).save_pretrained(directory)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=positions).save_pretrained(
        directory
    )
    return Path(directory)


@contextlib.contextmanager
def trained_checkpoint(folder, gguf_file=None):
    """Yield the folder of the trained checkpoint of a folder's model and its record, as the workflow lays them out."""
    import transformers

    from collapse.weights import trained

    transformers.utils.logging.set_verbosity_error()
    source = {"kind": "local"} | ({"gguf_file": gguf_file} if gguf_file else {})
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        record = {"model": "shape", "source": source, "revision": "local"}
        (root / "source.json").write_text(json.dumps(record), encoding="utf-8")
        trained(folder, root / "source.json", root / "trained/checkpoint", root / "trained/weights.json")
        yield root / "trained"


@contextlib.contextmanager
def checkpoint(width, n_blocks, n_heads, positions):
    """Yield the same of a new model of a shape."""
    with (
        tempfile.TemporaryDirectory() as folder,
        trained_checkpoint(snapshot(folder, width, n_blocks, n_heads, positions)) as trained,
    ):
        yield trained


def packaged():
    """Yield (name, snapshot, gguf_file or None) of each model of the demo; snapshot is None if not installed."""
    config = yaml.safe_load((REPOSITORY / "config" / "config.yaml").read_text(encoding="utf-8"))
    for model in config["models"]:
        folder = Path(model["source"]["path"])
        spec = importlib.util.find_spec(folder.parts[0])
        place = Path(spec.submodule_search_locations[0]).parent / folder if spec else None
        yield model["name"], place, model["source"].get("gguf_file")


def states_file(path, n, d, n_blocks, model="shape", weights=("trained", "trained", None), prompt="p"):
    """Write the states of a run that no model made: n tokens, the first of them special to no one.

    `weights` are slug, scheme and seed. The states of two runs of one size are the same, whatever their names.
    """
    slug, scheme, seed = weights
    position = np.arange(n)
    tokens = pa.table(
        {
            "position": position.astype(np.int32),
            "token_id": (position % 97).astype(np.int32),
            "token": [f"t{place % 97}" for place in position],
            "is_special": np.zeros(n, dtype=bool),
            "is_first": position == 0,
            "is_punctuation": position % 7 == 3,
        }
    )
    record = {
        "model": model,
        "weights": slug,
        "scheme": scheme,
        "seed": seed,
        "prompt": prompt,
        "prompt_hash": _digest(prompt),
        "n_tokens_untruncated": n,
        "token_limit": n,
        "n_blocks": n_blocks,
        "trained_depth": n_blocks,
        "n_states": n_blocks + 1,
        "is_causal": True,
        "weights_hash": _digest(model, slug),
        "revision": "local",
        "source": {"kind": "local"},
        "checkpoint_dtypes": ["float32"],
        "proof": {"n_redrawn": int(seed is not None), "max_norm_error": 0.0, "min_relative_distance": 1.0},
        "model_type": "gpt2",
        "device": "cpu",
        "dtype": "float32",
        "attention": "eager",
        "versions": {},
    }
    with writing(path, tokens, d, record) as write:
        for layer, H in enumerate(trajectory(n, d, n_blocks + 1)):
            write(layer, "block" if layer else "embedding", H)


def _digest(*words):
    return hashlib.sha256("/".join(words).encode()).hexdigest()
