"""Interaction energy of the tokens as particles on the sphere, at one inverse temperature beta.

    E_beta = (1 / (2 beta n^2)) sum over ALL i, j of exp(beta <x_i, x_j>)

The dynamics with Q = K = V = I and no mask is a gradient ascent on E_beta, so there energy never falls; its largest
value, exp(beta) / (2 beta), is reached by identical tokens. A drop along depth is therefore something that the
architecture alone does not do. The diagonal belongs to this sum, unlike to every other statistic over pairs.

Source: Geshkovski et al., arXiv 2312.10794, equation for the interaction energy.

Traps: exp(beta) overflows float64 at beta 710, so the logarithm is computed first and is the value to use there; with
a large beta the n self-pairs dominate and hide what the other pairs do.
"""

import math

import numpy as np

from collapse.errors import Refusal, Undefined
from collapse.geometry import cosines, nulls, on_sphere, pairs
from collapse.reasons import FIRST_LAYER

COLUMNS = ("energy", "log_energy", "change", "relative_change", "is_drop")
STEP_COLUMNS = ("change", "relative_change", "is_drop")


def energy(layers, beta, tolerance):
    """Compute the energy of each layer of a trajectory, and its change from the layer before.

    Parameters
    ----------
    layers : iterable of arrays, shape (n, d)
        Raw states, in order of depth.
    beta : float
        Inverse temperature, > 0.
    tolerance : float
        Relative change below minus which a step counts as a drop, >= 0. States are float32: changes near 1e-7 times
        beta are rounding.

    Yields
    ------
    dict
        `energy` (> 0), `log_energy` (natural logarithm), `change` (energy minus that of the layer before),
        `relative_change` (change over the energy of the layer before), `is_drop`, `undefined`. Steps are null at
        the first layer.

    Raises
    ------
    Refusal
        If beta is not a positive finite number, or H is no finite matrix.
    """
    if not (math.isfinite(beta) and beta > 0):
        raise Refusal(f"the inverse temperature beta must be a positive number, found {beta!r}")
    before, why_none = None, FIRST_LAYER
    for H in layers:
        try:
            log_energy = _log_energy(cosines(on_sphere(H)), beta)
        except Undefined as reason:
            yield nulls(COLUMNS, reason)
            before, why_none = None, "no energy in the layer before"
            continue
        yield _row(log_energy, before, tolerance, why_none)
        before = log_energy


def _log_energy(G, beta):
    """log E_beta, with the largest exponent, beta, taken out: exact for identical tokens and never overflowing."""
    n = len(G)
    total = n + 2.0 * np.exp(beta * (pairs(G) - 1.0)).sum()
    return beta + math.log(total) - math.log(2.0 * n * n) - math.log(beta)


def _row(log_energy, before, tolerance, why_none):
    """One row from the logarithms of two adjacent energies."""
    value = _exp(log_energy)
    row = {"energy": value, "log_energy": log_energy} | dict.fromkeys(STEP_COLUMNS)
    reasons = [] if value is not None else ["energy: above the largest float64, use log_energy"]
    if before is None:
        reasons.append(f"{', '.join(STEP_COLUMNS)}: {why_none}")
    else:
        relative = math.expm1(log_energy - before)
        previous = _exp(before)
        if previous is None or not math.isfinite(previous * relative):
            reasons.append("change: above the largest float64, use relative_change")
        else:
            row["change"] = previous * relative
        row |= {"relative_change": relative, "is_drop": relative < -tolerance}
    return row | {"undefined": "; ".join(reasons) or None}


def _exp(x):
    return math.exp(x) if x < math.log(np.finfo(np.float64).max) else None
