"""One script of the workflow, run as Snakemake runs it, in a process of its own: what it takes, what it loads.

    python benchmarks/runner.py job.json

reads what Snakemake would hand over and writes CPU seconds, peak memory and loaded packages to the file it names.
"""

import json
import os
import runpy
import sys
import time
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[1] / "workflow" / "scripts"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Named(dict):
    """Read by name, as Snakemake's lists of input, output and parameters are."""

    __getattr__ = dict.__getitem__


class Job:
    """What a script finds under the name `snakemake`."""

    def __init__(self, spec):
        self.input, self.output, self.params = (Named(spec.get(key, {})) for key in ("input", "output", "params"))
        self.threads, self.log = 1, [spec["log"]]


def run(script, folder, **spec):
    """Run a script with the given `input`, `output` and `params` in a new process.

    Returns
    -------
    dict
        `seconds` (CPU, from the start of the process), `megabytes` (the most it held) and `packages` (loaded).

    Raises
    ------
    RuntimeError
        If it failed, with its log.
    """
    # Not at the top: what this file imports counts as the script's start-up.
    import subprocess
    import tempfile

    with tempfile.TemporaryDirectory(dir=folder) as place:
        files = {name: str(Path(place) / name) for name in ("log", "result", "job.json")}
        paths = {key: {name: str(path) for name, path in spec.get(key, {}).items()} for key in ("input", "output")}
        content = {**spec, **paths, "script": script, "log": files["log"], "result": files["result"]}
        Path(files["job.json"]).write_text(json.dumps(content), encoding="utf-8")
        environment = os.environ | ONE_THREAD | {"PYTHONPATH": str(SCRIPTS)}
        done = subprocess.run([sys.executable, __file__, files["job.json"]], env=environment, stdout=subprocess.DEVNULL)
        if done.returncode != 0:
            raise RuntimeError(f"{script} failed:\n{Path(files['log']).read_text(encoding='utf-8')}")
        return json.loads(Path(files["result"]).read_text(encoding="utf-8"))


def seconds_of(statement):
    """CPU seconds of a new process that runs one statement."""
    import subprocess

    program = f"{statement}\nimport time\nprint(time.process_time())"
    environment = os.environ | ONE_THREAD
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def _most_memory():
    """Not getrusage: there a process inherits the peak of the one that started it."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def main(path):
    spec = json.loads(Path(path).read_text(encoding="utf-8"))
    runpy.run_path(str(SCRIPTS / spec["script"]), {"snakemake": Job(spec)})
    found = {"seconds": time.process_time(), "megabytes": _most_memory()}
    found["packages"] = sorted({name.partition(".")[0] for name in sys.modules})
    Path(spec["result"]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
