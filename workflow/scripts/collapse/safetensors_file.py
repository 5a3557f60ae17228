"""A safetensors file written tensor by tensor: the library's own writer wants all of them in memory."""

import contextlib
import json
import math

import numpy as np

from collapse.errors import Refusal


@contextlib.contextmanager
def writing(path, shapes):
    """Write a file of float32 tensors; an offset into the file is known for each before any is there.

    Parameters
    ----------
    path : path
        Where it goes. Not atomic: for a file in a directory that is.
    shapes : dict
        Name of each tensor -> its shape.

    Yields
    ------
    callable
        `write(name, array)`, once per tensor, in any order.

    Raises
    ------
    Refusal
        If not every tensor was written.
    """
    header, starts, end = {"__metadata__": {"format": "pt"}}, {}, 0
    for name in sorted(shapes):
        starts[name], end = end, end + 4 * math.prod(shapes[name])
        header[name] = {"dtype": "F32", "shape": list(shapes[name]), "data_offsets": [starts[name], end]}
    head = json.dumps(header, separators=(",", ":")).encode()
    # Tensors start at a multiple of 8.
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        start = file.tell()
        file.truncate(start + end)

        def write(name, array):
            if array.dtype != np.float32 or array.shape != tuple(shapes[name]):
                raise ValueError(f"{name}: {array.dtype} {array.shape} instead of float32 {shapes[name]}")
            file.seek(start + starts.pop(name))
            file.write(np.ascontiguousarray(array, "<f4").data)

        yield write
    if starts:
        raise Refusal(f"{path}: {len(starts)} tensors were not written, first {next(iter(starts))}")
