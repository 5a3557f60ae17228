"""What the report says of devices and number types."""

import pytest

from collapse.report import made_on, mixed_runs


def run(device="cpu", dtype="float32", attention="eager", versions="2"):
    return {"device": device, "dtype": dtype, "record": {"attention": attention, "versions": {"torch": versions}}}


@pytest.mark.parametrize(
    ("device", "dtype", "words"),
    [
        ("cpu", "float32", "States made on cpu, in float32."),
        (["GPU", "cpu"], "float32", "States made on GPU, cpu, in float32: this table mixes devices."),
        ("cpu", ["float32", "float64"], "States made on cpu, in float32, float64: this table mixes number types."),
        (["a", "b"], ["c", "d"], "States made on a, b, in c, d: this table mixes devices and number types."),
    ],
)
def test_a_table_says_on_what_its_states_were_made_and_whether_it_mixes(device, dtype, words):
    assert made_on({"states": {"device": device, "dtype": dtype}}) == words


def test_a_pass_over_attention_on_another_device_is_told():
    record = {"states": {"device": "cpu", "dtype": "float32"}, "attention": {"device": "GPU", "dtype": "float32"}}
    words = "States made on cpu, in float32; attention on GPU, in float32"
    assert made_on(record) == f"{words}: this table mixes devices."
    record["attention"]["device"] = "cpu"
    assert made_on(record) == "States made on cpu, in float32; attention on cpu, in float32."
    record["attention"]["device"] = ["GPU", "cpu"]
    assert made_on(record).endswith("attention on GPU, cpu, in float32: this table mixes devices.")


def test_the_table_of_runs_says_it_in_every_row():
    assert "The table of runs" in made_on({"n_runs": 4})


def test_forward_passes_that_differ_are_told_and_the_theory_is_none_of_them():
    assert mixed_runs([run(), run(), run(dtype="float64", attention="identity")]) == {}
    assert mixed_runs([run(), run(device="NVIDIA H200")]) == {"device": ["NVIDIA H200", "cpu"]}
    assert set(mixed_runs([run(), run(dtype="bfloat16", versions="3")])) == {"dtype", "versions"}
