"""Gather the files of one table over the whole grid."""

from collapse.job import job

with job(snakemake):
    from collapse.aggregate import aggregate

    aggregate(snakemake.input.files, snakemake.params.table, snakemake.params.runs, snakemake.output.table)
