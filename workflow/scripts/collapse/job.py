"""What every script does around its one call: its log, and one message per refusal."""

import contextlib
import ctypes
import faulthandler
import gc
import os
import sys
import sysconfig
from importlib.machinery import ModuleSpec

from collapse.atomic import no_room
from collapse.errors import Refusal

# glibc's names for numbers in mallopt.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
# More objects than a job imports.
COLLECT_AT = 2_000_000


class NoPandas:
    """An import hook for jobs that do without pandas: it is there to whoever looks, and cannot be imported.

    pyarrow imports it at the first array that it makes of Python's objects, scikit-learn when it is imported, both only
    to recognise what is pandas' own; that takes longer than all else that a job of a metric imports.
    """

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return ModuleSpec(name, cls) if name == "pandas" else None

    @staticmethod
    def create_module(spec):
        """Leave it to Python."""

    @staticmethod
    def exec_module(module):
        raise ImportError(
            "this job does without pandas, which takes long to import. A metric that needs it names it in packages of "
            "its table in workflow/schemas/tables.yaml; a script of its own, job(snakemake, needs_pandas=True)",
            name=module.__name__,
        )


@contextlib.contextmanager
def job(snakemake, needs_pandas=False):
    """Send everything this process prints, down to a crash of a C library, to the rule's log.

    A `Refusal` ends the job with its message alone; any other exception with its traceback. Both are in the log, which
    Snakemake shows when a job fails. Without `needs_pandas` pandas cannot be imported, see `NoPandas`.
    """
    # numba keeps what it compiles beside its source, ours or a package's, or else in the home directory, or else fails.
    if not all(os.access(folder, os.W_OK) for folder in (os.path.dirname(__file__), sysconfig.get_path("purelib"))):
        os.environ.setdefault("NUMBA_CACHE_DIR", os.path.abspath(".snakemake/numba"))
    terminal = os.dup(1), os.dup(2)
    with open(snakemake.log[0], "wb", buffering=0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    faulthandler.enable()
    keep_memory()
    # Importing makes hundreds of thousands of objects that stay, and looking through them for garbage, here and again
    # when Python ends, is a third of the start of a job that loads a model.
    gc.set_threshold(COLLECT_AT)
    if not needs_pandas:
        sys.meta_path.insert(0, NoPandas)
    sys.stdout.reconfigure(line_buffering=True)
    try:
        yield
    except Exception as error:
        # What was printed did not fit, unless it is already a refusal.
        refusal = error if isinstance(error, Refusal) else no_room(snakemake.log[0], error)
        if refusal is None:
            raise
        _tell(f"Refused: {refusal}", terminal)
        sys.exit(1)
    finally:
        gc.freeze()


def keep_memory():
    """Let the C library keep freed memory for the next array, up to 256 MB, where it is glibc.

    By default matrices of n x n go back to the system when freed, and the pages of the next one have to be made anew:
    of an operation on 512 x 512 numbers that is five sixths of its time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 2**25)
        mallopt(M_TRIM_THRESHOLD, 2**28)


def _tell(message, terminal):
    """Write to the log, or, where that lies on the full disk too, to where Snakemake prints."""
    line = f"{message}\n".encode(errors="backslashreplace")
    try:
        n_written = os.write(2, line)
    except OSError:
        n_written = 0
    if n_written < len(line):
        for standard, descriptor in zip((1, 2), terminal):
            os.dup2(descriptor, standard)
        os.write(2, line)
