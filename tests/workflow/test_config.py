"""A config that cannot be right stops before any job, in one message: the key, the value, what is allowed."""

import copy
import json
import re
from pathlib import Path

import pytest
import yaml

from collapse.config import load, number_slug, schema, schemes
from collapse.errors import Refusal
from collapse.registry import METRICS

REPOSITORY = Path(__file__).resolve().parents[2]
DEMO = yaml.safe_load((REPOSITORY / "config/config.yaml").read_text())


def faults(change):
    config = copy.deepcopy(DEMO)
    change(config)
    with pytest.raises(Refusal) as refusal:
        load(config, REPOSITORY)
    return str(refusal.value)


def changed(path, value):
    def change(config):
        *parents, last = path
        for key in parents:
            config = config.setdefault(key, {}) if isinstance(config, dict) else config[key]
        config[last] = value

    return change


BAD = {
    "unknown key": (changed(["betas"], [1]), ["betas: unknown key", "allowed: claims, cluster_life, clusters, energy"]),
    "misspelt key": (changed(["energy", "beta"], [1]), ["energy.beta: unknown key", "did you mean 'betas'"]),
    "misspelt section": (changed(["promts"], ["x"]), ["promts: unknown key", "did you mean 'prompts'"]),
    "beta as text": (
        changed(["energy", "betas"], [1, "1e-3"]),
        ["betas[1]", "'1e-3'", "a number", "write 0.001"],
    ),
    "beta zero": (changed(["energy", "betas"], [0]), ["energy.betas[0]", "0"]),
    "beta infinite": (changed(["energy", "betas"], [float("inf")]), ["energy.betas[0]", "inf", "a number"]),
    "beta no number": (changed(["energy", "betas"], [float("nan")]), ["energy.betas[0]", "nan", "a number"]),
    "seed a float": (changed(["weights", 1, "seeds"], [1.0]), ["weights[1].seeds[0]", "1.0", "a whole number"]),
    "size a float": (changed(["clusters", "min_samples"], 2.0), ["clusters.min_samples", "2.0", "a whole number"]),
    "no betas": (changed(["energy", "betas"], []), ["energy.betas"]),
    "beta twice": (changed(["energy", "betas"], [1, 1.0]), ["energy.betas: '1' stands 2 times"]),
    "seed true": (changed(["weights", 1, "seeds"], [True]), ["weights[1].seeds[0]", "True", "a whole number"]),
    "negative seed": (changed(["weights", 1, "seeds"], [-1]), ["weights[1].seeds[0]", "-1"]),
    "seed twice": (changed(["weights", 1, "seeds"], [3, 3]), ["weights: 'norm-matched-s3' stands 2 times"]),
    "unknown scheme": (changed(["weights", 0, "scheme"], "traned"), ["weights[0].scheme", "did you mean 'trained'"]),
    "seeds missing": (changed(["weights", 1], {"scheme": "norm-matched"}), ["weights[1]: lacks seeds"]),
    "seeds of trained": (changed(["weights", 0, "seeds"], [1]), ["weights[0].seeds: unknown key"]),
    "name no slug": (changed(["models", 0, "name"], "a/b"), ["models[0].name", "'a/b'", "letters, digits"]),
    "name false": (changed(["models", 0, "name"], False), ["models[0].name", "False", "quotes"]),
    "name with space": (changed(["models", 0, "name"], "my model"), ["models[0].name", "'my model'"]),
    "name twice": (changed(["models", 1, "name"], "minilm-l6"), ["models: 'minilm-l6' stands 2 times"]),
    "version a number": (
        changed(["models", 0, "source", "version"], 3.1),
        ["source.version", "3.1", "quotes"],
    ),
    "short sha": (changed(["models", 0, "source", "sha256"], "abc"), ["models[0].source.sha256", "'abc'", "64"]),
    "revision a number": (
        changed(["models", 0, "source"], {"kind": "hub", "id": "a/b", "revision": 1000}),
        ["models[0].source.revision", "1000", "text", "quotes"],
    ),
    "id no id": (
        changed(["models", 0, "source"], {"kind": "hub", "id": "gpt2"}),
        ["models[0].source.id", "owner/name"],
    ),
    "unknown source": (
        changed(["models", 0, "source", "kind"], "url"),
        ["source.kind", "'url'", "pypi, hub"],
    ),
    "source key": (changed(["models", 0, "source", "sha"], "x"), ["models[0].source.sha: unknown key", "'sha256'"]),
    "prompt without row": (changed(["prompts"], ["epic_vers"]), ["prompts: 'epic_vers'", "did you mean 'epic_verse'"]),
    "prompt twice": (changed(["prompts"], ["epic_verse"] * 2), ["prompts: 'epic_verse' stands 2 times"]),
    "no prompts": (changed(["prompts"], []), ["prompts"]),
    "no claims file": (changed(["claims"], "nowhere.yaml"), ["claims", "nowhere.yaml", "does not exist"]),
    "trained depth": (changed(["models", 0, "trained_depth"], 0), ["models[0].trained_depth", "minimum of 1"]),
    "no table": (changed(["prompts_table"], "nowhere.tsv"), ["prompts_table", "nowhere.tsv", "does not exist"]),
    "unknown metric": (changed(["metrics"], ["enrgy"]), ["metrics: 'enrgy'", "allowed: inner_products"]),
    "cluster of one": (
        changed(["clusters", "min_cluster_size"], 1),
        ["min_cluster_size", "1", "minimum of 2"],
    ),
    "max tokens": (changed(["max_tokens"], 0), ["max_tokens"]),
    "device": (changed(["extraction", "device"], "gpu"), ["extraction.device", "'gpu'", "allowed: cpu, cuda"]),
    "components twice": (
        changed(["weights", 1, "components"], ["qk", "all"]),
        ["weights[1]: components: 'all' holds the others"],
    ),
    "unknown component": (
        changed(["weights", 1, "components"], ["q"]),
        ["weights[1].components[0]", "'q'", "allowed: embeddings, qk, ov, mlp, all"],
    ),
    "norms of components": (
        changed(["weights", 1], {"scheme": "shuffled", "seeds": [0], "components": ["ov"], "norms": "reset"}),
        ["weights[1]: norms: reset is for all components"],
    ),
    "norms of library": (
        changed(["weights", 1], {"scheme": "library-init", "seeds": [0], "norms": "keep"}),
        ["weights[1].norms: unknown key", "allowed: components, scheme, seeds"],
    ),
    "step zero": (changed(["weights", 2, "step"], 0), ["weights[2].step", "0", "Size of a step"]),
    "no steps": (changed(["weights", 2, "steps"], 0), ["weights[2].steps", "Number of steps"]),
    "source twice": (
        changed(["models", 1, "source"], DEMO["models"][0]["source"]),
        ["models: 'smollm2-135m' and 'minilm-l6' have the same source", "layers up to a smaller depth"],
    ),
    "depth alone": (changed(["models", 0, "depth"], 48), ["models[0]: depth alone", "trained_depth go together"]),
    "depth too small": (
        changed(["models", 0], DEMO["models"][0] | {"depth": 6, "trained_depth": 12}),
        ["models[0]: depth 6 is less than trained_depth 12"],
    ),
    "no token rule": (changed(["projections", "tokens"], []), ["projections.tokens: [] should be non-empty"]),
    "unknown token rule": (
        changed(["projections", "tokens"], ["contents"]),
        ["projections.tokens[0]: found 'contents', did you mean 'content'?; allowed: all, content"],
    ),
    "token rule as text": (changed(["projections", "tokens"], "all"), ["projections.tokens: found 'all'", "a list"]),
    "token rule null": (changed(["projections", "tokens"], None), ["projections.tokens: found None", "a list"]),
    "token rule a list": (
        changed(["projections", "tokens"], [["all"]]),
        ["projections.tokens[0]: found ['all']", "allowed: all, content"],
    ),
    "token rule true": (changed(["projections", "tokens"], [True]), ["projections.tokens[0]: found True"]),
    "token rule twice": (
        changed(["projections", "tokens"], ["content", "all", "content"]),
        ["projections.tokens: 'content' stands 2 times"],
    ),
    "no PCA": (changed(["projections", "methods"], ["tsne"]), ["projections.methods: ['tsne']", "pca always among"]),
    "models a mapping": (changed(["models"], {}), ["models", "a list"]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_config_is_named(name):
    """SM10: YAML reads 1e-3 as text, no as false, 3.10 as 3.1."""
    change, words = BAD[name]
    message = faults(change)
    for word in words:
        assert word in message, message


def test_all_faults_are_told_at_once():
    def both(config):
        config["max_tokens"] = 0
        config["models"][0]["name"] = "a b"

    message = faults(both)
    assert "max_tokens" in message and "models[0].name" in message


def test_a_missing_prompt_file_is_named(tmp_path):
    table = (REPOSITORY / "resources/prompts/prompts.tsv").read_text()
    (tmp_path / "prompts.tsv").write_text(table)
    message = faults(changed(["prompts_table"], str(tmp_path / "prompts.tsv")))
    assert str(tmp_path / "short_heterogeneous.txt") in message and "does not exist" in message


def test_the_demo_is_right_and_gets_defaults():
    config, grid = load(DEMO, REPOSITORY)
    assert list(grid.weights) == ["trained", "norm-matched-s0", "norm-matched-s1", "identity-b1"]
    assert list(grid.betas) == ["0.1", "1", "2", "5"]
    assert config["clusters"]["min_cluster_size"] == 2
    assert len(grid.runs()) == 2 * 4 * 4


def test_the_paper_s_config_is_the_whole_grid():
    paper = yaml.safe_load((REPOSITORY / "config/paper.yaml").read_text())
    config, grid = load(paper, REPOSITORY)
    assert len(grid.sources) == 8 and len(grid.prompts) == 9
    assert {name: source["revision"] for name, source in grid.sources.items()} == dict.fromkeys(grid.sources, "main")
    assert grid.depths == {
        "albert-base-v2": {"depth": 48, "trained_depth": 12},
        "albert-xlarge-v2": {"depth": 48, "trained_depth": 24},
    }
    random = [f"{scheme}-s{seed}" for scheme in ("norm-matched", "orthogonal") for seed in range(3)]
    assert list(grid.weights) == ["trained", *random, *(f"identity-b{beta}" for beta in ("0.1", "1", "2", "5"))]
    assert list(grid.betas) == ["0.1", "1", "2", "5"]
    assert set(grid.metrics) == set(METRICS)


def test_the_order_of_token_rules_is_no_other_config():
    """Parameters are compared as text: t-SNE and UMAP of all runs would run again."""
    configs = []
    for rules in (["content", "all"], ["all", "content"]):
        config = copy.deepcopy(DEMO)
        changed(["projections", "tokens"], rules)(config)
        configs.append(load(config, REPOSITORY)[0])
    assert configs[0] == configs[1]


def test_numbers_have_one_name_in_paths():
    """SM11: a float in a path makes a new name of each of its spellings."""
    assert [number_slug(x) for x in (1, 1.0, 0.1, 0.1 + 0.2, 1e-5, 5)] == [
        "1", "1", "0.1", "0.30000000000000004", "1e-05", "5",
    ]  # fmt: skip


def test_every_scheme_that_a_config_can_ask_for_is_known():
    config = copy.deepcopy(DEMO)
    config["weights"] += [{"scheme": "norm-matched", "seeds": [4], "norms": "reset"}]
    config["weights"] += [{"scheme": "shuffled", "seeds": [4], "components": ["mlp", "qk"], "biases": "zero"}]
    _, grid = load(config, REPOSITORY)
    asked = {weights.scheme for weights in grid.weights.values()}
    assert {"norm-matched-reset", "shuffled-qk-mlp-zero-bias"} < asked <= set(schemes())


def test_norms_reset_is_another_scheme():
    config = copy.deepcopy(DEMO)
    config["weights"] = [{"scheme": "norm-matched", "seeds": [4], "norms": "reset"}]
    _, grid = load(config, REPOSITORY)
    (weights,) = grid.weights.values()
    assert (weights.slug, weights.scheme) == ("norm-matched-reset-s4", "norm-matched-reset")
    assert weights.definition == {
        "biases": "keep",
        "components": ["all"],
        "norms": "reset",
        "scheme": "norm-matched",
        "seed": 4,
    }


def expand(*entries):
    config = copy.deepcopy(DEMO)
    config["weights"] = list(entries)
    return load(config, REPOSITORY)[1].weights


@pytest.mark.parametrize(
    ("entry", "slug"),
    [
        ({"scheme": "norm-matched"}, "norm-matched-s0"),
        ({"scheme": "norm-matched", "components": ["all"], "norms": "keep", "biases": "keep"}, "norm-matched-s0"),
        ({"scheme": "norm-matched", "components": ["qk"]}, "norm-matched-qk-s0"),
        ({"scheme": "norm-matched", "components": ["ov", "qk"]}, "norm-matched-qk-ov-s0"),
        ({"scheme": "norm-matched", "biases": "zero"}, "norm-matched-zero-bias-s0"),
        ({"scheme": "orthogonal", "norms": "reset", "biases": "zero"}, "orthogonal-reset-zero-bias-s0"),
        ({"scheme": "library-init", "components": ["mlp"]}, "library-init-mlp-s0"),
        ({"scheme": "shuffled", "components": ["embeddings"]}, "shuffled-embeddings-s0"),
        ({"scheme": "spectrum-matched"}, "spectrum-matched-s0"),
    ],
)
def test_a_slug_says_all_that_differs_from_the_defaults(entry, slug):
    (weights,) = expand(entry | {"seeds": [0]}).values()
    assert weights.slug == slug
    assert weights.scheme == slug.removesuffix("-s0")


@pytest.mark.parametrize(
    ("entry", "slug", "dynamics"),
    [
        ({}, "identity-b1", {"beta": 1.0, "step": 1.0, "steps": None}),
        ({"step": 1.0}, "identity-b1", {"beta": 1.0, "step": 1.0, "steps": None}),
        ({"step": 0.1, "steps": 400}, "identity-b1-step0.1-n400", {"beta": 1.0, "step": 0.1, "steps": 400}),
        ({"steps": 12}, "identity-b1-n12", {"beta": 1.0, "step": 1.0, "steps": 12}),
    ],
)
def test_the_theory_s_step_and_number_of_steps_are_config(entry, slug, dynamics):
    (weights,) = expand({"scheme": "identity", "betas": [1]} | entry).values()
    assert (weights.slug, weights.scheme, weights.dynamics) == (slug, "identity", dynamics)


def test_equal_definitions_are_one_name_and_so_refused():
    with pytest.raises(Refusal, match="'norm-matched-qk-ov-s1' stands 2 times"):
        expand(
            {"scheme": "norm-matched", "seeds": [1], "components": ["qk", "ov"]},
            {"scheme": "norm-matched", "seeds": [0, 1], "components": ["ov", "qk"], "biases": "keep"},
        )


def test_the_depth_of_a_local_albert_is_checked_in_planning(tmp_path):
    def depth(**config):
        (tmp_path / "config.json").write_text(json.dumps(config))
        source = {"kind": "local", "path": str(tmp_path), "sha256": {"model.safetensors": "0" * 64}}
        return changed(["models", 0], {"name": "m", "source": source, "depth": 48, "trained_depth": 12})

    assert "whose blocks have weights of their own" in faults(depth(model_type="gpt2", num_hidden_layers=12))
    message = faults(depth(model_type="albert", num_hidden_layers=24))
    assert "trained_depth is 12, and its config.json says num_hidden_layers 24" in message
    config = copy.deepcopy(DEMO)
    depth(model_type="albert", num_hidden_layers=12)(config)
    _, grid = load(config, REPOSITORY)
    assert grid.depths == {"m": {"depth": 48, "trained_depth": 12}}


def leaves(spec, prefix=""):
    for key, inner in spec.get("properties", {}).items():
        if "properties" in inner:
            yield from leaves(inner, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", inner


def test_the_readme_and_the_schema_tell_the_same_keys_and_defaults():
    readme = (REPOSITORY / "config/README.md").read_text()
    told = dict(re.findall(r"^\| `([\w.]+)` \| ([^|]+?) \|", readme, flags=re.MULTILINE))
    described = dict(leaves(schema()))
    assert told.keys() == described.keys()
    for key, spec in described.items():
        if "default" in spec and key != "metrics":
            assert yaml.safe_load(told[key].strip("`")) == spec["default"], key
    assert schema()["properties"]["metrics"]["default"] == list(METRICS)[:6]
    assert all(f"`{metric}`" in readme for metric in METRICS)


def test_snakemake_stops_before_any_job_with_that_message_alone(changed_project):
    config = changed_project.config()
    config["energy"]["betas"] = ["1e-3"]
    changed_project.write_config(config)
    done = changed_project.snakemake()
    assert done.returncode == 1
    assert "energy.betas[0]: found '1e-3', allowed: a number" in done.stdout
    assert "Traceback" not in done.stdout and "Job stats" not in done.stdout


@pytest.fixture
def changed_project(finished, tmp_path):
    return finished.copy(tmp_path / "project")
