"""Split the attention that each token of one run receives by groups of tokens."""

from collapse.job import job

with job(snakemake):
    from collapse import tables
    from collapse.attention_groups import attention_groups
    from collapse.measure import metric_record

    found = attention_groups(snakemake.input.states, snakemake.input.labels, snakemake.input.tokens)
    record = metric_record(snakemake.input.states, snakemake.params.metric, {}, snakemake.params.code)
    record |= {"attention": tables.record(snakemake.input.tokens)["attention"]}
    tables.write(snakemake.output.table, "attention_received", found, record)
