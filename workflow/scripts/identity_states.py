"""Run the theory's particles from the layer 0 of a trained model, and store them like states."""

from collapse.job import job

with job(snakemake):
    from collapse.theory import identity_states

    identity_states(
        snakemake.input.states,
        snakemake.params.weights,
        **snakemake.params.dynamics,
        output=snakemake.output.states,
    )
