"""The scorecard as the report shows it: where models split, and which figure shows a claim."""

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
    assert card["counts"] == {"a": {HOLDS: 1, FAILS: 1}, "b": {FAILS: 1, NOT_MEASURED: 1}}
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
    assert scorecard([], DRAWN) == {"models": [], "claims": [], "counts": {}, "n_tests": 0, "smallest_p": {}}
