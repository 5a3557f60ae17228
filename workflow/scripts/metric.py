"""Compute one metric of one run, at one inverse temperature where the metric has that axis."""

from collapse.job import job

with job(snakemake):
    import importlib

    from collapse import tables
    from collapse.measure import measure, metric_record

    metric, options = snakemake.params.metric, dict(snakemake.params.options)
    axis = {key: value for key, value in snakemake.params.items() if key == "beta"}
    function = getattr(importlib.import_module(metric["module"]), metric["function"])
    labels = snakemake.input.get("labels")
    measured = measure(snakemake.input.states, function, metric["over"], options | axis, axis, labels)
    # A metric that has several rows per state, one per group, returns a list of them.
    rows = [keys | row for keys, found, _ in measured for row in (found if isinstance(found, list) else [found])]
    record = metric_record(snakemake.input.states, metric, options | axis, snakemake.params.code)
    tables.write(snakemake.output.table, metric["name"], rows, record)
