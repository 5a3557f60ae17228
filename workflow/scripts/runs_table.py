"""List every run with what it was made from."""

from collapse.job import job

with job(snakemake):
    from collapse.aggregate import runs_table

    runs_table(snakemake.input.states, snakemake.output.table)
