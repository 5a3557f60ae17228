"""What jobs ask for, by what they hold."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from collapse.config import TRAINED
from collapse.tables import columns

RULES = Path(__file__).resolve().parents[2] / "workflow" / "rules" / "common_resources.smk"
MB = 1_000_000


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """The functions of the rules, for a model of 100 MB in a results folder, with a prompt of 1022 bytes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompt.txt").write_text("x" * 1022)
    names = {
        "GRID": SimpleNamespace(prompts={"long": "prompt.txt"}),
        "config": {"max_tokens": 4096},
        "TRAINED": TRAINED,
    }
    names |= {
        "table_columns": columns,
        "Path": Path,
        "os": os,
        "json": json,
        "WEIGHTS_RECORD": "results/weights/{model}/{weights}/weights.json",
    }
    exec(compile(RULES.read_text(), RULES, "exec"), names)
    model_file("model.safetensors")
    return SimpleNamespace(**{name: value for name, value in names.items() if callable(value)})


def model_file(name):
    """A file of 100 MB without contents, alone in its folder."""
    folder = Path("checkpoint")
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    with open(folder / name, "wb") as file:
        file.truncate(100 * MB)


def stored_as(*dtypes):
    record = Path("results/weights/tiny/trained/weights.json")
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps({"checkpoint_dtypes": list(dtypes)}))


class Wildcards(dict):
    """Read as Snakemake's are: by attribute, with keys()."""

    __getattr__ = dict.__getitem__


def run(**wildcards):
    return Wildcards({"model": "tiny", "weights": "trained"} | wildcards)


def test_a_model_counts_as_large_as_it_is_in_float32(asked):
    def memory():
        return asked.model_memory(run(), ["checkpoint"], 1)

    assert memory() == 1500 + 300
    stored_as("float32")
    assert memory() == 1500 + 150
    for dtypes in (["bfloat16"], ["float16", "float32"]):
        stored_as(*dtypes)
        assert memory() == 1500 + 300
    model_file("model.gguf")
    assert memory() == 1500 + 1200


def test_attention_asks_for_its_copies_in_float64(asked):
    stored_as("float32")
    prompt = run(prompt="long")
    assert asked.model_memory(prompt, ["checkpoint"], 1) == int(1650 + 300 * 1024**2 / MB)
    assert asked.attention_memory(prompt, ["checkpoint"], 1) == int(1650 + 800 * 1024**2 / MB)
    assert asked.attention_memory(prompt, ["checkpoint"], 2) == int(2 * (1650 + 800 * 1024**2 / MB))


@pytest.mark.parametrize(
    ("table", "files", "megabytes"),
    [
        ("cka", 1, 1000),
        ("cka", 500, 1000),
        ("cka", 792, 1292),
        ("cluster_labels", 62, 1000),
        ("cluster_labels", 792, 6836),
    ],
)
def test_a_table_asks_for_more_the_more_files_it_gathers(asked, table, files, megabytes):
    wildcards = Wildcards(table=table)
    assert asked.table_memory(wildcards, ["file"] * files, 1) == megabytes
    assert asked.table_memory(wildcards, ["file"] * files, 3) == 3 * megabytes
