"""The scorecard: every claim on every model, from the results tables.

A test turns the rows of one table into one number per prompt, and asks whether their mean is what the claim expects.
From the inside out:

    per run       the mean over the chosen layers (or the share of steps that rise or fall; or, of groups in an order,
                  the smallest step down), divided by the number of tokens if asked
    per prompt    the mean over seeds; a difference of two such numbers if asked; of several inverse temperatures the
                  value that is worst for the claim, since it has to hold at every one
    per model     mean, interval and sign test over prompts (collapse.statistics)

A prompt has no value where one of the layers or seeds that its test asks for has none. Layers are never counted as
independent, the state after the final norm is never used, and nothing is averaged over models.

A test `holds` if the interval lies wholly within what is expected, and `fails` otherwise: refuted if it lies wholly
outside, not shown if it reaches out. It is `undefined` without a value or an interval, and `not measured` where the
tables have no such rows. A claim holds if its own test and all of its controls hold, and `holds only without its
control` if a control fails; a control without a verdict leaves the claim without one.
"""

from collections import Counter
from functools import reduce
from operator import and_, eq, ge, gt, le, lt
from pathlib import Path

import pyarrow.compute as pc

from collapse import tables
from collapse.atomic import write_text
from collapse.claims_file import CLAIM, expected, in_words
from collapse.errors import Refusal, Undefined
from collapse.provenance import versions
from collapse.reasons import reason_kind
from collapse.registry import METRICS
from collapse.statistics import holm, interval, mean, sign_test, smallest_p

HOLDS, FAILS, UNCONTROLLED = "holds", "fails", "holds only without its control"
UNDEFINED, NOT_MEASURED = "undefined", "not measured"
COMPARE = {"above": gt, "below": lt, "at_least": ge, "at_most": le}
N_TOKENS = {"all": "n_tokens", "content": "n_content_tokens"}
# What a claim reads of the table of runs, whose records are long.
RUN_COLUMNS = ["model", "weights", "prompt", "n_blocks", *N_TOKENS.values()]
# Attention is filed under the state that enters its block; claims name the block.
OF_BLOCKS = ("attention", "groups")
# Beside counts of clusters, which are 0 both for noise and for total collapse.
MEAN_INNER_PRODUCT = "mean_inner_product"
# Relative depths are quotients of whole numbers.
SLACK = 1e-9


class NotMeasured(Exception):
    """The tables of this config do not have the rows that a test asks for."""


def score(claims, frames, models, trained_depths):
    """Test every claim on every model.

    Parameters
    ----------
    claims : list of dict
        As `read_claims` returns them.
    frames : dict of pyarrow.Table
        `runs`, and the results tables that the config computes; others are not measured.
    models : list of str
    trained_depths : dict
        Model -> number of blocks it was trained with, or None where it runs no deeper.

    Returns
    -------
    list of dict
        Rows of the table `claims`: per claim and model one for the claim and one for each of its controls.

    Raises
    ------
    Refusal
        If a table has two rows where a test expects one, or lacks a layer of a run.
    """
    rows = []
    for claim in claims:
        for model in models:
            found = [_test(claim, test, frames, model, trained_depths.get(model)) for test in claim["tests"]]
            found[0] |= verdict(found)
            rows += found
    tested = [row for row in rows if row["test"] == CLAIM and row["p_sign"] is not None]
    for row, p in zip(tested, holm([row["p_sign"] for row in tested])):
        row["p_holm"] = p
    return rows


def verdict(tests):
    """Return the `verdict` of a claim and what it rests on, from the rows of its own test and of its controls."""
    own, *controls = tests
    if own["verdict"] == HOLDS:
        for outcome, said in ((FAILS, UNCONTROLLED), (UNDEFINED, UNDEFINED), (NOT_MEASURED, NOT_MEASURED)):
            for control in controls:
                if control["verdict"] == outcome:
                    return {"verdict": said, "because": f"holds, but for its control: {control['test']}, {outcome}"}
    return {"verdict": own["verdict"], "because": own["because"]}


def judge(values, expect):
    """Say what one number per prompt shows of an expectation.

    Parameters
    ----------
    values : dict
        Prompt -> number, or None where it is undefined.
    expect : dict
        One of `above`, `below`, `at_least`, `at_most` with a bound, or `between` with two.

    Returns
    -------
    dict
        `verdict`, `because`, `estimate`, `interval_low`, `interval_high`, `p_sign`, `smallest_p`, `n_prompts`,
        `n_supporting`, `n_undefined`, `undefined`: columns of the table `claims`.
    """
    known = [value for value in values.values() if value is not None]
    n = len(known)
    row = _empty() | {"n_prompts": n, "n_undefined": len(values) - n}
    if not known:
        return row | {"verdict": UNDEFINED}
    row["estimate"] = mean(known)
    row["n_supporting"] = sum(_within(value, value, expect) for value in known)
    row |= {"p_sign": sign_test(row["n_supporting"], n), "smallest_p": smallest_p(n)}
    try:
        low, high = interval(known)
    except Undefined as reason:
        return row | {"verdict": UNDEFINED, "because": str(reason), "undefined": f"interval: {reason}"}
    row |= {"interval_low": low, "interval_high": high, "verdict": HOLDS}
    if not _within(low, high, expect):
        outside = _outside(low, high, expect)
        said = "refuted: the interval lies wholly outside of" if outside else "not shown: the interval reaches beyond"
        row |= {"verdict": FAILS, "because": f"{said} what is expected, {expected(expect)}"}
    return row


def _within(low, high, expect):
    """Whether all of an interval is as expected."""
    ((kind, bound),) = expect.items()
    if kind == "between":
        return bound[0] <= low and high <= bound[1]
    return COMPARE[kind](low, bound) and COMPARE[kind](high, bound)


def _outside(low, high, expect):
    """Whether none of an interval is as expected."""
    ((kind, bound),) = expect.items()
    if kind == "between":
        return high < bound[0] or bound[1] < low
    return not COMPARE[kind](low, bound) and not COMPARE[kind](high, bound)


def _worst(values, expect):
    """The value that speaks most against the claim."""
    ((kind, bound),) = expect.items()
    if kind == "between":
        return max(values, key=lambda value: abs(value - sum(bound) / 2))
    return min(values) if kind in ("above", "at_least") else max(values)


def _empty():
    values = dict.fromkeys(
        ("because", "estimate", "interval_low", "interval_high", "p_sign", "smallest_p", "p_holm", "undefined")
        + (MEAN_INNER_PRODUCT, f"{MEAN_INNER_PRODUCT}_subtracted")
    )
    return values | {"n_prompts": 0, "n_supporting": 0, "n_undefined": 0}


def _test(claim, test, frames, model, trained_depth):
    """One row of the table."""
    keys = {"model": model, "claim": claim["id"], "test": test["name"]}
    keys |= {"statement": claim["statement"], "source": claim["source"]}
    keys |= {"words": in_words(test), "column": test["column"], "table": test["table"]}
    try:
        if claim["models"] is not None and model not in claim["models"]:
            raise NotMeasured(f"it is a claim about {', '.join(claim['models'])}")
        values, seeds, reasons = prompt_values(test, frames, model, trained_depth)
    except NotMeasured as reason:
        told = {"verdict": NOT_MEASURED, "because": str(reason), "undefined": str(reason)}
        return keys | _empty() | told | {"n_seeds": 0}
    row = judge(values, test["expect"])
    if reasons and row["n_undefined"]:
        reason = f"{row['n_undefined']} of {len(values)} prompts: {reasons.most_common(1)[0][0]}"
        row["undefined"] = "; ".join(filter(None, [row["undefined"], reason]))
        row["because"] = row["because"] or (reason if row["verdict"] == UNDEFINED else None)
    if test["table"] == "clusters":
        row |= _inner_products(test, values, frames, model, trained_depth)
    return keys | row | {"n_seeds": len(seeds)}


def _inner_products(test, values, frames, model, trained_depth):
    """The mean inner product of the states whose clusters a test counts, and of those that it subtracts."""
    own = {key: value for key, value in test.items() if key not in ("minus", "statistic", "tolerance", "per_token")}
    # An expectation that makes the most collapsed of several lines the worst.
    sides = {MEAN_INNER_PRODUCT: own | {"column": MEAN_INNER_PRODUCT, "expect": {"below": 1}}}
    other = {key: value for key, value in test.get("minus", {}).items() if key != "column"}
    if other:
        sides[f"{MEAN_INNER_PRODUCT}_subtracted"] = sides[MEAN_INNER_PRODUCT] | other
    found = {}
    for name, side in sides.items():
        cosines, *_ = prompt_values(side, frames, model, trained_depth)
        known = [c for prompt, c in cosines.items() if values.get(prompt) is not None and c is not None]
        found[name] = mean(known) if known else None
    return found


def prompt_values(test, frames, model, trained_depth):
    """Return one number per prompt, the seeds that went in, and a count of reasons where there is none.

    Parameters
    ----------
    test : dict
        One test of a claim.
    frames : dict of pyarrow.Table
    model : str
    trained_depth : int or None

    Returns
    -------
    (dict, set, Counter)
        Prompt -> number or None; seeds; reasons of the nulls among the rows used.

    Raises
    ------
    NotMeasured
        If the tables have no such rows.
    """
    own_runs = frames["runs"].select(RUN_COLUMNS).filter(pc.field("model") == model).to_pylist()
    runs = {(row["weights"], row["prompt"]): row for row in own_runs}
    own, seeds, reasons = _side(test, frames, model, trained_depth, runs)
    if "minus" not in test:
        pairs = [(values, None) for values in own.values()]
    else:
        less, other_seeds, other_reasons = _side(test | test["minus"], frames, model, trained_depth, runs)
        seeds, reasons = seeds | other_seeds, reasons + other_reasons
        # Weights that differ by a temperature of the theory pair with themselves, and with all of another scheme.
        pairs = [
            (values, others)
            for (line, beta), values in own.items()
            for (other, at), others in less.items()
            if beta == at and (line == other or "scheme" in test["minus"])
        ]
    prompts = dict.fromkeys(prompt for values, _ in pairs for prompt in values)
    return {prompt: _one(prompt, pairs, test["expect"]) for prompt in prompts}, seeds, reasons


def _one(prompt, pairs, expect):
    """A prompt's number, the worst of all lines; None where one of them is undefined."""
    found = []
    for values, others in pairs:
        value, other = values[prompt], 0.0 if others is None else others[prompt]
        if value is None or other is None:
            return None
        found.append(value - other)
    return _worst(found, expect)


def _side(test, frames, model, trained_depth, runs):
    """Return ({(line, beta): {prompt: number or None}}, seeds, reasons) of one side of a difference.

    A line is a scheme with all of its seeds, or weights that have none, by their slug.
    """
    lines, by_prompt, seeds, reasons = {}, {}, set(), Counter()
    for row in _rows(test, frames, model):
        lines.setdefault(row["weights"] if row["seed"] is None else row["scheme"], []).append(row)
    for line, rows in lines.items():
        cells, layers = {}, _layers(test["layers"], rows, runs, trained_depth)
        for row in rows:
            if row["layer"] in layers:
                run = (row["weights"], row["prompt"], row.get("beta"))
                seeds |= {row["seed"]} - {None}
                place = (row.get("group"), row["layer"])
                if place in cells.setdefault(run, {}):
                    raise Refusal(f"{test['table']}: two rows for {run} at layer {row['layer']}: a key is missing here")
                cells[run][place] = row[test["column"]]
                if row[test["column"]] is None:
                    reasons[reason_kind(row["undefined"])] += 1
        for (weights, prompt, beta), values in cells.items():
            value = _statistic(test, values, layers)
            if value is not None and test.get("per_token"):
                value /= runs[weights, prompt][N_TOKENS[test["tokens"]]]
            by_prompt.setdefault((line, beta), {}).setdefault(prompt, []).append(value)
    return (
        {line: {p: None if None in found else mean(found) for p, found in v.items()} for line, v in by_prompt.items()},
        seeds,
        reasons,
    )


def _rows(test, frames, model):
    """The rows that a test reads, for all weights of its scheme and all prompts."""
    if test["table"] not in frames:
        raise NotMeasured(f"the config computes no {test['table']}")
    frame = frames[test["table"]]
    wanted = {"model": model, "scheme": test["scheme"], "tokens": test["tokens"]}
    if "group" in test:
        wanted["group"] = test["group"]
    if "head" in frame.column_names:
        wanted["head"] = test.get("head", -1)
    if test.get("beta", "every") != "every":
        wanted["beta"] = float(test["beta"])
    frame = frame.filter(reduce(and_, (pc.field(key) == value for key, value in wanted.items())))
    frame = frame.filter(pc.field("stage") != "final_norm")
    if "order" in test:
        frame = frame.filter(pc.field("group").isin(test["order"]))
    if frame.num_rows == 0:
        raise NotMeasured(f"{test['table']} has no rows of {', '.join(f'{k} {v}' for k, v in wanted.items())}")
    keys = ["weights", "scheme", "seed", "prompt", "layer", "stage", "undefined"]
    keys += [key for key in ("group", "beta") if key in frame.column_names]
    rows = frame.select([*keys, test["column"]]).to_pylist()
    if METRICS[test["table"]].over in OF_BLOCKS:
        return [row | {"layer": row["layer"] + 1, "stage": "block"} for row in rows]
    return rows


def _layers(rule, rows, runs, trained_depth):
    """Return the layers of one line, in order, that a rule names; those beyond the trained depth where it says so."""
    n_blocks = max(runs[row["weights"], row["prompt"]]["n_blocks"] for row in rows)
    if rows[0]["scheme"] == "identity":
        # Its layers are steps, of which nothing was trained.
        trained_depth = None
    deepest = min(trained_depth or n_blocks, n_blocks)
    states = {(row["layer"], row["stage"]) for row in rows}
    depth = sorted(layer for layer, _ in states)
    if rule in ("trained_depth", "beyond_trained_depth"):
        if trained_depth is None:
            raise NotMeasured(f"the config gives this model no trained_depth, or none applies to {rows[0]['scheme']}")
        compare = gt if rule == "beyond_trained_depth" else eq
        found = [layer for layer in depth if compare(layer, trained_depth)]
    else:
        depth = [layer for layer in depth if layer <= deepest]
        blocks = {layer for layer, stage in states if stage == "block"}
        found = {
            "all": depth,
            "blocks": [layer for layer in depth if layer in blocks],
            "first": depth[:1],
            "last": depth[-1:],
        }.get(rule if isinstance(rule, str) else None)
        if found is None:
            low, high = rule["from"] - SLACK, rule["to"] + SLACK
            found = [layer for layer in depth if low <= layer / deepest <= high]
    if not found:
        raise NotMeasured(f"no layer is at {rule}: it has {n_blocks} blocks, trained depth {trained_depth or n_blocks}")
    return found


def _statistic(test, cells, layers):
    """One number of one run, from {(group, layer): value}; None where one of its values is."""
    groups = test.get("order") or [test.get("group")]
    absent = [(group, layer) for group in groups for layer in layers if (group, layer) not in cells]
    if absent:
        raise Refusal(f"{test['table']}: a run lacks layer {absent[0][1]}, which others have. Delete it and run again.")
    series = [[cells[group, layer] for layer in layers] for group in groups]
    if any(value is None for values in series for value in values):
        return None
    numbers = [_over_layers([float(value) for value in values], test) for values in series]
    if "order" in test:
        return min(larger - smaller for larger, smaller in zip(numbers, numbers[1:]))
    return numbers[0]


def _over_layers(values, test):
    statistic = test.get("statistic", "mean")
    if statistic == "mean":
        return mean(values)
    if len(values) < 2:
        raise NotMeasured(f"one layer at {test['layers']}: a step needs two")
    sign = 1 if statistic == "share_rising" else -1
    steps = zip(values, values[1:])
    return mean([float(sign * (after - before) > test.get("tolerance", 0) * abs(before)) for before, after in steps])


def write_claims(paths, claims, models, trained_depths, code, output, text):
    """Score the claims, and write them as a table and as text.

    Parameters
    ----------
    paths : list of path
        The results tables that there are, of those that the claims read.
    claims, models, trained_depths
        See `score`.
    code : str
        Hash of the code, for the record.
    output, text : path
        The parquet table, and the same rows separated by tabs; a null is an empty field.
    """
    frames = {Path(path).stem: tables.read(path, Path(path).stem) for path in paths}
    rows = score(claims, frames, models, trained_depths)
    record = {"code": code, "versions": versions("numpy", "pyarrow"), "claims": claims}
    tables.write(output, "claims", rows, record)
    names = tables.schema("claims").names
    lines = [names] + [[_field(row[name]) for name in names] for row in rows]
    write_text(text, "".join("\t".join(line) + "\n" for line in lines))


def _field(value):
    """A value as text; what is in the claims file is one line here."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else " ".join(str(value).split())
