"""The largest memory that a process of the tests held."""

import os
import sys
from pathlib import Path


def environment_to_measure_in():
    """Environment of a process that finds what this one finds, and whose peak is what it held and not what it freed.

    By default freed arrays of up to 32 MB stay in the C library's heap, and how well the next ones fit in there is
    chance: the same program peaks up to 500 MB higher.
    """
    gives_back = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    return os.environ | gives_back | {"ARROW_DEFAULT_MEMORY_POOL": "system", "PYTHONPATH": os.pathsep.join(sys.path)}


def peak_memory():
    """Bytes of memory this process held at most since it began.

    Not ``getrusage``: there Linux lets a process inherit the peak of the one that started it, here a worker of the
    tests with libraries and models of its own.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise LookupError("this kernel does not tell a process's peak")
