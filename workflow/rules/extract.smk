# One forward pass per run, to the states table; the theory's particles start from the trained model's layer 0.


# No `ancient` here: Snakemake then overlooks a changed parameter in the same run in which the weights are made anew.
rule extract:
    input:
        trained="results/weights/{model}/trained/checkpoint",
        trained_record="results/weights/{model}/trained/weights.json",
        record=WEIGHTS_RECORD,
        prompt=lambda wildcards: GRID.prompts[wildcards.prompt],
    output:
        states=STATES,
    log:
        f"results/logs/states/{RUN}.log",
    benchmark:
        f"results/benchmarks/states/{RUN}.tsv"
    wildcard_constraints:
        weights=one_of(["trained", *slugs(lambda weights: weights.is_drawn)]),
    conda:
        "../../environment.yml"
    threads: config["extraction"]["threads"]
    resources:
        mem_mb=model_memory,
        runtime=grows(20),
        gpu=int(config["extraction"]["device"] == "cuda"),
    params:
        run=lambda wildcards: dict(model=wildcards.model, weights=wildcards.weights, prompt=wildcards.prompt),
        checkpoint=CHECKPOINT,
        weights=weights_definition,
        depth=lambda wildcards: GRID.depths.get(wildcards.model),
        max_tokens=config["max_tokens"],
        device=config["extraction"]["device"],
        code=code_hash("extract.py"),
    script:
        "../scripts/extract.py"


rule identity_states:
    input:
        states="results/states/{model}/trained/{prompt}.parquet",
    output:
        states=STATES,
    log:
        f"results/logs/states/{RUN}.log",
    benchmark:
        f"results/benchmarks/states/{RUN}.tsv"
    wildcard_constraints:
        weights=one_of(slugs(lambda weights: weights.dynamics is not None)),
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=grows(1000),
        runtime=grows(5),
    params:
        weights=lambda wildcards: wildcards.weights,
        dynamics=lambda wildcards: GRID.weights[wildcards.weights].dynamics,
        code=code_hash("identity_states.py"),
    script:
        "../scripts/identity_states.py"


rule states:
    input:
        expand("results/states/{run}.parquet", run=["/".join(run) for run in GRID.runs()]),
