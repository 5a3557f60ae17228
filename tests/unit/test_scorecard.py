"""The scorecard as the report shows it: where models split, and which figure shows a claim."""

from pathlib import Path

import jinja2
import pytest

from collapse.claims import FAILS, HOLDS, NOT_MEASURED, UNCONTROLLED, UNDEFINED
from collapse.scorecard import figure_of, scorecard, split

DRAWN = [
    "mass_near_one",
    "inner_product_histograms/a",
    "inner_product_histograms/b",
    "energy/b1",
    "energy/b5",
    "clusters/b",
]


def cell(model, verdict, estimate=0.5, supporting=2, n=4, **more):
    row = {"model": model, "claim": "c", "test": "claim", "statement": "It is so.", "source": "me", "verdict": verdict}
    row |= {"words": "what is tested", "interval_low": 0.4, "interval_high": 0.6, "n_undefined": 0, "n_seeds": 0}
    row |= {"mean_inner_product": None, "mean_inner_product_subtracted": None}
    row |= {"table": "inner_products", "column": "mass_near_one", "estimate": estimate, "because": None}
    row |= {"n_supporting": supporting, "n_prompts": n, "p_sign": 0.5, "smallest_p": 0.0625, "p_holm": 1.0}
    if verdict == FAILS:
        row["because"] = "not shown: the interval reaches beyond"
    return row | more


def test_models_that_differ_in_their_verdict_are_told_apart():
    cells = [cell("a", HOLDS, 0.75), cell("b", FAILS, 0.104), cell("c", HOLDS, 0.9)]
    assert split(cells) == "holds on a (0.75), c (0.9); fails on b (0.104)"


def test_opposite_directions_under_one_verdict_are_told():
    cells = [cell("a", FAILS, -0.8, supporting=4), cell("b", FAILS, 0.1, supporting=0)]
    assert split(cells) == "fails on all, but every prompt agrees on a (-0.8) and none on b (0.1)"


@pytest.mark.parametrize(
    "cells",
    [
        [cell("a", HOLDS), cell("b", HOLDS)],
        [cell("a", FAILS, supporting=1), cell("b", FAILS, supporting=0)],
        [cell("a", HOLDS), cell("b", NOT_MEASURED)],
        [cell("a", FAILS), cell("b", UNDEFINED)],
        [cell("a", HOLDS)],
        [],
    ],
    ids=["hold", "fail", "not measured", "undefined", "one model", "none"],
)
def test_no_split_where_models_agree_or_say_nothing(cells):
    assert split(cells) is None


def test_holding_without_the_control_is_another_verdict():
    assert split([cell("a", UNCONTROLLED), cell("b", HOLDS)]) == (
        "holds on b (0.5); holds only without its control on a (0.5)"
    )


def test_what_is_refuted_and_what_is_not_shown_count_apart_and_all_count_once():
    rows = [
        cell("a", FAILS),
        cell("a", FAILS, because="refuted: the interval lies wholly outside of"),
        cell("a", HOLDS),
    ]
    rows += [cell("a", UNDEFINED), cell("a", UNCONTROLLED), cell("a", NOT_MEASURED)]
    rows = [row | {"claim": str(n)} for n, row in enumerate(rows)]
    assert scorecard(rows, DRAWN)["counts"] == {
        "a": {HOLDS: 1, UNCONTROLLED: 1, "refuted": 1, "not shown": 1, UNDEFINED: 1, NOT_MEASURED: 1}
    }


def test_claims_go_down_models_across_controls_below():
    control = {"test": "content", "p_holm": None}
    rows = [cell("a", HOLDS), cell("a", FAILS, **control), cell("b", NOT_MEASURED, p_holm=None, smallest_p=None)]
    rows += [
        cell("b", NOT_MEASURED, **control),
        *(row | {"claim": "d"} for row in (cell("a", FAILS), cell("b", FAILS))),
    ]
    card = scorecard(rows, DRAWN)
    assert card["models"] == ["a", "b"]
    assert [claim["id"] for claim in card["claims"]] == ["c", "d"]
    assert [found["model"] for found in card["claims"][0]["cells"]] == ["a", "b"]
    assert len(card["claims"][0]["tests"]) == 4
    assert card["counts"] == {"a": {HOLDS: 1, "not shown": 1}, "b": {"not shown": 1, NOT_MEASURED: 1}}
    assert card["n_tests"] == 3 and card["smallest_p"] == {4: 0.0625}
    assert card["claims"][1]["cells"][0]["word"] == "not shown"
    assert card["claims"][0]["cells"][0]["word"] is None


@pytest.mark.parametrize(
    ("table", "column", "expected"),
    [
        ("inner_products", "mass_near_one", "mass_near_one"),
        ("inner_products", "sd_inner_product", "mass_near_one"),
        ("energy", "is_drop", "energy/b1"),
        ("clusters", "n_clusters", None),
        ("fiedler", "fiedler_symmetric", None),
    ],
)
def test_a_verdict_leads_to_the_figure_of_its_column_or_table(table, column, expected):
    assert figure_of({"table": table, "column": column, "model": "a"}, DRAWN) == expected


def test_a_figure_of_one_model_is_only_for_that_model():
    row = {"table": "clusters", "column": "n_clusters", "model": "b"}
    assert figure_of(row, DRAWN) == "clusters/b"


def test_without_claims_there_is_an_empty_scorecard():
    empty = {"models": [], "claims": [], "unmeasured": [], "counts": {}, "n_tests": 0, "smallest_p": {}}
    assert scorecard([], DRAWN) == empty | {"smallest_p_holm": None}


def absent(model, **more):
    nothing = dict.fromkeys(("estimate", "interval_low", "interval_high", "p_sign", "smallest_p", "p_holm"))
    told = {"because": "the config computes no fiedler"}
    return cell(model, NOT_MEASURED, supporting=0, n=0) | nothing | told | more


def page(*rows):
    """What the report's template makes of a scorecard, with nothing else on the page."""
    folder = Path(__file__).resolve().parents[2] / "workflow/report"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder), autoescape=True, undefined=jinja2.StrictUndefined
    )
    lists = ("headline", "found", "sections", "explorer", "runs", "models", "weights", "undefined", "not_computed")
    lists = dict.fromkeys((*lists, "definitions"), [])
    mappings = dict.fromkeys(("gaps", "mixed", "provenance", "config", "versions"), {})
    template = environment.get_template("index.html.j2")
    text = template.render(scorecard=scorecard(list(rows), DRAWN), prompts=["a"], **lists, **mappings)
    return " ".join(text.replace("&nbsp;", " ").split())


def test_claims_measured_on_no_model_are_one_folded_list_after_the_others():
    rows = [absent("a", claim="x"), absent("b", claim="x"), cell("a", HOLDS), absent("b")]
    card = scorecard(rows, DRAWN)
    assert [claim["id"] for claim in card["claims"]] == ["c"]
    assert [claim["id"] for claim in card["unmeasured"]] == ["x"]
    text = page(*rows)
    assert '<tr class="claim" id="claim-c">' in text and '<tr class="claim" id="claim-x">' not in text
    assert "1 more claim is measured on no model" in text and text.index("claim-c") < text.index("claim-x")
    assert card["counts"] == {"a": {HOLDS: 1, NOT_MEASURED: 1}, "b": {NOT_MEASURED: 2}}
    assert "more claim" not in page(cell("a", HOLDS))


@pytest.mark.parametrize(("n_tests", "impossible"), [(3, False), (4, True)])
def test_whether_anything_can_be_significant_is_said_of_the_corrected_p(n_tests, impossible):
    """Six prompts reach p = 1/64: three tests can be below 5 % after Holm's correction, four cannot."""
    rows = [cell("a", HOLDS, n=6, supporting=6, smallest_p=1 / 64, claim=f"c{i}") for i in range(n_tests)]
    text = page(*rows)
    assert f"p = 0.016 with 6 prompts. After Holm's correction over all {n_tests} tests" in text
    assert ("none can be significant at 5 %" in text) == impossible
    assert scorecard(rows, DRAWN)["smallest_p_holm"] == n_tests / 64


def test_the_page_says_that_verdicts_rest_on_uncorrected_intervals():
    text = page(cell("a", HOLDS))
    assert "Verdicts rest on these intervals, which are not corrected" in text
    assert "not yet a test" not in text


def test_a_count_of_clusters_never_stands_without_the_mean_inner_product():
    of_clusters = {"table": "clusters", "column": "n_clusters", "mean_inner_product": 0.987}
    text = page(cell("a", HOLDS, **of_clusters))
    # Beside the verdict, and in the evidence.
    assert text.count('<span class="range">mean inner product 0.987</span>') == 2
    text = page(cell("a", HOLDS, **of_clusters, mean_inner_product_subtracted=0.25))
    assert text.count("mean inner product 0.987, of what is subtracted 0.25<") == 2
    assert '<span class="range">mean inner product' not in page(cell("a", HOLDS))
