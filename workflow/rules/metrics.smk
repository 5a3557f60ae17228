# Every metric of every run: states in, one tidy parquet out. What a metric is stands in collapse/registry.py.


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
        metric=one_of(metrics_where(lambda metric: not (metric.per_beta or metric.token_table or needs_labels(metric)))),
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
        metric=one_of(metrics_where(lambda metric: metric.per_beta)),
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
        code=metric_code("clusters"),
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
        metric=one_of(metrics_where(needs_labels)),
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


rule metrics:
    input:
        [path for metric in GRID.metrics for path in metric_files(metric)],
