"""A checkpoint is loaded whole, as it is, or refused with what is wrong and where."""

import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.numpy import save_file as save_arrays
from tiny_models import edit_json, edit_tensors, make_gguf, make_model, make_tokenizer
from transformers import AutoModel

from collapse import checkpoint
from collapse.architectures import architecture
from collapse.checkpoint import convert_gguf, load_model, load_tokenizer, tensors
from collapse.errors import Refusal

IDS = [5, 6, 7, 8, 9]


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """One untouched checkpoint per kind: (directory); tests that edit make their own."""
    root = tmp_path_factory.mktemp("checkpoints")

    def make(kind):
        return root / kind if (root / kind).exists() else make_model(kind, root / kind)

    return make


@pytest.fixture
def edited(tmp_path):
    """A checkpoint of a kind of which `change(tensors)` replaces the tensors and `config` some entries."""

    def make(kind, change=None, **config):
        directory = make_model(kind, tmp_path / "checkpoint")
        if change:
            edit_tensors(directory, change)
        if config:
            edit_json(directory / "config.json", **config)
        return directory

    return make


def without(*names):
    return lambda tensors: {name: tensor for name, tensor in tensors.items() if name not in names}


def having(**more):
    return lambda tensors: tensors | {name.replace("__", "."): tensor for name, tensor in more.items()}


def refused(directory, match):
    with pytest.raises(Refusal, match=match) as refusal:
        load_model(directory, "cpu")
    assert str(directory) in str(refusal.value)
    return str(refusal.value)


def forward(model):
    with torch.no_grad():
        return model(input_ids=torch.tensor([IDS])).last_hidden_state


# Loading


@pytest.mark.parametrize("kind", ["gpt2", "gpt2-base", "bert", "albert", "llama", "llama-tied"])
def test_the_base_model_has_the_file_s_weights_in_float32_eager_and_in_eval_mode(original, kind):
    directory = original(kind)
    model, entry = load_model(directory, "cpu")
    stored = load_file(directory / "model.safetensors")
    for name, parameter in model.named_parameters():
        assert parameter.dtype == torch.float32
        (array,) = (array for key, array in stored.items() if key == name or key.endswith(f".{name}"))
        assert np.array_equal(parameter.detach().numpy(), array)
    assert not any(module.training for module in model.modules())
    assert model.config._attn_implementation == "eager"
    assert entry is architecture(model.config.model_type)


@pytest.mark.parametrize(
    ("kind", "head"), [("gpt2", None), ("llama", "lm_head"), ("bert-mlm", "cls."), ("bert-pooler", "pooler.")]
)
def test_heads_in_the_file_are_left_out(original, kind, head):
    names = [name for name, _ in tensors(original(kind))]
    assert head is None or any(head in name for name in names)
    model, _ = load_model(original(kind), "cpu")
    assert not any(part in name for name, _ in model.named_parameters() for part in ("lm_head", "cls.", "pooler"))


@pytest.mark.parametrize(
    "head", ["classifier.weight", "qa_outputs.weight", "score.weight", "cls.seq_relationship.weight"]
)
def test_other_heads_are_left_out_too(edited, head):
    load_model(edited("bert", lambda tensors: tensors | {head: torch.ones(2, 32)}), "cpu")


@pytest.mark.parametrize("kind", ["bert", "roberta", "albert"])
def test_a_decoder_of_a_type_that_is_not_causal_is_refused(edited, kind):
    with pytest.raises(Refusal, match=f"is_decoder, which makes a causal model of {kind}"):
        load_model(edited(kind, is_decoder=True), "cpu")


def test_a_sharded_checkpoint_is_the_same_model(original, tmp_path):
    whole, _ = load_model(original("gpt2-base"), "cpu")
    AutoModel.from_pretrained(original("gpt2-base")).save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    assert (tmp_path / "shards" / "model.safetensors.index.json").is_file()
    model, _ = load_model(tmp_path / "shards", "cpu")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), whole.parameters(), strict=True))
    ours, theirs = dict(tensors(tmp_path / "shards")), dict(tensors(original("gpt2-base")))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_masks_and_positions_of_old_checkpoints_are_no_weights(edited, original):
    mask = torch.tril(torch.ones(1, 1, 64, 64))
    old = {f"transformer.h.{block}.attn.bias": mask.clone() for block in range(3)}
    old |= {f"transformer.h.{block}.attn.masked_bias": torch.tensor(-1e4) for block in range(3)}
    model, _ = load_model(edited("gpt2", lambda tensors: tensors | old), "cpu")
    assert torch.equal(forward(model), forward(load_model(original("gpt2"), "cpu")[0]))


def test_position_ids_of_old_bert_checkpoints_are_no_weights(edited):
    load_model(edited("bert", having(embeddings__position_ids=torch.arange(64)[None])), "cpu")


def test_old_names_of_norms_are_the_norms(edited, original):
    def old(tensors):
        return {
            n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t
            for n, t in tensors.items()
        }

    model, _ = load_model(edited("bert", old), "cpu")
    assert torch.equal(forward(model), forward(load_model(original("bert"), "cpu")[0]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_cast_to_float32_exactly(edited, dtype):
    directory = edited("gpt2", lambda tensors: {name: tensor.to(dtype) for name, tensor in tensors.items()})
    model, _ = load_model(directory, "cpu")
    stored = dict(tensors(directory))
    for name, parameter in model.named_parameters():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, stored[f"transformer.{name}"].to(torch.float32))


# Refusals


@pytest.mark.parametrize(
    ("kind", "name", "key"),
    [
        ("gpt2", "n_layer", "h.3."),
        ("bert", "num_hidden_layers", "layer.3."),
        ("llama", "num_hidden_layers", "layers.3."),
    ],
)
def test_blocks_that_the_file_does_not_have_are_refused_and_never_random_TF05(edited, kind, name, key):
    message = refused(edited(kind, **{name: 5}), "missing")
    assert key in message and "config.json" in message and "number of layers" in message


@pytest.mark.parametrize(
    ("kind", "name", "key"),
    [
        ("gpt2", "n_layer", "h.2."),
        ("bert", "num_hidden_layers", "layer.2."),
        ("llama", "num_hidden_layers", "layers.2."),
    ],
)
def test_blocks_that_the_config_does_not_have_are_refused(edited, kind, name, key):
    message = refused(edited(kind, **{name: 2}), "no place in the model")
    assert key in message and "config.json" in message and "number of layers" in message


def test_only_a_shared_block_can_be_deepened(edited):
    model, _ = load_model(edited("albert", num_hidden_layers=12), "cpu")
    assert model.config.num_hidden_layers == 12


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("gpt2", "transformer.h.1.mlp.c_fc.weight"),
        ("gpt2", "transformer.h.0.attn.c_attn.bias"),
        ("gpt2", "transformer.ln_f.weight"),
        ("gpt2", "transformer.wpe.weight"),
        ("bert", "encoder.layer.1.output.LayerNorm.bias"),
        ("albert", "encoder.embedding_hidden_mapping_in.weight"),
        ("llama", "model.norm.weight"),
    ],
)
def test_a_missing_tensor_is_refused_by_name(edited, kind, name):
    message = refused(edited(kind, without(name)), "1 tensors are missing")
    assert name.removeprefix("transformer.").removeprefix("model.") in message


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("gpt2", "transformer.h.1.attn.extra.weight"),
        ("bert", "encoder.layer.1.adapter.weight"),
        ("albert", "encoder.albert_layer_groups.1.albert_layers.0.ffn.weight"),
        ("llama", "model.layers.1.self_attn.q_proj.bias"),
    ],
)
def test_a_tensor_without_a_place_is_refused_by_name(edited, kind, name):
    assert name in refused(edited(kind, lambda tensors: tensors | {name: torch.ones(2, 2)}), "no place in the model")


def test_a_tensor_of_another_shape_is_refused_by_name(edited):
    name = "transformer.h.1.mlp.c_fc.weight"
    message = refused(edited("gpt2", lambda tensors: tensors | {name: torch.ones(32, 64)}), "shape")
    assert "h.1.mlp.c_fc.weight" in message


def test_a_config_of_another_width_is_refused_by_the_tensors_names(edited):
    assert "intermediate" in refused(edited("bert", intermediate_size=65), "shape")


def test_a_directory_without_config_is_refused(edited):
    directory = edited("bert")
    (directory / "config.json").unlink()
    refused(directory, r"has no config\.json")


@pytest.mark.parametrize("model_type", ["no-such-type", None])
def test_a_model_type_that_transformers_does_not_know_is_refused_and_no_code_is_run(edited, model_type):
    message = refused(edited("bert", model_type=model_type), "model type")
    assert repr(model_type) in message and "is never run" in message


def test_a_model_type_that_is_not_the_checkpoint_s_is_refused(edited):
    refused(edited("bert", model_type="mamba"), "tensors are missing")


def test_a_known_type_is_asked_for_by_name_where_a_fact_about_it_is_needed():
    with pytest.raises(
        Refusal, match=r"here: model type 'mamba' has no entry in ARCHITECTURES .*its fused tensors"
    ) as r:
        architecture("mamba", "here", "fused tensors")
    assert "albert, bert, distilbert, gpt2, gpt_neox, llama" in str(r.value)


def test_a_head_of_a_model_type_that_nobody_knows_is_left_out_and_a_tensor_of_its_body_is_not(edited):
    load_model(edited("electra"), "cpu")
    name = "electra.encoder.layer.1.adapter.weight"
    assert name in refused(edited("electra", lambda tensors: tensors | {name: torch.ones(2, 2)}), "no place")


def test_a_directory_without_weights_is_refused(edited):
    directory = edited("bert")
    (directory / "model.safetensors").unlink()
    refused(directory, "safetensors")
    with pytest.raises(Refusal, match="no \\*.safetensors"):
        list(tensors(directory))


def test_a_weights_file_cut_short_is_refused_by_name(edited):
    path = edited("bert") / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(Refusal, match=r"model\.safetensors"):
        list(tensors(path.parent))


def test_a_tensor_that_stands_in_two_files_is_refused_with_both(edited):
    directory = edited("bert")
    (directory / "model.safetensors").rename(directory / "first.safetensors")
    save_arrays({"embeddings.LayerNorm.bias": np.ones(32, np.float32)}, directory / "second.safetensors")
    with pytest.raises(
        Refusal, match=r"embeddings\.LayerNorm\.bias is in first\.safetensors and in second\.safetensors"
    ):
        list(tensors(directory))


def test_a_file_that_transformers_does_not_load_does_not_count(edited):
    directory = edited("bert")
    save_arrays({"tok_embeddings.weight": np.ones((2, 2), np.float32)}, directory / "consolidated.safetensors")
    assert "tok_embeddings.weight" not in dict(tensors(directory))


def test_a_shard_that_the_index_names_and_that_is_not_there_is_refused(edited):
    directory = edited("bert")
    (directory / "model.safetensors").rename(directory / "model-1.safetensors")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(Refusal, match=r"index names model-2\.safetensors"):
        list(tensors(directory))


def test_code_that_a_checkpoint_brings_is_never_run(edited, tmp_path):
    directory = edited("bert", auto_map={"AutoConfig": "evil.Config", "AutoModel": "evil.Model"})
    edit_json(directory / "tokenizer_config.json", auto_map={"AutoTokenizer": [None, "evil.Tokenizer"]})
    (directory / "evil.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w').close()\n"
        "from transformers import BertConfig as Config, BertModel as Model, PreTrainedTokenizerFast as Tokenizer\n"
    )
    load_model(directory, "cpu")
    load_tokenizer(directory)
    assert not (tmp_path / "ran").exists()


# Tokenizers


@pytest.mark.parametrize("kind", ["gpt2", "bert", "albert", "llama"])
def test_the_tokenizer_is_the_checkpoint_s_and_fast(original, kind):
    tokenizer = load_tokenizer(original(kind))
    assert tokenizer.is_fast
    made = make_tokenizer({"gpt2": "bytes", "bert": "wordpiece", "albert": "unigram", "llama": "bytes-bos"}[kind])
    assert tokenizer("The ferry, « $5 — 。»")["input_ids"] == made("The ferry, « $5 — 。»")["input_ids"]


def test_a_slow_tokenizer_alone_is_refused_TF19(edited):
    directory = edited("gpt2")
    (directory / "tokenizer.json").unlink()
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "ByT5Tokenizer"}))
    with pytest.raises(Refusal, match=r"tokenizer\.json") as refusal:
        load_tokenizer(directory)
    assert str(directory) in str(refusal.value)


@pytest.mark.parametrize("kind", ["gpt2", "bert", "albert", "llama"])
@pytest.mark.parametrize("left", ["nothing", "tokenizer_config.json"])
def test_a_checkpoint_without_a_vocabulary_is_refused(edited, kind, left):
    # transformers makes an empty tokenizer of the model's type instead, under which every word is unknown.
    directory = edited(kind)
    for path in directory.glob("tokenizer*"):
        if path.name != left:
            path.unlink()
    with pytest.raises(Refusal, match="tokenizer") as refusal:
        load_tokenizer(directory)
    assert str(directory) in str(refusal.value)


@pytest.mark.parametrize(("kind", "file"), [("gpt2", "vocab.txt"), ("bert", "vocab.json"), ("albert", "vocab.txt")])
def test_a_vocabulary_that_is_not_the_model_s_kind_is_refused(edited, kind, file):
    # The library passes it over and makes an empty tokenizer all the same.
    directory = edited(kind)
    for path in directory.glob("tokenizer*"):
        path.unlink()
    (directory / file).write_text("{}")
    with pytest.raises(Refusal, match="tokenizer") as refusal:
        load_tokenizer(directory)
    assert str(directory) in str(refusal.value)


# Hashes and norms


def test_a_content_hash_is_of_shape_type_and_bytes():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert checkpoint.content_hash(array) == checkpoint.content_hash(np.asfortranarray(array))
    others = [array.T, array.reshape(3, 2), array.astype(np.float64), -array, array + np.float32(1e-6)]
    assert len({checkpoint.content_hash(a) for a in [array, *others]}) == 6


def test_the_hash_of_all_weights_is_of_names_and_contents_whatever_the_order():
    records = {"a": {"sha256": "1"}, "b": {"sha256": "2"}}
    same = {"b": {"sha256": "2", "norm": 1.0}, "a": {"sha256": "1"}}
    assert checkpoint.weights_hash(records) == checkpoint.weights_hash(same)
    assert checkpoint.weights_hash(records) == hashlib.sha256(b"a 1\nb 2\n").hexdigest()
    for other in (
        {"a": {"sha256": "2"}, "b": {"sha256": "1"}},
        {"a": {"sha256": "1"}},
        {"c": {"sha256": "1"}, "b": {"sha256": "2"}},
    ):
        assert checkpoint.weights_hash(other) != checkpoint.weights_hash(records)


@pytest.mark.parametrize(
    ("kind", "prefix", "head"),
    [
        ("gpt2-base", "transformer.", "lm_head.weight"),
        ("bert-pooler", "bert.", "cls.predictions.bias"),
        ("llama", "model.", "score.weight"),
    ],
)
def test_weights_saved_with_a_head_have_the_hash_of_those_without(original, kind, prefix, head):
    own = {name: {"sha256": checkpoint.content_hash(t.numpy())} for name, t in tensors(original(kind))}
    bare = {name.removeprefix(prefix): record for name, record in own.items() if "lm_head" not in name}
    headed = {f"{prefix}{name}": record for name, record in bare.items()} | {head: {"sha256": "0"}}
    assert checkpoint.weights_hash(headed) == checkpoint.weights_hash(bare) == checkpoint.weights_hash(own)


def test_blocks_in_another_order_are_other_weights(original):
    own = {name: {"sha256": checkpoint.content_hash(t.numpy())} for name, t in tensors(original("gpt2-base"))}
    swapped = {
        name.replace("h.0.", "h.x.").replace("h.1.", "h.0.").replace("h.x.", "h.1."): r for name, r in own.items()
    }
    assert swapped.keys() == own.keys()
    assert checkpoint.weights_hash(swapped) != checkpoint.weights_hash(own)


def test_a_norm_neither_overflows_nor_loses_digits():
    assert checkpoint.frobenius(np.full((10, 10), 1e30, np.float32)) == pytest.approx(1e31, rel=1e-7)
    assert checkpoint.frobenius(np.full((10, 10), 1e-30, np.float32)) == pytest.approx(1e-29, rel=1e-7)
    many = np.full((3, 2_000_000), 0.1, np.float32)
    assert checkpoint.frobenius(many) == pytest.approx(np.sqrt(6e6) * float(np.float32(0.1)), rel=1e-12)
    assert checkpoint.frobenius(many[:, ::2]) == pytest.approx(np.sqrt(3e6) * float(np.float32(0.1)), rel=1e-12)
    assert checkpoint.frobenius(np.zeros((3, 3), np.float32)) == 0.0


def test_only_floating_tensors_become_arrays():
    half = torch.tensor([1.5, -0.0, 6e-8], dtype=torch.float16)
    assert checkpoint.as_float32(half).dtype == np.float32
    assert np.array_equal(checkpoint.as_float32(half), half.float().numpy())
    for dtype in (torch.int64, torch.uint8, torch.bool):
        assert checkpoint.as_float32(torch.ones(2).to(dtype)) is None


# GGUF


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """kind -> (directory of the converted checkpoint, the original tensors)."""
    found = {}
    for kind in ("llama", "llama-tied"):
        root = tmp_path_factory.mktemp(kind)
        file, original = make_gguf(kind, root / "snapshot")
        (root / "checkpoint").mkdir()
        convert_gguf(file.parent, file.name, root / "checkpoint")
        found[kind] = root / "checkpoint", original
    return found


@pytest.mark.parametrize("kind", ["llama", "llama-tied"])
def test_a_converted_gguf_file_has_the_original_tensors(converted, kind):
    directory, original = converted[kind]
    found = load_file(directory / "model.safetensors")
    assert found.keys() == original.keys()
    assert all(found[name].dtype == np.float32 and np.array_equal(found[name], original[name]) for name in original)


def test_a_tied_head_is_not_written_and_an_untied_one_is(converted):
    assert "lm_head.weight" not in load_file(converted["llama-tied"][0] / "model.safetensors")
    assert "lm_head.weight" in load_file(converted["llama"][0] / "model.safetensors")


@pytest.mark.parametrize("kind", ["llama", "llama-tied"])
def test_a_converted_gguf_file_loads_as_a_plain_checkpoint(converted, original, kind):
    directory, _ = converted[kind]
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    assert "quantization_config" not in config
    assert config["tie_word_embeddings"] == (kind == "llama-tied")
    model, _ = load_model(directory, "cpu")
    reference, _ = load_model(original(kind), "cpu")
    assert torch.allclose(forward(model), forward(reference), atol=1e-5)
    tokenizer = load_tokenizer(directory)
    ids = [
        tokens("The ferry left.", add_special_tokens=False)["input_ids"]
        for tokens in (tokenizer, make_tokenizer("bytes-bos"))
    ]
    assert ids[0] == ids[1]


def test_a_gguf_file_that_lacks_a_tensor_is_refused_and_not_filled_with_random_numbers(tmp_path):
    file, _ = make_gguf("llama", tmp_path / "snapshot", without=("model.layers.1.mlp.up_proj.weight",))
    (tmp_path / "checkpoint").mkdir()
    with pytest.raises(Refusal, match=r"layers\.1\.mlp\.up_proj\.weight"):
        convert_gguf(file.parent, file.name, tmp_path / "checkpoint")


# Memory


def test_loading_maps_the_file_and_copies_nothing(tmp_path):
    """In a process of its own, so that only this load counts; 40 MB of weights."""
    make_model("bert", tmp_path / "bert", hidden_size=256, intermediate_size=2048, num_hidden_layers=8)
    size = (tmp_path / "bert" / "model.safetensors").stat().st_size
    program = (
        "import sys, torch\n"
        "from collapse.checkpoint import load_model\n"
        "def anonymous():\n"
        "    lines = open('/proc/self/smaps_rollup').read().splitlines()\n"
        "    return next(1024 * int(line.split()[1]) for line in lines if line.startswith('Anonymous:'))\n"
        "load_model(sys.argv[1], 'cpu')\n"
        "before = anonymous()\n"
        "model, _ = load_model(sys.argv[1], 'cpu')\n"
        "print(anonymous() - before)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "bert")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    copied = int(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert size > 40e6
    assert copied < 0.2 * size
