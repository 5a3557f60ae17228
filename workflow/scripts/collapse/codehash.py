"""A content hash of the code that a result depends on.

Snakemake sees neither a change in an imported module nor the difference between an edit and a `touch`. Rules
therefore carry, as a parameter, the hash that this module makes: of the syntax trees of a file and of every
module of this package that it imports, directly or not. Comments, docstrings, formatting and file times do not
count; any change that could alter a result does.
"""

import ast
import hashlib
from functools import cache
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent.parent
# What happens to a job's messages cannot alter its result.
NO_RESULT = ("collapse.job",)


@cache
def code_hash(*sources):
    """Hash the code behind `sources`.

    Parameters
    ----------
    *sources : str
        Dotted modules of this package (`collapse.metrics.energy`) or script files beside it (`metric.py`).

    Returns
    -------
    str
        16 hexadecimal digits, the same for the same code on every machine and Python version.
    """
    digest = hashlib.sha256()
    for path in sorted(set().union(*(_closure(_locate(source)) for source in sources))):
        digest.update(str(path.relative_to(SCRIPTS)).encode())
        digest.update(_tree_hash(path).encode())
    return digest.hexdigest()[:16]


def dependencies(*sources):
    """Return the files, relative to the scripts directory, whose code `code_hash` covers for `sources`."""
    return sorted(str(path.relative_to(SCRIPTS)) for source in sources for path in _closure(_locate(source)))


def _locate(source):
    if source.endswith(".py"):
        return SCRIPTS / source
    stem = SCRIPTS.joinpath(*source.split("."))
    return stem / "__init__.py" if stem.is_dir() else stem.with_suffix(".py")


@cache
def _closure(path):
    found, waiting = set(), [path]
    while waiting:
        current = waiting.pop()
        if current not in found:
            found.add(current)
            waiting.extend(_imports(current))
    return frozenset(found)


@cache
def _tree(path):
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def _imports(path):
    """Files of this package that `path` imports anywhere, also inside functions."""
    names = set()
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = path.relative_to(SCRIPTS).parts[: -node.level] if node.level else ()
            origin = ".".join([*above, *filter(None, [node.module])])
            names.add(origin)
            names.update(f"{origin}.{alias.name}" for alias in node.names)
    names.add(".".join(path.relative_to(SCRIPTS).with_suffix("").parts))
    ours = {name for name in names if name.split(".")[0] == "collapse"}
    # Importing a module runs the packages above it.
    ours |= {name.rsplit(".", depth)[0] for name in ours for depth in range(1, name.count(".") + 1)}
    # `from collapse.errors import Refusal` names no file called Refusal: only what exists is a module.
    return [found for found in map(_locate, ours - set(NO_RESULT)) if found.is_file()]


@cache
def _tree_hash(path):
    digest = hashlib.sha256()
    _feed(_tree(path), digest.update)
    return digest.hexdigest()


def _feed(node, write):
    """Write a node's type and its non-empty fields: `ast.dump` differs between Python versions, this does not."""
    if isinstance(node, ast.AST):
        write(f"({type(node).__name__}".encode())
        for field, value in ast.iter_fields(node):
            if field == "body" and isinstance(value, list):
                value = [item for item in value if not _is_bare_string(item)]
            if value is not None and value != []:
                write(f" {field}=".encode())
                _feed(value, write)
        write(b")")
    elif isinstance(node, list):
        write(b"[")
        for item in node:
            _feed(item, write)
        write(b"]")
    else:
        write(f"{type(node).__name__}:{node!r}".encode())


def _is_bare_string(node):
    """A docstring, or a string standing alone as a comment."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
