"""Kill at any moment, run the same command again: the results are those of an uninterrupted run."""

import os
import random
import re
import shutil
import signal
import subprocess
import time

from faults import jobs, kill_all, make_small, require_same, require_whole, wait_for
from project import Project

KILLS, SEED = 20, 20251130
RULES_OF_TARGETS = {"states", "metrics", "tables", "figures", "claims", "report"}


def test_after_20_kills_at_random_moments_everything_is_that_of_an_uninterrupted_run(small, tiny_gpt2, tmp_path):
    random_moment = random.Random(SEED)
    killed, hit = 0, []
    for attempt in range(KILLS):
        project = Project.create(tmp_path / str(attempt), {"tiny": tiny_gpt2})
        make_small(project)
        output = project.root / "output.txt"
        rules = project.run(project.command("--list-rules"), stderr=subprocess.DEVNULL).stdout.split()
        assert project.planned().keys() == set(rules) - RULES_OF_TARGETS
        while killed < KILLS:
            running = project.start()
            # In jobs and in seconds, so that a slow machine gets as far as a fast one.
            n_jobs, seconds = random_moment.randrange(6), random_moment.uniform(0, 2)
            wait_for(lambda output=output, n=n_jobs: output.read_text().count("Finished jobid") >= n, running)
            time.sleep(seconds)
            if running.poll() is not None:
                break
            hit.append(kill_all(running))
            print(f"kill {killed}, {seconds:.2f} s after {n_jobs} jobs, hit {hit[-1]}")
            killed += 1
            require_whole(project)
            # What the command of the next test does.
            shutil.rmtree(project.root / ".snakemake/locks", ignore_errors=True)
        done = project.snakemake()
        assert done.returncode == 0, done.stdout
        assert project.planned() == {}
        require_same(project, small)
        assert not list((project.root / "results").rglob(".*.partial-*"))
        if killed == KILLS:
            break
    assert {"extract", "metric"} <= set(sum(hit, [])), hit


def test_a_lock_left_behind_is_explained_with_the_command_that_clears_it(small, tmp_path):
    project = small.copy(tmp_path / "project")
    (project.root / "results/report/index.html").unlink()
    running = project.start()
    wait_for(lambda: any((project.root / ".snakemake/locks").glob("*.output.lock")), running)
    kill_all(running)
    refused = project.snakemake()
    assert refused.returncode == 1 and "Directory cannot be locked" in refused.stdout
    assert f"{project.root} is locked: another Snakemake runs here, or one was killed" in refused.stdout
    (command,) = re.findall(r"^    (.* --unlock)$", refused.stdout, flags=re.MULTILINE)
    unlocked = project.run(command, shell=True)
    assert unlocked.returncode == 0 and "is locked" not in unlocked.stdout
    done = project.snakemake()
    assert done.returncode == 0, done.stdout
    assert "is locked" not in done.stdout
    require_same(project, small)


# Asks for one extraction, with a draw, and one metric.
METRIC = "results/metrics/spectral_k/tiny/norm-matched-s0/fox.parquet"


def delete_states_and_metric(project):
    for path in ("results/states/tiny/norm-matched-s0/fox.parquet", METRIC):
        (project.root / path).unlink()


def test_a_killed_job_is_named_and_leaves_nothing_and_no_lock(small, tmp_path):
    project = small.copy(tmp_path / "project")
    delete_states_and_metric(project)
    for script in ("extract", "metric"):
        running = project.start(METRIC)
        victims = wait_for(lambda script=script, group=running.pid: of_script(script, group), running)
        os.kill(victims[0], signal.SIGKILL)
        assert running.wait() == 1
        output = (project.root / "output.txt").read_text()
        assert f"Error in rule {script}" in output
        require_whole(project)
        assert not list((project.root / ".snakemake/locks").glob("*"))
    done = project.snakemake(METRIC)
    assert done.returncode == 0, done.stdout
    assert project.planned(METRIC) == {}
    require_same(project, small)


def of_script(script, group):
    return [process for process, name in jobs(group).items() if name == script]


def test_jobs_that_outlive_a_killed_snakemake_harm_nothing(small, tmp_path):
    project = small.copy(tmp_path / "project")
    delete_states_and_metric(project)
    running = project.start(METRIC)
    wait_for(lambda: of_script("extract", running.pid), running)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    assert of_script("extract", running.pid)
    assert project.snakemake("--unlock").returncode == 0
    done = project.snakemake(METRIC)
    assert done.returncode == 0, done.stdout
    while jobs(running.pid):
        time.sleep(0.1)
    require_same(project, small)
    assert project.planned(METRIC) == {}
