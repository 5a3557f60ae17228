"""Random clouds, hard inputs and the one law of every row, shared by the tests of the metrics."""

import math

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st

laws = settings(max_examples=25, deadline=None, derandomize=True, database=None)
seeds = st.integers(0, 2**32 - 1)

# Fewer tokens than dimensions, as many, and more.
shapes = st.sampled_from([(8, 6), (9, 9), (7, 40), (30, 6), (12, 64)])

broken = pytest.mark.parametrize(
    ("H", "cause"),
    [
        ([[1.0, 2.0], [3.0, np.nan], [1.0, 1.0]], "NaN or infinity, first in row 1"),
        ([[1.0, 2.0], [3.0, 1.0], [np.inf, 1.0]], "NaN or infinity, first in row 2"),
        ([[-np.inf, 2.0], [3.0, 1.0], [1.0, 1.0]], "NaN or infinity, first in row 0"),
        (np.ones(4), r"matrix of tokens by dimensions, found shape \(4,\)"),
        (np.float64(1), r"matrix of tokens by dimensions, found shape \(\)"),
        (np.ones((2, 3, 4)), r"found shape \(2, 3, 4\)"),
        (np.ones((3, 0)), r"found shape \(3, 0\)"),
    ],
    ids=["nan", "inf", "minus-inf", "1-D", "0-D", "3-D", "no-dimensions"],
)


def cloud(n, d, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


def coarse_cloud(seed):
    """A tiny cloud of small integers: ties, copies, zero rows, right angles and opposite tokens are common."""
    rng = np.random.default_rng(seed)
    return rng.integers(-1, 2, size=(rng.integers(0, 8), rng.integers(1, 6))).astype(float)


def rotation(d, seed=0):
    Q, R = np.linalg.qr(cloud(d, d, seed))
    return Q * np.sign(np.diag(R))


def lengths(n, seed=0):
    """A positive factor per token, over six orders of magnitude."""
    return 10.0 ** np.random.default_rng(seed).uniform(-3, 3, size=(n, 1))


def copies(n, d, seed=0, dtype=np.float64):
    """n tokens that all point the same way, with different lengths."""
    return (lengths(n, seed) * cloud(1, d, seed)).astype(dtype)


def unit(H):
    """Rows over their norm, without the code under test."""
    H = np.asarray(H, dtype=float)
    return np.array([row / math.sqrt(math.fsum(row * row)) for row in H])


def dot(x, y):
    return math.fsum(a * b for a, b in zip(x, y))


def assert_honest(row):
    """Every value is a finite plain number or null, and a reason is given if and only if something is null."""
    values = {name: value for name, value in row.items() if name != "undefined"}
    for name, value in values.items():
        for number in value if isinstance(value, list) else [value]:
            assert number is None or type(number) in (int, float, bool), (name, number)
            assert number is None or math.isfinite(number), (name, number)
    assert (None in values.values()) == bool(row["undefined"]), row


def assert_null(row, cause):
    """Nothing has a value, and the reason names the cause."""
    assert_honest(row)
    assert {value for name, value in row.items() if name != "undefined"} == {None}
    assert cause in row["undefined"]


def assert_close(row, other, rel=1e-9, ignore=()):
    """Two rows say the same, up to rounding, and are null in the same places for the same reasons."""
    assert row.keys() == other.keys()
    for name in row.keys() - set(ignore):
        exact = other[name] is None or name == "undefined"
        assert row[name] == (other[name] if exact else pytest.approx(other[name], rel=rel, abs=rel)), name
