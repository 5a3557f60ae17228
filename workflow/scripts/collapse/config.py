"""The config: its validation, in messages that name key, value and what is allowed, and the grid it declares."""

import os
from dataclasses import dataclass
from pathlib import Path

import yaml

from collapse.claims_file import read_claims
from collapse.errors import Refusal
from collapse.prompts import read_prompts_table
from collapse.registry import METRICS
from collapse.validation import VALIDATOR, duplicates, explain, in_order, suggest

SCHEMA = Path(__file__).resolve().parents[2] / "schemas" / "config.schema.yaml"


@dataclass(frozen=True)
class Weights:
    """One column of the grid: a scheme with its seed or beta.

    Attributes
    ----------
    slug : str
        Its name in paths and tables.
    scheme : str
        `trained`, `norm-matched`, `norm-matched-reset` or `identity`.
    seed : int or None
    beta : float or None
    norms : str or None
    """

    slug: str
    scheme: str
    seed: int | None = None
    beta: float | None = None
    norms: str | None = None

    @property
    def is_drawn(self):
        return self.seed is not None


# The theory starts from a trained model's layer 0, also where the config does not ask for trained weights.
TRAINED = Weights("trained", "trained")


@dataclass(frozen=True)
class Grid:
    """Everything that the config asks for.

    Attributes
    ----------
    sources : dict
        Model name -> its source section.
    prompts : dict
        Prompt name -> path of its file.
    weights : dict
        Slug -> Weights.
    betas : dict
        Name in paths -> inverse temperature of the energy.
    metrics : list of str
    methods : list of str
        Methods of the projections.
    trained_depths : dict
        Model name -> the number of blocks it was trained with, for models that run deeper; None for the others.
    claims : list of dict
        What the scorecard tests, see collapse.claims_file.
    """

    sources: dict
    prompts: dict
    weights: dict
    betas: dict
    metrics: list
    methods: list
    trained_depths: dict
    claims: list

    def runs(self):
        """Return every (model, weights slug, prompt), in the config's order."""
        return [(m, w, p) for m in self.sources for w in self.weights for p in self.prompts]


def schema():
    """Return the parsed JSON schema of the config."""
    return yaml.safe_load(SCHEMA.read_text(encoding="utf-8"))


def schemes():
    """Return every scheme of weights that a config can ask for, as tables name them."""
    return [*schema()["$defs"]["weights"]["properties"]["scheme"]["enum"], "norm-matched-reset"]


def load(config, repository):
    """Validate a config and return it with defaults filled in.

    Parameters
    ----------
    config : dict
        What Snakemake read.
    repository : path
        Where relative paths of the config start.

    Returns
    -------
    (dict, Grid)

    Raises
    ------
    Refusal
        With one line per fault.
    """
    validator = VALIDATOR(schema())
    faults = sorted({explain(error) for error in validator.iter_errors(config)})
    if faults:
        raise Refusal(_headline(faults))
    config = in_order(_with_defaults(config, schema()))
    weights = _expand_weights(config["weights"])
    table = Path(repository) / config["prompts_table"]
    faults += duplicates("models", [model["name"] for model in config["models"]])
    faults += duplicates("prompts", config["prompts"])
    faults += duplicates("weights", [w.slug for w in weights])
    faults += duplicates("metrics", config["metrics"])
    faults += duplicates("projections.methods", config["projections"]["methods"])
    faults += duplicates("energy.betas", [number_slug(beta) for beta in config["energy"]["betas"]])
    faults += [
        f"metrics: {name!r} is no metric; allowed: {', '.join(METRICS)}"
        for name in config["metrics"]
        if name not in METRICS
    ]
    prompts, prompt_faults = _find_prompts(config["prompts"], table)
    faults += prompt_faults
    claims, claim_faults = read_claims(
        Path(repository) / config["claims"], [model["name"] for model in config["models"]], schemes()
    )
    faults += claim_faults
    if faults:
        raise Refusal(_headline(faults))
    return config, Grid(
        sources={model["name"]: _source(model["source"], repository) for model in config["models"]},
        prompts=prompts,
        weights={w.slug: w for w in weights},
        betas={number_slug(beta): float(beta) for beta in config["energy"]["betas"]},
        metrics=config["metrics"],
        methods=config["projections"]["methods"],
        trained_depths={model["name"]: model.get("trained_depth") for model in config["models"]},
        claims=claims,
    )


def number_slug(number):
    """Return a number as it stands in paths: the shortest decimal that reads back as it, so 1 and 1.0 are one name.

    >>> number_slug(0.1), number_slug(1.0), number_slug(1e-05)
    ('0.1', '1', '1e-05')
    """
    return str(int(number)) if float(number).is_integer() and abs(number) < 1e15 else repr(float(number))


def _expand_weights(entries):
    expanded = []
    for entry in entries:
        scheme = entry["scheme"]
        if scheme == "trained":
            expanded.append(TRAINED)
        elif scheme == "norm-matched":
            norms = entry.get("norms", "keep")
            name = scheme if norms == "keep" else f"{scheme}-{norms}"
            expanded += [Weights(f"{name}-s{seed}", name, seed=seed, norms=norms) for seed in entry["seeds"]]
        else:
            expanded += [Weights(f"{scheme}-b{number_slug(b)}", scheme, beta=float(b)) for b in entry["betas"]]
    return expanded


def _source(source, repository):
    """A local path may be relative to the repository."""
    if source["kind"] == "local":
        source = source | {"path": os.path.normpath(Path(repository) / source["path"])}
    return in_order(source)


def _find_prompts(names, table):
    if not table.is_file():
        return {}, [f"prompts_table: {table} does not exist"]
    try:
        rows = read_prompts_table(table)
    except Refusal as refusal:
        return {}, [f"prompts_table: {refusal}"]
    found, faults = {}, []
    for name in names:
        if name not in rows:
            faults.append(f"prompts: {name!r} has no row in {table}{suggest(name, rows)}; it has: {', '.join(rows)}")
            continue
        path = table.parent / rows[name]["file"]
        if not path.is_file():
            faults.append(f"prompts: the file of {name!r}, {path}, does not exist; add it, or take the prompt out")
        found[name] = os.path.normpath(path)
    return found, faults


def _headline(faults):
    return "The config cannot be right:\n" + "\n".join(f"  * {fault}" for fault in faults)


def _with_defaults(value, spec):
    """Fill in the defaults of the schema, at every depth."""
    if isinstance(value, dict) and "properties" in spec:
        filled = dict(value)
        for key, inner in spec["properties"].items():
            if key not in filled and "default" in inner:
                filled[key] = inner["default"]
            if key in filled:
                filled[key] = _with_defaults(filled[key], inner)
        return filled
    return value
