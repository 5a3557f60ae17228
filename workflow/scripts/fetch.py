"""Fetch one model from its source."""

from collapse.job import job

with job(snakemake):
    from collapse.fetch import fetch

    fetch(
        snakemake.wildcards.model,
        snakemake.params.source,
        snakemake.output.snapshot,
        snakemake.output.record,
        snakemake.params.lock,
    )
