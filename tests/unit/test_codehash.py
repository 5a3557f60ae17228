"""The code hash changes with what could change a result, and with nothing else."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from collapse import codehash, registry

ORIGINAL = codehash.SCRIPTS


class Copy:
    """A copy of the scripts that can be edited and hashed again."""

    def __init__(self, root):
        self.root = root

    def hash(self, *sources):
        self._forget()
        return codehash.code_hash(*sources)

    def dependencies(self, *sources):
        self._forget()
        return codehash.dependencies(*sources)

    def edit(self, name, old, new):
        path = self.root / name
        text = path.read_text(encoding="utf-8")
        assert text.count(old) >= 1, f"{old!r} is not in {name}"
        path.write_text(text.replace(old, new, 1), encoding="utf-8")

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    @staticmethod
    def _forget():
        for function in (codehash.code_hash, codehash._closure, codehash._tree, codehash._imports, codehash._tree_hash):
            function.cache_clear()


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """The real scripts, with two modules that are easy to edit: collapse.metrics.plain imports collapse.helper."""
    root = tmp_path / "scripts"
    shutil.copytree(ORIGINAL, root, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(codehash, "SCRIPTS", root)
    copy = Copy(root)
    copy.write("collapse/helper.py", HELPER)
    copy.write("collapse/lonely.py", "VALUE = 1\n")
    copy.write("collapse/metrics/plain.py", PLAIN)
    yield copy
    copy._forget()


HELPER = '''"""Help."""

from collapse.errors import Undefined

FACTOR = 2.0


def scaled(values):
    """Scale."""
    if not values:
        raise Undefined("nothing to scale")
    return [FACTOR * value for value in values]
'''

PLAIN = '''"""A metric."""

from collapse.helper import scaled

NEAR_ONE = 0.9
NAMES = ("a", "b")


class Holder:
    """A class."""

    limit = 3


def plain(values, tolerance=1e-6):
    """Compute it."""
    kept = [value for value in scaled(values) if value > NEAR_ONE]
    return sum(kept), tolerance
'''

METRIC = "collapse.metrics.plain"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("NEAR_ONE = 0.9", "NEAR_ONE = 0.9  # a share"),
        ("NEAR_ONE = 0.9", "# Near one.\n\n\nNEAR_ONE = 0.9"),
        ('"""A metric."""', '"""Another text."""'),
        ('"""A metric."""', ""),
        ('"""A class."""', '"""Another class."""'),
        ('    """Compute it."""\n', ""),
        ('("a", "b")', "(\n    'a',\n    'b',\n)"),
        ("sum(kept), tolerance", "(sum(kept), tolerance)"),
        ("1e-6", "0.000001"),
        ("    limit = 3", "    'a string that stands alone'\n    limit = 3"),
        ("value > NEAR_ONE", "value  >  NEAR_ONE"),
    ],
)
def test_comments_docstrings_and_format_do_not_count(copy, old, new):
    before = copy.hash(METRIC)
    copy.edit("collapse/metrics/plain.py", old, new)
    assert copy.hash(METRIC) == before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("NEAR_ONE = 0.9", "NEAR_ONE = 0.95"),
        ("limit = 3", "limit = 3.0"),
        ("limit = 3", "limit = True"),
        ("limit = 3", 'limit = "3"'),
        ("limit = 3", "limit = None"),
        ("value > NEAR_ONE", "value >= NEAR_ONE"),
        ("tolerance=1e-6", "tolerance=1e-7"),
        ('("a", "b")', '("ab",)'),
        ('("a", "b")', '("b", "a")'),
        ('("a", "b")', '["a", "b"]'),
        ("sum(kept)", "len(kept)"),
        ("def plain", "def plainer"),
        ("class Holder:", "class Holder(dict):"),
        ("for value in scaled(values)", "for value in values"),
        ("from collapse.helper import scaled", "from collapse.helper import FACTOR as scaled"),
    ],
)
def test_what_could_change_a_result_counts(copy, old, new):
    before = copy.hash(METRIC)
    copy.edit("collapse/metrics/plain.py", old, new)
    assert copy.hash(METRIC) != before


def test_file_times_do_not_count(copy):
    before = copy.hash(METRIC)
    for path in copy.root.rglob("*.py"):
        os.utime(path, (1, 1))
    assert copy.hash(METRIC) == before


def test_the_place_of_the_checkout_does_not_count(copy, monkeypatch):
    here = copy.hash("collapse.metrics.energy", "metric.py")
    monkeypatch.setattr(codehash, "SCRIPTS", ORIGINAL)
    assert copy.hash("collapse.metrics.energy", "metric.py") == here


def test_hash_randomisation_and_the_order_of_sources_do_not_count():
    program = "from collapse.codehash import code_hash; print(code_hash('collapse.metrics.cka', 'metric.py'))"
    found = {codehash.code_hash("metric.py", "collapse.metrics.cka")}
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ORIGINAL)}
        found.add(subprocess.check_output([sys.executable, "-c", program], env=environment, text=True).strip())
    assert len(found) == 1


def test_a_hash_is_16_hexadecimal_digits(copy):
    assert len(copy.hash(METRIC)) == 16
    assert int(copy.hash(METRIC), 16) >= 0


def test_an_imported_helper_counts_and_its_own_imports_too(copy):
    before = copy.hash(METRIC)
    copy.edit("collapse/helper.py", "FACTOR = 2.0", "FACTOR = 3.0")
    changed = copy.hash(METRIC)
    copy.edit("collapse/errors.py", "class Undefined(Exception)", "class Undefined(ValueError)")
    assert len({before, changed, copy.hash(METRIC)}) == 3


def test_a_comment_in_a_helper_does_not_count(copy):
    before = copy.hash(METRIC)
    copy.edit("collapse/helper.py", "FACTOR = 2.0", "FACTOR = 2.0  # why")
    assert copy.hash(METRIC) == before


def test_a_module_that_is_not_imported_does_not_count(copy):
    before = copy.hash(METRIC)
    copy.edit("collapse/lonely.py", "VALUE = 1", "VALUE = 2")
    copy.edit("collapse/weights.py", '"norm-matched": 1e-6', '"norm-matched": 1e-3')
    copy.write("collapse/metrics/another.py", "VALUE = 1\n")
    assert copy.hash(METRIC) == before


@pytest.mark.parametrize(
    "statement",
    [
        "import collapse.lonely",
        "import collapse.lonely as other",
        "from collapse import lonely",
        "from collapse.lonely import VALUE",
        "from collapse.lonely import *",
    ],
)
def test_every_form_of_import_counts(copy, statement):
    copy.edit("collapse/metrics/plain.py", "from collapse.helper", f"{statement}\nfrom collapse.helper")
    assert "collapse/lonely.py" in copy.dependencies(METRIC)
    before = copy.hash(METRIC)
    copy.edit("collapse/lonely.py", "VALUE = 1", "VALUE = 2")
    assert copy.hash(METRIC) != before


def test_an_import_inside_a_function_counts(copy):
    copy.edit(
        "collapse/metrics/plain.py", "    kept =", "    from collapse.lonely import VALUE\n\n    kept = [VALUE] or"
    )
    before = copy.hash(METRIC)
    copy.edit("collapse/lonely.py", "VALUE = 1", "VALUE = 2")
    assert copy.hash(METRIC) != before


def test_a_relative_import_counts(copy):
    copy.edit("collapse/metrics/plain.py", "from collapse.helper import", "from ..helper import")
    before = copy.hash(METRIC)
    copy.edit("collapse/helper.py", "FACTOR = 2.0", "FACTOR = 3.0")
    assert copy.hash(METRIC) != before


def test_the_packages_above_an_imported_module_count(copy):
    # Importing collapse.metrics.plain runs collapse/__init__.py and collapse/metrics/__init__.py first.
    before = copy.hash(METRIC)
    copy.write("collapse/metrics/__init__.py", "import numpy\n\nnumpy.seterr(all='raise')\n")
    changed = copy.hash(METRIC)
    copy.write("collapse/__init__.py", "import os\n\nos.environ['OMP_NUM_THREADS'] = '1'\n")
    assert len({before, changed, copy.hash(METRIC)}) == 3


def test_modules_that_import_each_other_are_hashed(copy):
    copy.edit("collapse/lonely.py", "VALUE = 1", "VALUE = 1\nimport collapse.helper")
    copy.edit("collapse/helper.py", "FACTOR = 2.0", "import collapse.lonely\nFACTOR = 2.0")
    assert {"collapse/helper.py", "collapse/lonely.py"} <= set(copy.dependencies("collapse.lonely"))
    assert copy.hash("collapse.lonely") != copy.hash("collapse.metrics.energy")


def test_the_name_of_a_file_counts(copy):
    copy.write("collapse/twin.py", "VALUE = 1\n")
    assert copy.hash("collapse.twin") != copy.hash("collapse.lonely")


def test_a_script_covers_what_it_imports_inside_its_job(copy):
    before = copy.hash("trained_weights.py")
    assert "collapse/weights.py" in copy.dependencies("trained_weights.py")
    copy.edit("collapse/weights.py", '"norm-matched": 1e-6', '"norm-matched": 1e-3')
    assert copy.hash("trained_weights.py") != before


def test_a_source_that_is_no_file_is_an_error(copy):
    with pytest.raises(FileNotFoundError):
        copy.hash("collapse.metrics.no_such_metric")


@pytest.mark.parametrize("edited", registry.METRICS)
def test_an_edit_of_one_metric_changes_the_hash_of_that_metric_alone(copy, edited):
    before = {name: copy.hash(registry.module(name), "metric.py") for name in registry.METRICS}
    assert len(set(before.values())) == len(before)
    with open(copy.root / f"collapse/metrics/{edited}.py", "a") as file:
        file.write("\nEDITED = 1\n")
    after = {name: copy.hash(registry.module(name), "metric.py") for name in registry.METRICS}
    assert {name for name in before if after[name] != before[name]} == {edited}


def test_no_metric_depends_on_code_that_loads_models(copy):
    heavy = {"collapse/checkpoint.py", "collapse/forward.py", "collapse/weights.py", "collapse/extraction.py"}
    for name in registry.METRICS:
        assert not heavy & set(copy.dependencies(registry.module(name), "metric.py"))
    assert not heavy & set(copy.dependencies("attention_received.py", "identity_attention.py"))


def test_extraction_depends_on_nothing_of_attention(copy):
    assert not [path for path in copy.dependencies("extract.py", "identity_states.py") if "attention" in path]


def test_every_dependency_is_a_file_of_the_scripts():
    for path in codehash.dependencies("collapse.metrics.cka", "metric.py", "extract.py"):
        assert (Path(ORIGINAL) / path).is_file()
