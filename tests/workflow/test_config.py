"""A config that cannot be right stops before any job, in one message: the key, the value, what is allowed."""

import copy
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
    "branch": (
        changed(["models", 0, "source"], {"kind": "hub", "id": "a/b", "revision": "main", "sha256": {"m": "0" * 64}}),
        ["models[0].source.revision", "'main'", "40"],
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


def test_numbers_have_one_name_in_paths():
    """SM11: a float in a path makes a new name of each of its spellings."""
    assert [number_slug(x) for x in (1, 1.0, 0.1, 0.1 + 0.2, 1e-5, 5)] == [
        "1", "1", "0.1", "0.30000000000000004", "1e-05", "5",
    ]  # fmt: skip


def test_the_trained_depth_is_no_part_of_the_source():
    """Else fetching and extraction would run again where only claims and figures read it."""
    config = copy.deepcopy(DEMO)
    config["models"][0]["trained_depth"] = 3
    _, grid = load(config, REPOSITORY)
    assert grid.trained_depths == {"minilm-l6": 3, "smollm2-135m": None}
    assert "trained_depth" not in grid.sources["minilm-l6"]


def test_every_scheme_that_a_config_can_ask_for_is_known():
    config = copy.deepcopy(DEMO)
    config["weights"] += [{"scheme": "norm-matched", "seeds": [4], "norms": "reset"}]
    _, grid = load(config, REPOSITORY)
    assert {weights.scheme for weights in grid.weights.values()} == set(schemes())


def test_norms_reset_is_another_scheme():
    config = copy.deepcopy(DEMO)
    config["weights"] = [{"scheme": "norm-matched", "seeds": [4], "norms": "reset"}]
    _, grid = load(config, REPOSITORY)
    (weights,) = grid.weights.values()
    assert (weights.slug, weights.scheme, weights.norms) == ("norm-matched-reset-s4", "norm-matched-reset", "reset")


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
