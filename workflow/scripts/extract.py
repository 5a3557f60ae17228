"""Run one model with one set of weights on one prompt, and store its states."""

from collapse.job import job

with job(snakemake):
    from collapse.extraction import extract
    from collapse.weights import checkpoint_of_run

    checkpoint, record = checkpoint_of_run(
        snakemake.input.record, snakemake.input.trained, snakemake.input.trained_record, snakemake.params.checkpoint
    )
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
