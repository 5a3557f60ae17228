# One self-contained page.


rule write_report:
    input:
        tables=rules.tables.input,
        claims=rules.score_claims.output.table,
        figures=expand("results/figures/{figure}.svg", figure=figure_names()),
        captions=expand("results/figures/{figure}.md", figure=figure_names()),
        template=os.path.normpath(f"{REPOSITORY}/workflow/report/index.html.j2"),
    output:
        page=report(REPORT, caption="../report/page.rst", category="Report"),
    log:
        "results/logs/report.log",
    benchmark:
        "results/benchmarks/report.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=grows(2000),
        runtime=grows(30),
    params:
        config=config,
        figures=figure_questions(),
        explorer=[os.path.basename(page) for page in explorer()],
        code=code_hash("write_report.py"),
        words=description_hash(),
    script:
        "../scripts/write_report.py"


rule report:
    input:
        REPORT,
        explorer(),
