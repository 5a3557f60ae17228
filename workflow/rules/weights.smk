# From a source to checkpoints: the trained weights, once, and random ones, drawn again whenever they are needed.


# On a cluster this runs where Snakemake runs: compute nodes often have no network.
rule fetch:
    input:
        small_local_files,
    output:
        snapshot=directory("results/models/{model}/snapshot"),
        record=SOURCE_RECORD,
    log:
        "results/logs/fetch/{model}.log",
    benchmark:
        "results/benchmarks/fetch/{model}.tsv"
    localrule: True
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=120,
    params:
        source=source_of,
        lock=lock_of,
        code=code_hash("fetch.py"),
    script:
        "../scripts/fetch.py"


rule trained_weights:
    input:
        snapshot="results/models/{model}/snapshot",
        source=SOURCE_RECORD,
    output:
        checkpoint=directory("results/weights/{model}/trained/checkpoint"),
        record="results/weights/{model}/trained/weights.json",
    log:
        "results/logs/weights/{model}/trained.log",
    benchmark:
        "results/benchmarks/weights/{model}/trained.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=model_memory,
        runtime=grows(60),
    params:
        code=code_hash("trained_weights.py"),
    script:
        "../scripts/trained_weights.py"


# A seed draws the same weights again: the record stays, the checkpoint goes when the workflow has succeeded, and a run
# that is added later draws it again. It is no output, since Snakemake reruns all that once used a file it makes again.
rule draw_weights:
    input:
        checkpoint="results/weights/{model}/trained/checkpoint",
        record="results/weights/{model}/trained/weights.json",
    output:
        record=WEIGHTS_RECORD,
    log:
        "results/logs/weights/{model}/{weights}.log",
    benchmark:
        "results/benchmarks/weights/{model}/{weights}.tsv"
    wildcard_constraints:
        weights=one_of(slugs(lambda weights: weights.is_drawn)),
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=model_memory,
        runtime=grows(60),
    params:
        checkpoint=CHECKPOINT,
        definition=lambda wildcards: GRID.weights[wildcards.weights].definition,
        code=code_hash("draw_weights.py"),
    script:
        "../scripts/draw_weights.py"
