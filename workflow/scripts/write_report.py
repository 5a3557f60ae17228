"""Write the report page from tables, figures and captions."""

from collapse.job import job

with job(snakemake):
    from collapse.report import write_report

    write_report(
        tables=snakemake.input.tables,
        claims=snakemake.input.claims,
        figures=snakemake.params.figures,
        explorer=snakemake.params.explorer,
        config=snakemake.params.config,
        template=snakemake.input.template,
        output=snakemake.output.page,
    )
