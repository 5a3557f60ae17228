import re

import pyarrow as pa
import pytest

from collapse import summary
from collapse.summary import QUANTITIES, compare, sentences

COLUMN = "mean_inner_product"
DEFAULTS = {
    "model": "m",
    "weights": "trained",
    "scheme": "trained",
    "seed": None,
    "prompt": "p",
    "tokens": "content",
    "layer": 2,
    "stage": "block",
    "depth": 1.0,
}


def table(*rows, column=COLUMN):
    """A results table from (value, keys that differ from the defaults); all columns of that table are there."""
    name = next(name for name, found, *_ in QUANTITIES if found == column)
    empty = dict.fromkeys(found for other, found, *_ in QUANTITIES if other == name)
    types = dict.fromkeys(DEFAULTS, pa.string()) | {"seed": pa.int64(), "layer": pa.int16(), "depth": pa.float64()}
    schema = pa.schema(types | dict.fromkeys(empty, pa.float64()))
    return pa.Table.from_pylist([empty | DEFAULTS | keys | {column: value} for value, keys in rows], schema=schema)


def headline(frames):
    """The summary of models with two blocks."""
    models = sorted({model for frame in frames.values() for model in frame["model"].to_pylist()})
    listed = pa.table({"model": models, "trained_depth": [2] * len(models)})
    return summary.headline(frames | {"runs": listed})


def last_block(frame, model, column):
    return summary.last_block(frame, model, column, 2)


def runs(scheme, model="m", **prompts):
    """Rows of one scheme: {prompt: value, or values by seed}."""
    return [
        (value, {"weights": f"{scheme}-s{seed}", "scheme": scheme, "model": model, "prompt": prompt, "seed": seed})
        for prompt, values in prompts.items()
        for seed, value in enumerate(values if isinstance(values, list) else [values])
    ]


def counts(verdict):
    return {key: value for key, value in verdict.items() if key not in ("trained", "random")}


def row_of(models, column=COLUMN):
    (entry,) = models
    label = next(label for _, found, label, _ in QUANTITIES if found == column)
    return next(row for row in entry["rows"] if row["quantity"] == label)


def test_seeds_are_averaged_within_a_prompt_and_prompts_are_what_is_counted():
    frame = table(*runs("norm-matched", a=[0.1, 0.3], b=[0.5, 0.7, 0.9]))
    assert last_block(frame, "m", COLUMN) == {"norm-matched": {"a": pytest.approx(0.2), "b": pytest.approx(0.7)}}
    cell = row_of(headline({"inner_products": frame}))["cells"]["norm-matched"]
    # Not the mean over the five runs, which is 0.5.
    assert cell == {"mean": pytest.approx(0.45), "low": pytest.approx(0.2), "high": pytest.approx(0.7), "n": 2}


def test_a_prompt_with_one_undefined_seed_has_no_value():
    frame = table(*runs("norm-matched", a=[0.1, None], b=[0.4, 0.6]))
    assert last_block(frame, "m", COLUMN)["norm-matched"] == {"a": None, "b": pytest.approx(0.5)}
    cell = row_of(headline({"inner_products": frame}))["cells"]["norm-matched"]
    assert (cell["mean"], cell["n"]) == (pytest.approx(0.5), 1)


def test_where_every_prompt_is_undefined_the_cell_is_none_and_not_zero():
    frame = table(*runs("trained", a=None, b=None), *runs("norm-matched", a=0.1, b=0.2))
    row = row_of(headline({"inner_products": frame}))
    assert row["cells"]["trained"] is None
    assert counts(row["verdict"]) == {"resists": 0, "collapses": 0, "equal": 0, "undefined": 2, "n": 2}
    assert row["verdict"]["trained"] is row["verdict"]["random"] is None


@pytest.mark.parametrize(
    "other",
    [
        {"tokens": "all"},
        {"stage": "final_norm"},
        {"stage": "embedding", "depth": 0.0, "layer": 0},
        {"depth": 0.5, "layer": 1},
        {"model": "another"},
    ],
    ids=lambda keys: "-".join(keys),
)
def test_only_the_last_block_of_content_tokens_of_the_model_counts(other):
    frame = table((0.3, {}), (0.9, other))
    assert last_block(frame, "m", COLUMN) == {"trained": {"p": 0.3}}


def test_nothing_at_the_last_block_is_nothing_found():
    assert last_block(table((0.3, {"depth": 0.5, "layer": 1})), "m", COLUMN) == {}


def test_the_last_block_of_a_deepened_model_is_that_of_its_trained_depth():
    deep = [(0.2, {"depth": 0.25}), (0.9, {"depth": 1.0, "layer": 8})]
    theory = {"weights": "identity-b1", "scheme": "identity"}
    steps = [(0.3, theory | {"depth": 0.25}), (0.8, theory | {"depth": 1.0, "layer": 8})]
    found = last_block(table(*deep, *steps), "m", COLUMN)
    assert found == {"trained": {"p": 0.2}, "identity-b1": {"p": 0.8}}


def test_a_higher_inner_product_is_closer_to_collapse():
    trained, random = runs("trained", a=0.1, b=0.5, c=0.3, d=0.2), runs("norm-matched", a=0.2, b=0.4, c=0.3, d=0.6)
    verdict = row_of(headline({"inner_products": table(*trained, *random)}))["verdict"]
    assert counts(verdict) == {"resists": 2, "collapses": 1, "equal": 1, "undefined": 0, "n": 4}


def test_a_higher_rank_is_further_from_collapse():
    column = next(column for name, column, *_ in QUANTITIES if name == "effective_rank")
    frame = table(*runs("trained", a=9, b=3, c=5), *runs("norm-matched", a=2, b=2, c=8), column=column)
    verdict = row_of(headline({"effective_rank": frame}), column)["verdict"]
    assert counts(verdict) == {"resists": 2, "collapses": 1, "equal": 0, "undefined": 0, "n": 3}


def test_the_verdict_compares_with_the_mean_over_seeds():
    frame = table(*runs("trained", a=0.5), *runs("norm-matched", a=[0.0, 0.9]))
    assert row_of(headline({"inner_products": frame}))["verdict"]["collapses"] == 1


@pytest.mark.parametrize(("sign", "word"), [(1, "resists"), (-1, "collapses")])
def test_the_sign_says_which_direction_is_resistance(sign, word):
    verdict = compare({"a": 2.0}, {"a": 1.0}, sign)
    assert counts(verdict) == {"resists": 0, "collapses": 0, "equal": 0, "undefined": 0, "n": 1} | {word: 1}


@pytest.mark.parametrize(
    ("trained", "random"), [({"a": None}, {"a": 1.0}), ({"a": 1.0}, {"a": None}), ({"a": 1.0}, {}), ({}, {"a": 1.0})]
)
def test_a_prompt_that_lacks_a_side_is_counted_as_undefined_and_never_as_equal(trained, random):
    verdict = compare(trained, random, 1)
    assert counts(verdict) == {"resists": 0, "collapses": 0, "equal": 0, "undefined": 1, "n": 1}


def test_zero_is_a_value():
    assert compare({"a": 0.0}, {"a": 0.0}, -1)["equal"] == 1
    frame = table(*runs("trained", a=0.0))
    assert row_of(headline({"inner_products": frame}))["cells"]["trained"]["mean"] == 0


@pytest.mark.parametrize("present", ["trained", "norm-matched", "identity"])
def test_without_both_sides_there_is_no_verdict(present):
    row = row_of(headline({"inner_products": table(*runs(present, a=0.1))}))
    assert row["verdict"] is None
    assert list(row["cells"]) == [present if present != "identity" else "identity-s0"]


def test_the_theory_has_a_cell_per_beta_and_is_never_averaged_over_betas():
    betas = [(0.1, "identity-b1"), (0.9, "identity-b5")]
    rows = [(value, {"weights": weights, "scheme": "identity", "seed": None}) for value, weights in betas]
    cells = row_of(headline({"inner_products": table(*rows)}))["cells"]
    assert {line: cell["mean"] for line, cell in cells.items()} == {"identity-b1": 0.1, "identity-b5": 0.9}


def test_without_norm_matched_weights_the_reset_ones_are_compared():
    frame = table(*runs("trained", a=0.1), *runs("norm-matched-reset", a=0.4))
    models = headline({"inner_products": frame})
    assert models[0]["random"] == "norm-matched-reset"
    assert row_of(models)["verdict"]["resists"] == 1
    assert "norms reset" in sentences(models)[0]["words"]


def test_means_are_over_the_prompts_that_both_sides_have():
    verdict = compare({"a": 0.2, "b": 0.9, "c": None}, {"a": 0.4, "b": None, "c": 0.1}, -1)
    assert (verdict["trained"], verdict["random"], verdict["undefined"]) == (0.2, 0.4, 2)


def test_models_are_never_averaged():
    rows = [*runs("trained", "small", a=0.1), *runs("trained", "large", a=0.9), *runs("norm-matched", "small", a=0.3)]
    models = headline({"inner_products": table(*rows)})
    assert [entry["model"] for entry in models] == ["small", "large"]
    cells = [row_of([entry])["cells"] for entry in models]
    assert [cell["trained"]["mean"] for cell in cells] == [0.1, 0.9]
    assert "norm-matched" not in cells[1]


def test_quantities_whose_table_is_absent_are_left_out():
    frames = {"inner_products": table(*runs("trained", a=0.1))}
    (entry,) = headline(frames)
    expected = [label for name, _, label, _ in QUANTITIES if name == "inner_products"]
    assert [row["quantity"] for row in entry["rows"]] == expected
    assert headline({}) == []


@pytest.mark.parametrize(
    ("trained", "random", "words"),
    [
        ({"a": 0.1, "b": 0.2}, {"a": 0.3, "b": 0.4}, "further apart than random weights of the same norms, on all 2"),
        ({"a": 0.3, "b": 0.4}, {"a": 0.1, "b": 0.2}, "closer together than random weights .*, on all 2 prompts"),
        ({"a": 0.1, "b": 0.4}, {"a": 0.3, "b": 0.2}, "further apart on 1, closer together on 1 of 2 prompts"),
        ({"a": 0.1, "b": None}, {"a": 0.3, "b": 0.2}, "further apart than .*, on the one prompt; undefined on 1 more"),
        (
            {"a": 0.4, "b": None},
            {"a": 0.3, "b": 0.2},
            "closer together than .*, on the one prompt; undefined on 1 more",
        ),
        ({"a": 0.1, "b": 0.2}, {"a": 0.1, "b": 0.3}, "further apart on 1, equal on 1 of 2 prompts"),
    ],
    ids=["resist", "collapse", "disagree", "one-undefined", "closer-one-undefined", "one-equal"],
)
def test_the_sentence_says_what_the_counts_say(trained, random, words):
    frame = table(*runs("trained", **trained), *runs("norm-matched", **random))
    (said,) = sentences(headline({"inner_products": frame}))
    assert said["model"] == "m"
    assert re.search(words, said["words"])


def test_nothing_is_said_of_a_model_that_lacks_a_side():
    for rows in (runs("trained", a=0.1), [*runs("trained", a=None), *runs("norm-matched", a=0.2)]):
        assert sentences(headline({"inner_products": table(*rows)})) == []
    assert sentences([]) == []


def test_a_scheme_limited_to_components_is_never_the_baseline():
    frame = table(*runs("trained", a=0.1), *runs("norm-matched-qk", a=0.4), *runs("orthogonal", a=0.3))
    models = headline({"inner_products": frame})
    assert models[0]["random"] == "orthogonal"
    assert "random orthogonal weights" in sentences(models)[0]["words"]
    assert (
        headline({"inner_products": table(*runs("trained", a=0.1), *runs("shuffled-mlp", a=0.4))})[0]["random"] is None
    )


def test_norm_matched_weights_are_the_baseline_where_there_are_several():
    frame = table(*runs("trained", a=0.1), *runs("orthogonal", a=0.3), *runs("norm-matched", a=0.05))
    assert headline({"inner_products": frame})[0]["random"] == "norm-matched"
