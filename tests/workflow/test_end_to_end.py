"""The whole workflow on a tiny local model, as a user runs it."""

import hashlib
import json
import re
import shutil
import zipfile

import numpy as np
import pytest
from project import REPOSITORY

from collapse import tables
from collapse.config import schema
from collapse.metrics.effective_rank import effective_rank
from collapse.metrics.energy import energy
from collapse.registry import METRICS
from collapse.report import write_report
from collapse.states import StatesFile

WEIGHTS = ["trained", "norm-matched-s0", "norm-matched-s1", "identity-b1"]
PROMPTS = ["fox", "markup"]
DEFAULT_METRICS = schema()["properties"]["metrics"]["default"]


def states(project, weights, prompt):
    return StatesFile(project.root / f"results/states/tiny/{weights}/{prompt}.parquet")


def table(project, name):
    return tables.read(project.root / f"results/tables/{name}.parquet", name)


def test_the_run_says_where_the_report_is(finished):
    assert "The report is at results/report/index.html" in finished.output


def test_a_second_run_does_nothing(finished):
    done = finished.snakemake()
    assert done.returncode == 0
    assert "Nothing to be done" in done.stdout


@pytest.mark.parametrize("name", DEFAULT_METRICS)
def test_every_table_holds_the_whole_grid_and_nothing_else(finished, name):
    data = table(finished, name)
    n_states = {w: 5 if w != "identity-b1" else 4 for w in WEIGHTS}
    axis = 2 if METRICS[name].axis == "beta" else 1
    found = {}
    for row in data.select(["weights", "prompt", "tokens"]).to_pylist():
        key = (row["weights"], row["prompt"], row["tokens"])
        found[key] = found.get(key, 0) + 1
    assert found == {(w, p, t): n_states[w] * axis for w in WEIGHTS for p in PROMPTS for t in ("all", "content")}


def test_labels_have_one_row_per_layer_and_token(finished):
    labels = table(finished, "cluster_labels")
    expected = 0
    for w in WEIGHTS:
        for p in PROMPTS:
            file = states(finished, w, p)
            expected += len(file) * (file.mask("all").sum() + file.mask("content").sum())
    assert labels.num_rows == expected


def test_tables_hold_what_the_metric_says_of_the_states(finished):
    file = states(finished, "norm-matched-s1", "fox")
    rows = [r for r in table(finished, "effective_rank").to_pylist() if r["weights"] == "norm-matched-s1"]
    rows = [r for r in rows if r["prompt"] == "fox" and r["tokens"] == "content"]
    for row, H in zip(rows, file.trajectory("content"), strict=True):
        expected = effective_rank(H)
        assert {key: row[key] for key in expected} == expected
    rows = [r for r in table(finished, "energy").to_pylist() if r["weights"] == "norm-matched-s1"]
    rows = [r for r in rows if (r["prompt"], r["tokens"], r["beta"]) == ("fox", "all", 2.0)]
    for row, expected in zip(rows, energy(file.trajectory("all"), 2.0, 1e-6), strict=True):
        assert {key: row[key] for key in expected} == expected


def test_the_theory_starts_at_the_models_layer_0(finished):
    start, particles = states(finished, "trained", "fox"), states(finished, "identity-b1", "fox")
    H = start.read(0).astype(float)
    np.testing.assert_allclose(particles.read(0), H / np.linalg.norm(H, axis=1, keepdims=True), atol=1e-7)
    assert particles.states == [(0, "embedding"), (1, "block"), (2, "block"), (3, "block")]


def test_states_record_where_they_come_from(finished):
    record = states(finished, "norm-matched-s0", "markup").metadata
    weights = json.loads((finished.root / "results/weights/tiny/norm-matched-s0/weights.json").read_text())
    trained = json.loads((finished.root / "results/weights/tiny/trained/weights.json").read_text())
    assert record["weights_hash"] == weights["weights_hash"] != trained["weights_hash"]
    assert (record["scheme"], record["seed"], record["device"], record["dtype"]) == (
        "norm-matched",
        0,
        "cpu",
        "float32",
    )
    assert record["attention"] == "eager"
    assert {"torch", "transformers", "numpy", "python"} <= record["versions"].keys()
    assert weights["proof"]["max_norm_error"] < 1e-6
    assert weights["proof"]["min_relative_distance"] > 1


def test_drawn_checkpoints_go_and_their_records_stay(finished):
    folder = finished.root / "results/weights/tiny/norm-matched-s0"
    assert (folder / "weights.json").is_file()
    assert not (folder / "checkpoint").exists()


def test_the_report_is_one_file_that_reaches_for_nothing(finished):
    page = (finished.root / "results/report/index.html").read_text()
    assert not re.search(r"(src|href)=\"(?!data:image/svg|#|https://arxiv\.org/abs/)", page)
    assert "<script" not in page
    assert "where the config has <code>projections</code>" in page
    assert page.count("<img ") == page.count('alt="') == len(list(finished.root.glob("results/figures/**/*.svg")))
    assert "trained against norm-matched" in page


def page_of(project):
    return (project.root / "results/report/index.html").read_text()


def test_the_page_fetches_nothing_by_its_style_either(finished):
    style = page_of(finished).split("<style>")[1].split("</style>")[0]
    assert "url(" not in style and "@import" not in style and page_of(finished).count("<style>") == 1


def test_the_first_screen_says_what_was_asked_what_was_found_and_on_which_model(finished):
    first = page_of(finished).split("<nav>")[0]
    assert "Do trained weights resist the collapse" in first
    assert "<strong>tiny</strong> (gpt2, 3 blocks, width" in first and "causal" in first
    assert "mean inner product at the last block of" in first
    assert re.search(r"Of \d+ claims: undefined \d+, not measured \d+\.", first)


def test_headings_do_not_skip_a_level_and_every_link_has_its_target_once(finished):
    page = page_of(finished)
    levels = [int(level) for level in re.findall(r"<h(\d)", page)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in zip(levels, levels[1:]))
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(ids)


def test_every_figure_says_in_words_what_it_shows(finished):
    """Alternative text comes from the data: no two figures have the same, and a number stands in each."""
    texts = re.findall(r'<img [^>]*alt="([^"]*)"', page_of(finished))
    assert len(texts) == len(set(texts)) == 17
    assert all(re.search(r"\d", text) or "undefined" in text for text in texts)


def test_what_scrolls_sideways_can_be_reached_by_keyboard(finished):
    page = page_of(finished)
    regions = re.findall(r'<div class="wide"([^>]*)>', page)
    assert len(regions) > 17
    assert all('tabindex="0" role="region" aria-label="' in region for region in regions)
    # A table that lies in no such region would make a narrow screen scroll as a whole.
    inside = page.count("<table>") + page.count("<table ")
    assert inside == page.count("</table>") and "<th>" not in page


def test_the_grid_says_what_is_missing_and_what_is_degenerate(changed):
    runs = page_of(changed).split('<section id="runs">')[1].split("</section>")[0]
    assert "none is missing" in runs and "attention_entropy" in runs and "projections" in runs
    assert '<span class="range">' not in runs
    path = changed.root / "results/tables/cka.parquet"
    rows = table(changed, "cka").to_pylist()
    for row in rows:
        if (row["weights"], row["prompt"], row["tokens"]) == ("identity-b1", "fox", "content"):
            row |= {"cka_biased": None, "cka_debiased": None, "undefined": "degenerate layer: <b>1.5</b>"}
    tables.write(path, "cka", rows, tables.record(path))
    write_report(
        tables=[p for p in sorted(path.parent.glob("*.parquet")) if p.stem != "claims"],
        claims=path.with_name("claims.parquet"),
        figures={},
        explorer=[],
        config=changed.config(),
        template=REPOSITORY / "workflow/report/index.html.j2",
        output=changed.root / "results/report/index.html",
    )
    runs = page_of(changed).split('<section id="runs">')[1].split("</section>")[0]
    # Half of the run's values: those of one token rule of two.
    assert re.findall(r'<span class="range">(.*?)</span>', runs) == ["cka 50&nbsp;%"]
    assert "degenerate layer: &lt;b&gt;" in runs


@pytest.mark.parametrize("name", ["report.html", "report.zip"])
def test_snakemake_makes_a_report_of_its_own(changed, name):
    done = changed.snakemake("--report", name)
    assert done.returncode == 0, done.stdout
    path = changed.root / name
    if name.endswith("zip"):
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
        assert sum(entry.endswith(".svg") for entry in names) >= 17
        assert any(entry.endswith("report.html") for entry in names)
    else:
        page = path.read_text()
        assert "Do the tokens collapse?" in page and "energy/b0.5" in page and "Report" in page


def test_every_figure_has_svg_png_and_a_caption_that_says_what_is_shown(finished):
    figures = sorted(finished.root.glob("results/figures/**/*.svg"))
    assert len(figures) == 17
    for svg in figures:
        assert svg.read_bytes().startswith(b"<?xml")
        assert svg.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
        caption = svg.with_suffix(".md").read_text()
        assert "Tokens: all tokens" in caption or "Tokens: content tokens only" in caption
        assert all(prompt in caption for prompt in PROMPTS)
        assert "seeds" in caption


def test_every_job_has_a_log_and_a_benchmark(finished):
    outputs = [p for p in finished.root.glob("results/metrics/**/*.parquet") if "cluster_labels" not in p.parts]
    for path in outputs:
        relative = path.relative_to(finished.root / "results").with_suffix("")
        assert (finished.root / "results/logs" / f"{relative}.log").is_file()
        assert (finished.root / "results/benchmarks" / f"{relative}.tsv").is_file()


def test_a_failing_job_shows_its_traceback_and_keeps_it_in_its_log(changed):
    changed.edit(
        "workflow/scripts/collapse/metrics/cka.py",
        "    return compare_adjacent(",
        "    1 / 0\n    return compare_adjacent(",
    )
    done = changed.snakemake("results/metrics/cka/tiny/trained/fox.parquet")
    log = (changed.root / "results/logs/metrics/cka/tiny/trained/fox.log").read_text()
    assert done.returncode == 1
    assert "Traceback" in log and "ZeroDivisionError" in log and "cka.py" in log
    assert "ZeroDivisionError" in done.stdout


@pytest.mark.parametrize("names", [["model.safetensors"], ["config.json", "tokenizer.json"]], ids=["weights", "rest"])
def test_a_local_model_that_changed_after_it_was_fetched_is_refused(changed, tiny_gpt2, tmp_path, names):
    own = tmp_path / "own"
    shutil.copytree(tiny_gpt2[0], own)
    config = changed.config()
    config["models"][0]["source"]["path"] = str(own)
    config["prompts"], config["weights"] = ["fox"], [{"scheme": "trained"}]
    changed.write_config(config)
    assert changed.snakemake("states").returncode == 0
    contents = {name: (own / name).read_bytes() for name in names}
    for name, content in contents.items():
        (own / name).write_bytes(content[:-8] + bytes(8) if name.endswith("safetensors") else content + b" ")
    config["prompts"] = ["third"]
    changed.write_config(config)
    # What is small is an input of the fetch and fetched anew; weights are looked at before they are used.
    done = changed.snakemake("states")
    if "model.safetensors" in names:
        assert done.returncode == 1
        assert f"{own / 'model.safetensors'}: has changed since tiny was fetched" in done.stdout
    else:
        assert done.returncode == 0
        record = json.loads((changed.root / "results/weights/tiny/trained/weights.json").read_text())
        for name, content in contents.items():
            assert record["files"][name]["sha256"] == hashlib.sha256(content + b" ").hexdigest()


def test_a_model_that_changed_under_its_pin_is_refused(changed, tiny_gpt2):
    config = changed.config()
    config["models"][0]["source"]["sha256"]["model.safetensors"] = "0" * 64
    changed.write_config(config)
    done = changed.snakemake()
    assert done.returncode == 1
    assert tiny_gpt2[1]["model.safetensors"] in done.stdout and "0" * 64 in done.stdout


def test_weights_drawn_again_are_those_of_the_record(changed):
    path = changed.root / "results/states/tiny/norm-matched-s0/fox.parquet"
    before = states(changed, "norm-matched-s0", "fox").read(3)
    path.unlink()
    assert changed.snakemake(str(path.relative_to(changed.root))).returncode == 0
    np.testing.assert_array_equal(states(changed, "norm-matched-s0", "fox").read(3), before)
