"""Cluster every layer of one run: a row per layer, and a row per token with its label."""

from collapse.job import job

with job(snakemake):
    from collapse import tables
    from collapse.measure import measure, metric_record, rule_by_rule
    from collapse.metrics.clusters import clusters, token_rows
    from collapse.metrics.duplicate_tokens import duplicate_clusters
    from collapse.states import StatesFile

    metric, options = snakemake.params.metric, dict(snakemake.params.options)
    token_ids = StatesFile(snakemake.input.states).tokens()["token_id"].to_numpy()
    rows, labels = [], []
    for keys, (values, *tokens), mask in measure(snakemake.input.states, clusters, "trajectory", options):
        copies = duplicate_clusters(tokens[0], token_ids[mask])
        reasons = [values["undefined"], copies["undefined"]]
        rows.append(keys | values | copies | {"undefined": "; ".join(filter(None, reasons)) or None})
        labels += [keys | token for token in token_rows(values, *tokens, mask)]
    record = metric_record(snakemake.input.states, metric, options, snakemake.params.code)
    tables.write(snakemake.output.table, "clusters", rule_by_rule(rows), record)
    tables.write(snakemake.output.tokens, "cluster_labels", rule_by_rule(labels), record)
