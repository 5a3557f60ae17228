"""A plan grows with the runs, and costs little more than Snakemake itself needs for that many jobs.

Of a study of 100 models, 50 prompts and 5 weights the forward passes are planned as they are, and smaller grids whole:
Snakemake alone needs 2 ms for a job, so that its 175,000 jobs would take minutes. Growth and ratio show all the same.
"""

import re
import resource
import subprocess
import sys

import pytest
from project import Project
from snakemake.scheduling.job_scheduler import JobScheduler

from collapse.config import schema
from collapse.registry import FIGURES, METRICS

WEIGHTS = [
    {"scheme": "trained"},
    {"scheme": "norm-matched", "seeds": [0, 1, 2]},
    {"scheme": "identity", "betas": [1]},
]
BETAS = [0.5, 2]
DEFAULT = schema()["properties"]["metrics"]["default"]

# The jobs of a grid and what each waits for, and nothing else: what any Snakefile pays.
BARE = """
models, prompts, weights = [f"m{{i}}" for i in range({models})], [f"p{{i}}" for i in range({prompts})], range(5)
tables = range({metrics})
rule all:
    input: expand("figures/{{figure}}", figure=range({figures}))
rule figure:
    input: expand("tables/{{table}}", table=tables)
    output: "figures/{{figure}}"
    shell: "touch {{output}}"
rule table:
    input: expand("metrics/{{{{table}}}}/{{m}}/{{w}}/{{p}}", m=models, w=weights, p=prompts)
    output: "tables/{{table}}"
    shell: "touch {{output}}"
rule metric:
    input: "states/{{run}}"
    output: "metrics/{{table,\\d+}}/{{run}}"
    shell: "touch {{output}}"
rule state:
    input: "weights/{{model}}/{{weights}}"
    output: "states/{{model}}/{{weights}}/{{prompt}}"
    shell: "touch {{output}}"
rule weights:
    output: "weights/{{model}}/{{weights}}"
    shell: "touch {{output}}"
"""


# The same for the states of a grid alone.
BARE_STATES = """
models, prompts, weights = [f"m{{i}}" for i in range({models})], [f"p{{i}}" for i in range({prompts})], range(5)
rule all:
    input: expand("states/{{m}}/{{w}}/{{p}}", m=models, w=weights, p=prompts)
rule state:
    input: "weights/{{model}}/{{weights}}"
    output: "states/{{model}}/{{weights}}/{{prompt}}"
    shell: "touch {{output}}"
rule weights:
    output: "weights/{{model}}/{{weights}}"
    shell: "touch {{output}}"
"""


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    """{number of runs: (what a dry run prints, CPU seconds, those of the bare jobs)} of two grids."""
    return {models * prompts * 5: plan(tmp_path_factory, models, prompts) for models, prompts in ((5, 5), (10, 5))}


def plan(tmp_path_factory, models, prompts):
    project = grid(tmp_path_factory.mktemp("grid") / "project", models, prompts)
    bare = project.root / "bare"
    bare.mkdir()
    sizes = {"models": models, "prompts": prompts, "metrics": len(DEFAULT) + len(BETAS) - 1, "figures": 10 + 2 * models}
    (bare / "Snakefile").write_text(BARE.format(**sizes))
    printed, seconds = dry_run(project.root, "--configfile", "tiny.yaml")
    return printed, seconds, dry_run(bare)[1]


def test_the_states_of_100_models_50_prompts_and_5_weights(tmp_path):
    project = grid(tmp_path / "project", 100, 50)
    bare = project.root / "bare"
    bare.mkdir()
    (bare / "Snakefile").write_text(BARE_STATES.format(models=100, prompts=50))
    printed, seconds = dry_run(project.root, "states", "--quiet", "rules", "--configfile", "tiny.yaml")
    least = dry_run(bare, "--quiet", "rules")[1]
    found = jobs(printed)
    assert found == {
        "fetch": 100,
        "trained_weights": 100,
        "draw_weights": 300,
        "extract": 20_000,
        "identity_states": 5_000,
        "states": 1,
        "total": 25_501,
    }
    print(f"25,000 runs: {seconds:.1f} s of CPU, {seconds / least:.2f} times that of the bare jobs")
    assert seconds < 4 * least


def test_the_study_s_own_grid(tmp_path):
    """config/paper.yaml, all its metrics: more than 15,000 jobs, planned without network or models."""
    project = Project.create(tmp_path / "project", {})
    printed, seconds = dry_run(project.root, "--quiet", "rules", "--configfile", "config/paper.yaml")
    found = jobs(printed)
    # 8 models, 9 prompts; 11 weights, of which 4 are the theory's.
    runs, models = 8 * 9 * 11, 8
    assert {name: found[name] for name in ("fetch", "draw_weights", "extract", "identity_states", "clusters")} == {
        "fetch": models,
        "draw_weights": models * 6,
        "extract": models * 9 * 7,
        "identity_states": models * 9 * 4,
        "clusters": runs,
    }
    assert (found["attention"], found["identity_attention"]) == (models * 9 * 7, models * 9 * 4)
    print(f"{found['total']} jobs: {seconds:.1f} s of CPU, {10_000 * seconds / found['total']:.1f} s for 10,000")


def grid(root, models, prompts):
    """A project of many models, none of which has to be there for a plan."""
    project = Project.create(
        root, {f"m{i}": (root / f"absent{i}", {"model.safetensors": "0" * 64}) for i in range(models)}
    )
    table = root / "prompts/prompts.tsv"
    header = table.read_text().splitlines()[0]
    names = [f"p{i}" for i in range(prompts)]
    table.write_text("\n".join([header, *(f"{n}\t{n}.txt\ten\ttest\t\t\tMIT\ta test" for n in names)]) + "\n")
    for name in names:
        (root / f"prompts/{name}.txt").write_text(f"The prompt {name} .\n")
    changes = {"prompts": names, "weights": WEIGHTS, "energy": {"betas": BETAS}}
    project.write_config(project.config() | changes)
    return project


def dry_run(directory, *arguments):
    """Return what a dry run prints and the CPU seconds it took, which other work on the machine does not change."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "snakemake", "--dry-run", *arguments]
    done = subprocess.run(command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def jobs(printed):
    stats = printed.split("Job stats:")[1]
    return {name: int(count) for name, count in re.findall(r"^(\w+) +(\d+)$", stats, flags=re.MULTILINE)}


def test_what_the_snakefile_takes_from_the_scheduler_is_there_to_be_taken():
    """With another Snakemake, setting it might do nothing: the time that it saves would be lost without a word."""
    assert "job_rate_limiter" in JobScheduler.__init__.__code__.co_names
    assert "job_rate_limiter" in JobScheduler.schedule.__code__.co_names


@pytest.mark.parametrize(("models", "prompts"), [(5, 5), (10, 5)])
def test_jobs_are_those_of_the_runs_and_none_is_per_layer_or_head(plans, models, prompts):
    runs = models * prompts * 5
    drawn = [figure for figure in FIGURES.values() if set(figure.tables) <= set(DEFAULT)]
    plain = [name for name in DEFAULT if name != "clusters" and not METRICS[name].axis]
    assert {METRICS[name].over for name in DEFAULT} == {"layer", "trajectory"}
    found = jobs(plans[runs][0])
    total = found.pop("total")
    assert found == {
        "fetch": models,
        "trained_weights": models,
        "draw_weights": 3 * models,
        "extract": 4 * models * prompts,
        "identity_states": models * prompts,
        "metric": len(plain) * runs,
        "metric_at_beta": len(BETAS) * runs,
        "clusters": runs,
        "runs_table": 1,
        "aggregate": len(DEFAULT) + 1,
        "score_claims": 1,
        "draw_figure": sum({"model": models, "beta": len(BETAS)}.get(figure.per, 1) for figure in drawn),
        "write_report": 1,
        "all": 1,
    }
    assert total == sum(found.values())


def test_files_that_jobs_wait_for_grow_no_faster_than_the_runs(plans):
    (few, small), (many, large) = ((runs, inputs(printed)) for runs, (printed, _, _) in sorted(plans.items()))
    assert large / small < 1.05 * many / few


def inputs(printed):
    """The number of files that jobs read, all jobs together."""
    return sum(line.count(", ") + 1 for line in re.findall(r"^ +input: (.+)$", printed, flags=re.MULTILINE))


def test_a_plan_costs_little_more_than_its_jobs_cost_any_snakefile(plans):
    for runs, (_, seconds, bare) in sorted(plans.items()):
        print(f"{runs} runs: {seconds:.1f} s of CPU, {seconds / bare:.2f} times that of the bare jobs")
        # About 2 here; it was never near 4 without something quadratic.
        assert seconds < 4 * bare
