import json
import os
import re
import sys

sys.path.insert(0, str(Path(workflow.basedir) / "workflow" / "scripts"))

from collapse.codehash import code_hash
from collapse.config import TRAINED, load
from collapse.drawn import discard
from collapse.errors import Refusal
from collapse.explorer_curves import TABLES as EXPLORER_TABLES
from collapse.fetch import is_locked
from collapse.lock import explanation
from collapse.outdated import describe, outdated
from collapse.registry import FIGURES, METHOD_OPTIONS, METRICS, module
from collapse.relocked import describe_relocked, relocked
from collapse.tables import columns as table_columns
from collapse.tables import description_hash, type_hash

if workflow.is_main_process and (locked := explanation(sys.argv)):
    print(locked, file=sys.stderr)

# Relative, so that a checkout that moves with its results reruns nothing.
REPOSITORY = os.path.relpath(workflow.basedir)

try:
    config, GRID = load(config, REPOSITORY)
except Refusal as refusal:
    raise WorkflowError(str(refusal)) from None

HUB_LOCK = os.path.normpath(os.path.join(REPOSITORY, config["hub_lock"]))
REPORT = "results/report/index.html"
EXPLORER = "results/report/explorer.html"
CLAIMS = "results/claims.tsv"

RUN = "{model}/{weights}/{prompt}"
STATES = f"results/states/{RUN}.parquet"
SOURCE_RECORD = "results/models/{model}/source.json"
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
    method=one_of(GRID.methods),


def slugs(condition):
    """Slugs of the weights for which a condition holds."""
    return [slug for slug, weights in GRID.weights.items() if condition(weights)]


def source_of(wildcards):
    """The source section of a model: what identifies its trained weights."""
    return GRID.sources[wildcards.model]


def lock_of(wildcards):
    """The lock file, for a model that it holds: another place for it is nothing to the others."""
    return HUB_LOCK if is_locked(source_of(wildcards)) else None


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


def discard_drawn_weights():
    """Remove checkpoints that a seed draws again; their records stay."""
    for model in GRID.sources:
        for slug in slugs(lambda weights: weights.is_drawn):
            discard(CHECKPOINT.format(model=model, weights=slug))
