"""The states table: exact, whole or absent, and refused where it is not what it says."""

import os
import signal
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from collapse import states, tables
from collapse.errors import Refusal
from collapse.provenance import pack
from collapse.states import StatesFile, writing
from collapse.token_rules import TOKEN_RULES, token_mask

N, D = 6, 5
TEXTS = ["[CLS]", "Brontë", "\n", "", "。", "[SEP]"]
ORDER = [(0, "embedding"), (1, "block"), (2, "block"), (2, "final_norm")]
RECORD = {"model": "m", "weights": "trained", "prompt": "p", "seed": None, "proof": {"max": 1e-7}, "title": "«—»"}


@pytest.fixture
def tokens():
    return pa.table(
        {
            "position": np.arange(N, dtype=np.int32),
            "token_id": np.array([2, 7, 8, 9, 70_000, 3], dtype=np.int32),
            "token": TEXTS,
            "is_special": [True, False, False, False, False, True],
            "is_first": [True, False, False, False, False, False],
            "is_punctuation": [False, False, False, False, True, False],
        }
    )


@pytest.fixture
def matrices():
    rng = np.random.default_rng(1)
    found = [rng.standard_normal((N, D)).astype(np.float32) * 10.0**k for k in range(len(ORDER))]
    # What a lossy or text-like format would change.
    found[1][0] = [-0.0, 1e-45, np.finfo(np.float32).tiny, np.finfo(np.float32).max, np.finfo(np.float32).min]
    return found


@pytest.fixture
def path(tmp_path, tokens, matrices):
    return write(tmp_path / "m" / "trained" / "p.parquet", tokens, matrices)


def write(path, tokens, matrices, record=None, order=ORDER):
    with writing(path, tokens, D, RECORD | {"n_states": len(matrices)} | (record or {})) as put:
        for (layer, stage), H in zip(order, matrices):
            put(layer, stage, H)
    return path


def names(directory):
    return sorted(path.name for path in directory.iterdir())


# What is stored


def test_states_come_back_to_the_last_bit_PQ06(path, matrices):
    file = StatesFile(path)
    assert len(file) == len(matrices)
    for index, H in enumerate(matrices):
        found = file.read(index)
        assert found.dtype == np.float32 and found.shape == (N, D)
        assert (found.view(np.uint32) == H.view(np.uint32)).all()


def test_states_keep_the_order_and_labels_they_were_written_in(path):
    assert StatesFile(path).states == ORDER


def test_each_state_is_one_row_group_that_is_read_alone(path, matrices):
    file = pq.ParquetFile(path)
    assert file.num_row_groups == len(ORDER)
    for group, ((layer, stage), H) in enumerate(zip(ORDER, matrices)):
        table = file.read_row_group(group)
        assert table.num_rows == N
        assert set(table["layer"].to_pylist()) == {layer} and set(table["stage"].to_pylist()) == {stage}
        assert np.array_equal(np.array(table["state"].to_pylist(), dtype=np.float32), H)


def test_rows_are_sorted_by_depth_then_position(path):
    table = pq.read_table(path)
    assert table["layer"].to_pylist() == [layer for layer, _ in ORDER for _ in range(N)]
    assert table["position"].to_pylist() == list(range(N)) * len(ORDER)


def test_columns_and_types_are_those_of_the_design(path):
    # No pandas index, no list of unknown length, no nullable column.
    element = pa.field("element", pa.float32(), nullable=False)
    expected = [
        ("layer", pa.int16()),
        ("stage", pa.string()),
        ("position", pa.int32()),
        ("token_id", pa.int32()),
        ("token", pa.string()),
        ("is_special", pa.bool_()),
        ("is_first", pa.bool_()),
        ("is_punctuation", pa.bool_()),
        ("state", pa.list_(element, D)),
    ]
    schema = pq.read_schema(path)
    assert [(field.name, field.type) for field in schema] == expected
    assert not any(field.nullable for field in schema)


def test_every_state_carries_its_tokens(path, tokens):
    file = pq.ParquetFile(path)
    for group in range(file.num_row_groups):
        table = file.read_row_group(group)
        for name in tokens.column_names:
            assert table[name].to_pylist() == tokens[name].to_pylist()


def test_the_file_carries_the_record_of_its_run(path):
    assert StatesFile(path).metadata == RECORD | {
        "n_states": len(ORDER),
        "schema_version": 1,
        "n_tokens": N,
        "dimension": D,
    }


def test_doubles_are_stored_as_the_nearest_singles(tmp_path, tokens):
    H = np.random.default_rng(2).standard_normal((N, D))
    file = StatesFile(write(tmp_path / "p.parquet", tokens, [H]))
    assert np.array_equal(file.read(0), H.astype(np.float32))


@pytest.mark.parametrize("layout", [np.asfortranarray, lambda H: np.repeat(H, 2, axis=1)[:, ::2]])
def test_the_memory_layout_of_a_state_does_not_matter(tmp_path, tokens, matrices, layout):
    file = StatesFile(write(tmp_path / "p.parquet", tokens, [layout(matrices[0])]))
    assert np.array_equal(file.read(0), matrices[0])


def test_one_token_is_a_prompt(tmp_path, tokens, matrices):
    file = StatesFile(write(tmp_path / "p.parquet", tokens.slice(0, 1), [H[:1] for H in matrices]))
    assert file.states == ORDER
    assert np.array_equal(file.read(2), matrices[2][:1])


def test_tokens_that_are_a_slice_keep_their_values(tmp_path, tokens, matrices):
    file = StatesFile(write(tmp_path / "p.parquet", tokens.slice(2, 3), [H[2:5] for H in matrices]))
    assert file.tokens()["token"].to_pylist() == TEXTS[2:5]
    assert np.array_equal(file.read(0), matrices[0][2:5])


def test_two_writes_of_the_same_states_are_the_same_bytes(tmp_path, tokens, matrices):
    a, b = (write(tmp_path / f"{name}.parquet", tokens, matrices) for name in "ab")
    assert a.read_bytes() == b.read_bytes()


# What is refused when it is written


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_refused_with_layer_stage_and_position(tmp_path, tokens, matrices, broken):
    matrices[2][4, 1] = broken
    matrices[2][5, 0] = broken
    with pytest.raises(Refusal, match=r"layer 2 \(block\).*position 4 \(2 of 6 tokens\)"):
        write(tmp_path / "p.parquet", tokens, matrices)
    assert names(tmp_path) == []


def test_a_null_token_is_refused(tmp_path, tokens, matrices):
    tokens = tokens.set_column(2, "token", pa.array(["a", "b", None, "d", "e", "f"]))
    with pytest.raises((Refusal, pa.ArrowInvalid), match="(?i)null"):
        write(tmp_path / "p.parquet", tokens, matrices)
    assert names(tmp_path) == []


@pytest.mark.parametrize("shape", [(N - 1, D), (N, D + 1), (N * D,), (1, N, D), (D, N)])
def test_a_state_of_another_shape_is_an_error(tmp_path, tokens, shape):
    with pytest.raises(ValueError, match="shape"):
        write(tmp_path / "p.parquet", tokens, [np.ones(shape, np.float32)])
    assert names(tmp_path) == []


def test_a_stage_that_the_schema_does_not_know_is_an_error(tmp_path, tokens, matrices):
    with pytest.raises(ValueError, match="stage"):
        write(tmp_path / "p.parquet", tokens, matrices, order=[(0, "attention")])
    assert names(tmp_path) == []


def test_a_failed_writer_leaves_the_old_file(path, tokens, matrices):
    before = path.read_bytes()
    with pytest.raises(RuntimeError), writing(path, tokens, D, RECORD) as put:
        put(0, "embedding", matrices[3])
        raise RuntimeError
    assert path.read_bytes() == before
    assert names(path.parent) == [path.name]


def test_a_killed_writer_leaves_no_file_and_the_next_attempt_succeeds(tmp_path, tokens, matrices):
    program = (
        "import os, signal, sys\n"
        "import numpy as np, pyarrow as pa\n"
        "from collapse.states import writing\n"
        "flags = {name: [False] for name in ('is_special', 'is_first', 'is_punctuation')}\n"
        "tokens = pa.table({'position': [0], 'token_id': [1], 'token': ['a']} | flags)\n"
        "with writing(sys.argv[1], tokens, 3, {'n_states': 1}) as write:\n"
        "    write(0, 'embedding', np.ones((1, 3)))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = tmp_path / "p.parquet"
    done = subprocess.run(
        [sys.executable, "-c", program, path], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert done.returncode == -signal.SIGKILL
    assert not path.exists()
    write(path, tokens, matrices)
    assert StatesFile(path).states == ORDER
    assert names(tmp_path) == ["p.parquet"]


# What is refused when it is read


def refused(path):
    """Read all of a file and return the message with which that is refused."""
    with pytest.raises(Refusal) as refusal:
        file = StatesFile(path)
        for index in range(len(file)):
            file.read(index)
    message = str(refusal.value)
    assert str(path) in message
    assert "Delete it and run again" in message
    return message


@pytest.mark.parametrize("kept", [0, 4, 0.5, -20, -1])
def test_a_file_cut_short_is_refused_PQ05(path, kept):
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content)) if isinstance(kept, float) else kept])
    refused(path)


def test_a_writer_that_was_never_closed_leaves_a_file_that_is_refused(tmp_path):
    path = tmp_path / "p.parquet"
    writer = pq.ParquetWriter(path, states.schema(D))
    refused(path)
    writer.close()


@pytest.mark.parametrize("written", [0, len(ORDER) - 1])
def test_fewer_states_than_the_record_says_are_refused_when_written_or_when_read(tmp_path, tokens, matrices, written):
    path = tmp_path / "p.parquet"
    with pytest.raises(Refusal, match=str(len(ORDER))):
        write(path, tokens, matrices[:written], {"n_states": len(ORDER)})
        StatesFile(path)


def everything(path):
    file = StatesFile(path)
    values = [file.read(index).tobytes() for index in range(len(file))]
    return file.metadata, file.states, file.tokens().to_pylist(), file.mask("content").tolist(), values


def test_a_flipped_bit_is_refused_or_changes_nothing(path):
    content, expected, n_refused = path.read_bytes(), everything(path), 0
    for position in range(0, len(content), 7):
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        try:
            assert everything(path) == expected, position
        except Refusal as refusal:
            assert str(path) in str(refusal) and "Delete it and run again" in str(refusal)
            n_refused += 1
    assert n_refused > 0.5 * len(content) / 7


def test_a_missing_file_is_refused(tmp_path):
    refused(tmp_path / "p.parquet")


def test_text_is_refused(tmp_path):
    path = tmp_path / "p.parquet"
    path.write_text("layer,stage\n0,embedding\n")
    refused(path)


def test_another_parquet_file_is_refused(tmp_path):
    path = tmp_path / "p.parquet"
    pq.write_table(pa.table({"layer": [0]}), path)
    refused(path)


def test_a_results_table_is_refused(tmp_path, tokens, matrices):
    path = tmp_path / "t.parquet"
    row = dict.fromkeys(tables.columns("nn_stability")) | {
        "model": "m",
        "weights": "w",
        "scheme": "trained",
        "prompt": "p",
    }
    row |= {"tokens": "all", "layer": 0, "stage": "embedding", "depth": 0.0, "undefined": "no layer before the first"}
    tables.write(path, "nn_stability", [row], {})
    refused(path)


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_a_schema_version_that_the_code_does_not_know_is_refused_with_both_versions(
    tmp_path, tokens, matrices, monkeypatch, version
):
    with monkeypatch.context() as patched:
        patched.setattr(states, "SCHEMA_VERSION", version)
        path = write(tmp_path / "p.parquet", tokens, matrices)
    message = refused(path)
    assert repr(version) in message and "1" in message


def rewritten(path, change):
    """Rewrite a states file as `change(table)`, with its metadata and one row group per state."""
    table = change(pq.read_table(path))
    table = table.replace_schema_metadata(pack(StatesFile(path).metadata))
    pq.write_table(table, path, row_group_size=N)
    return path


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.drop_columns("is_first"),
        lambda t: t.append_column("extra", pa.array([1] * len(t))),
        lambda t: t.select(list(reversed(t.column_names))),
        lambda t: t.set_column(0, "layer", t["layer"].cast(pa.int64())),
    ],
    ids=["missing", "extra", "order", "type"],
)
def test_other_columns_or_types_are_refused_for_that(path, change):
    message = refused(rewritten(path, change)).replace(str(path), "")
    assert "column" in message
    # The version is the known one: it must not be named as the fault.
    assert "version 1 is not" not in message


def test_a_null_state_is_refused_and_never_shifts_rows_PQ02(path):
    def with_null(table):
        values = table["state"].to_pylist()
        values[1] = None
        return table.set_column(8, "state", pa.array(values, pa.list_(pa.float32(), D)))

    refused(rewritten(path, with_null))


def test_a_state_that_lost_rows_is_refused(path):
    file = pq.ParquetFile(path)
    groups = [file.read_row_group(group) for group in range(file.num_row_groups)]
    groups[1] = groups[1].slice(0, N - 1)
    schema = file.schema_arrow
    file.close()
    with pq.ParquetWriter(path, schema) as writer:
        for group in groups:
            writer.write_table(group)
    assert f"{N - 1} rows for {N} tokens" in refused(path)


# Token rules


def test_the_trajectory_is_every_state_in_double_precision_in_order(path, matrices):
    found = list(StatesFile(path).trajectory("all"))
    assert len(found) == len(matrices)
    for H, G in zip(matrices, found):
        assert G.dtype == np.float64
        assert np.array_equal(G, H.astype(np.float64))


def test_content_is_without_the_first_position_and_special_tokens(path, matrices):
    file = StatesFile(path)
    assert file.mask("content").tolist() == [False, True, True, True, True, False]
    for H, G in zip(matrices, file.trajectory("content")):
        assert np.array_equal(G, H[1:5])


def test_all_keeps_every_token(path):
    assert StatesFile(path).mask("all").tolist() == [True] * N


def test_the_first_position_is_no_content_even_if_it_is_an_ordinary_token():
    first, special = [True, False, False], [False, False, True]
    assert token_mask("content", first, special).tolist() == [False, True, False]
    assert token_mask("all", first, special).tolist() == [True, True, True]


def test_a_prompt_of_special_tokens_alone_has_no_content(tmp_path, tokens, matrices):
    ends = tokens.take([0, 5])
    file = StatesFile(write(tmp_path / "p.parquet", ends, [H[[0, 5]] for H in matrices]))
    assert [G.shape for G in file.trajectory("content")] == [(0, D)] * len(ORDER)


def test_an_unknown_token_rule_is_an_error(path):
    assert TOKEN_RULES == ("all", "content")
    with pytest.raises(ValueError, match="'first'"):
        StatesFile(path).mask("first")


def test_the_token_table_has_one_row_per_token(path, tokens):
    table = StatesFile(path).tokens()
    assert table.to_pydict() == tokens.to_pydict()
