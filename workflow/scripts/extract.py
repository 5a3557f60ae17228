"""Run one model with one set of weights on one prompt, and store its states."""

from collapse.job import job

with job(snakemake):
    import json
    from pathlib import Path

    from collapse.extraction import extract
    from collapse.weights import require_unchanged, restore

    record = json.loads(Path(snakemake.input.record).read_text(encoding="utf-8"))
    checkpoint = snakemake.input.trained
    require_unchanged(checkpoint, snakemake.input.trained_record)
    if record["seed"] is not None:
        checkpoint = restore(record, checkpoint, snakemake.input.trained_record, snakemake.params.checkpoint)
    extract(
        run=snakemake.params.run,
        checkpoint=checkpoint,
        weights_record=record,
        scheme=snakemake.params.weights["scheme"],
        prompt=snakemake.input.prompt,
        max_tokens=snakemake.params.max_tokens,
        device=snakemake.params.device,
        threads=snakemake.threads,
        output=snakemake.output.states,
        depth=snakemake.params.depth,
    )
