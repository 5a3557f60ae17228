"""A model of the shape of GPT-2 with random weights, and states as a run would store them: no hub, no download."""

import contextlib
import json
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from kernels import trajectory

from collapse.states import writing


@contextlib.contextmanager
def checkpoint(width, n_blocks, n_heads, positions):
    """Yield the folder of a trained checkpoint and its record, as the workflow lays them out."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    from collapse.weights import trained

    transformers.utils.logging.disable_progress_bar()
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: place for place, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    sizes = {"n_embd": width, "n_layer": n_blocks, "n_head": n_heads, "n_positions": positions}
    config = transformers.GPT2Config(vocab_size=len(letters), bos_token_id=0, eos_token_id=0, **sizes)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        torch.manual_seed(0)
        transformers.GPT2Model(config).save_pretrained(root / "snapshot")
        transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=positions).save_pretrained(
            root / "snapshot"
        )
        source = {"model": "shape", "source": {"kind": "local"}, "revision": "local"}
        (root / "source.json").write_text(json.dumps(source), encoding="utf-8")
        trained(root / "snapshot", root / "source.json", root / "trained/checkpoint", root / "trained/weights.json")
        yield root / "trained"


def states_file(path, n, d, n_blocks):
    """Write the states of a run that no model made: n tokens, the first of them special to no one."""
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
        "model": "shape",
        "weights": "trained",
        "scheme": "trained",
        "seed": None,
        "prompt": "p",
        "n_blocks": n_blocks,
        "n_states": n_blocks + 1,
        "is_causal": True,
        "weights_hash": "none",
        "model_type": "gpt2",
        "device": "cpu",
        "dtype": "float32",
        "versions": {},
    }
    with writing(path, tokens, d, record) as write:
        for layer, H in enumerate(trajectory(n, d, n_blocks + 1)):
            write(layer, "block" if layer else "embedding", H)
