"""The largest memory that a process of the tests held."""

from pathlib import Path


def peak_memory():
    """Bytes of memory this process held at most since it began.

    Not ``getrusage``: there Linux lets a process inherit the peak of the one that started it, here a worker of the
    tests with libraries and models of its own.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise LookupError("this kernel does not tell a process's peak")
