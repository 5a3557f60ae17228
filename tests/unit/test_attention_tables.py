"""Attention metrics over a run: the block's attention at the state that enters it, cut under the content rule."""

import numpy as np
import pyarrow as pa
import pytest
from test_attention import heads, softmax

from collapse import tables
from collapse.attention import as_attention, uniform
from collapse.attention_groups import attention_groups
from collapse.attention_tables import AttentionTables
from collapse.errors import Refusal
from collapse.measure import layer_keys, run_keys
from collapse.metrics.attention_entropy import attention_entropy
from collapse.metrics.attention_tokens import attention_tokens
from collapse.metrics.fiedler import fiedler
from collapse.states import StatesFile, writing
from collapse.theory import attention_of_states, identity_states

NAMES = ["attention_entropy", "attention_tokens", "fiedler"]
OPTIONS = {"attention_entropy": {}, "attention_tokens": {}, "fiedler": {"rounds": 100, "tolerance": 1e-6}}
CODE = dict.fromkeys(NAMES, "0")
N, BLOCKS, D = 9, 2, 5
RUN = {"model": "m", "weights": "trained", "scheme": "trained", "seed": None, "prompt": "p", "weights_hash": "w"}
RUN |= {"device": "cpu", "dtype": "float32", "versions": {}}


def states_file(path, is_causal=True, special=(), n=N, record=None):
    """A run of two blocks and a final norm; position 0 is first, `special` positions are special, every third a dot."""
    positions = np.arange(n)
    tokens = pa.table(
        {
            "position": positions,
            "token_id": positions,
            "token": ["." if i % 3 == 2 else "a" for i in positions],
            "is_special": [i in special for i in positions],
            "is_first": positions == 0,
            "is_punctuation": positions % 3 == 2,
        }
    )
    stages = [(0, "embedding"), (1, "block"), (2, "block"), (2, "final_norm")]
    metadata = RUN | {"n_blocks": BLOCKS, "n_states": 4, "is_causal": is_causal} | (record or {})
    with writing(path, tokens, D, metadata) as write:
        for place, (layer, stage) in enumerate(stages):
            write(layer, stage, np.random.default_rng(place).normal(size=(n, D)))
    return path


def measured(path, blocks, tmp_path, names=tuple(NAMES)):
    found = AttentionTables(
        path, [{"name": n, "module": f"collapse.metrics.{n}", "packages": []} for n in names], OPTIONS
    )
    for block, A in enumerate(blocks):
        found.take(block, A)
    outputs = {name: tmp_path / name / "p.parquet" for name in names}
    found.write(outputs, CODE, {"device": "cpu"})
    return {name: tables.read(outputs[name], name).to_pylist() for name in names}


def blocks_of(is_causal, n=N):
    return [heads(n, is_causal, 3.0, seed) for seed in range(BLOCKS)]


def cut(A, keep):
    """Rows and columns of the kept tokens alone, each row again a distribution: entry by entry."""
    return [[[head[i][j] / sum(head[i][k] for k in keep) for j in keep] for i in keep] for head in A.astype(float)]


@pytest.mark.parametrize("is_causal", [True, False])
def test_every_metric_sees_each_block_whole_and_cut_to_content(tmp_path, is_causal):
    path = states_file(tmp_path / "s.parquet", is_causal, special=(N - 1,))
    blocks = blocks_of(is_causal)
    found = measured(path, blocks, tmp_path)
    keep = {"all": range(N), "content": range(1, N - 1)}
    for rule, kept in keep.items():
        for block, A in enumerate(blocks):
            A = as_attention(np.array(cut(as_attention(A), kept)))
            expected = {
                "attention_entropy": attention_entropy(A, is_causal),
                "fiedler": fiedler(A, is_causal, rounds=100, tolerance=1e-6),
                "attention_tokens": attention_tokens(A, is_causal),
            }
            for name in NAMES:
                rows = [row for row in found[name] if row["tokens"] == rule and row["layer"] == block]
                assert len(rows) == len(expected[name])
                for row, values in zip(rows, expected[name]):
                    for key, value in values.items():
                        # Cut entry by entry or as a matrix: the last digits differ, and nulls are the same.
                        numbers = isinstance(value, float)
                        assert row[key] == (pytest.approx(value, rel=1e-9, abs=1e-9) if numbers else value), key
            tokens = [row for row in found["attention_tokens"] if row["tokens"] == rule and row["layer"] == block]
            assert [row["position"] for row in tokens] == list(kept)


def test_attention_belongs_to_the_state_that_enters_the_block(tmp_path):
    found = measured(states_file(tmp_path / "s.parquet"), blocks_of(True), tmp_path)
    for rows in found.values():
        places = list(dict.fromkeys((row["layer"], row["stage"], row["depth"]) for row in rows))
        assert places == [(0, "embedding", 0.0), (1, "block", 0.5)]


def test_position_0_as_a_sink_leaves_the_content_rule_with_what_the_others_give_each_other(tmp_path):
    """FT02: position 0 takes 0.9 of every row; without it rows are renormalised, not left at a sum of 0.1."""
    A = 0.1 * uniform(N, True)[None]
    A[:, :, 0] += 0.9
    found = measured(states_file(tmp_path / "s.parquet"), [A, A], tmp_path)
    content = [row for row in found["attention_tokens"] if row["tokens"] == "content" and row["layer"] == 0]
    for row in content:
        assert row["received"] == pytest.approx(row["received_uniform"], abs=1e-12)
    whole = [row for row in found["attention_tokens"] if row["tokens"] == "all" and row["position"] == 0]
    assert whole[0]["received"] > 5


def test_a_row_that_attends_only_to_what_is_cut_leaves_the_layer_null_with_the_cause(tmp_path):
    A = np.tile(uniform(N, True), (2, 1, 1))
    A[1, 3] = np.eye(N)[0]
    found = measured(states_file(tmp_path / "s.parquet"), [A, A], tmp_path)
    for name, per_layer in (("fiedler", 3), ("attention_entropy", 3), ("attention_tokens", N - 1)):
        rows = [row for row in found[name] if row["tokens"] == "content"]
        assert len(rows) == BLOCKS * per_layer
        for row in rows:
            assert "head 1, row 3 attends to nothing that this token rule keeps" in row["undefined"]
        assert all(row["undefined"] is None for row in found[name] if row["tokens"] == "all")


def test_a_prompt_of_one_token_is_null_under_both_rules(tmp_path):
    one = np.ones((2, 1, 1))
    found = measured(states_file(tmp_path / "s.parquet", n=1), [one, one], tmp_path)
    assert {row["undefined"] for row in found["fiedler"] if row["tokens"] == "content"} == {
        "no tokens under this token rule"
    }
    assert {row["head"] for row in found["fiedler"]} == {0, 1, -1}
    assert [row["tokens"] for row in found["attention_tokens"]] == ["all"] * BLOCKS


@pytest.mark.parametrize(
    ("blocks", "cause"),
    [
        (blocks_of(True)[:1], "1 of 2 blocks attended: nothing is written"),
        (blocks_of(True, n=4), "has 9 tokens, the attention of block 0 4"),
        (blocks_of(False), "reaches a later token, in a model said to be causal"),
        ([A[:, :, :-1] for A in blocks_of(True)], "as many keys as queries"),
        ([A * 0.99 for A in blocks_of(True)], "does not sum to 1"),
    ],
    ids=["too-few-blocks", "other-tokens", "no-mask", "a-key-cut", "dropout"],
)
def test_what_is_not_this_run_s_attention_is_refused_and_nothing_written(tmp_path, blocks, cause):
    path = states_file(tmp_path / "s.parquet")
    with pytest.raises(Refusal, match=cause):
        measured(path, blocks, tmp_path)
    assert [file.name for file in tmp_path.rglob("*.parquet")] == ["s.parquet"]


def test_blocks_out_of_order_are_refused(tmp_path):
    found = AttentionTables(states_file(tmp_path / "s.parquet"), [], {})
    with pytest.raises(Refusal, match="block 1 came where block 0 was expected"):
        found.take(1, blocks_of(True)[1])


def test_files_say_on_which_device_attention_was_computed(tmp_path):
    measured(states_file(tmp_path / "s.parquet"), blocks_of(True), tmp_path)
    record = tables.record(tmp_path / "fiedler" / "p.parquet")
    assert record["attention"] == {"device": "cpu"}
    assert record["options"] == OPTIONS["fiedler"]
    assert record["states"]["weights_hash"] == "w"


# The theory's attention


@pytest.mark.parametrize("is_causal", [True, False])
def test_the_theory_s_attention_is_the_softmax_of_what_enters_a_step(tmp_path, is_causal):
    trained = states_file(tmp_path / "s.parquet", is_causal)
    identity_states(trained, "identity-b2", 2.0, tmp_path / "i.parquet")
    states = StatesFile(tmp_path / "i.parquet")
    found = list(attention_of_states(tmp_path / "i.parquet"))
    assert len(found) == BLOCKS
    for place, A in enumerate(found):
        X = states.read(place).astype(float)
        expected = softmax(2.0 * X @ X.T, is_causal, np.float64)
        assert A.shape == (1, N, N)
        np.testing.assert_allclose(A[0], expected, atol=1e-6)
        # One step on: the particles of the next state.
        moved = X + A[0] @ X
        moved /= np.linalg.norm(moved, axis=1, keepdims=True)
        np.testing.assert_allclose(moved, states.read(place + 1), atol=1e-6)


# Groups of tokens


def labels_file(path, states, labels):
    """cluster_labels of a run; `labels` maps (rule, place) to labels, or None where clusters are undefined."""
    file, rows = StatesFile(states), []
    for rule in ("all", "content"):
        positions = np.flatnonzero(file.mask(rule)).tolist()
        for place, (layer, stage) in enumerate(file.states):
            own = labels(rule, place, len(positions))
            keys = run_keys(file.metadata) | {"tokens": rule} | layer_keys(layer, stage, BLOCKS)
            for i, position in enumerate(positions):
                row = {"position": position, "label": None, "probability": None, "undefined": "a zero vector"}
                if own is not None:
                    row |= {"label": int(own[i]), "probability": 1.0, "undefined": None}
                rows.append(keys | row)
    tables.write(path, "cluster_labels", rows, {})
    return path


@pytest.fixture
def run(tmp_path):
    states = states_file(tmp_path / "s.parquet", special=(N - 1,))
    found = measured(states, blocks_of(True), tmp_path)
    return states, tmp_path / "attention_tokens" / "p.parquet", found["attention_tokens"]


def test_groups_are_means_over_their_tokens_in_the_state_that_enters_the_block(run, tmp_path):
    states, tokens, received = run
    labels = labels_file(tmp_path / "l.parquet", states, lambda rule, place, n: (np.arange(n) + place) % 3 - 1)
    rows = attention_groups(states, labels, tokens)
    assert [row["group"] for row in rows] == ["clustered", "noise", "punctuation", "other"] * 2 * BLOCKS
    for rule in ("all", "content"):
        for layer in range(BLOCKS):
            own = [row for row in received if row["tokens"] == rule and row["layer"] == layer]
            members = {
                "clustered": [(i + layer) % 3 != 0 for i in range(len(own))],
                "noise": [(i + layer) % 3 == 0 for i in range(len(own))],
                "punctuation": [row["position"] % 3 == 2 for row in own],
                "other": [row["position"] % 3 != 2 for row in own],
            }
            for group, inside in members.items():
                (row,) = [r for r in rows if (r["tokens"], r["layer"], r["group"]) == (rule, layer, group)]
                values = [r["received"] for r, i in zip(own, inside) if i]
                uniform_values = [r["received_uniform"] for r, i in zip(own, inside) if i]
                assert row["received"] == pytest.approx(sum(values) / len(values))
                assert row["received_mask_corrected"] == pytest.approx(sum(values) / sum(uniform_values))
                assert row["share_of_tokens"] == pytest.approx(sum(inside) / len(own))


def test_undefined_clusters_leave_punctuation_defined(run, tmp_path):
    states, tokens, _ = run
    rows = attention_groups(states, labels_file(tmp_path / "l.parquet", states, lambda *_: None), tokens)
    for row in rows:
        assert (row["received"] is None) == (row["group"] in ("clustered", "noise"))


def test_a_rule_without_tokens_is_null_with_the_cause(tmp_path):
    states = states_file(tmp_path / "s.parquet", n=1)
    measured(states, [np.ones((2, 1, 1))] * 2, tmp_path)
    labels = labels_file(tmp_path / "l.parquet", states, lambda *_: None)
    rows = attention_groups(states, labels, tmp_path / "attention_tokens" / "p.parquet")
    assert len(rows) == 2 * BLOCKS * 4
    assert {row["undefined"] for row in rows if row["tokens"] == "content"} == {"no tokens under this token rule"}


def test_a_table_of_other_layers_is_refused(run, tmp_path):
    states, tokens, _ = run
    labels = labels_file(tmp_path / "l.parquet", states, lambda rule, place, n: np.zeros(n))
    short = tables.read(labels, "cluster_labels").slice(0, N)
    tables.write(labels, "cluster_labels", short, {})
    with pytest.raises(Refusal, match="layer 1 is missing. Delete both and run again"):
        attention_groups(states, labels, tokens)
