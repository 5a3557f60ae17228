# Which metrics there are, where their files are, and what their jobs depend on.


def metrics_where(condition):
    """Names of the config's metrics for which a condition on their registry entry holds."""
    return [name for name in GRID.metrics if condition(METRICS[name])]


def metrics_over(*kinds):
    """Names of the config's metrics of these kinds (see `over` in collapse/registry.py)."""
    return metrics_where(lambda metric: metric.over in kinds and not metric.axis and not metric.token_table)


def attention_metrics():
    """The metrics that the pass over attention computes: the config's, and what its group metric reads."""
    asked = metrics_where(lambda metric: metric.over == "attention")
    return sorted({*asked, "attention_tokens"} if "attention_received" in GRID.metrics else asked)


def metric_parameters(metric):
    """What a script needs to know of a metric."""
    entry = METRICS[metric]
    return {"name": metric, "module": module(metric), "over": entry.over, "packages": list(entry.packages)}


def axis_folders(metric):
    """The folders of a metric's further axis: one for each inverse temperature or method."""
    folders = {"beta": [f"b{beta}/" for beta in GRID.betas], "method": [f"{method}/" for method in GRID.methods]}
    return folders.get(METRICS[metric].axis, [""])


def metric_files(metric, table=None):
    """Every file of one metric over the whole grid, or of its second table."""
    name = table or metric
    return [f"results/metrics/{name}/{at}{m}/{w}/{p}.parquet" for at in axis_folders(metric) for m, w, p in GRID.runs()]


def metric_options(metric, method=None):
    """The config's section of a metric, without the axis that its paths carry; for a method, only what that one uses."""
    section = config.get(metric, {})
    used = METHOD_OPTIONS[method] if method else set(section) - {"betas", "methods"}
    return {key: section[key] for key in sorted(used)}


def metric_code(metric, script="metric.py"):
    """The code behind a metric's files: its module, the way there and back, and the types of its columns."""
    tables = [metric, METRICS[metric].token_table] if METRICS[metric].token_table else [metric]
    return code_hash(module(metric), script) + "".join(type_hash(table) for table in tables)


def rules_behind(table):
    """The rules whose jobs compute a table, or, for `states`, the states that all are computed from."""
    theory = bool(slugs(lambda weights: weights.dynamics is not None))
    if table == "states":
        return ["extract"] + ["identity_states"] * theory
    alone = {"runs": "runs_table", "claims": "score_claims"}
    if table in alone:
        return [alone[table]]
    metric = token_tables().get(table, table)
    if metric in attention_metrics():
        return ["attention"] + ["identity_attention"] * theory
    if metric in ("clusters", "projections", "attention_received"):
        return [metric]
    if METRICS[metric].axis:
        return ["metric_at_beta"]
    return ["metric" if METRICS[metric].over in ("layer", "trajectory") else "metric_of_clusters"]


def token_tables():
    """The second tables, of labels per token, with the metric that makes each."""
    return {METRICS[metric].token_table: metric for metric in GRID.metrics if METRICS[metric].token_table}


def table_files(table):
    """The files that a table gathers."""
    return metric_files(token_tables().get(table, table), table)


def table_names():
    """Every table of results/tables."""
    return ["runs", *GRID.metrics, *token_tables()]


def claims_tables():
    """The tables that the claims read, of those that the config computes."""
    claimed = {test["table"] for claim in GRID.claims for test in claim["tests"]}
    return ["runs", *(table for table in table_names() if table in claimed)]
