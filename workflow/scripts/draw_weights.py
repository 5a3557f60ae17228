"""Draw one set of random weights."""

from collapse.job import job

with job(snakemake):
    from collapse.weights import draw

    draw(
        snakemake.input.checkpoint,
        snakemake.input.record,
        snakemake.params.definition,
        snakemake.params.checkpoint,
        snakemake.output.record,
    )
