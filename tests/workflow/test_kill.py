"""Kill the whole workflow, run it again: the tables are those of an uninterrupted run."""

import os
import signal
import subprocess
import sys
import time

from project import Project

from collapse import tables


def test_after_kill_9_the_same_command_completes_to_the_same_tables(finished, tiny_gpt2, tmp_path):
    project = Project.create(tmp_path / "project", {"tiny": tiny_gpt2})
    config = project.config()
    config["prompts"] = ["fox"]
    project.write_config(config)
    command = [sys.executable, "-m", "snakemake", "tables", "--cores", "2", "--configfile", "tiny.yaml"]
    running = subprocess.Popen(
        command, cwd=project.root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while len(list(project.root.glob("results/metrics/**/*.parquet"))) < 5 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert running.poll() is None
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    assert not (project.root / "results/tables/energy.parquet").exists()
    locked = project.snakemake("tables")
    assert locked.returncode == 1 and "--unlock" in locked.stdout
    assert project.snakemake("--unlock").returncode == 0
    done = project.snakemake("tables")
    assert done.returncode == 0, done.stdout
    assert project.planned("tables") == {}
    for name in ("energy", "cka", "clusters", "cluster_labels", "effective_rank", "inner_products", "nn_stability"):
        whole = tables.read(finished.root / f"results/tables/{name}.parquet", name)
        expected = [row for row in whole.to_pylist() if row["prompt"] == "fox"]
        assert tables.read(project.root / f"results/tables/{name}.parquet", name).to_pylist() == expected, name
