"""The scorecard as the report shows it: claims down, models across, and where the models split."""

from collapse.claims import FAILS, HOLDS, NOT_MEASURED, UNCONTROLLED, UNDEFINED
from collapse.claims_file import CLAIM
from collapse.registry import FIGURES

JUDGED = (HOLDS, UNCONTROLLED, FAILS)
# A failure counts as what it is: few prompts show little, which is not to refute it.
OUTCOMES = (HOLDS, UNCONTROLLED, "refuted", "not shown", UNDEFINED, NOT_MEASURED)


def scorecard(rows, drawn):
    """Arrange the table of claims for the report.

    Parameters
    ----------
    rows : list of dict
        The table `claims`.
    drawn : list of str
        Names of the figures that the report holds, name or name/subject.

    Returns
    -------
    dict
        `models`; `claims`, each with `id`, `statement`, `source`, `split` (what differs between models, or None),
        `cells` (its own test on every model) and `tests` (with its controls); `unmeasured`, the same of claims that are
        measured on no model; `counts`, {model: {outcome: number}}; `n_tests`, how many p-values Holm's correction is
        over; `smallest_p`, {number of prompts: the p it can reach}; `smallest_p_holm`, what a corrected p can reach, or
        None. Cells are rows of the table with `figure`, the name of a figure or None, and `word`, what a failure is.
    """
    rows = [row | {"figure": figure_of(row, drawn), "word": _word(row)} for row in rows]
    own = [row for row in rows if row["test"] == CLAIM]
    models = list(dict.fromkeys(row["model"] for row in rows))
    claims = []
    for name in dict.fromkeys(row["claim"] for row in rows):
        cells = [row for row in own if row["claim"] == name]
        tests = [row for row in rows if row["claim"] == name]
        order = list(dict.fromkeys(row["test"] for row in tests))
        tests.sort(key=lambda row: order.index(row["test"]))
        words = {"id": name, "statement": cells[0]["statement"], "source": cells[0]["source"]}
        claims.append(words | {"split": split(cells), "cells": cells, "tests": tests})
    counts = {}
    for model in models:
        found = [row["word"] or row["verdict"] for row in own if row["model"] == model]
        counts[model] = {outcome: found.count(outcome) for outcome in OUTCOMES if outcome in found}
    n_tests = sum(row["p_holm"] is not None for row in own)
    smallest = dict(sorted({r["n_prompts"]: r["smallest_p"] for r in own if r["smallest_p"] is not None}.items()))
    measured = {claim["id"]: any(cell["verdict"] != NOT_MEASURED for cell in claim["cells"]) for claim in claims}
    return {
        "models": models,
        "claims": [claim for claim in claims if measured[claim["id"]]],
        "unmeasured": [claim for claim in claims if not measured[claim["id"]]],
        "counts": counts,
        "n_tests": n_tests,
        "smallest_p": smallest,
        "smallest_p_holm": min(1.0, n_tests * min(smallest.values())) if smallest else None,
    }


def split(cells):
    """Say in words how models differ on a claim; None where they do not, or where fewer than two have a verdict.

    They differ in their verdict, or under one verdict in their direction: on one model every prompt says what is
    claimed, on another none.
    """
    judged = [cell for cell in cells if cell["verdict"] in JUDGED]
    found = {v: [cell for cell in judged if cell["verdict"] == v] for v in JUDGED}
    if sum(map(bool, found.values())) > 1:
        return "; ".join(f"{verdict} on {_named(members)}" for verdict, members in found.items() if members)
    every = [cell for cell in judged if cell["n_supporting"] == cell["n_prompts"]]
    none = [cell for cell in judged if cell["n_supporting"] == 0]
    if every and none:
        return f"{judged[0]['verdict']} on all, but every prompt agrees on {_named(every)} and none on {_named(none)}"
    return None


def figure_of(row, drawn):
    """Return the figure that shows a row's column, else one that reads its table; None where none is drawn."""
    own, others = [], []
    for name in drawn:
        base, _, subject = name.partition("/")
        figure = FIGURES[base]
        if row["table"] in figure.tables and (figure.per != "model" or subject == row["model"]):
            (own if base == row["column"] else others).append(name)
    return next(iter(own + others), None)


def _named(cells):
    return ", ".join(f"{cell['model']} ({cell['estimate']:.3g})" for cell in cells)


def _word(row):
    """`refuted` or `not shown`, for a failure."""
    return row["because"].partition(":")[0] if row["verdict"] == FAILS else None
