# Every figure, from tables only: SVG and PNG, with a caption that states what it shows.


rule draw_figure:
    input:
        tables=lambda wildcards: figure_tables(wildcards.figure),
    output:
        svg=report(
            "results/figures/{figure}.svg",
            caption="../report/figure.rst",
            category=lambda wildcards: figure_questions()[wildcards.figure],
            labels={"figure": "{figure}"},
        ),
        png="results/figures/{figure}.png",
        caption="results/figures/{figure}.md",
    log:
        "results/logs/figures/{figure}.log",
    benchmark:
        "results/benchmarks/figures/{figure}.tsv"
    wildcard_constraints:
        figure=one_of(figure_names()),
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=grows(2000),
        runtime=grows(10),
    params:
        figure=lambda wildcards: figure_parameters(wildcards.figure),
        code=lambda wildcards: figure_code(wildcards.figure),
    script:
        "../scripts/draw_figure.py"


rule figures:
    input:
        expand("results/figures/{figure}.{kind}", figure=figure_names(), kind=["svg", "png", "md"]),
