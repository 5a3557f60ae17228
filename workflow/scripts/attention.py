"""Run one model with one set of weights on the tokens of a states file, and hand each block's attention to metrics."""

from collapse.job import job

with job(snakemake):
    import json
    from pathlib import Path

    from collapse.attention_pass import model_attention
    from collapse.attention_tables import AttentionTables
    from collapse.weights import require_unchanged, restore

    record = json.loads(Path(snakemake.input.record).read_text(encoding="utf-8"))
    checkpoint = snakemake.input.trained
    require_unchanged(checkpoint, snakemake.input.trained_record)
    if record["seed"] is not None:
        checkpoint = restore(record, checkpoint, snakemake.input.trained_record, snakemake.params.checkpoint)
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
