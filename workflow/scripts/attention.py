"""Run one model with one set of weights on the tokens of a states file, and hand each block's attention to metrics."""

from collapse.job import job

with job(snakemake, needs_pandas=any("pandas" in metric["packages"] for metric in snakemake.params.metrics)):
    from collapse.attention_pass import model_attention
    from collapse.attention_tables import AttentionTables
    from collapse.weights import checkpoint_of_run

    checkpoint, record = checkpoint_of_run(
        snakemake.input.record, snakemake.input.trained, snakemake.input.trained_record, snakemake.params.checkpoint
    )
    found = AttentionTables(snakemake.input.states, snakemake.params.metrics, snakemake.params.options)
    run_record = model_attention(
        snakemake.input.states,
        checkpoint,
        record["weights_hash"],
        snakemake.params.device,
        snakemake.threads,
        found.take,
        depth=snakemake.params.depth,
    )
    found.write(snakemake.output, snakemake.params.code, run_record)
