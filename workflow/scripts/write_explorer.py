"""Write the explorer page and the folder of its runs."""

from collapse.job import job

with job(snakemake):
    from collapse.explorer import write_explorer

    write_explorer(
        tables=snakemake.input.tables,
        states=snakemake.input.states,
        template=snakemake.input.template,
        script=snakemake.input.code,
        stylesheet=snakemake.input.style,
        page=snakemake.output.page,
        folder=snakemake.output.folder,
    )
