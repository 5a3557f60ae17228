"""The scorecard of a finished run: `snakemake claims`, a user's own claim, and one that is refused."""

import os
import re

import pyarrow.parquet as pq
import pytest
import yaml

from collapse import tables
from collapse.claims import NOT_MEASURED, UNDEFINED
from collapse.provenance import pack, unpack

OWN = {
    "id": "own",
    "statement": "Trained tokens are <b>further</b> apart.",
    "source": "a user",
    "models": ["tiny"],
    "test": {
        "table": "inner_products",
        "column": "mean_inner_product",
        "scheme": "trained",
        "minus": {"scheme": "norm-matched"},
        "tokens": "content",
        "layers": "last",
        "expect": {"below": 0},
    },
    "controls": [{"name": "all tokens", "change": {"tokens": "all"}}],
}


def scorecard(project):
    return tables.read(project.root / "results/tables/claims.parquet", "claims").to_pylist()


def write_claims(project, claims):
    (project.root / "own.yaml").write_text(yaml.safe_dump(claims, sort_keys=False))
    project.write_config(project.config() | {"claims": "own.yaml"})


@pytest.fixture(scope="module")
def with_own_claim(finished, tmp_path_factory):
    project = finished.copy(tmp_path_factory.mktemp("own") / "project")
    claims = yaml.safe_load((project.root / "config/claims.yaml").read_text())
    write_claims(project, [*claims, OWN])
    assert project.planned() == {"score_claims": 1, "write_report": 1, "all": 1}
    done = project.snakemake("claims")
    assert done.returncode == 0, done.stdout
    return project


def test_every_claim_is_tested_and_two_prompts_are_told_to_be_too_few(finished):
    claims = yaml.safe_load((finished.root / "config/claims.yaml").read_text())
    rows = scorecard(finished)
    own = {row["claim"]: row for row in rows if row["test"] == "claim"}
    assert list(own) == [claim["id"] for claim in claims]
    assert len(rows) == sum(1 + len(claim["controls"]) for claim in claims)
    assert {row["verdict"] for row in rows} == {UNDEFINED, NOT_MEASURED}
    assert own["half-clustered"]["because"] == "2 prompts: an interval needs 3"
    assert own["half-clustered"]["smallest_p"] == 0.25
    assert own["random-collapses"]["n_seeds"] == 2
    assert own["pair-group-order"]["because"] == "the config computes no pair_groups"


def test_the_text_holds_the_same_rows(finished):
    lines = [line.split("\t") for line in (finished.root / "results/claims.tsv").read_text().splitlines()]
    assert [line[:3] for line in lines[1:]] == [
        [row["model"], row["claim"], row["test"]] for row in scorecard(finished)
    ]


def test_the_scorecard_is_first_on_the_page_and_leads_to_figures(finished):
    page = (finished.root / "results/report/index.html").read_text()
    assert re.findall(r"<h2>(.*?)</h2>", page)[0] == "What holds"
    section = page[page.index('<section id="claims">') : page.index('<section id="found">')]
    targets = set(re.findall(r'href="#(figure-[^"]+)"', section))
    assert {"figure-mass_near_one", "figure-clusters-tiny", "figure-cka_biased", "figure-energy-b0.5"} <= targets
    assert all(f'id="{target}"' in page for target in targets)


def test_a_users_claim_is_one_entry(with_own_claim):
    row, control = (row for row in scorecard(with_own_claim) if row["claim"] == "own")
    assert control["test"] == "all tokens"
    data = tables.read(with_own_claim.root / "results/tables/inner_products.parquet", "inner_products").to_pylist()
    last = [r for r in data if (r["layer"], r["stage"], r["tokens"]) == (3, "block", "content")]
    means = {
        scheme: [r["mean_inner_product"] for r in last if r["scheme"] == scheme]
        for scheme in ("trained", "norm-matched")
    }
    assert (len(means["trained"]), len(means["norm-matched"])) == (2, 4)
    expected = sum(means["trained"]) / 2 - sum(means["norm-matched"]) / 4
    assert row["estimate"] == pytest.approx(expected, abs=1e-12)


def test_words_of_a_claim_are_data_on_the_page(with_own_claim):
    done = with_own_claim.snakemake("report")
    assert done.returncode == 0, done.stdout
    page = (with_own_claim.root / "results/report/index.html").read_text()
    assert "Trained tokens are &lt;b&gt;further&lt;/b&gt; apart." in page


def test_a_claim_that_names_what_is_not_there_stops_before_any_job(changed):
    write_claims(changed, [OWN | {"models": ["gpt2"], "test": OWN["test"] | {"column": "mean_inner_products"}}])
    done = changed.snakemake("claims")
    assert done.returncode == 1
    assert "own: models: 'gpt2' is no model of the config; it has: tiny" in done.stdout
    assert "test: column: inner_products has no column 'mean_inner_products'" in done.stdout
    assert "did you mean 'mean_inner_product'?" in done.stdout
    assert "Traceback" not in done.stdout and "Job stats" not in done.stdout


def test_other_versions_behind_the_claims_are_said_with_the_command_that_makes_them_again(changed):
    path = changed.root / "results/tables/claims.parquet"
    data, times = pq.read_table(path), (path.stat().st_atime, path.stat().st_mtime)
    record = unpack(data.schema.metadata)
    record["versions"]["numpy"] = "1.0.0"
    pq.write_table(data.replace_schema_metadata(pack(record)), path)
    os.utime(path, times)
    said = changed.snakemake("--dry-run").stdout
    assert "* claims: numpy 1.0.0, now" in said and "--forcerun score_claims" in said


def test_a_changed_claim_runs_the_scorecard_and_another_order_of_keys_nothing(changed):
    changed.edit("config/claims.yaml", "expect: {above: 0.9}", "expect: {above: 0.8}")
    assert changed.planned() == {"score_claims": 1, "write_report": 1, "all": 1}
    changed.edit("config/claims.yaml", "expect: {above: 0.8}", "expect: {above: 0.9}")
    claims = yaml.safe_load((changed.root / "config/claims.yaml").read_text())
    reordered = [dict(reversed(claim.items())) for claim in claims]
    (changed.root / "config/claims.yaml").write_text(yaml.safe_dump(reordered, sort_keys=False))
    assert changed.planned() == {}
