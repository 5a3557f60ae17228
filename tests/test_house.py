"""Promises of the repository itself."""

import re
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
RULES = sorted((REPOSITORY / "workflow/rules").glob("*.smk"))


def requirements():
    lines = (REPOSITORY / "requirements.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_environment_and_requirements_have_the_same_packages():
    environment = yaml.safe_load((REPOSITORY / "environment.yml").read_text())
    (pip,) = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    assert pip[0] == "-c constraints.txt"
    assert sorted(pip[1:]) == sorted(requirements())


def test_every_package_is_pinned_once():
    constraints = (REPOSITORY / "constraints.txt").read_text().splitlines()
    pins = requirements() + [line for line in constraints if line and not line.startswith("#")]
    names = [re.fullmatch(r"([\w.-]+)==[\w.]+", pin).group(1).lower().replace("_", "-") for pin in pins]
    assert len(names) == len(set(names))


def working_rules():
    for path in RULES:
        for name, body in re.findall(r"^rule (\w+):\n((?:(?:    .*)?\n)+)", path.read_text(), flags=re.MULTILINE):
            if "script:" in body:
                yield pytest.param(name, body, id=f"{path.stem}-{name}")


@pytest.mark.parametrize(("name", "body"), list(working_rules()))
def test_every_rule_has_log_benchmark_threads_and_memory(name, body):
    for directive in ("log:", "benchmark:", "threads:", "mem_mb=", "runtime=", "code="):
        assert directive in body


@pytest.mark.parametrize(("name", "body"), list(working_rules()))
def test_what_a_cluster_kills_asks_for_more_at_the_next_attempt(name, body):
    assert "localrule: True" in body or not re.search(r"(mem_mb|runtime)=\d", body)


@pytest.mark.parametrize(("name", "body"), list(working_rules()))
def test_jobs_of_single_runs_are_submitted_together_and_those_of_the_whole_grid_alone(name, body):
    """A group in which a job waits for the whole grid takes a time to plan that is quadratic in the grid."""
    assert ("{RUN}" in body or name == "draw_figure") == (name in profile("slurm")["groups"])


def profile(name):
    return yaml.safe_load((REPOSITORY / f"profiles/{name}/profile.yaml").read_text())


def test_on_a_cluster_a_change_reruns_what_it_reruns_here():
    assert profile("default").items() <= profile("slurm").items()


@pytest.mark.parametrize("name", ["default", "slurm"])
def test_no_profile_keeps_what_a_failed_job_left(name):
    """SM05: with keep-incomplete, the next run would take a failed job's partial file for a whole one."""
    assert "keep-incomplete" not in profile(name)


def test_every_wildcard_is_constrained():
    """SM08: a greedy wildcard files results under wrong labels without an error."""
    text = "".join(path.read_text() for path in RULES)
    patterns = re.findall(r"(?:output|log|benchmark):\n((?: {8}.*\n)+)", text)
    used = set(re.findall(r"\{(\w+)\}", "".join(patterns))) - {"RUN"}
    constrained = set(re.findall(r"^\s+(\w+)=(?:one_of|\")", text, flags=re.MULTILINE))
    assert used <= constrained


def test_scripts_are_thin():
    for path in (REPOSITORY / "workflow/scripts").glob("*.py"):
        assert len(path.read_text().splitlines()) < 40, path.name


def test_metrics_import_neither_torch_nor_snakemake():
    for path in (REPOSITORY / "workflow/scripts/collapse/metrics").glob("*.py"):
        assert not re.search(
            r"^\s*(import|from) (torch|snakemake|transformers|matplotlib)", path.read_text(), re.MULTILINE
        )
