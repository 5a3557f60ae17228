import os
import re
import shutil
import sys

sys.path.insert(0, str(Path(workflow.basedir) / "workflow" / "scripts"))

from collapse.codehash import code_hash
from collapse.config import TRAINED, load
from collapse.errors import Refusal
from collapse.registry import FIGURES, METRICS, module, needs_labels
from collapse.tables import description_hash, type_hash

# Relative, so that a checkout that moves with its results reruns nothing.
REPOSITORY = os.path.relpath(workflow.basedir)

try:
    config, GRID = load(config, REPOSITORY)
except Refusal as refusal:
    raise WorkflowError(str(refusal)) from None

REPORT = "results/report/index.html"

RUN = "{model}/{weights}/{prompt}"
STATES = f"results/states/{RUN}.parquet"
CHECKPOINT = "results/weights/{model}/{weights}/checkpoint"
WEIGHTS_RECORD = "results/weights/{model}/{weights}/weights.json"


def one_of(names):
    """A wildcard constraint: exactly one of these names, or, with none, nothing at all."""
    return "|".join(map(re.escape, names)) or "(?!)"


wildcard_constraints:
    model=one_of(GRID.sources),
    weights=one_of({TRAINED.slug: TRAINED} | GRID.weights),
    prompt=one_of(GRID.prompts),
    beta=one_of(GRID.betas),
    metric=one_of(GRID.metrics),


def slugs(condition):
    """Slugs of the weights for which a condition holds."""
    return [slug for slug, weights in GRID.weights.items() if condition(weights)]


def source_of(wildcards):
    """The source section of a model: what identifies its trained weights."""
    return GRID.sources[wildcards.model]


def small_local_files(wildcards):
    """Config and tokenizer of a local source; its weights are pinned, and looked at before every use."""
    source = source_of(wildcards)
    if source["kind"] != "local":
        return []
    return sorted(str(p) for p in Path(source["path"]).glob("*") if p.suffix in (".json", ".txt", ".model"))


def weights_definition(wildcards):
    """All that the states of a run can depend on before extraction: source, scheme, and the code that makes weights."""
    weights = GRID.weights.get(wildcards.weights, TRAINED)
    return {
        "source": source_of(wildcards),
        "scheme": weights.scheme,
        "definition": weights.definition,
        "code": code_hash("collapse.weights"),
    }


def model_memory(wildcards, input, attempt):
    """Megabytes for a job that holds a model, from the size of its files; more at each retry."""
    files = sum(path.stat().st_size for path in Path(input[0]).iterdir())
    return int(attempt * (1500 + 1.5 * files / 1e6))


def discard_drawn_weights():
    """Remove checkpoints that a seed draws again; their records stay."""
    for model in GRID.sources:
        for slug in slugs(lambda weights: weights.is_drawn):
            shutil.rmtree(CHECKPOINT.format(model=model, weights=slug), ignore_errors=True)
            Path(f"results/weights/{model}/{slug}/.drawing").unlink(missing_ok=True)


def metrics_where(condition):
    """Names of the config's metrics for which a condition on their registry entry holds."""
    return [name for name in GRID.metrics if condition(METRICS[name])]


def metric_parameters(metric):
    """What a script needs to know of a metric."""
    entry = METRICS[metric]
    return {
        "name": metric,
        "module": module(metric),
        "function": entry.function,
        "over": entry.over,
        "packages": list(entry.packages),
    }


def metric_files(metric, table=None):
    """Every file of one metric over the whole grid, or of its second table."""
    axis = [f"b{beta}/" for beta in GRID.betas] if METRICS[metric].per_beta else [""]
    return [f"results/metrics/{table or metric}/{beta}{m}/{w}/{p}.parquet" for beta in axis for m, w, p in GRID.runs()]


def metric_options(metric):
    """The config's section of a metric, without the axis that its paths carry."""
    section = config[metric] if METRICS[metric].options else {}
    return {key: section[key] for key in sorted(section) if key != "betas"}


def metric_code(metric):
    """The code behind a metric's files: its module, the way there and back, and the types of its columns."""
    tables = [metric, METRICS[metric].token_table] if METRICS[metric].token_table else [metric]
    script = "clusters.py" if METRICS[metric].token_table else "metric.py"
    return code_hash(module(metric), script) + "".join(type_hash(table) for table in tables)


def token_tables():
    """The second tables, of labels per token, with the metric that makes each."""
    return {METRICS[metric].token_table: metric for metric in GRID.metrics if METRICS[metric].token_table}


def table_files(table):
    """The files that a table gathers."""
    return metric_files(token_tables().get(table, table), table)


def table_names():
    """Every table of results/tables."""
    return ["runs", *GRID.metrics, *token_tables()]
