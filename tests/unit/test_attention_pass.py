"""Attention is the library's own, block by block, and none of it is kept."""

import dataclasses
import gc
import subprocess
import sys
import weakref

import numpy as np
import pyarrow as pa
import pytest
import torch
from memory import environment_to_measure_in
from tiny_models import make_model, make_tokenizer

from collapse import forward
from collapse.architectures import ARCHITECTURES
from collapse.attention import as_attention
from collapse.attention_pass import model_attention, run_attention
from collapse.checkpoint import load_model, load_tokenizer
from collapse.errors import Refusal
from collapse.states import writing

TEXT = "The ferry left in the fog, and nobody on the quay saw it turn back."
KINDS = ["gpt2", "llama", "bert", "albert", "albert-groups", "albert-inner"]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    found = {}

    def get(kind):
        if kind not in found:
            directory = make_model(kind, tmp_path_factory.mktemp(kind))
            found[kind] = (*load_model(directory, "cpu"), load_tokenizer(directory)(TEXT)["input_ids"], directory)
        return found[kind]

    return get


def run_states(model, entry, ids):
    found = []
    forward.run(model, entry, ids, lambda layer, stage, H: found.append(H.copy()))
    return found


def attention_of(model, entry, ids):
    found = []
    run_attention(model, entry, ids, lambda block, A: found.append((block, A.copy())))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_block_hands_over_the_library_s_attention_to_the_last_bit(loaded, kind):
    model, entry, ids, _ = loaded(kind)
    with torch.inference_mode():
        expected = model(torch.tensor([ids]), output_attentions=True).attentions
    found = attention_of(model, entry, ids)
    assert [block for block, _ in found] == list(range(forward.n_blocks(model)))
    for (_, A), theirs in zip(found, expected, strict=True):
        assert A.dtype == np.float32 and np.array_equal(A, theirs[0].numpy())


@pytest.mark.parametrize("kind", [*ARCHITECTURES, "albert-groups", "albert-inner"])
def test_from_stored_states_attention_is_that_of_the_whole_model(loaded, kind):
    """Also of architectures whose blocks return tuples, share weights, rotate positions or differ in their masks."""
    model, entry, ids, _ = loaded(kind)
    states, found = run_states(model, entry, ids), []
    whole = attention_of(model, entry, ids)
    run_attention(model, entry, ids, lambda block, A: found.append((block, A.copy())), states)
    assert [block for block, _ in found] == [block for block, _ in whole]
    for (_, A), (_, expected) in zip(found, whole, strict=True):
        assert np.allclose(A, expected, rtol=1e-5, atol=1e-7)
    # The state that is handed in is what counts, and nothing stays behind.
    run_attention(model, entry, ids, lambda block, A: found.append((block, A.copy())), [3 * states[0]] * len(whole))
    assert not np.allclose(found[-1][1], whole[-1][1], atol=1e-3)
    again = attention_of(model, entry, ids)
    assert all(np.array_equal(A, expected) for (_, A), (_, expected) in zip(again, whole, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_sum_to_one_under_the_mask_of_the_table(loaded, kind):
    model, entry, ids, _ = loaded(kind)
    for _, A in attention_of(model, entry, ids):
        as_attention(A, entry.is_causal)
        # A later token is seen in every row but the last of a model that has no mask.
        assert bool((np.triu(A, k=1).sum(axis=2)[:, :-1] > 0).all()) == (not entry.is_causal)


@pytest.mark.parametrize("kind", ["gpt2", "albert"])
def test_a_block_s_attention_is_gone_when_the_next_appears(loaded, kind):
    model, entry, ids, _ = loaded(kind)
    alive = []

    def take(block, A):
        gc.collect()
        assert not [ref for ref in alive if ref() is not None]
        # A view of the tensor: while the model holds the tensor, its memory lives.
        alive.append(weakref.ref(A.base if A.base is not None else A))

    run_attention(model, entry, ids, take)
    assert len(alive) == 3


def test_hooks_are_gone_after_the_pass_also_after_a_failure(loaded):
    model, entry, ids, _ = loaded("gpt2")

    def fail(block, A):
        raise Refusal("the metric refuses")

    before = [len(module._forward_hooks) for module in model.modules()]
    with pytest.raises(Refusal, match="the metric refuses"):
        run_attention(model, entry, ids, fail)
    attention_of(model, entry, ids)
    assert [len(module._forward_hooks) for module in model.modules()] == before


def test_an_architecture_without_an_entry_for_attention_is_refused_by_name(loaded):
    model, entry, ids, _ = loaded("bert")
    with pytest.raises(Refusal, match=r"bert: ARCHITECTURES .* does not say where its attention is: add `attention`"):
        attention_of(model, dataclasses.replace(entry, attention=None), ids)


def test_attention_that_another_implementation_does_not_yield_is_refused_TF01(loaded):
    """The library's default yields none, and a loop over what it returns would measure nothing."""
    from transformers import AutoModel

    _, entry, ids, directory = loaded("gpt2")
    model = AutoModel.from_pretrained(directory, attn_implementation="sdpa").eval()
    with pytest.raises(Refusal, match="yields no attention with attn_implementation 'sdpa'"):
        attention_of(model, entry, ids)


@pytest.mark.parametrize(
    ("pattern", "cause"),
    [
        (r"h\.\d+\.mlp", "GPT2MLP yields no attention"),
        (r"h\.[01]\.attn", "2 blocks attended, the config says 3"),
        (r"layers\.\d+", "no module of GPT2Model is named like"),
    ],
    ids=["another-module", "too-few", "none"],
)
def test_a_wrong_entry_is_refused(loaded, pattern, cause):
    model, entry, ids, _ = loaded("gpt2")
    with pytest.raises(Refusal, match=cause):
        attention_of(model, dataclasses.replace(entry, attention=pattern), ids)


def test_every_architecture_says_where_attention_is():
    assert all(entry.attention for entry in ARCHITECTURES.values())


# The run of a states file


def states_of(path, ids, weights_hash="same", n_blocks=3, is_causal=True, d=32, states=None):
    n = len(ids)
    tokens = {
        "position": np.arange(n),
        "token_id": ids,
        "token": ["t"] * n,
        "is_special": [False] * n,
        "is_first": [i == 0 for i in range(n)],
        "is_punctuation": [False] * n,
    }
    record = {"weights_hash": weights_hash, "n_blocks": n_blocks, "is_causal": is_causal}
    record |= {"model": "m", "weights": "trained", "scheme": "trained", "seed": None, "prompt": "p"}
    with writing(path, pa.table(tokens), d, record | {"n_states": n_blocks + 1}) as write:
        for layer in range(n_blocks + 1):
            H = np.random.default_rng(layer).normal(size=(n, d)) if states is None else states[layer]
            write(layer, "block" if layer else "embedding", H)
    return path


def test_the_tokens_and_states_of_the_file_are_run(loaded, tmp_path):
    model, entry, ids, directory = loaded("gpt2")
    states = states_of(tmp_path / "p.parquet", ids, states=run_states(model, entry, ids))
    found = []
    record = model_attention(states, directory, "same", "cpu", 1, lambda block, A: found.append(A.copy()))
    for A, (_, expected) in zip(found, attention_of(model, entry, ids), strict=True):
        assert np.allclose(A, expected, rtol=1e-5, atol=1e-7)
    assert record["device"] == "cpu" and record["implementation"] == "eager"
    assert {"torch", "transformers"} <= set(record["versions"])


def test_weights_other_than_those_of_the_states_are_refused(loaded, tmp_path):
    _, _, ids, directory = loaded("gpt2")
    states = states_of(tmp_path / "p.parquet", ids)
    with pytest.raises(Refusal, match="was made from weights same, and .* holds other. Delete the states"):
        model_attention(states, directory, "other", "cpu", 1, print)


@pytest.mark.parametrize(("kind", "window", "changes"), [("modernbert", 4, {}), ("mistral", 5, {"sliding_window": 5})])
def test_a_window_shorter_than_the_prompt_is_refused_as_its_uniform_attention_is_another(
    tmp_path, kind, window, changes
):
    directory = make_model(kind, tmp_path / kind, **changes)
    ids, found = load_tokenizer(directory)(TEXT)["input_ids"], []
    states = states_of(tmp_path / "p.parquet", ids, is_causal=kind == "mistral")
    with pytest.raises(
        Refusal, match=f"see a window of {window} of the {len(ids)} tokens.* set max_tokens to {window}"
    ):
        model_attention(states, directory, "same", "cpu", 1, print)
    short = states_of(tmp_path / "short.parquet", ids[:window], is_causal=kind == "mistral")
    model_attention(
        short, directory, "same", "cpu", 1, lambda block, A: found.append(as_attention(A, kind == "mistral"))
    )
    # Every token that the causal mask allows is seen.
    assert len(found) == 3 and all((A > 0).sum() == (4 * 15 if kind == "mistral" else 4 * 16) for A in found)


# Memory

PEAK = """
import sys
from collapse.attention_pass import model_attention
from collapse.attention_tables import AttentionTables
from memory import peak_memory

states, checkpoint, names = sys.argv[1], sys.argv[2], sys.argv[3].split(",")
metrics = [{"name": n, "module": f"collapse.metrics.{n}", "packages": []} for n in names]
options = {n: {} for n in names} | {"fiedler": {"rounds": 100, "tolerance": 1e-6}}
found = AttentionTables(states, metrics, options)
model_attention(states, checkpoint, "same", "cpu", 1, found.take)
print(peak_memory())
"""


def peak(states, checkpoint, metrics):
    """Largest memory in bytes that a process holds which measures the attention of one run as a job does."""
    command = [sys.executable, "-c", PEAK, str(states), str(checkpoint), metrics]
    done = subprocess.run(command, env=environment_to_measure_in(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


def gpt2(directory, tokens=512, **sizes):
    """A GPT-2 with a context of 512 tokens, and the token ids of a prompt that fills it."""
    # At the spread of weights of the other tests wide heads attend to one token each, and balancing those takes long.
    directory = make_model("gpt2", directory, n_positions=tokens, initializer_range=0.02, **sizes)
    vocabulary = len(make_tokenizer("bytes"))
    return directory, (np.arange(tokens) % vocabulary).tolist()


def test_a_block_as_wide_as_gpt2_xl_stays_below_the_model_and_1_5_gb(tmp_path):
    directory, ids = gpt2(tmp_path / "m", n_embd=1600, n_head=25, n_layer=1)
    states = states_of(tmp_path / "p.parquet", ids, n_blocks=1, d=1600)
    size = sum(path.stat().st_size for path in directory.glob("*.safetensors"))
    assert size > 120e6
    assert peak(states, directory, "fiedler,attention_entropy,attention_tokens") < size + 1.5e9


def test_memory_does_not_grow_with_the_number_of_blocks(tmp_path):
    peaks = {}
    for n_layer in (2, 34):
        directory, ids = gpt2(tmp_path / f"m{n_layer}", n_embd=100, n_head=25, n_layer=n_layer)
        states = states_of(tmp_path / f"{n_layer}.parquet", ids, n_blocks=n_layer, d=100)
        peaks[n_layer] = peak(states, directory, "attention_tokens")
    one_block = 25 * 512 * 512 * 4
    # 32 blocks more. Their weights and their rows in the tables, which do stay, are as large as two.
    assert peaks[34] - peaks[2] < 4 * one_block
