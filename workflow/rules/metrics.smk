# Every metric of every run: states in, one tidy parquet out. What a metric is stands in workflow/schemas/tables.yaml.


rule metric:
    input:
        states=STATES,
    output:
        table=f"results/metrics/{{metric}}/{RUN}.parquet",
    log:
        f"results/logs/metrics/{{metric}}/{RUN}.log",
    benchmark:
        f"results/benchmarks/metrics/{{metric}}/{RUN}.tsv"
    wildcard_constraints:
        metric=one_of(metrics_over("layer", "trajectory")),
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=metric_memory,
        runtime=metric_minutes,
    params:
        metric=lambda wildcards: metric_parameters(wildcards.metric),
        options=lambda wildcards: metric_options(wildcards.metric),
        code=lambda wildcards: metric_code(wildcards.metric),
    script:
        "../scripts/metric.py"


# One file per inverse temperature: a new beta computes only itself.
rule metric_at_beta:
    input:
        states=STATES,
    output:
        table=f"results/metrics/{{metric}}/b{{beta}}/{RUN}.parquet",
    log:
        f"results/logs/metrics/{{metric}}/b{{beta}}/{RUN}.log",
    benchmark:
        f"results/benchmarks/metrics/{{metric}}/b{{beta}}/{RUN}.tsv"
    wildcard_constraints:
        metric=one_of(metrics_where(lambda metric: metric.axis == "beta")),
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=metric_memory,
        runtime=metric_minutes,
    params:
        metric=lambda wildcards: metric_parameters(wildcards.metric),
        options=lambda wildcards: metric_options(wildcards.metric),
        beta=lambda wildcards: GRID.betas[wildcards.beta],
        code=lambda wildcards: metric_code(wildcards.metric),
    script:
        "../scripts/metric.py"


# One file per method: other settings of t-SNE leave the rest alone. All depths of a run in one job, since umap compiles
# for ten seconds in every process.
rule projections:
    input:
        states=STATES,
    output:
        table=f"results/metrics/projections/{{method}}/{RUN}.parquet",
    log:
        f"results/logs/metrics/projections/{{method}}/{RUN}.log",
    benchmark:
        f"results/benchmarks/metrics/projections/{{method}}/{RUN}.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=metric_memory,
        runtime=metric_minutes,
    params:
        metric=metric_parameters("projections"),
        options=lambda wildcards: metric_options("projections", wildcards.method),
        method="{method}",
        code=metric_code("projections"),
    script:
        "../scripts/metric.py"


# Clusters are needed per token by what is measured on them: a second table holds the labels.
rule clusters:
    input:
        states=STATES,
    output:
        table=f"results/metrics/clusters/{RUN}.parquet",
        tokens=f"results/metrics/cluster_labels/{RUN}.parquet",
    log:
        f"results/logs/metrics/clusters/{RUN}.log",
    benchmark:
        f"results/benchmarks/metrics/clusters/{RUN}.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=metric_memory,
        runtime=metric_minutes,
    params:
        metric=metric_parameters("clusters"),
        options=metric_options("clusters"),
        code=metric_code("clusters", "clusters.py"),
    script:
        "../scripts/clusters.py"


# What is measured on clusters reads the labels, never the model; labels that change rerun these alone.
rule metric_of_clusters:
    input:
        states=STATES,
        labels=f"results/metrics/cluster_labels/{RUN}.parquet",
    output:
        table=f"results/metrics/{{metric}}/{RUN}.parquet",
    log:
        f"results/logs/metrics/{{metric}}/{RUN}.log",
    benchmark:
        f"results/benchmarks/metrics/{{metric}}/{RUN}.tsv"
    wildcard_constraints:
        metric=one_of(metrics_over("layer_labels", "trajectory_labels", "labels_per_token")),
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=metric_memory,
        runtime=metric_minutes,
    params:
        metric=lambda wildcards: metric_parameters(wildcards.metric),
        options=lambda wildcards: metric_options(wildcards.metric),
        code=lambda wildcards: metric_code(wildcards.metric),
    script:
        "../scripts/metric.py"


# Attention received by group reads what the pass over attention stored per token, never the model.
rule attention_received:
    input:
        states=STATES,
        labels=f"results/metrics/cluster_labels/{RUN}.parquet",
        tokens=f"results/metrics/attention_tokens/{RUN}.parquet",
    output:
        table=f"results/metrics/attention_received/{RUN}.parquet",
    log:
        f"results/logs/metrics/attention_received/{RUN}.log",
    benchmark:
        f"results/benchmarks/metrics/attention_received/{RUN}.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=metric_memory,
        runtime=metric_minutes,
    params:
        metric=metric_parameters("attention_received"),
        code=metric_code("attention_received", "attention_received.py"),
    script:
        "../scripts/attention_received.py"


rule metrics:
    input:
        [path for metric in GRID.metrics for path in metric_files(metric)],
