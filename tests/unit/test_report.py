"""What the report says of devices, number types and undefined values, and whether its colours can be read."""

import re
import weakref
from pathlib import Path

import pyarrow as pa
import pytest

from collapse import report
from collapse.figures import style
from collapse.report import gaps_of_runs, look_through, made_on, mixed_runs, undefined_states

PAGES = Path(__file__).resolve().parents[2] / "workflow/report"
TEMPLATE = PAGES / "index.html.j2"


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


def test_the_grid_says_of_each_run_which_metrics_are_undefined_and_how_much_of_them():
    rows = [
        {"run": "m/trained/p", "table": "cka", "n_rows": 8, "n_undefined": 6, "reason": "x"},
        {"run": "m/trained/p", "table": "clusters", "n_rows": 8, "n_undefined": 2, "reason": "x"},
        {"run": "m/identity-b1/p", "table": "cka", "n_rows": 4, "n_undefined": 4, "reason": "x"},
    ]
    assert gaps_of_runs(rows) == {
        ("m", "trained", "p"): [{"table": "cka", "share": 0.75}, {"table": "clusters", "share": 0.25}],
        ("m", "identity-b1", "p"): [{"table": "cka", "share": 1.0}],
    }


def undefined_table(*rows):
    """A table of prompts and reasons, all of one model."""
    prompts, reasons = zip(*rows)
    same = {"model": ["gpt2"] * len(rows), "weights": ["trained"] * len(rows)}
    return pa.table(same | {"prompt": prompts, "undefined": pa.array(reasons, pa.string())})


def test_undefined_states_are_counted_by_run_with_the_most_frequent_reason_whatever_its_numbers():
    frame = undefined_table(
        ("b", "row 3 is a zero vector (1 of 12)"),
        ("a", None),
        ("b", "one token"),
        ("b", "row 4 is a zero vector (1 of 12)"),
        ("b", "no layer before the first"),
        ("c", "no layer before the first"),
        ("a", "one token"),
        ("a", "b after a"),
        ("b", None),
    )
    kinds = {"table": "cka"}
    assert undefined_states("cka", frame) == [
        kinds | {"run": "gpt2/trained/b", "n_rows": 5, "n_undefined": 3, "reason": "row # is a zero vector (# of #)"},
        # Of reasons as frequent as each other, the first of the alphabet.
        kinds | {"run": "gpt2/trained/a", "n_rows": 3, "n_undefined": 2, "reason": "b after a"},
    ]


def test_tables_are_read_one_at_a_time_and_the_run_with_most_undefined_comes_first(monkeypatch):
    frames = {
        "runs": lambda: pa.table({"model": ["gpt2"]}),
        "cluster_labels": lambda: undefined_table(("a", "one token")),
        "projections": lambda: undefined_table(("a", "one token"), ("a", None)),
        "inner_products": lambda: undefined_table(("a", None)),
        "clusters": lambda: undefined_table(("a", "one token")),
    }
    read = {}

    def once(path, name):
        alive = {name for name, frame in read.items() if frame()}
        assert alive <= {"runs", "inner_products"}
        frame = frames[name]()
        read[name] = weakref.ref(frame)
        return frame

    monkeypatch.setattr(report.results, "read", once)
    kept, undefined = look_through([f"results/tables/{name}.parquet" for name in frames])
    assert list(kept) == ["runs", "inner_products"] and list(read) == list(frames)
    assert [(row["table"], row["n_undefined"], row["n_rows"]) for row in undefined] == [
        ("clusters", 1, 1),
        ("projections", 1, 2),
    ]


def luminance(colour):
    """WCAG 2: of #rrggbb."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(a, b):
    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_text_stands_out_from_what_it_stands_on():
    """4.5 to 1, as WCAG asks at level AA; on white and on the wash of notes and listings."""
    css = TEMPLATE.read_text().split("</style>")[0]
    named = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", css))
    texts = {named["ink"], named["soft"], named["link"], *re.findall(r"[{ ]color: (#[0-9a-f]{6})", css)}
    assert len(texts) >= 5
    for text in texts:
        for ground in ("#ffffff", named["wash"]):
            assert contrast(text, ground) >= 4.5, (text, ground)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


def test_text_of_the_explorer_stands_out_from_white():
    css = (PAGES / "explorer.css").read_text()
    named = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", css))
    out = re.search(r"span\.out \{ color: (#[0-9a-f]{6})", css).group(1)
    share = float(re.search(r"color-mix\(in srgb, var\(--right\) (\d+)%, #000\)", css).group(1)) / 100
    numbers = []
    for look in (style.LOOKS["trained"], style.LOOKS["norm-matched"]):
        parts = [round(share * int(look["color"][i : i + 2], 16)) for i in (1, 3, 5)]
        numbers.append("#" + "".join(f"{part:02x}" for part in parts))
    for text in (named["ink"], named["soft"], named["link"], out, *numbers):
        assert contrast(text, "#ffffff") >= 4.5, text
