"""How input of users is checked against a JSON schema, in messages that name key, value and what is allowed."""

import difflib
import math

import jsonschema

# Stricter than JSON: a whole number is no 1.0, whose text in a path or seed would differ, and inf is no number.
VALIDATOR = jsonschema.validators.extend(
    jsonschema.Draft202012Validator,
    type_checker=jsonschema.Draft202012Validator.TYPE_CHECKER.redefine_many(
        {
            "integer": lambda _, value: isinstance(value, int) and not isinstance(value, bool),
            "number": lambda _, value: (
                isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
            ),
        }
    ),
)


def explain(error, root="config"):
    """Turn a schema error into: key, value, what is allowed. `root` is what the whole of the input is called."""
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path).lstrip(".")
    value, spec, kind = error.instance, error.schema, error.validator
    if kind == "additionalProperties":
        allowed = sorted(spec["properties"])
        unknown = sorted(map(str, set(value) - set(allowed)))
        return "; ".join(
            f"{'.'.join(filter(None, [key, name]))}: unknown key{suggest(name, allowed)}; allowed: {', '.join(allowed)}"
            for name in unknown
        )
    key = key or root
    if kind == "required":
        missing = [name for name in error.validator_value if name not in value]
        return f"{key}: lacks {', '.join(missing)}{_meaning(spec, missing)}"
    if kind == "type":
        wanted = error.validator_value
        return f"{key}: found {value!r}, allowed: {_types(wanted)}{_yaml_hint(value, wanted)}"
    if kind == "enum":
        allowed = error.validator_value
        return f"{key}: found {value!r}{suggest(value, allowed)}; allowed: {', '.join(map(str, allowed))}"
    if kind == "pattern":
        return f"{key}: found {value!r}, allowed: {spec.get('description', error.validator_value)}"
    return f"{key}: {error.message}" + (f"; {spec['description']}" if "description" in spec else "")


def _meaning(spec, names):
    texts = [
        f"{name}: {spec['properties'][name]['description']}"
        for name in names
        if "description" in spec.get("properties", {}).get(name, {})
    ]
    return f" ({'; '.join(texts)})" if texts else ""


def _types(names):
    names = [names] if isinstance(names, str) else names
    words = {
        "object": "a mapping",
        "array": "a list",
        "string": "text",
        "integer": "a whole number",
        "number": "a number",
    }
    return " or ".join(words.get(name, name) for name in names)


def _yaml_hint(value, wanted):
    if wanted in ("number", "integer") and isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            return ""
        if math.isfinite(number):
            written = repr(number) if "." in repr(number) else repr(number).replace("e", ".0e")
            return f" (YAML read it as text: write {written}, without quotes)"
    if wanted == "string" and isinstance(value, bool):
        return " (YAML reads yes, no, on and off as true or false: put it in quotes)"
    if wanted == "string" and isinstance(value, (int, float)):
        return " (YAML read it as a number: put it in quotes)"
    return ""


def suggest(word, allowed):
    """Return ", did you mean ...?" with the nearest of `allowed`; empty where none is near."""
    close = difflib.get_close_matches(str(word), list(map(str, allowed)), n=1)
    return f", did you mean {close[0]!r}?" if close else ""


def duplicates(key, names):
    """Return one fault for each name that stands more than once under `key`."""
    return [
        f"{key}: {name!r} stands {names.count(name)} times; each may stand once"
        for name in sorted(set(names))
        if names.count(name) > 1
    ]


def in_order(value):
    """Order the keys at every depth: Snakemake compares parameters as text, so their order would count."""
    if isinstance(value, list):
        return [in_order(item) for item in value]
    return {key: in_order(value[key]) for key in sorted(value)} if isinstance(value, dict) else value
