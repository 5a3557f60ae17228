"""States are the library's own hidden states, at every depth, with the last block before its norm."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from tiny_models import DROPOUT, edit_json, make_model
from transformers import AutoModel

from collapse import forward
from collapse.architectures import ARCHITECTURES
from collapse.attention_pass import run_attention
from collapse.blocks import find_blocks
from collapse.checkpoint import load_model, load_tokenizer
from collapse.errors import Refusal
from collapse.extraction import extract
from collapse.forward import modules_named
from collapse.prompts import tokenize
from collapse.states import StatesFile
from collapse.weights import trained

TEXT = "The ferry left in the fog, and nobody on the quay saw it turn back."
CAUSAL = ["gpt2", "gpt2-base", "gpt_neox", "llama", "llama-tied", "mistral", "opt", "qwen2", "qwen3", "phi"]
PRE_NORM = [*CAUSAL, "modernbert"]
POST_NORM = ["albert", "albert-groups", "albert-inner", "bert", "bert-pooler", "distilbert", "electra", "roberta"]
# Types without an entry in the table of architectures.
UNKNOWN = ["electra", "phi"]
KINDS = PRE_NORM + POST_NORM
DEPTH = dict.fromkeys(KINDS, 3) | {"albert-groups": 4, "albert-inner": 6}


def bits(array):
    return np.ascontiguousarray(array).view(np.uint32)


def same(a, b):
    a = a.detach().numpy() if isinstance(a, torch.Tensor) else a
    b = b.detach().numpy() if isinstance(b, torch.Tensor) else b
    return a.shape == b.shape and bool((bits(a) == bits(b)).all())


class Run:
    """A loaded model, its tokens, the states that `forward.run` hands over, and the library's own outputs."""

    def __init__(self, directory, ids=None):
        self.directory = directory
        self.model, self.entry = load_model(directory, "cpu")
        self.ids = ids or load_tokenizer(directory)(TEXT)["input_ids"]
        self.states = self.run()
        with torch.inference_mode():
            self.outputs = self.model(torch.tensor([self.ids]), output_hidden_states=True, output_attentions=True)
        self.hidden = [state[0] for state in self.outputs.hidden_states]

    def run(self):
        found = []
        forward.run(self.model, self.entry, self.ids, lambda layer, stage, H: found.append((layer, stage, H.copy())))
        return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    found = {}

    def get(kind):
        if kind not in found:
            found[kind] = Run(make_model(kind, tmp_path_factory.mktemp(kind)))
        return found[kind]

    return get


# The states


@pytest.mark.parametrize("kind", KINDS)
def test_order_layers_and_stages(runs, kind):
    blocks = [(layer, "block") for layer in range(1, DEPTH[kind] + 1)]
    last = [(DEPTH[kind], "final_norm")] if kind in PRE_NORM else []
    assert [(layer, stage) for layer, stage, _ in runs(kind).states] == [(0, "embedding"), *blocks, *last]


@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_blocks_and_states_is_known_before_the_run(runs, kind):
    run = runs(kind)
    assert forward.n_blocks(run.model) == DEPTH[kind]
    assert forward.n_states(run.model, run.entry) == len(run.states)


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_float32_matrices_of_tokens_by_width(runs, kind):
    for _, _, H in runs(kind).states:
        assert H.dtype == np.float32 and H.shape == (len(runs(kind).ids), 32)


@pytest.mark.parametrize("kind", POST_NORM)
def test_post_norm_states_are_the_library_s_to_the_last_bit(runs, kind):
    run = runs(kind)
    assert len(run.hidden) == DEPTH[kind] + 1
    assert [same(H, hidden) for (_, _, H), hidden in zip(run.states, run.hidden, strict=True)] == [True] * len(
        run.hidden
    )


@pytest.mark.parametrize("kind", PRE_NORM)
def test_pre_norm_states_are_the_library_s_to_the_last_bit_but_for_the_last_block(runs, kind):
    run = runs(kind)
    assert len(run.hidden) == DEPTH[kind] + 1
    assert all(same(H, hidden) for (_, _, H), hidden in zip(run.states[:-2], run.hidden[:-1], strict=True))
    # The library's last hidden state is behind the final norm, all others before it.
    assert same(run.states[-1][2], run.hidden[-1])
    assert not np.allclose(run.states[-2][2], run.hidden[-1].numpy(), rtol=0.1)


@pytest.mark.parametrize("kind", PRE_NORM)
def test_the_last_block_is_what_enters_the_final_norm(runs, kind):
    run, entered = runs(kind), []
    norm = run.model.get_submodule(run.entry.final_norm)
    with torch.inference_mode():
        hook = norm.register_forward_pre_hook(lambda module, args: entered.append(args[0][0].clone()))
        run.model(torch.tensor([run.ids]))
        hook.remove()
        assert same(run.states[-2][2], entered[0])
        assert same(norm(torch.from_numpy(run.states[-2][2])), run.hidden[-1])


@pytest.mark.parametrize("kind", KINDS)
def test_no_two_states_are_alike(runs, kind):
    states = [H for _, _, H in runs(kind).states]
    for i, H in enumerate(states):
        assert not any(np.allclose(H, other, rtol=0.05) for other in states[:i])


def test_a_large_final_gain_moves_the_final_norm_and_no_block_TF02(tmp_path):
    # With ln_f at 5 the library's four states have standard deviations 0.03, 0.03, 0.03 and 5.
    directory = make_model("gpt2", tmp_path / "gpt2", initializer_range=0.02)
    run = Run(directory)
    with torch.no_grad():
        run.model.ln_f.weight.fill_(5)
    spread = [(stage, H.std()) for _, stage, H in run.run()]
    assert spread[-1][0] == "final_norm" and spread[-1][1] == pytest.approx(5, rel=0.1)
    assert all(value < 1 for stage, value in spread if stage != "final_norm")


def test_the_embedding_of_albert_is_what_enters_its_first_block(runs):
    # Its embeddings are 16 wide; states are 32 wide, behind the mapping.
    model = runs("albert").model
    with torch.inference_mode():
        embedded = model.embeddings(torch.tensor([runs("albert").ids]))
        assert embedded.shape[-1] == 16
        assert same(model.encoder.embedding_hidden_mapping_in(embedded)[0], runs("albert").states[0][2])


@pytest.mark.parametrize(("depth", "groups"), [(4, [0, 0, 1, 1]), (5, [0, 0, 0, 1, 1]), (6, [0, 0, 0, 1, 1, 1])])
def test_the_groups_of_albert_share_the_depth_and_one_state_is_stored_per_block_TF04(runs, tmp_path, depth, groups):
    directory = make_model("albert-groups", tmp_path / "albert")
    edit_json(directory / "config.json", num_hidden_layers=depth)
    run = Run(directory)
    assert len(run.states) == len(run.hidden) == depth + 1
    mask = torch.zeros(1, 1, len(run.ids), len(run.ids))
    with torch.inference_mode():
        for layer, group in enumerate(groups):
            block = run.model.encoder.albert_layer_groups[group].albert_layers[0]
            found = block(torch.from_numpy(run.states[layer][2])[None], mask)[0]
            assert np.allclose(found.numpy(), run.states[layer + 1][2], atol=1e-5)
    assert all(same(H, hidden) for (_, _, H), hidden in zip(run.states, run.hidden, strict=True))


def test_a_shallower_albert_is_a_prefix_of_a_deeper_one_to_the_last_bit(tmp_path):
    directory = make_model("albert", tmp_path / "albert")
    ids = load_tokenizer(directory)(TEXT)["input_ids"]
    found = {}
    for depth in (3, 6, 12):
        model, entry = load_model(directory, "cpu", depth)
        found[depth] = []
        forward.run(model, entry, ids, lambda layer, stage, H, kept=found[depth]: kept.append((layer, stage, H.copy())))
        assert forward.n_blocks(model) == depth and len(found[depth]) == depth + 1
    for depth in (3, 6):
        for (layer, stage, H), deeper in zip(found[depth], found[12]):
            assert (layer, stage) == deeper[:2] and same(H, deeper[2])


def test_the_post_norm_opt_has_no_final_norm_and_is_the_library_s(tmp_path):
    run = Run(make_model("opt-post", tmp_path / "opt"))
    assert run.entry.final_norm is None and forward.n_states(run.model, run.entry) == len(run.states) == 4
    # Its last hidden state is projected back to the width of the embeddings.
    assert all(same(H, hidden) for (_, _, H), hidden in zip(run.states[:-1], run.hidden))
    assert run.hidden[-1].shape[1] == 16 and run.states[-1][2].shape[1] == 32


def test_inner_blocks_of_albert_are_layers_of_their_own(runs):
    run = runs("albert-inner")
    assert run.model.config.num_hidden_layers == 3 and run.model.config.inner_group_num == 2
    assert [layer for layer, _, _ in run.states] == [0, 1, 2, 3, 4, 5, 6]
    mask = torch.zeros(1, 1, len(run.ids), len(run.ids))
    with torch.inference_mode():
        for layer in range(6):
            block = run.model.encoder.albert_layer_groups[0].albert_layers[layer % 2]
            found = block(torch.from_numpy(run.states[layer][2])[None], mask)[0]
            assert np.allclose(found.numpy(), run.states[layer + 1][2], atol=1e-5)


# How the model runs


@pytest.mark.parametrize("kind", KINDS)
def test_attention_is_eager_and_complete_TF01(runs, kind):
    # With sdpa the library returns an empty tuple of attentions.
    run = runs(kind)
    assert run.model.config._attn_implementation == "eager"
    assert len(run.outputs.attentions) == DEPTH[kind]
    for attention in run.outputs.attentions:
        assert attention.shape == (1, 4, len(run.ids), len(run.ids))
        assert torch.allclose(attention.sum(-1), torch.ones(1), atol=1e-5)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - set(UNKNOWN)))
def test_the_table_says_where_attention_is(runs, kind):
    run, found = runs(kind), []
    run_attention(run.model, run.entry, run.ids, lambda block, A: found.append((block, A.copy())))
    assert [block for block, _ in found] == list(range(DEPTH[kind]))
    assert all(same(A, theirs[0]) for (_, A), theirs in zip(found, run.outputs.attentions, strict=True))


@pytest.mark.parametrize("kind", UNKNOWN)
def test_attention_of_an_unknown_type_is_refused_with_the_name_of_the_missing_entry(runs, kind):
    with pytest.raises(Refusal, match=f"{kind}: ARCHITECTURES .* does not say where its attention is: add"):
        run_attention(runs(kind).model, runs(kind).entry, runs(kind).ids, lambda *block: None)


@pytest.mark.parametrize("kind", KINDS)
def test_the_registry_says_whether_attention_is_causal(runs, kind):
    run = runs(kind)
    future = np.triu(np.ones((len(run.ids), len(run.ids)), dtype=bool), k=1)
    sees_ahead = any(attention[0].numpy()[:, future].any() for attention in run.outputs.attentions)
    assert (not sees_ahead) == (kind in CAUSAL)
    assert run.entry.is_causal == (None if kind in UNKNOWN else kind in CAUSAL)


@pytest.mark.parametrize("kind", KINDS)
def test_two_runs_are_identical_although_dropout_is_configured(runs, kind):
    run = runs(kind)
    rates = [
        getattr(run.model.config, name, 0)
        for name in ("attn_pdrop", "attention_dropout", "attention_probs_dropout_prob")
    ]
    assert max(rates) == DROPOUT
    assert all(same(a[2], b[2]) for a, b in zip(run.run(), run.states, strict=True))
    run.model.train()
    try:
        assert not all(same(a[2], b[2]) for a, b in zip(run.run(), run.states, strict=True))
    finally:
        run.model.eval()


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_runs_alone_and_unpadded_TF08(runs, kind):
    run, seen = runs(kind), []
    hook = run.model.register_forward_pre_hook(lambda module, args, kwargs: seen.append(kwargs), with_kwargs=True)
    try:
        run.run()
    finally:
        hook.remove()
    (inputs,) = seen
    assert inputs["input_ids"].tolist() == [run.ids]
    assert inputs["attention_mask"].tolist() == [[1] * len(run.ids)]


@pytest.mark.parametrize("kind", [*CAUSAL, "bert", "distilbert", "modernbert"])
def test_a_prompt_alone_has_the_states_that_it_has_in_a_batch_padded_on_the_right_TF07(runs, kind):
    run = runs(kind)
    ids = torch.tensor([run.ids + [0, 0, 0], run.ids[::-1] + [0, 0, 0]])
    mask = torch.ones_like(ids)
    mask[:, -3:] = 0
    with torch.inference_mode():
        hidden = run.model(ids, attention_mask=mask, output_hidden_states=True).hidden_states
    for (_, _, H), batched in zip(run.states[: DEPTH[kind]], hidden):
        assert np.allclose(H, batched[0, :-3].numpy(), atol=1e-4)


@pytest.mark.parametrize("kind", CAUSAL)
def test_a_causal_model_s_states_do_not_depend_on_what_follows(runs, kind):
    shorter = Run(runs(kind).directory, runs(kind).ids[:5])
    for (_, _, a), (_, _, b) in zip(shorter.states, runs(kind).states, strict=True):
        assert np.allclose(a, b[:5], atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_one_token_is_enough(runs, kind):
    run = Run(runs(kind).directory, runs(kind).ids[:1])
    assert [H.shape for _, _, H in run.states] == [(1, 32)] * len(run.states)


# What a run leaves, and what it refuses


def hooks(model):
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@pytest.mark.parametrize("kind", ["gpt2", "albert"])
def test_a_state_is_handed_over_before_the_next_block_runs_and_no_hook_stays(runs, kind):
    run, seen = runs(kind), []
    before = hooks(run.model)

    def stop(layer, stage, H):
        seen.append(layer)
        if layer == 1:
            raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        forward.run(run.model, run.entry, run.ids, stop)
    assert seen == [0, 1]
    assert hooks(run.model) == before
    run.run()
    assert hooks(run.model) == before


def test_blocks_that_did_not_run_are_refused(runs, monkeypatch):
    run = runs("gpt2")
    monkeypatch.setattr(run.model.config, "n_layer", 5)
    with pytest.raises(Refusal, match="3 blocks ran, the config says 5"):
        run.run()


def test_an_architecture_whose_blocks_have_another_name_is_refused(runs):
    run = runs("gpt2")
    with pytest.raises(Refusal, match="no module of GPT2Model"):
        forward.run(run.model, ARCHITECTURES["bert"], run.ids, lambda *state: None)


# From checkpoint and prompt to file


@pytest.fixture(scope="module")
def extracted(tmp_path_factory):
    """kind -> (states file, record of its weights, the run by hand)."""
    found = {}

    def get(kind, text=TEXT, max_tokens=512, name="p"):
        if (kind, name) not in found:
            root = tmp_path_factory.mktemp(kind) / "results"
            snapshot = make_model(kind, root / "models" / kind / "snapshot")
            source = root / "models" / kind / "source.json"
            source.write_text(json.dumps({"model": kind, "source": {"kind": "local"}, "revision": "local"}))
            target = root / "weights" / kind / "trained"
            trained(snapshot, source, target / "checkpoint", target / "weights.json")
            record = json.loads((target / "weights.json").read_text())
            prompt, output = root / "prompt.txt", root / "states" / kind / "trained" / "p.parquet"
            prompt.write_text(text + "\n", encoding="utf-8")
            run = {"model": kind, "weights": "trained", "prompt": "p"}
            extract(run, target / "checkpoint", record, "trained", prompt, max_tokens, "cpu", 1, output)
            found[kind, name] = StatesFile(output), record, target / "checkpoint"
        return found[kind, name]

    return get


@pytest.mark.parametrize("kind", ["gpt2", "bert", "albert-inner", "llama"])
def test_a_states_file_holds_the_states_of_its_checkpoint_to_the_last_bit(extracted, kind):
    file, _, checkpoint = extracted(kind)
    run = Run(checkpoint)
    assert file.states == [(layer, stage) for layer, stage, _ in run.states]
    assert all(same(file.read(index), H) for index, (_, _, H) in enumerate(run.states))
    assert file.tokens()["token_id"].to_pylist() == run.ids


@pytest.mark.parametrize("kind", ["gpt2", "bert", "albert-inner", "llama", "modernbert", "roberta", *UNKNOWN])
def test_a_states_file_says_what_it_was_made_from(extracted, kind):
    file, weights, checkpoint = extracted(kind)
    found = file.metadata
    assert (found["model"], found["weights"], found["prompt"], found["scheme"]) == (kind, "trained", "p", "trained")
    for key in ("revision", "source", "seed", "weights_hash", "checkpoint_dtypes", "proof"):
        assert found[key] == weights[key]
    assert found["attention"] == "eager" and found["dtype"] == "float32" and found["device"] == "cpu"
    assert found["n_blocks"] == DEPTH[kind]
    assert found["n_states"] == len(file) == DEPTH[kind] + 1 + (kind in PRE_NORM)
    assert found["is_causal"] == (None if kind in UNKNOWN else kind in CAUSAL)
    assert found["trained_depth"] == DEPTH[kind]
    assert found["dimension"] == 32 and found["n_tokens"] == len(file.tokens())
    assert {"python", "torch", "transformers", "tokenizers", "safetensors", "numpy", "pyarrow"} == set(
        found["versions"]
    )
    assert len(found["prompt_hash"]) == 64
    _, _, tokens = tokenize(load_tokenizer(checkpoint), TEXT, 62 if kind == "roberta" else 64)
    assert {key: found[key] for key in tokens} == tokens


def test_a_long_prompt_is_cut_to_the_model_s_positions_and_the_file_says_so(extracted):
    # RoBERTa's first two rows of positions are no token's.
    for kind, limit in (("gpt2", 64), ("bert", 64), ("roberta", 62), ("opt", 64)):
        file, _, _ = extracted(kind, TEXT * 10, name="long")
        assert file.metadata["n_tokens"] == file.metadata["token_limit"] == limit
        assert file.metadata["is_truncated"] and file.metadata["n_tokens_untruncated"] > limit
        assert pq.ParquetFile(file.path).metadata.row_group(0).num_rows == limit


def test_the_log_says_that_a_prompt_was_cut_and_to_what(extracted, capsys):
    extracted("bert", TEXT * 10, name="cut")
    assert "p: 172 tokens, cut to the 64 that model, tokenizer and max_tokens leave room for" in capsys.readouterr().out


def test_max_tokens_cuts_a_prompt_that_the_model_could_hold(extracted):
    file, _, _ = extracted("bert", TEXT, max_tokens=6, name="short")
    assert file.metadata["n_tokens"] == 6 and file.metadata["is_truncated"]


def test_a_gpu_that_is_not_there_is_refused(extracted, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    _, weights, checkpoint = extracted("bert")
    prompt = tmp_path / "prompt.txt"
    prompt.write_text(TEXT)
    with pytest.raises(Refusal, match="no GPU here: set it to cpu"):
        extract({}, checkpoint, weights, "trained", prompt, 512, "cuda", 1, tmp_path / "p.parquet")
    assert not (tmp_path / "p.parquet").exists()


@pytest.fixture
def deep(extracted, tmp_path):
    """Extract a kind at a depth, with the config that its checkpoint's config.json is given."""

    def get(kind, depth, trained_depth, **config):
        _, weights, _ = extracted(kind)
        directory = make_model(kind, tmp_path / "deep" / "checkpoint", **config)
        prompt, output = tmp_path / "prompt.txt", tmp_path / "p.parquet"
        prompt.write_text(TEXT)
        depths = {"depth": depth, "trained_depth": trained_depth}
        run = {"model": kind, "weights": "trained", "prompt": "p"}
        extract(run, directory, weights, "trained", prompt, 512, "cpu", 1, output, depth=depths)
        return StatesFile(output)

    return get


def test_albert_runs_once_to_its_deepest_iteration_and_the_file_says_how_deep_it_was_trained(deep):
    file = deep("albert", 12, 3)
    assert (file.metadata["n_blocks"], file.metadata["trained_depth"], len(file)) == (12, 3, 13)


@pytest.mark.parametrize("kind", ["gpt2", "bert", "llama", "phi"])
def test_a_model_that_does_not_share_its_block_is_never_deepened_TF05(deep, kind):
    with pytest.raises(Refusal, match="whose blocks have weights of their own: it cannot run 6 of them"):
        deep(kind, 6, 3)


@pytest.mark.parametrize("config", [{"num_hidden_groups": 3}, {"inner_group_num": 2}])
def test_an_albert_of_several_blocks_is_not_deepened_TF04(deep, config):
    with pytest.raises(Refusal, match="blocks that take turns"):
        deep("albert", 6, 3, **config)


def test_a_trained_depth_that_is_not_the_checkpoint_s_is_refused_with_that(deep):
    with pytest.raises(Refusal, match="trained_depth is 12, and its config.json says num_hidden_layers 3"):
        deep("albert", 24, 12)


# Model types that the table of architectures does not have


def test_the_blocks_of_an_unknown_type_are_found_and_nothing_else_is_derived(runs):
    for kind, blocks, norm in (("electra", r"encoder\.layer\.\d+", None), ("phi", r"layers\.\d+", "final_layernorm")):
        entry = runs(kind).entry
        assert (entry.blocks, entry.final_norm) == (blocks, norm)
        assert entry.is_causal is None and entry.attention is None
        assert not entry.components and not entry.fused


@pytest.mark.parametrize("kind", sorted(set(KINDS) - set(UNKNOWN) - {"albert", "albert-groups", "albert-inner"}))
def test_what_is_found_without_the_table_is_what_the_table_says(runs, kind):
    run = runs(kind)
    found = find_blocks(run.model, run.directory)
    assert modules_named(run.model, found.blocks) == modules_named(run.model, run.entry.blocks)
    assert found.final_norm == run.entry.final_norm


@pytest.mark.parametrize("kind", ["albert", "t5", "opt-post"])
def test_blocks_that_cannot_be_told_are_refused_with_the_name_of_the_missing_entry(tmp_path, kind):
    # A shared block is one module that runs often; T5 has two stacks; what follows OPT's last block is no norm.
    directory = make_model(kind, tmp_path / kind)
    model = AutoModel.from_pretrained(directory).eval()
    with pytest.raises(Refusal, match="has no entry in ARCHITECTURES .* its blocks cannot be found") as refusal:
        find_blocks(model, directory)
    assert repr(model.config.model_type) in str(refusal.value)


def test_blocks_of_another_width_than_the_config_s_are_refused(runs, monkeypatch):
    run = runs("phi")
    monkeypatch.setattr(run.model.config, "hidden_size", 16)
    with pytest.raises(Refusal, match=r"its blocks give \(1, 3, 32\), its config says hidden_size 16"):
        find_blocks(run.model, run.directory)


def test_a_prompt_longer_than_a_position_table_that_nobody_knows_is_refused(extracted, tmp_path, monkeypatch):
    monkeypatch.setattr("collapse.extraction.token_limit", lambda *arguments: 100)
    _, weights, checkpoint = extracted("electra")
    prompt = tmp_path / "prompt.txt"
    prompt.write_text(TEXT * 10)
    with pytest.raises(Refusal, match="over 100 tokens failed .* lower max_tokens"):
        run = {"model": "m", "weights": "w", "prompt": "p"}
        extract(
            run,
            checkpoint,
            weights,
            "trained",
            prompt,
            512,
            "cpu",
            1,
            tmp_path / "p",
        )
    assert not (tmp_path / "p").exists()


def test_a_tokenizer_without_a_maximum_length_is_named_with_the_limit_that_holds(extracted, capsys):
    extracted("gpt2", TEXT, name="endless")
    assert "its tokenizer gives no maximum length" in capsys.readouterr().out
