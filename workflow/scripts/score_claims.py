"""Test the claims on the results tables."""

from collapse.job import job

with job(snakemake):
    from collapse.claims import write_claims

    write_claims(
        paths=snakemake.input.tables,
        claims=snakemake.params.claims,
        models=snakemake.params.models,
        trained_depths=snakemake.params.trained_depths,
        code=snakemake.params.code,
        output=snakemake.output.table,
        text=snakemake.output.text,
    )
