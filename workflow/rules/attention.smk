# One pass per run, from which all attention metrics of the config take what they need; attention itself is not stored.


# It runs the tokens of the states file with the weights of that file, and refuses any others.
rule attention:
    input:
        trained="results/weights/{model}/trained/checkpoint",
        trained_record="results/weights/{model}/trained/weights.json",
        record=WEIGHTS_RECORD,
        states=STATES,
    output:
        **{metric: f"results/metrics/{metric}/{RUN}.parquet" for metric in attention_metrics()},
    log:
        f"results/logs/attention/{RUN}.log",
    benchmark:
        f"results/benchmarks/attention/{RUN}.tsv"
    wildcard_constraints:
        weights=one_of(["trained", *slugs(lambda weights: weights.is_drawn)]),
    conda:
        "../../environment.yml"
    threads: config["extraction"]["threads"]
    resources:
        mem_mb=attention_memory,
        runtime=attention_minutes,
        gpu=int(config["extraction"]["device"] == "cuda"),
    params:
        checkpoint=CHECKPOINT,
        depth=lambda wildcards: GRID.depths.get(wildcards.model),
        device=config["extraction"]["device"],
        metrics=[metric_parameters(metric) for metric in attention_metrics()],
        options={metric: metric_options(metric) for metric in attention_metrics()},
        code={metric: metric_code(metric, "attention.py") for metric in attention_metrics()},
    script:
        "../scripts/attention.py"


# The theory's attention is softmax(beta G) of the state that enters a step: no model.
rule identity_attention:
    input:
        states=STATES,
    output:
        **{metric: f"results/metrics/{metric}/{RUN}.parquet" for metric in attention_metrics()},
    log:
        f"results/logs/attention/{RUN}.log",
    benchmark:
        f"results/benchmarks/attention/{RUN}.tsv"
    wildcard_constraints:
        weights=one_of(slugs(lambda weights: weights.dynamics is not None)),
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=metric_memory,
        runtime=metric_minutes,
    params:
        metrics=[metric_parameters(metric) for metric in attention_metrics()],
        options={metric: metric_options(metric) for metric in attention_metrics()},
        code={metric: metric_code(metric, "identity_attention.py") for metric in attention_metrics()},
    script:
        "../scripts/identity_attention.py"
