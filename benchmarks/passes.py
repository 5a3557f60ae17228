"""The forward pass: against a large matrix product, and what storing its states adds to it."""

import contextlib
import io
import json
import tempfile
import time
from pathlib import Path

from kernels import least_seconds


def measure(folder, n, turns, square=2048):
    """Time a pass over n tokens, the same with its states written, and a product of two large matrices; one thread.

    Parameters
    ----------
    folder : path
        A trained checkpoint with its record, see `model.trained_checkpoint`.
    n : int
        Tokens; fewer if the model or its tokenizer has room for fewer.
    turns : int
        Calls of each, of which the least counts.
    square : int
        Rows of the two matrices.

    Returns
    -------
    dict
        `forward`, `extraction`, `product` and `attention` (the pass that hands out attention): CPU seconds, least of
        all turns. `wall_ratio`: extraction over the bare pass in wall time, of the turns' least. `forward_rate` and
        `product_rate`: floating-point operations per second. `stored_share`: bytes of the file over those of the
        states in float32. `n_tokens`.
    """
    import numpy as np
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from collapse.attention_pass import run_attention
    from collapse.checkpoint import load_model
    from collapse.extraction import extract
    from collapse.states import StatesFile

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        model, entry = load_model(folder / "checkpoint", "cpu")
        path = Path(place) / "states.parquet"
        prompt = Path(place) / "prompt.txt"
        # Whatever the tokenizer, a word is a token.
        prompt.write_text(f"{'The ferry left in the fog. ' * n}\n", encoding="utf-8")
        record = json.loads((folder / "weights.json").read_text(encoding="utf-8"))

        def extraction():
            extract(
                run={"model": "shape", "weights": "trained", "prompt": "p"},
                checkpoint=folder / "checkpoint",
                weights_record=record,
                scheme="trained",
                prompt=prompt,
                max_tokens=n,
                device="cpu",
                threads=1,
                output=path,
            )

        def bare():
            with torch.inference_mode():
                model(input_ids=inputs, attention_mask=torch.ones_like(inputs))

        a, b = torch.rand(2, square, square)
        # The whole of extraction, loaded model aside: `extract` finds this one.
        with _loaded(model, entry), contextlib.redirect_stdout(io.StringIO()):
            extraction()
            states = StatesFile(path)
            ids = states.tokens()["token_id"].to_pylist()
            inputs = torch.tensor([ids])
            calls = {
                "forward": bare,
                "extraction": extraction,
                "attention": lambda: run_attention(model, entry, ids, lambda block, A: None),
                "product": lambda: torch.mm(a, b),
            }
            for call in calls.values():
                call()
            found = dict(zip(calls, least_seconds(list(calls.values()), turns)))
            wall = least_seconds([calls["forward"], calls["extraction"]], turns, clock=time.perf_counter)
        with FlopCounterMode(display=False) as counter:
            bare()
        floats = len(states) * len(ids) * model.config.hidden_size * np.dtype(np.float32).itemsize
        return found | {
            "wall_ratio": wall[1] / wall[0],
            "forward_rate": counter.get_total_flops() / found["forward"],
            "product_rate": 2 * square**3 / found["product"],
            "stored_share": path.stat().st_size / floats,
            "n_tokens": len(ids),
        }


def _loaded(model, entry):
    """Let `extract` find a model that is loaded already."""
    from unittest import mock

    return mock.patch("collapse.extraction.load_model", lambda *_: (model, entry))
