"""Hand the attention of the theory's particles, step by step, to the attention metrics."""

from collapse.job import job

with job(snakemake, needs_pandas=any("pandas" in metric["packages"] for metric in snakemake.params.metrics)):
    from collapse.attention_tables import AttentionTables
    from collapse.theory import attention_of_states

    found = AttentionTables(snakemake.input.states, snakemake.params.metrics, snakemake.params.options)
    for step, A in enumerate(attention_of_states(snakemake.input.states)):
        found.take(step, A)
    found.write(snakemake.output, snakemake.params.code, {"device": "cpu", "dtype": "float64"})
