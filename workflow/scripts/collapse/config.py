"""The config: its validation, in messages that name key, value and what is allowed, and the grid it declares."""

import json
import os
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path

import yaml

from collapse.claims_file import read_claims
from collapse.components import ALL, COMPONENTS, scheme_name
from collapse.depth import require_deepenable
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
        Its name in paths and tables: the scheme with all that differs from its defaults, and its seed or beta.
    scheme : str
        The same without the seed.
    definition : dict or None
        What draws random weights: `scheme`, `seed`, `components`, `norms`, `biases`.
    dynamics : dict or None
        What moves the theory's particles: `beta`, `step`, and `steps`, None for as many as the model has blocks.
    """

    slug: str
    scheme: str
    definition: dict | None = None
    dynamics: dict | None = None

    @property
    def is_drawn(self):
        return self.definition is not None


# The theory starts from a trained model's layer 0, also where the config does not ask for trained weights.
TRAINED = Weights("trained", "trained")


@dataclass(frozen=True)
class Grid:
    """Everything that the config asks for.

    Attributes
    ----------
    sources : dict
        Model name -> its source section.
    depths : dict
        Model name -> `depth` and `trained_depth`, for the models that run deeper than they were trained.
    prompts : dict
        Prompt name -> path of its file.
    weights : dict
        Slug -> Weights.
    betas : dict
        Name in paths -> inverse temperature of the energy.
    metrics : list of str
    methods : list of str
        Methods of the projections.
    claims : list of dict
        What the scorecard tests, see collapse.claims_file.
    """

    sources: dict
    depths: dict
    prompts: dict
    weights: dict
    betas: dict
    metrics: list
    methods: list
    claims: list

    def runs(self):
        """Return every (model, weights slug, prompt), in the config's order."""
        return [(m, w, p) for m in self.sources for w in self.weights for p in self.prompts]


def schema():
    """Return the parsed JSON schema of the config."""
    return yaml.safe_load(SCHEMA.read_text(encoding="utf-8"))


def schemes():
    """Return every scheme of weights that a config can ask for, as tables name them."""
    kinds = schema()["$defs"]["weights"]["properties"]["scheme"]["enum"]
    parts = [part for size in range(1, len(COMPONENTS) + 1) for part in combinations(COMPONENTS, size)]
    random = [kind for kind in kinds if kind not in ("trained", "identity")]
    variants = product(random, [(ALL,), *parts], ("keep", "reset"), ("keep", "zero"))
    entries = (dict(zip(("scheme", "components", "norms", "biases"), variant)) for variant in variants)
    names = (_random(entry, 0).scheme for entry in entries if not _component_faults(entry))
    return list(dict.fromkeys([*kinds, *names]))


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
    # Asked for in another order it is the same.
    config["projections"]["tokens"].sort()
    weights, faults = _expand_weights(config["weights"])
    sources = {model["name"]: _source(model["source"], repository) for model in config["models"]}
    table = Path(repository) / config["prompts_table"]
    faults += duplicates("models", [model["name"] for model in config["models"]])
    faults += _same_sources(sources) + _depth_faults(config["models"], sources)
    faults += duplicates("prompts", config["prompts"])
    faults += duplicates("weights", [w.slug for w in weights])
    faults += duplicates("metrics", config["metrics"])
    for key in ("methods", "tokens"):
        faults += duplicates(f"projections.{key}", config["projections"][key])
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
        sources=sources,
        depths={model["name"]: _depth(model) for model in config["models"] if "depth" in model},
        prompts=prompts,
        weights={w.slug: w for w in weights},
        betas={number_slug(beta): float(beta) for beta in config["energy"]["betas"]},
        metrics=config["metrics"],
        methods=config["projections"]["methods"],
        claims=claims,
    )


def number_slug(number):
    """Return a number as it stands in paths: the shortest decimal that reads back as it, so 1 and 1.0 are one name.

    >>> number_slug(0.1), number_slug(1.0), number_slug(1e-05)
    ('0.1', '1', '1e-05')
    """
    return str(int(number)) if float(number).is_integer() and abs(number) < 1e15 else repr(float(number))


def _expand_weights(entries):
    expanded, faults = [], []
    for index, entry in enumerate(entries):
        scheme = entry["scheme"]
        if scheme == "trained":
            expanded.append(TRAINED)
        elif scheme == "identity":
            expanded += [_identity(entry, beta) for beta in entry["betas"]]
        else:
            faults += [f"weights[{index}]: {fault}" for fault in _component_faults(entry)]
            expanded += [_random(entry, seed) for seed in entry["seeds"]]
    return expanded, faults


def _random(entry, seed):
    components = entry.get("components", [ALL])
    definition = {"components": [c for c in (*COMPONENTS, ALL) if c in components], "scheme": entry["scheme"]}
    if entry["scheme"] != "library-init":
        definition |= {"norms": entry.get("norms", "keep"), "biases": entry.get("biases", "keep")}
    name = scheme_name(definition)
    return Weights(f"{name}-s{seed}", name, definition=in_order(definition | {"seed": seed}))


def _component_faults(entry):
    components, faults = entry.get("components", [ALL]), []
    if ALL in components and len(components) > 1:
        faults.append(f"components: {ALL!r} holds the others; write it alone, or leave components out")
    if ALL not in components and entry.get("norms") == "reset":
        faults.append("norms: reset is for all components; norms belong to none, so they stay as trained here")
    return faults


def _identity(entry, beta):
    step, steps = entry.get("step", 1), entry.get("steps")
    slug = f"identity-b{number_slug(beta)}"
    slug += (f"-step{number_slug(step)}" if step != 1 else "") + (f"-n{steps}" if steps else "")
    return Weights(slug, "identity", dynamics={"beta": float(beta), "step": float(step), "steps": steps})


def _source(source, repository):
    """A local path may be relative to the repository; a hub source without a revision is at its main branch."""
    if source["kind"] == "hub":
        source = {"revision": "main"} | source
    if source["kind"] == "local":
        source = source | {"path": os.path.normpath(Path(repository) / source["path"])}
    return in_order(source)


def _same_sources(sources):
    """Two names for one model would compute everything twice; a deeper run holds every shallower one."""
    first, faults = {}, []
    for name, source in sources.items():
        other = first.setdefault(repr(source), name)
        if other != name:
            faults.append(
                f"models: {name!r} and {other!r} have the same source; keep one, with the deepest depth if they differ "
                "in that: layers up to a smaller depth are a shallower model's"
            )
    return faults


def _depth(model):
    return {"depth": model["depth"], "trained_depth": model["trained_depth"]}


def _depth_faults(models, sources):
    """Say which depths cannot be, as far as that is known before the model is here."""
    faults = []
    for index, model in enumerate(models):
        given = [key for key in ("depth", "trained_depth") if key in model]
        if len(given) == 1:
            faults.append(f"models[{index}]: {given[0]} alone says nothing: depth and trained_depth go together")
        elif given and model["depth"] < model["trained_depth"]:
            faults.append(
                f"models[{index}]: depth {model['depth']} is less than trained_depth {model['trained_depth']}; leave "
                "both out: the layers up to any depth are in the model's states"
            )
        elif given:
            config = Path(sources[model["name"]].get("path", "")) / "config.json"
            if model["source"]["kind"] == "local" and config.is_file():
                try:
                    require_deepenable(model["name"], json.loads(config.read_text("utf-8")), **_depth(model))
                except Refusal as refusal:
                    faults.append(f"models[{index}]: {refusal}")
    return faults


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
