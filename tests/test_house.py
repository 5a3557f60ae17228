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
                yield pytest.param(body, id=f"{path.stem}-{name}")


@pytest.mark.parametrize("body", list(working_rules()))
def test_every_rule_has_log_benchmark_threads_and_memory(body):
    for directive in ("log:", "benchmark:", "threads:", "mem_mb=", "runtime=", "code="):
        assert directive in body


def test_no_profile_keeps_what_a_failed_job_left():
    """SM05: with keep-incomplete, the next run would take a failed job's partial file for a whole one."""
    for path in (REPOSITORY / "profiles").glob("*/profile.yaml"):
        assert "keep-incomplete" not in yaml.safe_load(path.read_text())


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
