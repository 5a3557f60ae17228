from pathlib import Path

from snakemake.utils import min_version

min_version("9.27")


# The demo is the config only where no other is given: a --configfile stands for itself, nothing leaks into it.
if not workflow.overwrite_configfiles:

    configfile: str(Path(workflow.basedir) / "config" / "config.yaml")


include: "workflow/rules/common.smk"
include: "workflow/rules/common_metrics.smk"
include: "workflow/rules/common_resources.smk"
include: "workflow/rules/common_figures.smk"
include: "workflow/rules/weights.smk"
include: "workflow/rules/extract.smk"
include: "workflow/rules/metrics.smk"


if attention_metrics():

    include: "workflow/rules/attention.smk"


include: "workflow/rules/aggregate.smk"
include: "workflow/rules/claims.smk"
include: "workflow/rules/plots.smk"
include: "workflow/rules/report.smk"


if explorer():

    include: "workflow/rules/explorer.smk"


rule all:
    default_target: True
    input:
        rules.tables.input,
        rules.claims.input,
        rules.figures.input,
        rules.report.input,


# Said once, where the user is, not by every job.
if workflow.is_main_process:
    tables = [f"results/tables/{table}.parquet" for table in [*table_names(), "claims"]]
    try:
        other_commits = relocked(GRID.sources, HUB_LOCK, SOURCE_RECORD)
    except Refusal as refusal:
        raise WorkflowError(str(refusal)) from None
    for warning in (
        describe(outdated(tables), rules_behind, sys.argv),
        describe_relocked(other_commits, HUB_LOCK, SOURCE_RECORD, sys.argv),
    ):
        if warning:
            logger.warning(warning)


onstart:
    # To keep below so many jobs a second, Snakemake looks at every ready job again a second after each look, and each job
    # that ends begins another such chain. On a grid that takes it more time than many of the jobs. A cluster needs it.
    if workflow.local_exec:
        workflow.scheduler.job_rate_limiter = None


onsuccess:
    discard_drawn_weights()
    if Path(REPORT).exists():
        print(f"The report is at {REPORT}")
