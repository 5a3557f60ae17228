"""From one file per run to one table: every run once, each where it belongs, and mixtures said."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from collapse import tables
from collapse.aggregate import aggregate, runs_table
from collapse.errors import Refusal
from collapse.measure import measure, metric_record, rows_of
from collapse.metrics.energy import energy
from collapse.metrics.inner_products import inner_products
from collapse.states import StatesFile, writing

N, D, BLOCKS = 5, 8, 2
SCHEMES = {"trained": ("trained", None), "norm-matched-s3": ("norm-matched", 3), "identity-b1": ("identity", None)}
WEIGHTS = list(SCHEMES)
SCHEMES["identity-b1-n2"] = ("identity", None)
GRID = [(m, w, p) for m in ("gpt2", "distilgpt2") for w in WEIGHTS for p in ("letter", "code")]
RUNS = ["/".join(run) for run in GRID]


class Results:
    """A results folder: states and metric files of any run, written as the workflow writes them."""

    def __init__(self, root):
        self.root = Path(root)
        self.output = self.root / "tables" / "table.parquet"

    def states(self, run, n_states=None, write=None, **changes):
        model, weights, prompt = run
        path = self.root / "states" / f"{'/'.join(run)}.parquet"
        scheme, seed = SCHEMES[weights]
        record = {
            "model": model,
            "weights": weights,
            "prompt": prompt,
            "scheme": scheme,
            "seed": seed,
            "n_blocks": BLOCKS,
        }
        record |= {"trained_depth": BLOCKS, "beta": 1.0 if scheme == "identity" else None}
        record |= {"n_states": n_states or BLOCKS + 1, "is_causal": True, "n_tokens_untruncated": 7, "token_limit": N}
        record |= {"weights_hash": f"{model}/{weights}", "prompt_hash": prompt, "device": "cpu", "dtype": "float32"}
        record |= {"versions": {"torch": "2"}} | changes
        tokens = pa.table(
            {
                "position": range(N),
                "token_id": range(N),
                "token": list("abcde"),
                "is_special": [False] * (N - 1) + [True],
                "is_first": [True] + [False] * (N - 1),
                "is_punctuation": [False] * N,
            }
        )
        rng = np.random.default_rng(GRID.index(run) if run in GRID else len(GRID))
        with writing(path, tokens, D, record) as put:
            for layer in range(write or record["n_states"]):
                put(layer, "block" if layer else "embedding", rng.standard_normal((N, D)))
        return path

    def inner_products(self, run, code="c1", attention=None, **changes):
        source = self.states(run, **changes)
        rows = rows_of(measure(source, inner_products, "layer", {}), "inner_products")
        record = metric_record(source, {"name": "inner_products", "packages": []}, {}, code)
        record |= {"attention": attention} if attention else {}
        path = self.root / "metrics" / "inner_products" / f"{'/'.join(run)}.parquet"
        tables.write(path, "inner_products", rows, record)
        return path

    def energy(self, run, beta, at=None):
        source = self.states(run)
        options = {"tolerance": 1e-9, "beta": beta}
        measured = measure(source, energy, "trajectory", options, {"beta": beta})
        record = metric_record(source, {"name": "energy", "packages": []}, options, "c1")
        path = self.root / "metrics" / "energy" / f"b{beta:g}" / f"{'/'.join(at or run)}.parquet"
        tables.write(path, "energy", rows_of(measured, "energy"), record)
        return path

    def gather(self, paths, table="inner_products", runs=RUNS):
        aggregate(paths, table, runs, self.output)
        return tables.read(self.output, table)

    def refused(self, paths, match, table="inner_products", runs=RUNS):
        with pytest.raises(Refusal, match=match) as refusal:
            aggregate(paths, table, runs, self.output)
        assert not self.output.exists()
        return str(refusal.value)


@pytest.fixture
def results(tmp_path):
    return Results(tmp_path / "results")


# The table


def test_the_table_is_every_row_of_every_run_in_the_grid_s_order(results):
    paths = [results.inner_products(run) for run in GRID]
    table = results.gather(paths)
    assert table.to_pylist() == [row for path in paths for row in tables.read(path, "inner_products").to_pylist()]
    # Two token rules, and each state, of each run.
    assert len(table) == len(GRID) * 2 * (BLOCKS + 1)
    found = ["/".join(row[key] for key in ("model", "weights", "prompt")) for row in table.to_pylist()]
    assert list(dict.fromkeys(found)) == RUNS


def test_every_beta_of_every_run_is_in_the_table(results):
    paths = [results.energy(run, beta) for beta in (0.1, 1.0, 5.0) for run in GRID]
    table = results.gather(paths, "energy")
    assert len(table) == len(paths) * 2 * (BLOCKS + 1)
    assert sorted(set(table["beta"].to_pylist())) == [0.1, 1.0, 5.0]


def test_the_record_says_what_the_table_was_made_from(results):
    results.gather([results.inner_products(run) for run in GRID])
    found = tables.record(results.output)
    assert found["table"] == "inner_products" and found["n_runs"] == len(GRID)
    assert found["code"] == "c1" and found["options"] == {}
    assert {"python", "numpy", "pyarrow"} == set(found["versions"])
    assert found["states"] == {"versions": {"torch": "2"}, "device": "cpu", "dtype": "float32"}
    assert found["weights_hashes"] == {f"{m}/{w}": f"{m}/{w}" for m, w, _ in GRID}
    assert found["prompt_hashes"] == {"letter": "letter", "code": "code"}


def test_options_of_several_betas_are_a_list(results):
    results.gather([results.energy(run, beta) for beta in (1.0, 5.0) for run in GRID], "energy")
    options = tables.record(results.output)["options"]
    assert options == [{"beta": 1.0, "tolerance": 1e-9}, {"beta": 5.0, "tolerance": 1e-9}]


def test_mixed_code_versions_and_devices_are_recorded_as_lists(results):
    paths = [results.inner_products(run) for run in GRID[2:]]
    paths.append(results.inner_products(GRID[0], code="c0", versions={"torch": "1"}, device="NVIDIA H100"))
    paths.append(results.inner_products(GRID[1], dtype="float64"))
    results.gather(paths)
    found = tables.record(results.output)
    assert found["code"] == ["c0", "c1"]
    assert found["states"]["versions"] == [{"torch": "1"}, {"torch": "2"}]
    assert found["states"]["device"] == ["NVIDIA H100", "cpu"]
    assert found["states"]["dtype"] == ["float32", "float64"]


def test_the_theory_s_particles_are_no_other_number_type_of_forward_passes(results):
    particles = [run for run in GRID if run[1] == "identity-b1"]
    paths = [results.inner_products(run, **({"dtype": "float64"} if run in particles else {})) for run in GRID]
    results.gather(paths)
    assert tables.record(results.output)["states"]["dtype"] == "float32"
    results.gather([path for path in paths if "identity" in str(path)], runs=["/".join(run) for run in particles])
    assert tables.record(results.output)["states"]["dtype"] == "float64"


def test_the_record_says_on_what_the_passes_over_attention_ran(results):
    results.gather([results.inner_products(run) for run in GRID])
    assert "attention" not in tables.record(results.output)
    made = {"device": "cpu", "dtype": "float32", "implementation": "eager", "versions": {"torch": "2"}}
    passes = dict.fromkeys(GRID, made) | {GRID[0]: made | {"device": "GPU", "versions": {"torch": "3"}}}
    # What the theory's attention records.
    passes |= {run: {"device": "cpu", "dtype": "float64"} for run in GRID if run[1] == "identity-b1"}
    results.gather([results.inner_products(run, attention=passes[run]) for run in GRID])
    versions = [{"torch": "2"}, {"torch": "3"}]
    found = {"device": ["GPU", "cpu"], "dtype": "float32", "versions": versions}
    assert tables.record(results.output)["attention"] == found


def test_the_order_of_mixed_entries_does_not_depend_on_the_order_of_files(results):
    paths = [results.inner_products(run, code=f"c{i % 3}") for i, run in enumerate(GRID)]
    results.gather(paths)
    forwards = tables.record(results.output)
    results.gather(paths[::-1])
    assert tables.record(results.output) == forwards


# Refusals


@pytest.mark.parametrize("missing", [0, 7, len(GRID) - 1])
def test_a_missing_run_is_refused_by_name_and_never_an_absent_row(results, missing):
    paths = [results.inner_products(run) for i, run in enumerate(GRID) if i != missing]
    message = results.refused(paths, "1 runs of the grid are missing")
    assert RUNS[missing] in message and "inner_products" in message


def test_all_missing_runs_are_counted(results):
    results.refused([results.inner_products(GRID[0])], f"{len(GRID) - 1} runs of the grid are missing")


@pytest.mark.parametrize("kept", [1, 2])
def test_a_beta_that_some_runs_lack_is_refused(results, kept):
    two = GRID[:2]
    paths = [results.energy(run, 1.0) for run in two]
    lacking = [results.energy(two[0], 5.0)] if kept == 1 else [results.energy(two[0], 5.0), results.energy(two[1], 2.0)]
    results.refused(paths + lacking, "missing", "energy", ["/".join(run) for run in two])


def test_a_file_that_is_given_twice_is_refused(results):
    paths = [results.inner_products(run) for run in GRID]
    results.refused(paths + paths, "inner_products")


def test_a_file_that_holds_another_run_than_its_path_says_is_refused(results):
    paths = [results.inner_products(run) for run in GRID]
    paths[0].write_bytes(paths[1].read_bytes())
    message = results.refused(paths, f"holds the run {RUNS[1]}")
    assert str(paths[0]) in message and "Delete it and run again" in message


def test_a_model_whose_name_ends_like_another_s_is_not_taken_for_it(results):
    # The file of distilgpt2 at beta 5 holds gpt2; every run is there at some beta, and the counts are right.
    pairs = [("gpt2", "trained", "letter"), ("distilgpt2", "trained", "letter")]
    paths = [results.energy(run, 1.0) for run in pairs]
    paths += [results.energy(pairs[0], 5.0), results.energy(pairs[0], 5.0, at=pairs[1])]
    results.refused(paths, "holds the run gpt2/trained/letter", "energy", ["/".join(run) for run in pairs])


def test_a_file_that_holds_another_beta_than_its_path_says_is_refused(results):
    paths = [results.energy(run, beta) for beta in (1.0, 5.0) for run in GRID[:2]]
    paths[2].write_bytes(paths[0].read_bytes())
    results.refused(paths, "b5|beta", "energy", RUNS[:2])


def test_runs_of_one_model_and_scheme_from_different_weights_are_not_passed_off_as_one(results):
    paths = [results.inner_products(run) for run in GRID[1:]]
    paths.append(results.inner_products(GRID[0], weights_hash="of other weights"))
    try:
        results.gather(paths)
    except Refusal as refusal:
        assert "gpt2/trained" in str(refusal)
    else:
        assert tables.record(results.output)["weights_hashes"]["gpt2/trained"] == ["gpt2/trained", "of other weights"]


def test_runs_of_one_prompt_from_different_texts_are_not_passed_off_as_one(results):
    paths = [results.inner_products(run) for run in GRID[1:]]
    paths.append(results.inner_products(GRID[0], prompt_hash="of another text"))
    try:
        results.gather(paths)
    except Refusal as refusal:
        assert "letter" in str(refusal)
    else:
        assert tables.record(results.output)["prompt_hashes"]["letter"] == ["letter", "of another text"]


def test_a_part_that_cannot_be_read_is_refused_by_name(results):
    paths = [results.inner_products(run) for run in GRID]
    paths[3].write_bytes(paths[3].read_bytes()[:-10])
    assert str(paths[3]) in results.refused(paths, "cannot be read")


def test_a_part_of_another_table_is_refused_by_name(results):
    paths = [results.inner_products(run) for run in GRID]
    paths[3].write_bytes(results.energy(GRID[3], 1.0).read_bytes())
    assert str(paths[3]) in results.refused(paths, "not a inner_products table")


# The table of runs


def test_every_run_is_listed_with_what_it_was_made_from(results):
    paths = [results.states(run) for run in GRID]
    runs_table(paths, results.output)
    rows = tables.read(results.output, "runs").to_pylist()
    assert [(row["model"], row["weights"], row["prompt"]) for row in rows] == GRID
    for row, path in zip(rows, paths):
        assert (row["scheme"], row["seed"]) == SCHEMES[row["weights"]]
        assert (row["n_tokens"], row["n_tokens_untruncated"], row["token_limit"]) == (N, 7, N)
        # Without position 0 and without the special token at the end.
        assert row["n_content_tokens"] == N - 2
        assert (row["n_blocks"], row["n_states"], row["dimension"], row["is_causal"]) == (BLOCKS, BLOCKS + 1, D, True)
        assert json.loads(row["record"]) == StatesFile(path).metadata
    assert tables.record(results.output)["n_runs"] == len(GRID)


@pytest.mark.parametrize("written", [1, BLOCKS])
def test_a_run_with_fewer_states_than_its_record_says_is_refused_by_name(results, written):
    with pytest.raises(Refusal) as refusal:
        paths = [results.states(GRID[0]), results.states(GRID[1], write=written)]
        runs_table(paths, results.output)
    assert f"{'/'.join(GRID[1])}.parquet" in str(refusal.value)
    assert not results.output.exists()


@pytest.mark.parametrize("key", ["weights_hash", "prompt_hash", "n_tokens_untruncated", "device", "trained_depth"])
def test_a_run_whose_record_lacks_something_is_refused(results, key):
    with pytest.raises(Refusal, match=key):
        runs_table([results.states(GRID[0], **{key: None})], results.output)
    assert not results.output.exists()


@pytest.mark.parametrize("other", ["distilgpt2/trained", "gpt2/norm-matched-s3"])
def test_two_names_for_the_same_weights_are_refused_in_every_table(results, other):
    """Two checkpoints of one model, or two schemes, that are equal to the last bit."""
    runs = [("gpt2", "trained", "letter"), (*other.split("/"), "letter")]
    paths = [results.inner_products(run, weights_hash="abc") for run in runs]
    match = f"gpt2/trained and {other} have the same weights, to the last bit .abc"
    results.refused(paths, match, runs=["/".join(run) for run in runs])
    with pytest.raises(Refusal, match=match):
        runs_table([results.states(run, weights_hash="abc") for run in runs], results.output)
    assert not results.output.exists()


def test_the_theory_shares_the_weights_it_starts_from_and_is_one_run_per_dynamics(results):
    runs = [("gpt2", "trained", "letter"), ("gpt2", "identity-b1", "letter")]
    runs_table([results.states(run, weights_hash="abc") for run in runs], results.output)
    twice = [("gpt2", weights, "letter") for weights in ("identity-b1", "identity-b1-n2")]
    twice = [results.states(run, weights_hash="abc") for run in twice]
    with pytest.raises(Refusal, match="gpt2/identity-b1 and gpt2/identity-b1-n2 have the same weights"):
        runs_table(twice, results.output.with_name("twice.parquet"))


def test_a_model_of_which_nobody_knows_whether_it_is_causal_has_a_null_there(results):
    runs_table([results.states(GRID[0], is_causal=None)], results.output)
    assert tables.read(results.output, "runs")["is_causal"].to_pylist() == [None]
