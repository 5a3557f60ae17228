"""The blocks of a model type without an entry in collapse/architectures.py: found by running it, or refused.

They are taken for the list of as many modules as the config has layers of which each runs once, in order, on exactly
what the one before it gave. What follows the last must be one norm, or nothing. Whether the model is causal, where its
attention is and which of its tensors are fused cannot be seen so: the entry says nothing of them, and what needs them
refuses.
"""

import contextlib
import re

import torch
from torch import nn

from collapse.architectures import Architecture
from collapse.errors import Refusal

# Any tokens do: the probe looks at who hands what to whom.
PROBE = [1, 2, 3]


def find_blocks(model, where):
    """Return the entry of a loaded base model, with its blocks and final norm alone.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        On any device, in eval mode.
    where : path
        The checkpoint, for the message.

    Raises
    ------
    Refusal
        If there is no such list of blocks or more than one, or something else than a norm follows it.
    """
    n_layers = getattr(model.config, "num_hidden_layers", None)
    lists = {name: found for name, found in _outermost_lists(model) if len(found) == n_layers}
    calls, last = _probe(model, lists, where)
    chains = [name for name in lists if _is_chain(calls[name], n_layers)]
    if len(chains) != 1:
        raise _unknown(model, where, f"{len(chains)} lists of {n_layers} modules run one after the other")
    (name,) = chains
    end = calls[name][-1][2]
    width = getattr(model.config, "hidden_size", None)
    if end.shape != (1, len(PROBE), width):
        raise _unknown(model, where, f"its blocks give {tuple(end.shape)}, its config says hidden_size {width}")
    if torch.equal(end, last):
        return Architecture(rf"{re.escape(name)}\.\d+", None, None)
    norms = [norm for norm, before, after in calls[None] if _same(before, end) and _same(after, last)]
    if not norms:
        raise _unknown(model, where, "what follows its last block is not one norm")
    return Architecture(rf"{re.escape(name)}\.\d+", norms[-1], None)


def _outermost_lists(model):
    """Yield (name, ModuleList) of every list of modules that is not inside another, such as experts in a block."""
    names = [name for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    for name in names:
        if not any(name.startswith(f"{other}.") for other in names):
            yield name, model.get_submodule(name)


def _probe(model, lists, where):
    """Run a few tokens; return what each list's modules and, under None, each norm outside them saw and gave."""
    calls = {name: [] for name in [*lists, None]}

    def listen(key, label):
        def after(module, args, kwargs, output):
            state = args[0] if args else kwargs.get("hidden_states")
            calls[key].append((label, state, output[0] if isinstance(output, tuple) else output))

        return after

    with contextlib.ExitStack() as hooks, torch.inference_mode():
        for name, modules in lists.items():
            for index, module in enumerate(modules):
                hooks.callback(module.register_forward_hook(listen(name, index), with_kwargs=True).remove)
        for name, module in model.named_modules():
            if "norm" in type(module).__name__.lower() and not any(name.startswith(f"{own}.") for own in lists):
                hooks.callback(module.register_forward_hook(listen(None, name), with_kwargs=True).remove)
        inputs = torch.tensor([PROBE], device=model.device)
        try:
            last = model(input_ids=inputs, attention_mask=torch.ones_like(inputs)).last_hidden_state
        except (AttributeError, TypeError, ValueError) as error:
            raise _unknown(model, where, f"it does not run on tokens alone ({error})") from error
    return calls, last


def _is_chain(calls, n_layers):
    order = [index for index, _, _ in calls]
    return order == list(range(n_layers)) and all(_same(a[2], b[1]) for a, b in zip(calls, calls[1:]))


def _same(a, b):
    return isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and torch.equal(a, b)


def _unknown(model, where, found):
    return Refusal(
        f"{where}: model type {model.config.model_type!r} has no entry in ARCHITECTURES of collapse/architectures.py, "
        f"and its blocks cannot be found without one: {found}. Add an entry that names its blocks and final norm."
    )
