"""Snakemake's lock, explained: its own message names an option, not the command."""

import os
import shlex
import sys
from pathlib import Path

LOCKS = Path(".snakemake/locks")


def explanation(arguments):
    """Return how to clear the lock of the working directory, or None where it has none or is being cleared.

    Parameters
    ----------
    arguments : list of str
        The command line of this Snakemake, program first.
    """
    if "--unlock" in arguments or not any(LOCKS.glob("*.lock")):
        return None
    program, *options = arguments
    # `python -m snakemake` has a file there that is no program.
    command = [sys.executable, "-m", "snakemake"] if program.endswith(".py") else [program]
    return (
        f"{os.getcwd()} is locked: another Snakemake runs here, or one was killed. If none runs, clear the lock with\n"
        f"    {shlex.join([*command, *options, '--unlock'])}\n"
        "and give the same command again: files are whole or absent, and what is missing is made."
    )
