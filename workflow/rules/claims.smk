# The scorecard: what holds, on which model, by how much. A claim whose table the config does not compute is not measured.


rule score_claims:
    input:
        tables=expand("results/tables/{table}.parquet", table=claims_tables()),
    output:
        table="results/tables/claims.parquet",
        text=CLAIMS,
    log:
        "results/logs/claims.log",
    benchmark:
        "results/benchmarks/claims.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=grows(2000),
        runtime=grows(30),
    params:
        claims=GRID.claims,
        models=list(GRID.sources),
        trained_depths={model: depth["trained_depth"] for model, depth in GRID.depths.items()},
        code=code_hash("score_claims.py"),
        columns=type_hash("claims"),
    script:
        "../scripts/score_claims.py"


rule claims:
    input:
        CLAIMS,
