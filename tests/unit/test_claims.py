"""The scorecard on tables whose answer is known: every comparison, every verdict, and what has no answer."""

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from collapse import tables
from collapse.claims import FAILS, HOLDS, NOT_MEASURED, UNCONTROLLED, UNDEFINED, judge, score, verdict, write_claims
from collapse.claims_file import layered_tables, read_claims
from collapse.config import schemes
from collapse.errors import Refusal

REPOSITORY = Path(__file__).resolve().parents[2]
N_BLOCKS = 4
PROMPTS = ["a", "b", "c", "d"]
SLUGS = {"trained": [("trained", None)], "norm-matched": [("norm-matched-s0", 0), ("norm-matched-s1", 1)]}


def rows_of(column, values, scheme="trained", model="m", tokens="all", weights=None, **more):
    """Rows of one scheme: {prompt: one value per layer from 0 on}; random weights get it for both of their seeds."""
    for slug, seed in weights or SLUGS[scheme]:
        for prompt, layers in values.items():
            for layer, value in enumerate(layers):
                keys = {"model": model, "weights": slug, "scheme": scheme, "seed": seed, "prompt": prompt}
                keys |= {"tokens": tokens, "layer": layer, "stage": "block" if layer else "embedding"}
                keys |= {
                    "depth": layer / N_BLOCKS,
                    "undefined": None if value is not None else "row 3 is a zero vector",
                }
                yield keys | more | {column: value}


def frame(table, rows):
    schema = tables.schema(table)
    return pa.Table.from_pylist([dict.fromkeys(schema.names) | row for row in rows], schema=schema)


def runs(
    models=("m",),
    n_blocks=N_BLOCKS,
    n_tokens=100,
    weights=("trained", "norm-matched-s0", "norm-matched-s1", "norm-matched-s7", "orthogonal-s0"),
):
    rows = [
        {
            "model": model,
            "weights": slug,
            "prompt": p,
            "n_blocks": n_blocks,
            "n_tokens": n_tokens,
            "n_content_tokens": 50,
        }
        for model in models
        for slug in (*weights, "identity-b1", "identity-b5")
        for p in PROMPTS
    ]
    return frame("runs", rows)


def constant(value, n_layers=N_BLOCKS + 1, prompts=PROMPTS):
    """A value for every layer of every prompt; a list gives one per prompt."""
    values = value if isinstance(value, list) else [value] * len(prompts)
    return {prompt: [v] * n_layers for prompt, v in zip(prompts, values)}


TEST = {
    "table": "inner_products",
    "column": "mass_near_one",
    "scheme": "trained",
    "tokens": "all",
    "layers": "blocks",
    "expect": {"above": 0.5},
}


def claim(*controls, models=None, name="c", **changes):
    own = {"name": "claim"} | TEST | changes
    tests = [own, *(own | control for control in controls)]
    return {"id": name, "statement": "It is so.", "source": "someone", "models": models, "tests": tests}


def scored(rows, *controls, models=("m",), trained_depth=None, table="inner_products", n_blocks=N_BLOCKS, **changes):
    """Rows of the scorecard of one claim."""
    frames = {"runs": runs(models, n_blocks), table: frame(table, rows)}
    depths = dict.fromkeys(models, trained_depth)
    return score([claim(*controls, table=table, **changes)], frames, list(models), depths)


def one(rows, **changes):
    (row,) = scored(rows, **changes)
    return row


# The judgement of one number per prompt


def judged(values, **expect):
    return judge(dict(enumerate(values)), expect)


@pytest.mark.parametrize(
    ("expect", "holding", "refuted", "open_"),
    [
        ({"above": 1}, [2.0, 2.1, 1.9], [0.0, 0.1, -0.1], [1.0, 3.0, 2.0]),
        ({"below": 1}, [0.0, 0.1, -0.1], [2.0, 2.1, 1.9], [1.0, 0.0, -1.0]),
        ({"at_least": 1}, [1.0, 1.0, 1.0], [0.0, 0.1, -0.1], [1.0, 1.0, 1.1]),
        ({"at_most": 1}, [1.0, 1.0, 1.0], [2.0, 2.1, 1.9], [1.0, 1.0, 0.9]),
        ({"between": [1, 3]}, [2.0, 2.1, 1.9], [9.0, 9.1, 9.2], [2.0, 4.0, 1.0]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_test_holds_is_refuted_or_is_not_shown(expect, holding, refuted, open_):
    assert judged(holding, **expect)["verdict"] == HOLDS
    assert judged(holding, **expect)["because"] is None
    for values, word in ((refuted, "refuted"), (open_, "not shown")):
        row = judged(values, **expect)
        assert row["verdict"] == FAILS and row["because"].startswith(word), row


def test_no_effect_at_all_is_a_tie_and_no_evidence():
    row = judged([0.0, 0.0, 0.0, 0.0], above=0)
    assert (row["estimate"], row["interval_low"], row["interval_high"]) == (0.0, 0.0, 0.0)
    assert row["verdict"] == FAILS and row["because"].startswith("refuted")
    assert (row["n_supporting"], row["p_sign"]) == (0, 1.0)


def test_no_effect_is_what_an_inclusive_claim_expects():
    row = judged([0.0, 0.0, 0.0, 0.0], at_most=0)
    assert (row["verdict"], row["n_supporting"], row["p_sign"]) == (HOLDS, 4, 0.0625)


def test_ties_count_against_a_strict_claim_and_are_not_dropped():
    row = judged([0.0, 0.5, 0.4, 0.0], above=0)
    assert (row["n_supporting"], row["n_prompts"], row["p_sign"], row["smallest_p"]) == (2, 4, 0.6875, 0.0625)


def test_one_prompt_has_an_estimate_and_no_verdict():
    row = judged([7.0], above=0)
    assert (row["verdict"], row["estimate"], row["interval_low"]) == (UNDEFINED, 7.0, None)
    assert (row["p_sign"], row["smallest_p"]) == (0.5, 0.5)
    assert row["because"] == "1 prompt: an interval needs 3"


def test_prompts_without_a_value_are_told_and_not_counted():
    row = judged([2.0, None, 2.1, 2.2], above=1)
    assert (row["verdict"], row["n_prompts"], row["n_undefined"], row["smallest_p"]) == (HOLDS, 3, 1, 0.125)


def test_without_any_value_nothing_is_said():
    row = judged([None, None, None], above=1)
    assert row["verdict"] == UNDEFINED
    assert row["estimate"] is row["interval_low"] is row["p_sign"] is row["smallest_p"] is None


@pytest.mark.parametrize("n", [3, 4, 9])
def test_a_claim_without_an_effect_holds_in_at_most_5_percent(n):
    generator = np.random.default_rng(11)
    verdicts = [judged(list(generator.normal(size=n)), above=0)["verdict"] for _ in range(600)]
    assert verdicts.count(HOLDS) / 600 <= 0.05


# From tables to one number per prompt


def test_a_threshold_on_the_mean_over_blocks():
    values = {p: [9.0, 0.6, 0.7, 0.8, 0.9] for p in PROMPTS}
    assert one(rows_of("mass_near_one", values))["estimate"] == pytest.approx(0.75)


def test_trained_minus_random_averages_seeds_within_a_prompt():
    random = [
        *rows_of("mass_near_one", constant([0.1, 0.2, 0.3, 0.4]), "norm-matched", weights=[("norm-matched-s0", 0)]),
        *rows_of("mass_near_one", constant([0.3, 0.4, 0.5, 0.6]), "norm-matched", weights=[("norm-matched-s1", 1)]),
    ]
    trained = rows_of("mass_near_one", constant([0.9, 0.9, 0.9, 0.9]))
    row = one([*trained, *random], minus={"scheme": "norm-matched"}, expect={"above": 0})
    # Minus 0.2, 0.3, 0.4, 0.5.
    assert row["estimate"] == pytest.approx(0.55)
    assert (row["verdict"], row["n_prompts"], row["n_seeds"]) == (HOLDS, 4, 2)


def test_one_seed_is_enough():
    random = rows_of("mass_near_one", constant(0.2), "norm-matched", weights=[("norm-matched-s7", 7)])
    row = one([*rows_of("mass_near_one", constant(0.9)), *random], minus={"scheme": "norm-matched"})
    assert (row["n_seeds"], row["verdict"]) == (1, HOLDS)


def test_layers_and_seeds_add_no_prompts():
    row = one(rows_of("mass_near_one", constant(0.9), "norm-matched"), scheme="norm-matched")
    assert (row["n_prompts"], row["smallest_p"]) == (4, 0.0625)


def test_a_prompt_with_one_undefined_layer_has_no_value():
    values = constant(0.9) | {"b": [0.9, 0.9, None, 0.9, 0.9]}
    row = one(rows_of("mass_near_one", values))
    assert (row["n_prompts"], row["n_undefined"], row["verdict"]) == (3, 1, HOLDS)
    assert row["undefined"] == "1 of 4 prompts: row # is a zero vector"


def test_a_prompt_with_one_undefined_seed_has_no_value():
    rows = list(rows_of("mass_near_one", constant(0.9), "norm-matched"))
    rows[1] |= {"mass_near_one": None, "undefined": "why"}
    assert one(rows, scheme="norm-matched")["n_undefined"] == 1


def test_a_null_outside_the_layers_of_the_test_does_not_matter():
    values = {p: [None, 0.9, 0.9, 0.9, 0.9] for p in PROMPTS}
    assert one(rows_of("mass_near_one", values))["n_undefined"] == 0


def test_a_column_of_nulls_is_undefined_with_its_reason():
    row = one(rows_of("mass_near_one", constant(None)))
    assert (row["verdict"], row["because"]) == (UNDEFINED, "4 of 4 prompts: row # is a zero vector")


def test_the_state_after_the_final_norm_is_never_used():
    rows = list(rows_of("mass_near_one", constant(0.9)))
    last = [row | {"stage": "final_norm", "mass_near_one": -1.0} for row in rows if row["layer"] == N_BLOCKS]
    for layers in ("all", "blocks", "last", {"from": 0, "to": 1}):
        assert one([*rows, *last], layers=layers)["estimate"] == 0.9


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("all", 2.0),
        ("blocks", 2.5),
        ("first", 0.0),
        ("last", 4.0),
        ({"from": 0.5, "to": 1}, 3.0),
        ({"from": 0.25, "to": 0.5}, 1.5),
    ],
    ids=str,
)
def test_layers_are_chosen_by_rule_or_relative_depth(layers, expected):
    values = {p: [0.0, 1.0, 2.0, 3.0, 4.0] for p in PROMPTS}
    assert one(rows_of("mass_near_one", values), layers=layers)["estimate"] == expected


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("all", 0.5),
        ("last", 1.0),
        ("trained_depth", 1.0),
        ("beyond_trained_depth", 15.0),
        ({"from": 0.6, "to": 1}, 1.0),
    ],
    ids=str,
)
def test_layers_beyond_the_trained_depth_count_only_where_asked_for(layers, expected):
    values = {p: [0.0, 1.0, 10.0, 15.0, 20.0] for p in PROMPTS}
    row = one(rows_of("mass_near_one", values), layers=layers, trained_depth=1)
    assert row["estimate"] == expected


def test_a_difference_along_depth_beyond_the_trained_one():
    values = {p: [0.0, 0.1, 0.1, 0.8, 1.0] for p in PROMPTS}
    row = one(
        rows_of("mass_near_one", values),
        layers="beyond_trained_depth",
        minus={"layers": "trained_depth"},
        expect={"above": 0},
        trained_depth=2,
    )
    assert row["estimate"] == pytest.approx(0.8) and row["verdict"] == HOLDS


@pytest.mark.parametrize("layers", ["trained_depth", "beyond_trained_depth"])
def test_a_model_without_a_trained_depth_is_not_measured_there(layers):
    row = one(rows_of("mass_near_one", constant(0.9)), layers=layers)
    assert row["verdict"] == NOT_MEASURED and "trained_depth" in row["because"]


def test_a_model_that_runs_to_its_trained_depth_has_nothing_beyond():
    row = one(rows_of("mass_near_one", constant(0.9)), layers="beyond_trained_depth", trained_depth=4)
    assert row["verdict"] == NOT_MEASURED and "no layer" in row["because"]


def test_a_difference_between_columns():
    more = {"null_noise_fraction": 0.8, "mean_inner_product": 0.1}
    rows = [row | more for row in rows_of("noise_fraction", constant(0.5))]
    changes = {"column": "noise_fraction", "minus": {"column": "null_noise_fraction"}, "expect": {"below": 0}}
    assert one(rows, table="clusters", **changes)["estimate"] == pytest.approx(-0.3)


def of_clusters(counts, cosines, *scheme, **more):
    rows = rows_of("n_clusters", constant(counts), *scheme, **more)
    cosines = [row["mean_inner_product"] for row in rows_of("mean_inner_product", constant(cosines), *scheme, **more)]
    more = {"null_n_clusters": 1.0}
    return [row | more | {"mean_inner_product": cosine} for row, cosine in zip(rows, cosines)]


def test_tests_of_clusters_stand_with_the_mean_inner_product_of_the_same_rows():
    """No clusters in pure noise and none under total collapse are the same count."""
    rows = of_clusters([0, 0, 0, None], [0.95, 0.96, 0.97, 0.1])
    rows += of_clusters([9, 9, 9, 9], [0.2, 0.2, 0.2, 0.2], "norm-matched")
    rows[0]["mean_inner_product"] = -1.0
    changes = {"table": "clusters", "column": "n_clusters", "expect": {"below": 1}}
    alone = one(rows, **changes)
    # Layer 0 is not among the blocks, and the fourth prompt has no count.
    assert (alone["mean_inner_product"], alone["mean_inner_product_subtracted"]) == (pytest.approx(0.96), None)
    row = one(rows, minus={"scheme": "norm-matched"}, **changes)
    assert (row["mean_inner_product"], row["mean_inner_product_subtracted"]) == (pytest.approx(0.96), 0.2)
    null = one(rows, minus={"column": "null_n_clusters"}, **changes)
    assert null["mean_inner_product_subtracted"] is None
    assert one(rows_of("mass_near_one", constant(0.9)))["mean_inner_product"] is None


def test_of_several_runs_of_the_theory_the_most_collapsed_one_stands_beside_the_clusters():
    rows = of_clusters([2, 2, 2, 2], [0.5] * 4, "identity", weights=[("identity-b1", None)])
    rows += of_clusters([1, 1, 1, 1], [0.9] * 4, "identity", weights=[("identity-b5", None)])
    row = one(rows, table="clusters", column="n_clusters", scheme="identity", expect={"above": 0})
    assert row["mean_inner_product"] == 0.9


@pytest.mark.parametrize(
    ("statistic", "share"), [("share_rising", 0.5), ("share_falling", 0.25)], ids=["rising", "falling"]
)
def test_steps_along_depth_are_counted_strictly(statistic, share):
    # Up, equal, down, up.
    values = {p: [1.0, 2.0, 2.0, 1.5, 3.0] for p in PROMPTS}
    row = one(rows_of("mass_near_one", values), statistic=statistic, layers="all", expect={"at_most": 1})
    assert row["estimate"] == share


def test_a_step_within_the_tolerance_is_none():
    values = {p: [1.0, 1.0 - 1e-8, 2.0, 2.0, 2.0] for p in PROMPTS}
    changes = {"statistic": "share_falling", "layers": "all", "expect": {"at_most": 0}}
    assert one(rows_of("mass_near_one", values), **changes)["verdict"] == FAILS
    assert one(rows_of("mass_near_one", values), tolerance=1e-6, **changes)["verdict"] == HOLDS


def test_monotone_along_depth_holds_only_where_every_prompt_is():
    rising = {p: [0.0, 0.1, 0.2, 0.3, 0.4] for p in PROMPTS}
    changes = {"statistic": "share_falling", "layers": "all", "expect": {"at_most": 0}}
    assert one(rows_of("mass_near_one", rising), **changes)["verdict"] == HOLDS
    once = rising | {"d": [0.0, 0.1, 0.2, 0.3, 0.2]}
    row = one(rows_of("mass_near_one", once), **changes)
    assert (row["verdict"], row["n_supporting"]) == (FAILS, 3)


def test_a_step_needs_two_layers():
    row = one(rows_of("mass_near_one", constant(0.9)), statistic="share_rising", layers="last")
    assert row["verdict"] == NOT_MEASURED and "needs two" in row["because"]


def energies(scheme="trained", weights=None, **by_beta):
    for beta, values in by_beta.items():
        yield from rows_of("energy", values, scheme, weights=weights, beta=float(beta[1:]))


def test_every_temperature_takes_the_worst_for_the_claim():
    rows = list(energies(b1=constant(3.0), b5=constant(1.0)))
    changes = {"table": "energy", "column": "energy", "beta": "every"}
    assert one(rows, expect={"above": 0}, **changes)["estimate"] == 1.0
    assert one(rows, expect={"below": 9}, **changes)["estimate"] == 3.0
    assert one(rows, expect={"between": [0, 2.5]}, **changes)["estimate"] == 3.0
    assert one(rows, expect={"above": 0}, **(changes | {"beta": 1}))["estimate"] == 3.0


def test_a_temperature_that_the_grid_lacks_is_not_measured():
    row = one(list(energies(b1=constant(3.0))), table="energy", column="energy", beta=7)
    assert row["verdict"] == NOT_MEASURED and "beta 7" in row["because"]


def test_temperatures_of_the_theory_are_no_seeds():
    """Two inverse temperatures of the dynamics are two lines: the worse one counts, and no mean of both."""
    rows = [
        *rows_of("mass_near_one", constant(0.9), "identity", weights=[("identity-b1", None)]),
        *rows_of("mass_near_one", constant(0.2), "identity", weights=[("identity-b5", None)]),
        *rows_of("mass_near_one", constant(0.1)),
    ]
    row = one(rows, scheme="identity", expect={"above": 0})
    assert (row["estimate"], row["n_seeds"]) == (0.2, 0)
    against = one(rows, scheme="identity", minus={"scheme": "trained"}, expect={"above": 0})
    assert against["estimate"] == pytest.approx(0.1)
    along = one(rows, scheme="identity", minus={"layers": "first"}, expect={"above": 0})
    assert along["estimate"] == 0.0


def theories(*runs_of_it):
    """Runs and rows of trained weights, with 4 blocks, and of the theory: (slug, number of steps, value of step l)."""
    listed, rows = runs().to_pylist(), list(rows_of("mass_near_one", {p: [0.0, 0.1, 0.2, 0.3, 0.4] for p in PROMPTS}))
    for slug, steps, value in runs_of_it:
        listed = [row for row in listed if row["weights"] != slug]
        listed += [{**listed[0], "weights": slug, "prompt": prompt, "n_blocks": steps} for prompt in PROMPTS]
        values = {prompt: [value(step) for step in range(steps + 1)] for prompt in PROMPTS}
        rows += rows_of("mass_near_one", values, "identity", weights=[(slug, None)])
    return {"runs": frame("runs", listed), "inner_products": frame("inner_products", rows)}


@pytest.mark.parametrize(("layers", "expected"), [({"from": 0.5, "to": 1}, 0.3), ("last", 0.4)], ids=str)
def test_more_steps_of_the_theory_do_not_move_the_depths_of_the_model(layers, expected):
    frames = theories(("identity-b1-step0.01-n400", 400, lambda step: 0.9))
    (row,) = score([claim(layers=layers)], frames, ["m"], {})
    assert row["estimate"] == pytest.approx(expected)


@pytest.mark.parametrize(("layers", "expected"), [("last", 4.0), ({"from": 0.5, "to": 0.5}, 2.0)], ids=str)
def test_each_line_of_the_theory_has_its_own_length(layers, expected):
    frames = theories(("identity-b1", 4, float), ("identity-b1-step0.5-n8", 8, float))
    (row,) = score([claim(scheme="identity", layers=layers, expect={"above": 0})], frames, ["m"], {})
    # The worse of the two is the shorter one.
    assert row["estimate"] == expected


def test_the_theory_of_a_deepened_model_has_no_trained_depth():
    frames = theories(("identity-b1", 4, float))
    tests = [claim(scheme="identity", layers=layers) for layers in ("last", "all", "trained_depth")]
    last, every, trained = score(tests, frames, ["m"], {"m": 2})
    assert (last["estimate"], every["estimate"]) == (4.0, 2.0)
    assert trained["verdict"] == NOT_MEASURED and "none applies to identity" in trained["because"]


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("all", 1.5),
        ("blocks", 1.5),
        ("first", 1.0),
        ("last", 2.0),
        ("trained_depth", 2.0),
        ("beyond_trained_depth", 3.5),
        ({"from": 0.5, "to": 0.5}, 1.0),
        ({"from": 0.6, "to": 1}, 2.0),
    ],
    ids=str,
)
@pytest.mark.parametrize("table", ["fiedler", "attention_received"])
def test_attention_is_chosen_by_its_block_and_not_by_the_state_that_enters_it(table, layers, expected):
    column, more = {
        "fiedler": ("n_components", {"head": -1}),
        "attention_received": ("received", {"group": "noise"}),
    }[table]
    # Block l of 4, two of them trained, is filed under layer l - 1 and has the value l.
    rows = list(rows_of(column, {p: [1.0, 2.0, 3.0, 4.0] for p in PROMPTS}, **more))
    chosen = {"group": "noise"} if "group" in more else {}
    row = one(rows, table=table, column=column, layers=layers, trained_depth=2, **chosen)
    assert row["estimate"] == expected


def groups(**values):
    for group, value in values.items():
        yield from rows_of("mean_inner_product", constant(value), group=group)


ORDER = ["within", "between", "noise_clustered", "noise_noise"]
PAIRS = {"table": "pair_groups", "column": "mean_inner_product", "expect": {"above": 0}}


def test_the_order_of_groups_is_as_good_as_its_smallest_step():
    rows = list(groups(within=0.9, between=0.5, noise_clustered=0.45, noise_noise=0.1))
    row = one(rows, order=ORDER, **PAIRS)
    assert row["estimate"] == pytest.approx(0.05) and row["verdict"] == HOLDS


def test_a_tie_or_an_exchange_breaks_the_order():
    tie = list(groups(within=0.9, between=0.5, noise_clustered=0.5, noise_noise=0.1))
    row = one(tie, order=ORDER, **PAIRS)
    assert (row["estimate"], row["verdict"], row["n_supporting"]) == (0.0, FAILS, 0)
    exchanged = list(groups(within=0.9, between=0.4, noise_clustered=0.5, noise_noise=0.1))
    assert one(exchanged, order=ORDER, **PAIRS)["estimate"] == pytest.approx(-0.1)


def test_a_group_without_pairs_leaves_the_order_undefined():
    rows = list(groups(within=None, between=0.5, noise_clustered=0.4, noise_noise=0.1))
    assert one(rows, order=ORDER, **PAIRS)["verdict"] == UNDEFINED


def test_one_group_and_one_group_minus_another():
    rows = list(groups(within=0.9, between=0.5, noise_clustered=0.4, noise_noise=0.1))
    assert one(rows, group="between", **PAIRS)["estimate"] == 0.5
    row = one(rows, group="within", minus={"group": "noise_noise"}, **PAIRS)
    assert row["estimate"] == pytest.approx(0.8)


def test_the_mean_over_heads_is_used_unless_a_head_is_named():
    rows = [row for head, v in ((-1, 0.3), (0, 0.2), (1, 0.4)) for row in rows_of("entropy", constant(v), head=head)]
    changes = {"table": "attention_entropy", "column": "entropy", "expect": {"above": 0}, "layers": "all"}
    assert one(rows, **changes)["estimate"] == 0.3
    assert one(rows, head=1, **changes)["estimate"] == 0.4


@pytest.mark.parametrize(("tokens", "expected"), [("all", 0.3), ("content", 0.6)])
def test_values_per_token_are_over_the_tokens_of_the_rule(tokens, expected):
    rows = rows_of("effective_rank_raw", constant(30.0), tokens=tokens)
    changes = {"table": "effective_rank", "column": "effective_rank_raw", "per_token": True, "expect": {"below": 0.9}}
    assert one(rows, tokens=tokens, **changes)["estimate"] == pytest.approx(expected)


def test_bools_are_shares():
    rows = rows_of("is_drop", {p: [None, True, False, False, True] for p in PROMPTS}, beta=1.0)
    row = one(rows, table="energy", column="is_drop", beta=1, expect={"above": 0})
    assert row["estimate"] == 0.5


def test_two_rows_where_one_is_expected_are_refused():
    rows = list(rows_of("mass_near_one", constant(0.9)))
    with pytest.raises(Refusal, match="two rows"):
        one([*rows, rows[3]])


def test_a_run_that_lacks_a_layer_is_refused():
    rows = list(rows_of("mass_near_one", constant(0.9)))
    with pytest.raises(Refusal, match="lacks layer 4"):
        one(rows[:-1])


# Verdicts of a claim with its controls

CONTENT = {"name": "content tokens", "tokens": "content"}


def both(all_tokens, content):
    yield from rows_of("mass_near_one", constant(all_tokens))
    if content is not None:
        yield from rows_of("mass_near_one", constant(content), tokens="content")


@pytest.mark.parametrize(
    ("own", "control", "expected"),
    [
        (0.9, 0.8, HOLDS),
        (0.9, 0.2, UNCONTROLLED),
        (0.2, 0.9, FAILS),
        (0.2, 0.2, FAILS),
        (0.9, [None] * 4, UNDEFINED),
        (0.9, None, NOT_MEASURED),
        ([None] * 4, 0.9, UNDEFINED),
        (0.2, None, FAILS),
    ],
    ids=[
        "holds",
        "uncontrolled",
        "fails",
        "both fail",
        "control undefined",
        "control absent",
        "undefined",
        "no rescue",
    ],
)
def test_a_claim_has_to_survive_its_control(own, control, expected):
    rows = scored(both(own, control), CONTENT)
    assert [row["test"] for row in rows] == ["claim", "content tokens"]
    assert rows[0]["verdict"] == expected
    if own == 0.9 and expected != HOLDS:
        assert rows[0]["because"].startswith("holds, but for its control: content tokens")


def test_a_control_that_fails_outweighs_one_without_a_verdict():
    tests = [{"test": name, "verdict": v, "because": None} for name, v in zip("abc", (HOLDS, UNDEFINED, FAILS))]
    assert verdict(tests)["verdict"] == UNCONTROLLED


def test_a_table_that_the_config_does_not_compute_is_not_measured():
    (row,) = score([claim(table="fiedler", column="fiedler_symmetric")], {"runs": runs()}, ["m"], {})
    assert (row["verdict"], row["because"]) == (NOT_MEASURED, "the config computes no fiedler")
    assert row["p_holm"] is row["p_sign"] is row["estimate"] is None


def test_a_scheme_that_the_config_lacks_is_not_measured():
    row = one(rows_of("mass_near_one", constant(0.9)), minus={"scheme": "norm-matched"})
    assert row["verdict"] == NOT_MEASURED and "norm-matched" in row["because"]


def test_a_claim_about_one_model_is_not_measured_on_another():
    rows = [row for model in ("m", "k") for row in rows_of("mass_near_one", constant(0.9), model=model)]
    frames = {"runs": runs(("m", "k")), "inner_products": frame("inner_products", rows)}
    verdicts = [row["verdict"] for row in score([claim(models=["k"])], frames, ["m", "k"], {})]
    assert verdicts == [NOT_MEASURED, HOLDS]


def test_models_are_never_averaged():
    rows = [row for model, v in (("m", 0.9), ("k", 0.1)) for row in rows_of("mass_near_one", constant(v), model=model)]
    found = scored(rows, models=("m", "k"))
    assert [(row["model"], row["verdict"], row["estimate"]) for row in found] == [("m", HOLDS, 0.9), ("k", FAILS, 0.1)]


def test_p_values_are_corrected_over_claims_and_models_but_not_over_controls():
    rows = [row for model in ("m", "k") for row in rows_of("mass_near_one", constant(0.9), model=model)]
    frames = {"runs": runs(("m", "k")), "inner_products": frame("inner_products", rows)}
    absent = claim(name="absent", table="fiedler")
    found = score([claim(CONTENT, name="one"), claim(name="two"), absent], frames, ["m", "k"], {})
    own = [row["p_holm"] for row in found if row["test"] == "claim"]
    # Four p-values of 1/16; the two that were not measured are none.
    assert own == [0.25] * 4 + [None] * 2
    assert all(row["p_holm"] is None for row in found if row["test"] != "claim")


def full_table(name, spec, generator, n_blocks):
    """A table with every row that the grid of these tests can have, and numbers between 0 and 1."""
    numbers = [column for column, own in spec["columns"].items() if own["type"] == "float64"]
    axes = [({"group": group} for group in spec["groups"]) if "group" in spec["keys"] else [{}]]
    axes += [[{"head": -1}, {"head": 0}] if "head" in spec["keys"] else [{}]]
    axes += [[{"beta": 0.5}, {"beta": 2.0}] if "beta" in spec["keys"] else [{}]]
    # The attention of the last block belongs to the state before it.
    layers = n_blocks if name in ("fiedler", "attention_entropy", "attention_received") else n_blocks + 1
    lines = SLUGS | {"orthogonal": [("orthogonal-s0", 0)], "identity": [("identity-b1", None)]}
    rows = []
    for axis in itertools.product(*axes):
        for scheme, tokens in itertools.product(lines, ("all", "content")):
            more = {key: value for keys in axis for key, value in keys.items()}
            cells = rows_of(numbers[0], constant(0.0, layers), scheme, tokens=tokens, weights=lines[scheme], **more)
            rows += [row | {column: generator.uniform() for column in numbers} | {"n_clusters": 9} for row in cells]
    return frame(name, [{key: row[key] for key in tables.schema(name).names if key in row} for row in rows])


def test_every_claim_of_this_repository_can_be_measured():
    claims, faults = read_claims(REPOSITORY / "config/claims.yaml", ["m"], schemes())
    generator = np.random.default_rng(0)
    frames = {name: full_table(name, spec, generator, 6) for name, spec in layered_tables().items()}
    rows = score(claims, frames | {"runs": runs(n_blocks=6)}, ["m"], {"m": 5})
    assert faults == []
    assert {row["verdict"] for row in rows} <= {HOLDS, FAILS, UNCONTROLLED}
    assert all(row["n_prompts"] == 4 for row in rows)


def written(directory, name, rows):
    """A results table whose other columns hold anything that its description allows."""
    schema = tables.schema(name)
    anything = {pa.string(): "x", pa.bool_(): True, pa.list_(pa.int64()): [1], pa.float64(): 0.5}
    full = {field.name: anything.get(field.type, 1) for field in schema} | {"undefined": None}
    rows = [{key: (full | row)[key] for key in schema.names} for row in rows]
    tables.write(directory / f"{name}.parquet", name, rows, {})
    return directory / f"{name}.parquet"


def test_the_scorecard_is_written_as_a_table_that_matches_its_description_and_as_text(tmp_path):
    listed = [{key: value for key, value in row.items() if value is not None} for row in runs().to_pylist()]
    paths = [
        written(tmp_path, "runs", listed),
        written(tmp_path, "inner_products", rows_of("mass_near_one", constant([0.9, 0.8, 0.7, 0.9]))),
    ]
    output, text = tmp_path / "claims.parquet", tmp_path / "claims.tsv"
    claims = [claim(CONTENT), claim(name="two", table="fiedler")]
    write_claims(paths, claims, ["m"], {"m": None}, "code", output, text)
    found = tables.read(output, "claims").to_pylist()
    assert [(row["claim"], row["test"], row["verdict"]) for row in found] == [
        ("c", "claim", NOT_MEASURED),
        ("c", "content tokens", NOT_MEASURED),
        ("two", "claim", NOT_MEASURED),
    ]
    lines = [line.split("\t") for line in text.read_text().splitlines()]
    assert lines[0] == tables.schema("claims").names
    assert len(lines) == 4 and {len(line) for line in lines} == {len(lines[0])}
    assert lines[1][lines[0].index("estimate")] == f"{found[0]['estimate']:.6g}" == "0.825"
    assert lines[3][lines[0].index("estimate")] == ""
