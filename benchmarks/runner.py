"""One script of the workflow, run as Snakemake runs it, in a process of its own: what it takes, what it loads.

    python benchmarks/runner.py job.json

reads what Snakemake would hand over and writes peak memory and loaded packages to the file it names.
"""

import json
import os
import runpy
import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[1] / "workflow" / "scripts"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
# All that takes a third of a second or more to import.
HEAVY = {"torch", "transformers", "umap", "numba", "hdbscan", "sklearn", "matplotlib", "pandas", "scipy", "snakemake"}


class Named(dict):
    """Read by name, as Snakemake's lists of input, output and parameters are."""

    __getattr__ = dict.__getitem__


class Job:
    """What a script finds under the name `snakemake`."""

    def __init__(self, spec):
        self.input, self.output = Named(spec.get("input", {})), Named(spec.get("output", {}))
        self.params, self.wildcards = Named(spec.get("params", {})), Named(spec.get("wildcards", {}))
        self.threads, self.log = 1, [spec["log"]]


def run(script, folder, **spec):
    """Run a script with the given `input`, `output`, `params` and `wildcards` in a new process.

    Returns
    -------
    dict
        `script`, `seconds` (CPU, of the whole process), `megabytes` (the most it held) and `packages` (loaded).

    Raises
    ------
    RuntimeError
        If it failed, with its log.
    """
    # Not at the top: what this file imports counts as the script's start-up.
    import shutil
    import tempfile

    # As Snakemake does.
    for path in map(Path, spec.get("output", {}).values()):
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)

    with tempfile.TemporaryDirectory(dir=folder) as place:
        files = {name: str(Path(place) / name) for name in ("log", "result", "job.json")}
        content = {**spec, "script": script, "log": files["log"], "result": files["result"]}
        Path(files["job.json"]).write_text(json.dumps(content, default=str), encoding="utf-8")
        code, seconds = _process([__file__, files["job.json"]], PYTHONPATH=str(SCRIPTS))
        if code != 0:
            raise RuntimeError(f"{script} failed:\n{Path(files['log']).read_text(encoding='utf-8')}")
        return {"script": script, "seconds": seconds} | json.loads(Path(files["result"]).read_text(encoding="utf-8"))


def seconds_of(statement):
    """CPU seconds of a new process that runs one statement."""
    code, seconds = _process(["-c", statement])
    if code != 0:
        raise RuntimeError(f"{statement!r} failed")
    return seconds


def _process(arguments, **environment):
    """Run Python; return its exit code and the CPU seconds of the whole process: to end it takes time too."""
    import subprocess

    # Without this folder on the path: transformers would take kernels.py for a library of that name, and import it.
    command = [sys.executable, "-P", *arguments]
    process = subprocess.Popen(command, env=os.environ | ONE_THREAD | environment, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, used.ru_utime + used.ru_stime


def _most_memory():
    """Not getrusage: there a process inherits the peak of the one that started it."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def main(path):
    spec = json.loads(Path(path).read_text(encoding="utf-8"))
    runpy.run_path(str(SCRIPTS / spec["script"]), {"snakemake": Job(spec)})
    packages = sorted({name.partition(".")[0] for name in sys.modules})
    found = {"megabytes": _most_memory(), "packages": packages}
    Path(spec["result"]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
