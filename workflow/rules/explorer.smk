# One page in which tokens move from layer to layer, where the config asks for projections.


rule write_explorer:
    input:
        tables=expand("results/tables/{table}.parquet", table=explorer_tables()),
        # Tokens are those of the model and the prompt, whatever the weights.
        states=expand(STATES, model=GRID.sources, weights=list(GRID.weights)[0], prompt=GRID.prompts),
        template=explorer_source("html.j2"),
        javascript=explorer_source("js"),
        stylesheet=explorer_source("css"),
    output:
        page=EXPLORER,
        # Runs, if they are too large for the page; empty if not.
        folder=directory(os.path.splitext(EXPLORER)[0]),
    log:
        "results/logs/explorer.log",
    benchmark:
        "results/benchmarks/explorer.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=grows(3000),
        runtime=grows(60),
    params:
        code=code_hash("write_explorer.py"),
        columns={table: type_hash(table) for table in explorer_tables()},
        methods=GRID.methods,
    script:
        "../scripts/write_explorer.py"
