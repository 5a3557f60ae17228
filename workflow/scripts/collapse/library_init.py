"""The weights that transformers itself gives a new model of a checkpoint's config, before any training.

The library's own `_init_weights` runs on a model without storage; what it asks for is written down and then drawn from
our streams, tensor by tensor. So the distributions are the library's, with all that it does to single tensors (GPT-2's
projections into the residual stream are scaled by 1 / sqrt(2 n_layer), the row of the padding token is zero), and the
numbers are the seed's, whatever the library's order of drawing.

That is not `norm-matched`: norms of the trained weights play no role, gains are 1, biases 0.
"""

import contextlib
import math

import numpy as np
import torch

from collapse.errors import Refusal


def recipes(checkpoint):
    """Return {name of a parameter in the base model: its steps}, a step being (function, arguments, offset, size).

    `offset` and `size` say which entries, in order, a step fills: all of them, or some rows.

    Raises
    ------
    Refusal
        If this transformers does not know the model type.
    """
    from transformers import AutoConfig, AutoModel

    try:
        config = AutoConfig.from_pretrained(checkpoint, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            model = AutoModel.from_config(config, trust_remote_code=False)
    except (ValueError, KeyError) as error:
        raise Refusal(f"{checkpoint}: transformers cannot make a new model of its config.json: {error}") from error
    steps, names = {}, {id(parameter): name for name, parameter in model.named_parameters()}
    with _listening(names, steps):
        model.initialize_weights()
    return steps


def fill(steps, shape, rng, name):
    """Return a float32 array drawn as the library says, in its order; the last step on an entry holds.

    Raises
    ------
    Refusal
        If the library asks for something that is not known here, or for another shape.
    """
    flat = np.empty(math.prod(shape), np.float32)
    if steps[0][2:] != (0, flat.size):
        raise Refusal(f"{name}: has shape {tuple(shape)}, which is not the one that its config.json gives it")
    for function, arguments, offset, size in steps:
        if function not in FILLS:
            raise Refusal(
                f"{name}: transformers initialises it with {function}, which collapse/library_init.py does not know"
            )
        flat[offset : offset + size] = FILLS[function](rng, size, **arguments)
    return flat.reshape(shape)


def base_name(name, steps):
    """Return the name in the base model of a tensor in a file, or None if it is not there (heads).

    Files of a model with a head have a prefix, and old ones call a norm's gain and bias gamma and beta.
    """
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    return next((known for known in (name, name.partition(".")[2]) if known in steps), None)


def _normal(rng, size, mean=0.0, std=1.0):
    return rng.standard_normal(size, dtype=np.float32) * np.float32(std) + np.float32(mean)


def _trunc_normal(rng, size, mean=0.0, std=1.0, a=-2.0, b=2.0):
    # Not at the top: other schemes need no scipy, which takes a third of a second to import.
    from scipy.special import ndtr, ndtri

    low, high = ndtr((a - mean) / std), ndtr((b - mean) / std)
    return ndtri(low + (high - low) * rng.random(size)) * std + mean


FILLS = {
    "normal_": _normal,
    "trunc_normal_": _trunc_normal,
    "uniform_": lambda rng, size, a=0.0, b=1.0: rng.uniform(a, b, size),
    "constant_": lambda rng, size, val: val,
    "ones_": lambda rng, size: 1.0,
    "zeros_": lambda rng, size: 0.0,
}


@contextlib.contextmanager
def _listening(names, steps):
    """Put in place of the functions with which transformers fills tensors some that write down what they are asked."""
    from transformers import initialization

    def listen(function):
        def note(tensor, *positional, **arguments):
            # A row of a parameter is a view of it.
            name = names.get(id(tensor)) or names.get(id(tensor._base))
            if name is not None:
                asked = f"{function} with unnamed arguments" if positional else function
                known = {key: value for key, value in arguments.items() if key != "generator"}
                steps.setdefault(name, []).append((asked, known, tensor.storage_offset(), tensor.numel()))
            return tensor

        return note

    originals = dict(initialization.TORCH_INIT_FUNCTIONS), initialization.copy_
    for function in initialization.TORCH_INIT_FUNCTIONS:
        initialization.TORCH_INIT_FUNCTIONS[function] = listen(function)
    initialization.copy_ = lambda tensor, other: listen("copy_")(tensor)
    try:
        yield
    finally:
        initialization.TORCH_INIT_FUNCTIONS.update(originals[0])
        initialization.copy_ = originals[1]
