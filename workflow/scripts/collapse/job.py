"""What every script does around its one call: its log, and one message per refusal."""

import contextlib
import faulthandler
import os
import sys

from collapse.errors import Refusal


@contextlib.contextmanager
def job(snakemake):
    """Send everything this process prints, down to a crash of a C library, to the rule's log.

    A `Refusal` ends the job with its message alone; any other exception with its traceback. Both are in the log, which
    Snakemake shows when a job fails.
    """
    with open(snakemake.log[0], "wb", buffering=0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    faulthandler.enable()
    sys.stdout.reconfigure(line_buffering=True)
    try:
        yield
    except Refusal as refusal:
        print(f"Refused: {refusal}", file=sys.stderr)
        sys.exit(1)
