# One forward pass per run, to the states table; the theory's particles start from the trained model's layer 0.


# `ancient`: weights that are drawn again for a new prompt are the same weights, and rerun no other prompt. What the
# states depend on - source, scheme, seed, code - is in `weights`.
rule extract:
    input:
        checkpoint=ancient(CHECKPOINT),
        record=ancient(WEIGHTS_RECORD),
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
        ENVIRONMENT
    threads: config["extraction"]["threads"]
    resources:
        mem_mb=model_memory,
        runtime=60,
        gpu=int(config["extraction"]["device"] == "cuda"),
    params:
        run=lambda wildcards: dict(model=wildcards.model, weights=wildcards.weights, prompt=wildcards.prompt),
        weights=weights_definition,
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
        weights=one_of(slugs(lambda weights: weights.beta is not None)),
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=1000,
        runtime=30,
    params:
        weights=lambda wildcards: wildcards.weights,
        beta=lambda wildcards: GRID.weights[wildcards.weights].beta,
        code=code_hash("identity_states.py"),
    script:
        "../scripts/identity_states.py"


rule states:
    input:
        expand("results/states/{run}.parquet", run=["/".join(run) for run in GRID.runs()]),
