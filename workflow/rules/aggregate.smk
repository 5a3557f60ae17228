# One tidy table per metric over the whole grid. The grid is the config's: a run that is missing is an error.


rule aggregate:
    input:
        files=lambda wildcards: table_files(wildcards.table),
    output:
        table="results/tables/{table}.parquet",
    log:
        "results/logs/tables/{table}.log",
    benchmark:
        "results/benchmarks/tables/{table}.tsv"
    wildcard_constraints:
        table=one_of([name for name in table_names() if name != "runs"]),
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=table_memory,
        runtime=grows(30),
    params:
        table="{table}",
        runs=["/".join(run) for run in GRID.runs()],
        code=code_hash("aggregate.py"),
        columns=lambda wildcards: type_hash(wildcards.table),
    script:
        "../scripts/aggregate.py"


rule runs_table:
    input:
        states=expand("results/states/{run}.parquet", run=["/".join(run) for run in GRID.runs()]),
    output:
        table="results/tables/runs.parquet",
    log:
        "results/logs/tables/runs.log",
    benchmark:
        "results/benchmarks/tables/runs.tsv"
    # Before metrics that still wait: it refuses two names for the same weights.
    priority: 1
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=grows(1000),
        runtime=grows(30),
    params:
        code=code_hash("runs_table.py"),
        columns=type_hash("runs"),
    script:
        "../scripts/runs_table.py"


rule tables:
    input:
        expand("results/tables/{table}.parquet", table=table_names()),
