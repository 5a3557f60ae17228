"""The claims file: its validation, before any job starts, against the schema, the described tables and the config."""

from pathlib import Path

import yaml

from collapse.tables import description
from collapse.validation import VALIDATOR, duplicates, explain, in_order, suggest

SCHEMA = Path(__file__).resolve().parents[2] / "schemas" / "claims.schema.yaml"
# The name of a claim's own test, beside those of its controls.
CLAIM = "claim"
NUMBERS = ("bool", "int16", "int32", "int64", "float64")


def schema():
    """Return the parsed JSON schema of one claim."""
    return yaml.safe_load(SCHEMA.read_text(encoding="utf-8"))


def read_claims(path, models, schemes):
    """Read and validate a claims file.

    Parameters
    ----------
    path : Path
    models : list of str
        The models of the config.
    schemes : list of str
        Every scheme of weights that there is, in this config or not.

    Returns
    -------
    (list of dict, list of str)
        The claims, and the faults found. A claim has `id`, `statement`, `source`, `models` (None for all) and `tests`,
        the claim's own first and then its controls, each with its `name` and written out in full.
    """
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return [], [f"claims: {path} does not exist"]
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        return [], [f"claims: {path} cannot be read as YAML: {error}"]
    if not isinstance(entries, list):
        return [], [f"claims: {path} holds {type(entries).__name__}, allowed: a list of claims"]
    validator = VALIDATOR(schema())
    claims, faults = [], []
    for index, entry in enumerate(entries):
        own = sorted({explain(error, "the claim") for error in validator.iter_errors(entry)})
        if not own:
            claim = _expanded(entry)
            own = _name_faults(claim, models, schemes)
            claims.append(claim)
        name = entry["id"] if isinstance(entry, dict) and isinstance(entry.get("id"), str) else f"[{index}]"
        faults += [f"{path}, {name}: {fault}" for fault in own]
    return claims, faults + duplicates(str(path), [claim["id"] for claim in claims])


def _expanded(entry):
    """A claim with all of its tests written out."""
    own = entry["test"]
    tests = [{"name": CLAIM} | own]
    tests += [{"name": control["name"]} | _changed(own, control["change"]) for control in entry["controls"]]
    keys = {key: entry[key] for key in ("id", "statement", "source")}
    return in_order(keys | {"models": entry.get("models"), "tests": tests})


def _changed(test, change):
    """A test under a control: another table has its own groups and heads."""
    if change.get("table", test["table"]) != test["table"]:
        test = {key: value for key, value in test.items() if key not in ("group", "order", "head", "beta")}
    return test | change


def _name_faults(claim, models, schemes):
    """What names something that is not there."""
    faults = duplicates("controls", [test["name"] for test in claim["tests"]])
    for name in claim["models"] or []:
        if name not in models:
            faults.append(f"models: {name!r} is no model of the config{suggest(name, models)}; it has: {_list(models)}")
    own, *controls = claim["tests"]
    told = _test_faults(own, schemes)
    faults += [f"test: {fault}" for fault in told]
    for control in controls:
        where = f"control {control['name']!r}"
        faults += [f"{where}: {fault}" for fault in _test_faults(control, schemes) if fault not in told]
        if control | {"name": CLAIM} == own:
            faults.append(f"{where}: changes nothing")
    return faults


def _test_faults(test, schemes):
    tables = layered_tables()
    if test["table"] not in tables:
        near = suggest(test["table"], tables)
        return [f"table: {test['table']!r} is no table with a row per layer{near}; there are: {_list(tables)}"]
    spec = tables[test["table"]]
    minus, faults = test.get("minus", {}), []
    numeric = [name for name, column in spec["columns"].items() if column["type"] in NUMBERS]
    for key, column in (("column", test["column"]), ("minus.column", minus.get("column"))):
        if column not in (None, *numeric):
            faults.append(
                f"{key}: {test['table']} has no column {column!r} of numbers{suggest(column, numeric)}; "
                f"it has: {_list(numeric)}"
            )
    for key, scheme in (("scheme", test["scheme"]), ("minus.scheme", minus.get("scheme"))):
        if scheme not in (None, *schemes):
            faults.append(f"{key}: {scheme!r} is no scheme{suggest(scheme, schemes)}; config/README.md lists them")
    faults += _group_faults(test, spec)
    for key in ("head", "beta"):
        if key in test and key not in spec["keys"]:
            faults.append(f"{key}: {test['table']} has none; take this key out")
    if "beta" in spec["keys"] and "beta" not in test:
        faults.append(f"lacks beta: {test['table']} has one value per inverse temperature; name one, or every")
    if "tolerance" in test and test.get("statistic", "mean") == "mean":
        faults.append("tolerance: a mean over layers has none; take it out, or name share_rising or share_falling")
    for key, layers in (("layers", test["layers"]), ("minus.layers", minus.get("layers"))):
        if isinstance(layers, dict) and layers["from"] > layers["to"]:
            faults.append(f"{key}: from {layers['from']} lies beyond to {layers['to']}")
    low, high = test["expect"].get("between", (0, 1))
    if low >= high:
        faults.append(f"expect.between: {low} is not below {high}")
    return faults


def _group_faults(test, spec):
    named = {key: test[key] for key in ("group", "order") if key in test}
    minus = test.get("minus", {}).get("group")
    if "group" not in spec["keys"]:
        named |= {"minus.group": minus} if minus else {}
        return [f"{key}: {test['table']} has no groups; take this key out" for key in named]
    faults = []
    if len(named) != 1 or ("order" in named and minus):
        faults.append(f"{test['table']} has a value per group: name one as `group`, or several in `order`")
    for group in [*test.get("order", []), *filter(None, [test.get("group"), minus])]:
        if group not in spec["groups"]:
            groups = spec["groups"]
            faults.append(f"group {group!r} is not in {test['table']}{suggest(group, groups)}; it has: {_list(groups)}")
    return faults


def layered_tables():
    """Return the described tables that claims can read: those with one row per layer (and group, head or beta)."""
    return {
        name: spec
        for name, spec in description()["tables"].items()
        if "layer" in spec["keys"] and "position" not in spec["columns"]
    }


def in_words(test):
    """Say in one line what a test takes from which rows.

    >>> in_words({"table": "cka", "column": "cka_biased", "scheme": "trained", "tokens": "all", "layers": "blocks",
    ...           "expect": {"above": 0.9}})
    'cka_biased of cka, trained, all tokens, layers: blocks; above 0.9'
    """
    what = {"share_rising": "share of rising steps of ", "share_falling": "share of falling steps of "}
    words = what.get(test.get("statistic"), "") + f"{test['column']} of {test['table']}"
    words += " per token" if test.get("per_token") else ""
    parts = [words, test["scheme"], f"{test['tokens']} tokens", f"layers: {_layers_in_words(test['layers'])}"]
    parts += [f"{key} {test[key]}" for key in ("group", "head", "beta") if key in test]
    if "order" in test:
        parts.append(f"smallest step down along {' > '.join(test['order'])}")
    if "minus" in test:
        less = {key: _layers_in_words(value) if key == "layers" else value for key, value in test["minus"].items()}
        parts.append("minus the same of " + " and ".join(f"{key} {value}" for key, value in less.items()))
    return f"{', '.join(parts)}; {expected(test['expect'])}"


def expected(expect):
    """Say what is claimed of a value.

    >>> expected({"between": [0.4, 0.6]}), expected({"at_most": 0})
    ('between 0.4 and 0.6', 'at most 0')
    """
    ((kind, bound),) = expect.items()
    return f"between {bound[0]} and {bound[1]}" if kind == "between" else f"{kind.replace('_', ' ')} {bound}"


def _layers_in_words(layers):
    return layers.replace("_", " ") if isinstance(layers, str) else f"depth {layers['from']} to {layers['to']}"


def _list(names):
    return ", ".join(names)
