"""The forward pass: against a large matrix product, and what storing its states adds to it."""

import contextlib
import io
import json
import tempfile
import time
from pathlib import Path

from kernels import least_seconds
from model import checkpoint


def measure(n, width, n_blocks, n_heads, turns, square=2048):
    """Time a pass over n tokens, the same with its states written, and a product of two large matrices; one thread.

    Returns
    -------
    dict
        `forward`, `extraction`, `product` and `attention` (the pass that hands out attention): CPU seconds, least of
        all turns. `wall_ratio`: extraction over the bare pass in wall time, of the turns' least. `forward_rate` and
        `product_rate`: floating-point operations per second. `stored_share`: bytes of the file over those of the
        states in float32.
    """
    import numpy as np
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from collapse.attention_pass import run_attention
    from collapse.checkpoint import load_model
    from collapse.extraction import extract
    from collapse.states import StatesFile

    torch.set_num_threads(1)
    with checkpoint(width, n_blocks, n_heads, n) as folder, tempfile.TemporaryDirectory() as place:
        model, entry = load_model(folder / "checkpoint", "cpu")
        ids = list(range(97)) * (n // 97 + 1)
        inputs = torch.tensor([ids[:n]])
        path = Path(place) / "states.parquet"
        prompt = Path(place) / "prompt.txt"
        prompt.write_text("The ferry left in the fog. " * (n // 20 + 1), encoding="utf-8")
        record = json.loads((folder / "weights.json").read_text(encoding="utf-8"))

        def bare():
            with torch.inference_mode():
                model(input_ids=inputs, attention_mask=torch.ones_like(inputs))

        a, b = torch.rand(2, square, square)
        # The whole of extraction, loaded model aside: `extract` finds this one.
        with _loaded(model, entry), contextlib.redirect_stdout(io.StringIO()):
            calls = {
                "forward": bare,
                "extraction": lambda: extract(
                    run={"model": "shape", "weights": "trained", "prompt": "p"},
                    checkpoint=folder / "checkpoint",
                    weights_record=record,
                    scheme="trained",
                    prompt=prompt,
                    max_tokens=n,
                    device="cpu",
                    threads=1,
                    output=path,
                ),
                "attention": lambda: run_attention(model, entry, ids[:n], lambda block, A: None),
                "product": lambda: torch.mm(a, b),
            }
            for call in calls.values():
                call()
            found = dict(zip(calls, least_seconds(list(calls.values()), turns)))
            wall = least_seconds([calls["forward"], calls["extraction"]], turns, clock=time.perf_counter)
        with FlopCounterMode(display=False) as counter:
            bare()
        states = StatesFile(path)
        floats = len(states) * states.metadata["n_tokens"] * width * np.dtype(np.float32).itemsize
        return found | {
            "wall_ratio": wall[1] / wall[0],
            "forward_rate": counter.get_total_flops() / found["forward"],
            "product_rate": 2 * square**3 / found["product"],
            "stored_share": path.stat().st_size / floats,
        }


def _loaded(model, entry):
    """Let `extract` find a model that is loaded already."""
    from unittest import mock

    return mock.patch("collapse.extraction.load_model", lambda *_: (model, entry))
