"""Snakemake's lock, explained: its own message names an option, not the command."""

import os
import shlex
import sys
from pathlib import Path

LOCKS = Path(".snakemake/locks")


def same_command(arguments):
    """Return a command line, program first, as it can be given again; a dry run's becomes that of a run."""
    program, *options = (argument for argument in arguments if argument not in ("-n", "--dry-run", "--dryrun"))
    # `python -m snakemake` has a file there that is no program.
    command = [sys.executable, "-m", "snakemake"] if program.endswith(".py") else [program]
    return shlex.join([*command, *options])


def explanation(arguments):
    """Return how to clear the lock of the working directory, or None where it has none or is being cleared.

    Parameters
    ----------
    arguments : list of str
        The command line of this Snakemake, program first.
    """
    if "--unlock" in arguments or not any(LOCKS.glob("*.lock")):
        return None
    return (
        f"{os.getcwd()} is locked: another Snakemake runs here, or one was killed. If none runs, clear the lock with\n"
        f"    {same_command(arguments)} --unlock\n"
        "and give the same command again: files are whole or absent, and what is missing is made."
    )
