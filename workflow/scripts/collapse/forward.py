"""The forward pass that yields states: every block's output as it appears, and the final norm's."""

import contextlib
import re

import torch

from collapse.errors import Refusal


def use_device(device, threads):
    """Set torch's threads, and refuse a GPU that is not there."""
    if device == "cuda" and not torch.cuda.is_available():
        raise Refusal("extraction.device is cuda and torch finds no GPU here: set it to cpu, or run where there is one")
    torch.set_num_threads(threads)


def device_name(device):
    """Return the name under which files record a device."""
    return device if device == "cpu" else torch.cuda.get_device_name()


def n_blocks(model):
    """Return the number of block calls of one forward pass (a shared block is called once per layer)."""
    repeats = getattr(model.config, "inner_group_num", 1)
    return model.config.num_hidden_layers * repeats


def n_states(model, entry):
    """Return the number of states: the embedding output, each block, and the final norm where there is one."""
    return 1 + n_blocks(model) + (entry.final_norm is not None)


def run(model, entry, ids, write):
    """Run one prompt, unpadded, and hand over each state in order of depth.

    Parameters
    ----------
    model, entry
        What `checkpoint.load_model` returned.
    ids : list of int
        Token ids.
    write : callable
        write(layer, stage, H) with H a float32 array of shape (n, d), called as soon as the state exists.

    Raises
    ------
    Refusal
        If the number of blocks that ran is not the config's.
    """
    calls = 0

    def before_block(module, args, kwargs):
        if calls == 0:
            write(0, "embedding", _array(args[0] if args else kwargs["hidden_states"]))

    def after_block(module, args, output):
        nonlocal calls
        calls += 1
        write(calls, "block", _array(output))

    def after_norm(module, args, output):
        write(calls, "final_norm", _array(output))

    with contextlib.ExitStack() as hooks, torch.inference_mode():
        for block in modules_named(model, entry.blocks):
            hooks.callback(block.register_forward_pre_hook(before_block, with_kwargs=True).remove)
            hooks.callback(block.register_forward_hook(after_block).remove)
        if entry.final_norm:
            hooks.callback(model.get_submodule(entry.final_norm).register_forward_hook(after_norm).remove)
        inputs = torch.tensor([ids], device=model.device)
        model(input_ids=inputs, attention_mask=torch.ones_like(inputs))
    if calls != n_blocks(model):
        raise Refusal(f"{calls} blocks ran, the config says {n_blocks(model)}: see `blocks` in architectures.py")


def modules_named(model, pattern):
    """Return the modules whose whole name matches a pattern; none is a Refusal."""
    found = [module for name, module in model.named_modules() if re.fullmatch(pattern, name)]
    if not found:
        raise Refusal(f"no module of {type(model).__name__} is named like {pattern!r}: see architectures.py")
    return found


def _array(output):
    state = output[0] if isinstance(output, tuple) else output
    if state.ndim == 3:
        state = state[0]
    return state.to(torch.float32).cpu().numpy()
