"""Make the checkpoint of the trained weights."""

from collapse.job import job

with job(snakemake):
    from collapse.weights import trained

    trained(snakemake.input.snapshot, snakemake.input.source, snakemake.output.checkpoint, snakemake.output.record)
