"""Which results were made with other versions, and what to do about it."""

import platform
from importlib.metadata import version

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from collapse.outdated import describe, outdated
from collapse.provenance import pack

NOW = {"python": platform.python_version(), "numpy": version("numpy")}


COMMAND = ["/env/bin/snakemake", "--cores", "2", "-n", "--configfile", "my file.yaml"]


def found_in(folder):
    return outdated([folder / f"{name}.parquet" for name in ("cka", "energy", "runs")])


def table(folder, name, versions, states=None):
    folder.mkdir(exist_ok=True)
    record = {"versions": versions} | ({"states": {"versions": states}} if states else {})
    pq.write_table(pa.table({"a": [1]}).replace_schema_metadata(pack(record)), folder / f"{name}.parquet")


def test_results_of_these_versions_are_no_news(tmp_path):
    table(tmp_path / "t", "cka", NOW, NOW)
    assert found_in(tmp_path / "t") == {}
    assert describe({}, None, []) == ""


def test_no_results_are_no_news(tmp_path):
    assert found_in(tmp_path / "none") == {}


@pytest.mark.parametrize("recorded", [NOW | {"numpy": "1.0"}, [NOW, NOW | {"numpy": "1.0"}]], ids=["all", "a-part"])
def test_another_version_is_named_with_table_and_package(tmp_path, recorded):
    table(tmp_path / "t", "cka", recorded)
    table(tmp_path / "t", "energy", NOW)
    assert found_in(tmp_path / "t") == {"cka": {"numpy": (["1.0"], NOW["numpy"])}}


def test_the_versions_behind_states_are_told_once(tmp_path):
    for name in ("cka", "energy"):
        table(tmp_path / "t", name, NOW, NOW | {"python": "2.7"})
    assert found_in(tmp_path / "t") == {"states": {"python": (["2.7"], NOW["python"])}}


def test_the_versions_behind_attention_are_those_of_its_table(tmp_path):
    table(tmp_path, "attention_entropy", NOW, NOW)
    record = {"versions": NOW, "attention": {"versions": [NOW, NOW | {"numpy": "1.0"}]}}
    path = tmp_path / "attention_entropy.parquet"
    pq.write_table(pa.table({"a": [1]}).replace_schema_metadata(pack(record)), path)
    assert outdated([tmp_path / "attention_entropy.parquet"]) == {
        "attention_entropy": {"numpy": (["1.0"], NOW["numpy"])}
    }


def test_a_library_that_is_gone_and_two_old_versions_are_said(tmp_path):
    table(tmp_path / "t", "cka", [NOW | {"no-such-library": "3"}, NOW | {"no-such-library": "2"}])
    message = describe(found_in(tmp_path / "t"), lambda table: ["metric"], COMMAND)
    assert "  * cka: no-such-library 2 and 3, now missing" in message
    assert message.endswith("/env/bin/snakemake --cores 2 --configfile 'my file.yaml' --forcerun metric")


def test_the_command_names_every_rule_once():
    found = {name: {"numpy": (["1"], "2")} for name in ("cka", "energy", "states")}
    rules = {"cka": ["metric"], "energy": ["metric_at_beta"], "states": ["extract", "metric"]}
    assert describe(found, rules.get, COMMAND).endswith("--forcerun extract metric metric_at_beta")


def test_a_broken_table_is_left_to_its_reader(tmp_path):
    table(tmp_path, "cka", NOW | {"numpy": "1.0"})
    (tmp_path / "energy.parquet").write_bytes(b"PAR1")
    assert list(found_in(tmp_path)) == ["cka"]


def test_a_table_that_the_config_does_not_ask_for_is_no_news(tmp_path):
    table(tmp_path, "left_over", NOW | {"numpy": "1.0"})
    assert found_in(tmp_path) == {}
