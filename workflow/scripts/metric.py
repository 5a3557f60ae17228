"""Compute one metric of one run, at one inverse temperature or by one method where the metric has such an axis."""

from collapse.job import job

with job(snakemake, needs_pandas="pandas" in snakemake.params.metric["packages"]):
    import importlib

    from collapse import tables
    from collapse.measure import measure, metric_record, rows_of

    metric, options = snakemake.params.metric, dict(snakemake.params.options)
    # Which part of the run is measured, which is not the metric's to know.
    part = {key: options.pop(key) for key in ("depths", "tokens") if key in options}
    axis = {key: value for key, value in snakemake.params.items() if key in ("beta", "method")}
    extra_keys = {key: value for key, value in axis.items() if key == "beta"}
    function = getattr(importlib.import_module(metric["module"]), metric["name"])
    labels = snakemake.input.get("labels")
    found = measure(snakemake.input.states, function, metric["over"], options | axis, extra_keys, labels, **part)
    rows = rows_of(found, metric["name"])
    record = metric_record(snakemake.input.states, metric, snakemake.params.options | axis, snakemake.params.code)
    tables.write(snakemake.output.table, metric["name"], rows, record)
