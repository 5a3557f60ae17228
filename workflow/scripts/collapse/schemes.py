"""Random matrices that stand for trained ones.

`norm-matched`: Gaussian entries, scaled to the Frobenius norm of the trained matrix. `orthogonal`: what
torch.nn.init.orthogonal_ draws with its gain of 1, rows or columns orthonormal, whichever are fewer; nothing is scaled,
so the Frobenius norm is the root of their number whatever the trained one was. `shuffled`: the trained entries in
random order. `spectrum-matched`: the trained singular values between random singular vectors. `library-init` is in
collapse/library_init.py.

Each tensor draws from its own stream, named by the seed and the tensor: the same seed gives the same weights on every
machine, whatever the order, the depth, the components, or other tensors in the file. Orthogonal matrices pass through
LAPACK, on one thread; another kind of CPU can round them in another way, which the recorded hash would show.
"""

import contextlib
import hashlib

import numpy as np
import torch

from collapse.checkpoint import frobenius


def parts(array, fused, heads):
    """Return the projections in a weight or bias, as views of it; `heads` is how many alternate where they do."""
    if fused is None:
        return [array]
    n = len(fused.roles)
    if not fused.by_head:
        return np.split(array, n, fused.axis)
    by_head = array.reshape(heads, n, -1, *array.shape[1:])
    return [by_head[:, part] for part in range(n)]


def stream(seed, name):
    """Return the generator of one tensor."""
    key = hashlib.sha256(f"{seed}\n{name}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(key[:16], "big")))


def redraw(scheme, array, seed, name, fused=None, heads=None):
    """Return the random tensor that stands for a trained one, each of its projections drawn for itself.

    Parameters
    ----------
    scheme : str
        A key of `DRAWS`.
    array : float32 array
        The trained tensor, of two dimensions or more.
    seed, name : int, str
        What names its stream.
    fused, heads : Fused or None, int
        How it is fused.
    """
    return DRAWS[scheme](array, stream(seed, name), lambda tensor: parts(tensor, fused, heads))


def expected_norm(scheme, part):
    """Return the Frobenius norm that a scheme gives a projection, from the trained one; None where it sets none."""
    if scheme == "orthogonal":
        return float(np.sqrt(min(_as_matrix(part).shape)))
    return frobenius(part) if scheme in DRAWS else None


def _norm_matched(array, rng, split):
    """A part whose norm is zero stays zero."""
    drawn = rng.standard_normal(array.shape, dtype=np.float32)
    for target, part in zip(split(array), split(drawn)):
        part *= np.float32(frobenius(target) / frobenius(part))
        # The float32 factor is off by up to 6e-8; the rounding of the entries averages out.
    return drawn


def _orthogonal(array, rng, split):
    return _part_by_part(array, split, lambda matrix: _orthonormal(*matrix.shape, rng, np.float32))


def _shuffled(array, rng, split):
    return _part_by_part(array, split, lambda matrix: rng.permutation(matrix.reshape(-1)).reshape(matrix.shape))


def _spectrum_matched(array, rng, split):
    def turned(matrix):
        with _one_thread():
            values = torch.linalg.svdvals(torch.from_numpy(matrix.astype(np.float64)))
        left, right = (torch.from_numpy(_orthonormal(n, len(values), rng, np.float64)) for n in matrix.shape)
        with _one_thread():
            return ((left * values) @ right.T).numpy()

    return _part_by_part(array, split, turned)


DRAWS = {
    "norm-matched": _norm_matched,
    "orthogonal": _orthogonal,
    "shuffled": _shuffled,
    "spectrum-matched": _spectrum_matched,
}


def _part_by_part(array, split, draw):
    drawn = np.empty(array.shape, np.float32)
    for target, part in zip(split(array), split(drawn)):
        part[...] = draw(_as_matrix(target)).reshape(part.shape)
    return drawn


def _as_matrix(part):
    """A part as rows and columns. Where heads alternate, the rows of a part are those of all its heads."""
    return part.reshape(-1, part.shape[-1]) if part.ndim == 3 else part.reshape(len(part), -1)


def _orthonormal(n_rows, n_columns, rng, dtype):
    """A matrix with orthonormal columns, or rows if those are fewer, uniform among all of them."""
    tall = rng.standard_normal((max(n_rows, n_columns), min(n_rows, n_columns)), dtype=dtype)
    with _one_thread():
        q, r = torch.linalg.qr(torch.from_numpy(tall))
    # Without the signs it would not be uniform.
    q *= torch.sign(torch.diagonal(r))
    return (q if n_rows >= n_columns else q.T).numpy()


@contextlib.contextmanager
def _one_thread():
    """LAPACK sums in another order on another number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
