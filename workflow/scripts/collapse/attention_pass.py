"""The pass that yields attention: every block's, as it appears, none of it kept.

A block attends to the state that enters it, and the states file holds that: neither the rest of the block nor what lies
before it is needed, which saves two thirds of a forward pass. Apart from collapse/forward.py, since a change here must
not rerun extraction.
"""

import contextlib

import torch

from collapse.checkpoint import load_model
from collapse.errors import Refusal
from collapse.forward import device_name, modules_named, n_blocks, use_device
from collapse.provenance import versions
from collapse.states import StatesFile


class _Attended(Exception):
    """A block has attended, and the rest of it is not needed."""


def run_attention(model, entry, ids, take, states=None):
    """Run one prompt, unpadded, and hand over the attention of each block in order of depth.

    Parameters
    ----------
    model, entry
        What `checkpoint.load_model` returned.
    ids : list of int
        Token ids.
    take : callable
        take(block, A) with block counted from 0 and A a float32 array of shape (heads, n, n), called as soon as the
        block has attended. The model drops A when it returns: peak memory does not grow with the number of blocks.
    states : iterable of arrays, shape (n, d), float32, optional
        The state that enters each block, in order of depth, as a pass over the same tokens yielded it. Then a block
        runs only until it has attended. If not given the whole model runs.

    Raises
    ------
    Refusal
        If the table of architectures does not say where attention is, a module yields none (the wrong implementation,
        or the wrong module), or as many blocks did not attend as the config says.
    """
    if entry.attention is None:
        raise Refusal(
            f"{model.config.model_type}: ARCHITECTURES of collapse/architectures.py does not say where its attention "
            "is: add `attention` to its entry, or take the attention metrics out of the config"
        )
    calls = 0

    def after_attention(module, args, output):
        nonlocal calls
        weights = output[1] if isinstance(output, tuple) and len(output) > 1 else None
        if weights is None or weights.ndim != 4:
            raise Refusal(
                f"{type(module).__name__} yields no attention with attn_implementation "
                f"{model.config._attn_implementation!r}: see `attention` in collapse/architectures.py"
            )
        take(calls, weights[0].to(torch.float32).cpu().numpy())
        calls += 1
        # The first block runs whole: what it returns shows what the model expects of all.
        if states is not None and calls > 1:
            raise _Attended

    with contextlib.ExitStack() as hooks, torch.inference_mode():
        if states is not None:
            blocks = modules_named(model, entry.blocks)
            hooks.callback(_feed(blocks, iter(states), model.device))
        for attention in modules_named(model, entry.attention):
            hooks.callback(attention.register_forward_hook(after_attention).remove)
        inputs = torch.tensor([ids], device=model.device)
        model(input_ids=inputs, attention_mask=torch.ones_like(inputs))
    if calls != n_blocks(model):
        raise Refusal(f"{calls} blocks attended, the config says {n_blocks(model)}: see architectures.py")


def _feed(blocks, states, device):
    """Let blocks run on given states, and return their input where they end early; return what undoes it."""
    is_tuple = None

    def feed(block):
        run = block.forward

        def forward(hidden_states, *args, **kwargs):
            nonlocal is_tuple
            state = torch.tensor(next(states), device=device)[None]
            try:
                output = run(state, *args, **kwargs)
            except _Attended:
                return (hidden_states,) if is_tuple else hidden_states
            is_tuple = isinstance(output, tuple)
            return output

        block.forward = forward

    def undo():
        for block in blocks:
            del block.forward

    for block in blocks:
        feed(block)
    return undo


def _require_whole_view(config, n):
    """Refuse a model whose blocks, or some of them, do not see all n tokens that its causal mask allows."""
    # ModernBERT sees half of its window to each side, the others so many tokens back.
    windows = [getattr(config, "sliding_window", None), (getattr(config, "local_attention", None) or 0) // 2]
    window = min((w for w in windows if w), default=n)
    if n > window:
        raise Refusal(
            f"{config.model_type}: blocks of it see a window of {window} of the {n} tokens, and what uniform attention "
            f"gives under that mask is not computed here: set max_tokens to {window}, or leave the attention metrics "
            "out of the config"
        )


def model_attention(states, checkpoint, weights_hash, device, threads, take, depth=None):
    """Run the states of a file through the weights that made them, handing over each block's attention.

    Parameters
    ----------
    states : path
        The states file: its token ids, the state that enters each block, and the hash of its weights.
    checkpoint : path
        Safetensors checkpoint with config.
    weights_hash : str
        Of the checkpoint, as its record says.
    device : str
        `cpu` or `cuda`.
    threads : int
        Threads of the forward pass and of the metrics.
    take : callable
        As for `run_attention`.
    depth : dict, optional
        `depth` and `trained_depth` of a model that runs deeper than it was trained.

    Returns
    -------
    dict
        Device, dtype, attention implementation and versions of this pass.

    Raises
    ------
    Refusal
        If the weights are not those of the states, or blocks see a window of the tokens only: what uniform attention
        gives there, the control of every metric, is not computed here.
    """
    file = StatesFile(states)
    if file.metadata["weights_hash"] != weights_hash:
        raise Refusal(
            f"{states}: was made from weights {file.metadata['weights_hash']}, and {checkpoint} holds {weights_hash}. "
            "Delete the states and run again."
        )
    use_device(device, threads)
    model, entry = load_model(checkpoint, device, depth["depth"] if depth else None)
    ids = file.tokens()["token_id"].to_pylist()
    _require_whole_view(model.config, len(ids))
    entering = (file.read(place) for place in range(n_blocks(model)))
    run_attention(model, entry, ids, take, entering)
    return {
        "device": device_name(device),
        "dtype": "float32",
        "implementation": model.config._attn_implementation,
        "versions": versions("torch", "transformers", "safetensors"),
    }
