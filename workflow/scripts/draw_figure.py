"""Draw one figure from tables."""

from collapse.job import job

with job(snakemake, needs_pandas=True):
    from collapse.figures.draw import draw

    draw(
        **snakemake.params.figure,
        tables=snakemake.input.tables,
        svg=snakemake.output.svg,
        png=snakemake.output.png,
        caption=snakemake.output.caption,
    )
