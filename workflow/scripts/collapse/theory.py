"""The theory's particles: attention with Q = K = V = I on the sphere, started from a model's own layer 0.

    x_i <- normalise(x_i + h sum_j softmax_j(beta <x_i, x_j>) x_j)

the softmax over j <= i where the model is causal. By default h = 1, one step per layer; as h goes to zero, k steps are
the flow of the theory at time k h. Everything here is float64.

Source: Geshkovski et al., arXiv 2312.10794 (self-attention dynamics on the sphere).
"""

import math

import numpy as np

from collapse.errors import Refusal, Undefined
from collapse.geometry import cosines, on_sphere
from collapse.provenance import versions
from collapse.states import StatesFile, writing


def identity_dynamics(H, beta, n_steps, is_causal, step=1.0):
    """Yield the particles at the start and after each step.

    Parameters
    ----------
    H : array, shape (n, d)
        Starting states; only their directions count.
    beta : float
        Inverse temperature, >= 0.
    n_steps : int
        Number of steps.
    is_causal : bool
        Whether particle i sees only j <= i.
    step : float
        Size of a step, > 0.

    Yields
    ------
    array, shape (n, d)
        Unit rows; n_steps + 1 of them.

    Raises
    ------
    Refusal
        If H is no matrix or holds NaN or infinity, beta is negative or no number, or step is not a number above 0.
    Undefined
        If a token has a zero state: it has no direction to start from.
    """
    if not (math.isfinite(beta) and beta >= 0):
        raise Refusal(f"the inverse temperature beta must be a number from 0 on, found {beta!r}")
    if not (math.isfinite(step) and step > 0):
        raise Refusal(f"the size of a step must be a number above 0, found {step!r}")
    X = on_sphere(H)
    yield X
    for _ in range(n_steps):
        X = on_sphere(X + step * (identity_attention(X, beta, is_causal) @ X))
        yield X


def identity_attention(X, beta, is_causal):
    """Return the attention of particles, softmax of beta G over those that each may see (n x n; rows sum to 1).

    Parameters
    ----------
    X : array, shape (n, d)
        Unit rows.
    beta : float
        Inverse temperature, >= 0.
    is_causal : bool
        Whether particle i sees only j <= i.
    """
    # Cosines are at most 1: with beta taken out of the exponent nothing overflows.
    attention = np.exp(beta * (cosines(X) - 1.0))
    if is_causal:
        attention[np.triu_indices(len(X), k=1)] = 0.0
    return attention / attention.sum(axis=1, keepdims=True)


def attention_of_states(path):
    """Yield the attention by which each stored state of the theory's particles moves on, as (1, n, n): one head."""
    file = StatesFile(path)
    record = file.metadata
    for place in range(record["n_blocks"]):
        X = on_sphere(file.read(place))
        yield identity_attention(X, record["beta"], record["is_causal"])[None]


def identity_states(trained_states, weights, beta, step, steps, output):
    """Store the particles that start from the layer 0 of a trained run, with its tokens.

    Layer 0 holds the starting directions: particles live on the sphere, so all states have norm 1. There are `steps`
    steps, or as many as the model has blocks where that is None; a step takes the place of a block.

    Raises
    ------
    Refusal
        If a token has no direction to start from, or it is not known whether the model is causal.
    """
    source = StatesFile(trained_states)
    start = source.metadata
    if start["is_causal"] is None:
        raise Refusal(
            f"{trained_states}: model type {start['model_type']!r} has no entry in ARCHITECTURES of "
            "collapse/architectures.py, so whether the particles see those after them is not known: add one, or take "
            "identity out of the weights"
        )
    n_steps = steps or start["n_blocks"]
    record = start | {
        "weights": weights,
        "scheme": "identity",
        "seed": None,
        "beta": beta,
        "step": step,
        "n_blocks": n_steps,
        "n_states": n_steps + 1,
        "device": "cpu",
        "dtype": "float64",
        "attention": "identity",
        "versions": versions("numpy", "pyarrow"),
        "started_from": {key: start[key] for key in ("weights", "device", "dtype", "versions")},
    }
    with writing(output, source.tokens(), start["dimension"], record) as write:
        try:
            for layer, X in enumerate(identity_dynamics(source.read(0), beta, n_steps, start["is_causal"], step)):
                write(layer, "block" if layer else "embedding", X)
        except Undefined as reason:
            raise Refusal(
                f"{trained_states}: the theory's particles cannot start from its layer 0: {reason}"
            ) from reason
