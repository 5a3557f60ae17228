"""Draw one set of random weights at the trained norms."""

from collapse.job import job

with job(snakemake):
    from collapse.weights import norm_matched

    norm_matched(
        snakemake.input.checkpoint,
        snakemake.input.record,
        snakemake.params.seed,
        snakemake.params.norms,
        snakemake.params.checkpoint,
        snakemake.output.record,
    )
