"""Write the explorer page and the folder of its runs."""

from collapse.job import job

with job(snakemake, needs_pandas=True):
    from collapse.explorer import write_explorer

    write_explorer(
        tables=snakemake.input.tables,
        states=snakemake.input.states,
        methods=snakemake.params.methods,
        template=snakemake.input.template,
        javascript=snakemake.input.javascript,
        stylesheet=snakemake.input.stylesheet,
        page=snakemake.output.page,
        folder=snakemake.output.folder,
    )
