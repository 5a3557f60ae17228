"""What the tests of faults share: the smallest grid that goes through all rules, and what is whole and the same."""

import json
import os
import re
import signal
import time
from pathlib import Path

from safetensors import safe_open

from collapse import tables
from collapse.states import StatesFile

METRICS = ["energy", "spectral_k", "clusters", "cluster_life", "projections", "attention_tokens", "attention_received"]
TABLES = {"runs", "cluster_labels", "claims", *METRICS}
CLAIMS = "results/claims.tsv"


def make_small(project):
    """Let a project compute one prompt with each kind of weights, and one metric for each rule of metrics."""
    config = project.config()
    config["prompts"] = ["fox"]
    config["weights"] = [
        {"scheme": "trained"},
        {"scheme": "norm-matched", "seeds": [0]},
        {"scheme": "identity", "betas": [1]},
    ]
    config["metrics"] = METRICS
    config["energy"] = {"betas": [2]}
    # umap would compile for ten seconds in every job.
    config["projections"] = {"methods": ["pca"]}
    project.write_config(config)


def content(path):
    """Return all that a parquet file of the results holds; a file that is not whole raises."""
    if "states" in path.parts:
        states = StatesFile(path)
        values = [states.read(index).tolist() for index in range(len(states))]
        return states.metadata, states.states, states.tokens().to_pylist(), values
    name = path.stem if path.parent.name == "tables" else path.parts[path.parts.index("metrics") + 1]
    return tables.record(path), tables.read(path, name).to_pylist()


def results(project, pattern):
    """Return the files of the results that have a name: no hidden part, neither log nor benchmark."""
    found = []
    for path in sorted((project.root / "results").rglob(pattern)):
        parts = path.relative_to(project.root / "results").parts
        if path.is_file() and parts[0] not in ("logs", "benchmarks") and not any(part[0] == "." for part in parts):
            found.append(path)
    return found


ENDS = {".svg": b"</svg>", ".png": b"IEND\xaeB`\x82", ".html": b"</html>"}


def require_whole(project):
    """Open everything that has a name."""
    for path in results(project, "*"):
        if path.suffix == ".parquet":
            content(path)
        elif path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".safetensors":
            safe_open(path, framework="np")
        elif path.suffix in ENDS:
            assert path.read_bytes().rstrip().endswith(ENDS[path.suffix]), path


def require_same(project, other):
    """Compare everything that one project made with what another made: values, records, pictures and page."""
    made = results(project, "*")
    assert {path.stem for path in made if path.parent.name == "tables"} >= TABLES
    assert project.root / CLAIMS in made
    for path in made:
        expected = other.root / path.relative_to(project.root)
        if path.suffix == ".parquet":
            assert content(path) == content(expected), path
        elif "figures" in path.parts or "report" in path.parts or path == project.root / CLAIMS:
            assert path.read_bytes() == expected.read_bytes(), path


def jobs(group):
    """Return {process id: script} of the jobs of a process group."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(process.name)) == group:
                script = re.search(rb"\.snakemake/scripts/\w+\.(\w+)\.py", (process / "cmdline").read_bytes())
                # The shell that started it has the same words.
                if script and b"python" in os.fsencode((process / "exe").readlink().name):
                    found[int(process.name)] = script.group(1).decode()
        except (ProcessLookupError, FileNotFoundError):
            pass  # It ended meanwhile.
    return found


def wait_for(condition, running):
    """Wait until a condition holds, as long as snakemake runs; return what it was."""
    while not (found := condition()) and running.poll() is None:
        time.sleep(0.01)
    return found


def kill_all(running):
    """Kill snakemake and its jobs with SIGKILL; return the scripts of the jobs that were running."""
    os.killpg(running.pid, signal.SIGSTOP)
    scripts = sorted(jobs(running.pid).values())
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    return scripts
