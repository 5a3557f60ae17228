"""Random weights: drawn at the trained norms, by the seed and the tensor's name alone, and proved to differ."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
import torch
from labs import Lab, arrays, definition, norm, record
from memory import environment_to_measure_in
from safetensors.numpy import load_file, save_file
from scipy import stats
from tiny_models import edit_json, make_gguf, make_model
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

from collapse import forward, schemes, weights
from collapse.architectures import Fused
from collapse.checkpoint import content_hash, load_model, load_tokenizer, weights_hash
from collapse.errors import Refusal
from collapse.safetensors_file import writing
from collapse.weights import restore

KINDS = ["gpt2", "gpt2-base", "bert", "bert-pooler", "bert-mlm", "albert", "albert-groups", "llama", "llama-tied"]
Q, K, V = np.s_[:, 0:32], np.s_[:, 32:64], np.s_[:, 64:96]


def redraw(array, seed, name, fused=None):
    return schemes.redraw("norm-matched", array, seed, name, fused)


def blocks_of(name, array):
    """The matrices in a tensor: queries, keys and values of GPT-2's fused projection, or the tensor itself."""
    return [array[part] for part in (Q, K, V)] if name.endswith("c_attn.weight") else [array]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """kind -> its lab, with the queries, keys and values of GPT-2 at norms that differ by 1000."""

    def unequal(tensors):
        for name, tensor in tensors.items():
            if name.endswith("c_attn.weight"):
                tensor[K] *= 30
                tensor[V] *= 0.03
        return tensors

    @cache
    def make(kind):
        return Lab(tmp_path_factory.mktemp(kind), kind, unequal if kind.startswith("gpt2") else None)

    return make


@pytest.fixture
def own(tmp_path):
    """A lab of the test's own, whose tensors or config it changes."""
    return lambda kind, change=None, name="own", **config: Lab(tmp_path / name, kind, change, **config)


# Trained weights


def test_trained_weights_are_links_to_the_snapshot_and_no_copies(lab):
    target = lab("gpt2").drawn().parent / "trained"
    files = list((target / "checkpoint").iterdir())
    assert {path.name for path in files} == {path.name for path in lab("gpt2").snapshot.iterdir()}
    assert all(path.is_symlink() and path.resolve().parent == lab("gpt2").snapshot.resolve() for path in files)


def test_the_results_folder_can_move_as_a_whole(own):
    before = own("bert")
    before.drawn()
    moved = before.root.rename(before.root.with_name("moved"))
    for slug in ("trained", "norm-matched-keep-s0"):
        load_model(moved / "results" / "weights" / "tiny" / slug / "checkpoint", "cpu")
        load_tokenizer(moved / "results" / "weights" / "tiny" / slug / "checkpoint")


def test_links_out_of_the_results_folder_hold_where_the_snapshot_links_to(own, tmp_path):
    elsewhere = make_model("bert", tmp_path / "elsewhere")
    here = own("bert")
    shutil.rmtree(here.snapshot)
    here.snapshot.mkdir()
    for path in elsewhere.iterdir():
        (here.snapshot / path.name).symlink_to(path)
    load_model(here.drawn() / "checkpoint", "cpu")
    assert (here.path("trained") / "checkpoint" / "model.safetensors").resolve() == elsewhere / "model.safetensors"


@pytest.mark.parametrize("kind", KINDS)
def test_the_record_of_trained_weights_says_what_every_tensor_is(lab, kind):
    lab(kind).drawn()
    target = lab(kind).path("trained")
    found, stored = record(target), load_file(lab(kind).snapshot / "model.safetensors")
    assert (found["scheme"], found["seed"], found["model"], found["revision"]) == ("trained", None, "tiny", "local")
    assert found["checkpoint_dtypes"] == ["float32"]
    assert found["tensors"].keys() == stored.keys()
    for name, array in stored.items():
        entry = found["tensors"][name]
        assert entry["shape"] == list(array.shape)
        assert entry["sha256"] == content_hash(array)
        assert entry["norm"] == pytest.approx(norm(array), rel=1e-12)
    assert found["weights_hash"] == weights_hash(found["tensors"])


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_tensor_with_nan_or_infinity_is_refused_by_name(own, broken):
    name = "transformer.h.1.mlp.c_fc.weight"

    def change(tensors):
        tensors[name][3, 4] = broken
        return tensors

    here = own("gpt2", change)
    with pytest.raises(Refusal, match=re.escape(name)):
        here.trained()
    assert list(here.path("trained").iterdir()) == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_cast_and_the_record_says_so(own, dtype):
    def half(tensors):
        return {name: tensor.to(dtype) for name, tensor in tensors.items()}

    def same_values(tensors):
        return {name: tensor.to(dtype).to(torch.float32) for name, tensor in tensors.items()}

    halves, singles = own("gpt2", half, "halves"), own("gpt2", same_values, "singles")
    assert record(halves.trained())["checkpoint_dtypes"] == [str(dtype).removeprefix("torch.")]
    assert record(halves.drawn())["checkpoint_dtypes"] == ["float32"]
    # The values are the weights, not the type they were stored in.
    for slug in ("trained", "norm-matched-keep-s0"):
        singles.drawn()
        assert record(halves.path(slug))["weights_hash"] == record(singles.path(slug))["weights_hash"]
    drawn = arrays(halves.drawn())
    assert all(array.dtype == np.float32 for array in drawn.values())
    load_model(halves.drawn() / "checkpoint", "cpu")


def test_all_types_of_a_mixed_checkpoint_are_recorded(own):
    def mixed(tensors):
        return {name: tensor.half() if tensor.ndim == 2 else tensor for name, tensor in tensors.items()}

    assert record(own("bert", mixed).trained())["checkpoint_dtypes"] == ["float16", "float32"]


def test_a_gguf_source_becomes_a_float32_checkpoint_of_its_own(tmp_path):
    here = Lab(tmp_path, "llama")
    shutil.rmtree(here.snapshot)
    file, original = make_gguf("llama", here.snapshot)
    edit_json(here.source, source={"kind": "local", "gguf_file": file.name})
    target = here.trained()
    assert not list((target / "checkpoint").glob("*.gguf"))
    found = arrays(target)
    assert found.keys() == original.keys() and all(np.array_equal(found[name], original[name]) for name in original)
    assert record(target)["checkpoint_dtypes"] == ["float32"]
    model, _ = load_model(here.drawn() / "checkpoint", "cpu")
    assert model.config.num_hidden_layers == 3


# Norms


@pytest.mark.parametrize("kind", KINDS)
def test_every_matrix_is_redrawn_at_its_trained_norm(lab, kind):
    before, after = load_file(lab(kind).snapshot / "model.safetensors"), arrays(lab(kind).drawn())
    assert after.keys() == before.keys()
    for name, array in before.items():
        assert after[name].shape == array.shape and after[name].dtype == np.float32
        if array.ndim < 2:
            continue
        for old, new in zip(blocks_of(name, array), blocks_of(name, after[name])):
            assert norm(new) == pytest.approx(norm(old), rel=1e-6)
            # Independent directions: the distance is the root of two norms, as far as there are entries.
            assert norm(new - old) / norm(old) == pytest.approx(np.sqrt(2), abs=4 / np.sqrt(old.size))


@pytest.mark.parametrize("kind", ["gpt2", "gpt2-base"])
def test_queries_keys_and_values_keep_their_own_norms(lab, kind):
    before, after = load_file(lab(kind).snapshot / "model.safetensors"), arrays(lab(kind).drawn())
    names = [name for name in before if name.endswith("c_attn.weight")]
    assert len(names) == 3
    for name in names:
        assert before[name].shape == (32, 96)
        q, k, v = (norm(part) for part in blocks_of(name, before[name]))
        assert k > 20 * q > 400 * v
        assert [norm(part) for part in blocks_of(name, after[name])] == pytest.approx([q, k, v], rel=1e-6)


def test_a_projection_that_is_not_fused_is_matched_as_one(lab):
    # Conv1D is (in, out): a third of the rows or columns of c_fc is no part of its own.
    before, after = load_file(lab("gpt2").snapshot / "model.safetensors"), arrays(lab("gpt2").drawn())
    name = "transformer.h.0.mlp.c_fc.weight"
    assert before[name].shape == (32, 128)
    thirds = [np.array([norm(part) for part in np.array_split(a[name], 3, axis=1)]) for a in (before, after)]
    assert not np.allclose(*thirds, rtol=1e-3)


def test_entries_are_gaussian_and_of_mean_zero():
    target = np.random.default_rng(3).uniform(1, 2, (200, 300)).astype(np.float32)
    drawn = redraw(target, 0, "name")
    scale = norm(target) / np.sqrt(target.size)
    assert stats.kstest(drawn.ravel() / scale, "norm").pvalue > 1e-3
    assert abs(drawn.mean()) < 4 * scale / np.sqrt(drawn.size)
    # Rows and columns are not scaled one by one.
    assert np.linalg.norm(drawn, axis=1).std() / scale == pytest.approx(1 / np.sqrt(2), rel=0.2)


@pytest.mark.parametrize("size", [1e-12, 1e-3, 1.0, 1e6, 1e15])
@pytest.mark.parametrize("shape", [(2, 2), (1, 300), (300, 1), (700, 900), (2, 3, 4)])
def test_the_norm_matches_at_every_size_and_shape(shape, size):
    target = (np.random.default_rng(4).standard_normal(shape) * size).astype(np.float32)
    assert norm(redraw(target, 0, "name")) == pytest.approx(norm(target), rel=1e-6)


def test_parts_are_matched_along_their_own_axis():
    target = np.ones((6, 9), np.float32)
    target[:2], target[2:4] = 100, 0.01
    rows = redraw(target, 0, "name", Fused(("q", "k", "v")))
    assert [norm(rows[i : i + 2]) for i in (0, 2, 4)] == pytest.approx(
        [norm(target[i : i + 2]) for i in (0, 2, 4)], rel=1e-6
    )
    columns = redraw(target.T.copy(), 0, "name", Fused(("q", "k", "v"), axis=-1))
    assert [norm(columns[:, i : i + 2]) for i in (0, 2, 4)] == pytest.approx(
        [norm(target[i : i + 2]) for i in (0, 2, 4)], rel=1e-6
    )


def test_a_matrix_of_zeros_stays_zero_and_does_not_break_the_proof_TF11(own):
    name = "transformer.h.1.mlp.c_proj.weight"

    def change(tensors):
        tensors[name].zero_()
        tensors["transformer.h.0.attn.c_attn.weight"][K] = 0
        return tensors

    here = own("gpt2", change)
    after, entries = arrays(here.drawn()), record(here.drawn())["tensors"]
    assert not after[name].any()
    q, k, v = blocks_of("c_attn.weight", after["transformer.h.0.attn.c_attn.weight"])
    assert not k.any() and q.all() and v.all()
    nothing = {"norm_before": 0.0, "norm_after": 0.0, "norm_error": None, "relative_distance": None}
    assert entries[name]["parts"] == [nothing]
    assert "NaN" not in (here.drawn() / "weights.json").read_text(encoding="utf-8")
    load_model(here.drawn() / "checkpoint", "cpu")


# Vectors


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_stay_to_the_last_bit_where_norms_are_kept(lab, kind):
    before, after = load_file(lab(kind).snapshot / "model.safetensors"), arrays(lab(kind).drawn())
    vectors = [name for name, array in before.items() if array.ndim < 2]
    assert len(vectors) > 3
    for name in vectors:
        assert before[name].tobytes() == after[name].tobytes()
        assert record(lab(kind).drawn())["tensors"][name]["action"] == "kept"


def norms_of(directory, cls):
    """(gains, biases): names of the parameters of a model's norm modules, by their type and not by their name."""
    model = cls.from_pretrained(directory)
    modules = [
        (name, module)
        for name, module in model.named_modules()
        if type(module).__name__ in ("LayerNorm", "LlamaRMSNorm")
    ]
    gains = {f"{name}.weight" for name, _ in modules}
    return gains, {f"{name}.bias" for name, module in modules if getattr(module, "bias", None) is not None}


@pytest.mark.parametrize(
    ("kind", "cls", "n_gains"),
    [
        ("gpt2", AutoModelForCausalLM, 7),
        ("gpt2-base", AutoModel, 7),
        ("bert", AutoModel, 7),
        ("bert-mlm", AutoModelForMaskedLM, 8),
        ("albert", AutoModel, 3),
        ("albert-groups", AutoModel, 5),
        ("llama", AutoModelForCausalLM, 7),
    ],
)
def test_reset_norms_have_gain_one_and_bias_zero_and_all_other_vectors_stay(lab, kind, cls, n_gains):
    before, target = load_file(lab(kind).snapshot / "model.safetensors"), lab(kind).drawn(norms="reset")
    after, entries = arrays(target), record(target)["tensors"]
    gains, biases = norms_of(lab(kind).snapshot, cls)
    assert len(gains) == n_gains
    for name, array in before.items():
        if array.ndim >= 2:
            continue
        if name in gains:
            assert (after[name] == 1).all() and not (array == 1).all()
        elif name in biases:
            assert (after[name] == 0).all() and array.any()
        else:
            assert after[name].tobytes() == array.tobytes()
        assert entries[name]["action"] == ("reset" if name in gains | biases else "kept")


def test_norms_under_their_old_names_are_reset_too(own):
    # bert-base-uncased still calls them gamma and beta.
    def old(tensors):
        return {
            n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t
            for n, t in tensors.items()
        }

    after = arrays(own("bert", old).drawn(norms="reset"))
    assert all((array == 1).all() for name, array in after.items() if name.endswith("gamma"))
    assert all((array == 0).all() for name, array in after.items() if name.endswith("beta"))


def test_matrices_are_the_same_whether_norms_are_kept_or_reset(lab):
    kept, reset = arrays(lab("gpt2").drawn()), arrays(lab("gpt2").drawn(norms="reset"))
    assert all(np.array_equal(kept[name], reset[name]) for name in kept if kept[name].ndim >= 2)


# Tied tensors and shared blocks

TIED = [
    ("gpt2", AutoModelForCausalLM, "transformer.wte.weight", "lm_head.weight"),
    ("llama-tied", AutoModelForCausalLM, "model.embed_tokens.weight", "lm_head.weight"),
    ("bert-mlm", AutoModelForMaskedLM, "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
]


@pytest.mark.parametrize(("kind", "cls", "embedding", "head"), TIED)
def test_a_tied_head_stays_tied_to_the_one_draw(lab, kind, cls, embedding, head):
    target = lab(kind).drawn()
    assert embedding in arrays(target) and head not in arrays(target)
    model = cls.from_pretrained(target / "checkpoint")
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert np.array_equal(model.get_input_embeddings().weight.detach().numpy(), arrays(target)[embedding])


@pytest.mark.parametrize(("kind", "cls", "embedding", "head"), TIED)
def test_both_copies_of_a_tied_tensor_in_a_file_get_one_draw_TF10(own, kind, cls, embedding, head):
    target = own(kind, lambda tensors: tensors | {head: tensors[embedding].clone()}).drawn()
    after, entries = arrays(target), record(target)["tensors"]
    assert np.array_equal(after[embedding], after[head])
    assert entries[embedding]["sha256"] == entries[head]["sha256"]
    assert {entries[embedding].get("tied_to"), entries[head].get("tied_to")} in ({None, head}, {None, embedding})
    model = cls.from_pretrained(target / "checkpoint")
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert np.array_equal(model.get_input_embeddings().weight.detach().numpy(), after[embedding])


@pytest.mark.parametrize(("kind", "cls", "embedding", "head"), TIED)
def test_a_second_copy_of_a_tied_tensor_does_not_change_the_draw(lab, own, kind, cls, embedding, head):
    twice = own(kind, lambda tensors: tensors | {head: tensors[embedding].clone()}).drawn()
    assert np.array_equal(arrays(twice)[embedding], arrays(lab(kind).drawn())[embedding])


def test_an_untied_head_gets_a_draw_of_its_own(lab):
    after = arrays(lab("llama").drawn())
    head, embedding = after["lm_head.weight"], after["model.embed_tokens.weight"]
    assert abs(np.corrcoef(head.ravel(), embedding.ravel())[0, 1]) < 0.05


def test_a_shared_block_is_drawn_once_whatever_the_depth_TF14(own):
    twelve, deep = own("albert", name="twelve", num_hidden_layers=12), own("albert", name="deep", num_hidden_layers=24)
    a, b = (here.drawn(seed=7) / "checkpoint" / "model.safetensors" for here in (twelve, deep))
    assert a.read_bytes() == b.read_bytes()
    assert record(twelve.drawn(seed=7))["weights_hash"] == record(deep.drawn(seed=7))["weights_hash"]
    for here, depth in ((twelve, 12), (deep, 24)):
        model, entry = load_model(here.drawn(seed=7) / "checkpoint", "cpu")
        assert forward.n_blocks(model) == depth


# Seeds


def test_the_same_seed_gives_the_same_bytes_and_the_same_record(lab):
    first, again = lab("gpt2").drawn(), lab("gpt2").drawn(slug="again")
    for name in ("checkpoint/model.safetensors", "weights.json"):
        assert (first / name).read_bytes() == (again / name).read_bytes()


def test_another_seed_changes_every_matrix(lab):
    a, b = arrays(lab("bert").drawn(seed=0)), arrays(lab("bert").drawn(seed=1))
    for name in a:
        if a[name].ndim >= 2:
            assert abs(np.corrcoef(a[name].ravel(), b[name].ravel())[0, 1]) < 5 / np.sqrt(a[name].size)
    assert record(lab("bert").drawn(seed=0))["weights_hash"] != record(lab("bert").drawn(seed=1))["weights_hash"]


def test_tensors_of_one_shape_get_different_draws(lab):
    after = arrays(lab("bert").drawn())
    alike = [array.ravel() for name, array in after.items() if array.shape == (32, 32)]
    assert len(alike) == 12
    assert np.abs(np.corrcoef(alike) - np.eye(12)).max() < 0.15


def test_a_draw_depends_on_no_other_tensor(lab, own):
    whole = arrays(lab("llama").drawn())
    less = arrays(
        own("llama", lambda tensors: {name: t for name, t in tensors.items() if name != "lm_head.weight"}).drawn()
    )
    assert less.keys() == whole.keys() - {"lm_head.weight"}
    assert all(np.array_equal(less[name], whole[name]) for name in less)


def test_a_draw_does_not_depend_on_the_trained_entries_but_on_their_norm():
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal((20, 30)).astype(np.float32) for _ in range(2))
    ratio = redraw(b, 0, "name") / redraw(a, 0, "name")
    assert ratio == pytest.approx(np.full((20, 30), norm(b) / norm(a)), rel=1e-5)


def test_a_sharded_checkpoint_gets_the_draw_of_the_whole_one_and_no_index(lab, own, tmp_path):
    here = own("gpt2-base")
    AutoModel.from_pretrained(lab("gpt2-base").snapshot).save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    (here.snapshot / "model.safetensors").unlink()
    for path in (tmp_path / "shards").glob("model*"):
        shutil.copy(path, here.snapshot)
    target = here.drawn()
    assert sorted(path.name for path in (target / "checkpoint").glob("model*")) == ["model.safetensors"]
    whole = arrays(lab("gpt2-base").drawn())
    assert arrays(target).keys() == whole.keys()
    assert all(np.array_equal(array, whole[name]) for name, array in arrays(target).items())


def test_draws_do_not_depend_on_hash_randomisation_or_threads_ME12():
    program = (
        "import hashlib, numpy as np\n"
        "from collapse.schemes import DRAWS, redraw\n"
        "trained = np.arange(2400, dtype=np.float32).reshape(40, 60) ** 0.5\n"
        "for scheme in DRAWS:\n"
        "    print(hashlib.sha256(redraw(scheme, trained, 3, 'h.0.mlp.weight').tobytes()).hexdigest())"
    )
    running = []
    for seed in ("1", "2"):
        more = {"PYTHONHASHSEED": seed, "OMP_NUM_THREADS": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        running.append(
            subprocess.Popen([sys.executable, "-c", program], env=os.environ | more, stdout=subprocess.PIPE, text=True)
        )
    found = {process.communicate()[0].strip() for process in running}
    trained = np.arange(2400, dtype=np.float32).reshape(40, 60) ** 0.5
    here = [schemes.redraw(scheme, trained, 3, "h.0.mlp.weight") for scheme in schemes.DRAWS]
    assert found == {"\n".join(hashlib.sha256(drawn.tobytes()).hexdigest() for drawn in here)}


def test_a_seed_and_a_name_give_these_numbers_on_every_machine():
    drawn = redraw(np.ones((2, 3), np.float32), 0, "transformer.wte.weight")
    assert drawn.ravel() == pytest.approx([1.132423, 0.598771, -0.867193, 1.431199, -0.171776, 1.236621], rel=1e-5)


# The record and its proof


@pytest.mark.parametrize("kind", KINDS)
def test_the_record_proves_that_the_draw_has_the_norms_and_is_not_the_trained_weights(lab, kind):
    before, target = load_file(lab(kind).snapshot / "model.safetensors"), lab(kind).drawn()
    after, found = arrays(target), record(target)
    pairs = [
        pair
        for name, array in before.items()
        if array.ndim >= 2
        for pair in zip(blocks_of(name, array), blocks_of(name, after[name]))
    ]
    distances = [norm(new - old) / norm(old) for old, new in pairs]
    assert found["proof"]["n_redrawn"] == len(pairs)
    assert found["proof"]["max_norm_error"] < 1e-6
    assert found["proof"]["min_relative_distance"] == pytest.approx(min(distances), rel=1e-5)
    assert (found["scheme"], found["seed"], found["norms"]) == ("norm-matched", 0, "keep")
    assert (found["model"], found["revision"], found["source"]) == ("tiny", "local", {"kind": "local"})


@pytest.mark.parametrize("kind", KINDS)
def test_hashes_and_norms_of_the_record_are_those_of_the_file(lab, kind):
    after, found = arrays(lab(kind).drawn()), record(lab(kind).drawn())
    assert found["tensors"].keys() == after.keys()
    for name, array in after.items():
        entry = found["tensors"][name]
        assert entry["sha256"] == content_hash(array)
        assert entry["shape"] == list(array.shape)
        if array.ndim >= 2:
            assert [part["norm_after"] for part in entry["parts"]] == pytest.approx(
                [norm(p) for p in blocks_of(name, array)], rel=1e-12
            )
        else:
            assert entry["norm"] == pytest.approx(norm(array), rel=1e-12)
    assert found["weights_hash"] == weights_hash(found["tensors"])
    assert found["weights_hash"] != record(lab(kind).path("trained"))["weights_hash"]


@pytest.mark.parametrize(
    ("fake", "reason"),
    [
        (lambda scheme, array, *rest: array.copy(), "equals the trained one"),
        (lambda scheme, array, *rest: np.roll(array, 1) * np.float32(1.001), "norm"),
        (lambda scheme, array, *rest: np.roll(array, 1) * np.float32(0.999), "norm"),
    ],
    ids=["trained", "larger", "smaller"],
)
def test_a_draw_that_is_the_trained_tensor_or_misses_its_norm_is_refused(own, monkeypatch, fake, reason):
    here = own("bert")
    here.trained()
    monkeypatch.setattr(weights, "redraw", fake)
    with pytest.raises(Refusal, match=f"(?s)weight.*{reason}"):
        here.drawn()
    assert list(here.path("norm-matched-keep-s0").iterdir()) == []


def test_masks_of_old_checkpoints_are_not_drawn_and_not_written(own, lab):
    mask = torch.tril(torch.ones(1, 1, 64, 64))
    old = {"transformer.h.0.attn.bias": mask, "transformer.h.0.attn.masked_bias": torch.tensor(-1e4)}
    old |= {"transformer.h.1.attn.bias": mask.bool(), "transformer.h.2.attn.bias": mask.byte()}
    target = own("gpt2", lambda tensors: tensors | old).drawn()
    plain = own("gpt2", name="plain").drawn()
    assert arrays(target).keys() == arrays(plain).keys()
    assert "transformer.h.0.attn.c_attn.bias" in arrays(target)
    assert record(target)["weights_hash"] == record(plain)["weights_hash"]
    load_model(target / "checkpoint", "cpu")


@pytest.mark.parametrize("kind", KINDS)
def test_a_random_checkpoint_loads_runs_and_gives_other_states(lab, kind):
    found = {}
    for slug in ("trained", "norm-matched-keep-s0"):
        lab(kind).drawn()
        directory = lab(kind).path(slug) / "checkpoint"
        model, entry = load_model(directory, "cpu")
        ids = load_tokenizer(directory)("The ferry left in the fog.")["input_ids"]
        found[slug] = []
        forward.run(model, entry, ids, lambda layer, stage, H, kept=found[slug]: kept.append(H.copy()))
    for before, after in zip(*found.values(), strict=True):
        assert np.isfinite(after).all()
        assert not np.allclose(before, after, rtol=0.1)


# Drawing again what was discarded


def restored(here, found):
    target = here.path("norm-matched-keep-s0")
    inputs = here.path("trained") / "checkpoint", here.path("trained") / "weights.json"
    return restore(found, *inputs, target / "checkpoint")


def test_a_discarded_checkpoint_is_drawn_again_to_the_last_bit(own):
    here = own("gpt2")
    target = here.drawn()
    before = {path.name: path.read_bytes() for path in (target / "checkpoint").iterdir()}
    found = record(target)
    shutil.rmtree(target / "checkpoint")
    assert restored(here, found) == target / "checkpoint"
    assert {path.name: path.read_bytes() for path in (target / "checkpoint").iterdir()} == before
    assert record(target) == found


def test_a_checkpoint_that_is_still_there_is_not_drawn_again(own, monkeypatch):
    here = own("bert")
    found = record(here.drawn())
    monkeypatch.setattr(weights, "redraw", lambda *arguments: pytest.fail("drawn again"))
    assert restored(here, found).is_dir()


def test_a_draw_that_is_not_the_recorded_one_is_refused_and_not_left_to_others(own):
    here = own("bert")
    target = here.drawn()
    shutil.rmtree(target / "checkpoint")
    with pytest.raises(Refusal, match="run again") as refusal:
        restored(here, record(target) | {"weights_hash": "0" * 64})
    assert "0" * 64 in str(refusal.value) and record(target)["weights_hash"] in str(refusal.value)
    assert not [path for path in target.rglob("*") if path.suffix == ".safetensors"]


def test_two_jobs_that_need_a_discarded_checkpoint_draw_it_once(own, monkeypatch):
    here = own("bert")
    target = here.drawn()
    before, found = arrays(target), record(target)
    shutil.rmtree(target / "checkpoint")
    draws, once = [], weights.draw

    def counted(*arguments):
        draws.append(arguments)
        once(*arguments)

    monkeypatch.setattr(weights, "draw", counted)
    with ThreadPoolExecutor(4) as jobs:
        paths = list(jobs.map(lambda _: restored(here, found), range(4)))
    assert len(draws) == 1
    assert set(paths) == {target / "checkpoint"}
    assert all(np.array_equal(array, before[name]) for name, array in arrays(target).items())


# Memory and the file


def test_drawing_never_holds_the_checkpoint_in_memory(tmp_path):
    """In a process of its own, so that only this counts: the peak beside what the imports take, over the file's size.

    The allowance is 1.3 with the imports for a model of 6 GB; here only what grows with the model is looked at.
    """
    here = Lab(tmp_path, "gpt2", n_embd=384, n_layer=20)
    target = here.trained()
    size = (here.snapshot / "model.safetensors").stat().st_size
    program = (
        "import json, sys\n"
        "from collapse.weights import draw\n"
        "from memory import peak_memory\n"
        "inputs, draws = json.loads(sys.argv[1])\n"
        "import torch, transformers, transformers.models.gpt2.modeling_gpt2\n"
        "torch.linalg.qr(torch.ones(64, 64))\n"
        "before = peak_memory()\n"
        "for definition, outputs in draws:\n"
        "    draw(*inputs, definition, *outputs)\n"
        "    print('beyond', definition['scheme'], peak_memory() - before)"
    )
    inputs = [str(target / name) for name in ("checkpoint", "weights.json")]
    assert size > 70e6
    names = [*schemes.DRAWS, "library-init"]
    outputs = {scheme: [str(here.path(scheme) / name) for name in ("checkpoint", "weights.json")] for scheme in names}
    draws = [[definition(scheme=scheme), outputs[scheme]] for scheme in names]
    # One process for all, since its imports take longer than the draws: a peak that one leaves counts for the next too.
    command = [sys.executable, "-c", program, json.dumps([inputs, draws])]
    done = subprocess.run(command, env=environment_to_measure_in(), capture_output=True, text=True, check=True)
    peaks = dict(line.split()[1:] for line in done.stdout.splitlines() if line.startswith("beyond "))
    assert list(peaks) == names
    assert all(int(peak) < 0.5 * size for peak in peaks.values()), peaks


def test_the_file_is_one_that_the_library_reads_and_would_have_written(lab, tmp_path):
    path = lab("bert").drawn() / "checkpoint" / "model.safetensors"
    save_file(load_file(path), tmp_path / "theirs.safetensors", {"format": "pt"})
    ours, theirs = path.read_bytes(), (tmp_path / "theirs.safetensors").read_bytes()
    length = int.from_bytes(ours[:8], "little")
    assert json.loads(ours[8 : 8 + length]) == json.loads(theirs[8 : 8 + int.from_bytes(theirs[:8], "little")])
    assert ours[8 + length :] == theirs[8 + int.from_bytes(theirs[:8], "little") :]
    assert length % 8 == 0


def test_a_file_that_lacks_a_tensor_or_gets_another_shape_is_not_left_as_whole(tmp_path):
    with (
        pytest.raises(Refusal, match="1 tensors were not written, first b"),
        writing(tmp_path / "a", {"a": (2,), "b": (3, 4)}) as write,
    ):
        write("a", np.ones(2, np.float32))
    for array in (np.ones(3, np.float32), np.ones(2)):
        with pytest.raises(ValueError, match="a: "), writing(tmp_path / "b", {"a": (2,)}) as write:
            write("a", array)


def test_a_scheme_that_redraws_nothing_is_refused(own):
    # A component whose matrices are no part of the model.
    here = own("gpt2")
    here.trained()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("collapse.weights.belongs", lambda role, definition: False)
        with pytest.raises(Refusal, match="no matrix belongs to mlp, so norm-matched-mlp would be the trained weights"):
            here.drawn(components=("mlp",))


def test_half_precision_is_said_in_the_log(own, capsys):
    own("bert", lambda tensors: {name: tensor.half() for name, tensor in tensors.items()}).trained()
    assert "tiny: stored as float16; floating numbers are cast to float32" in capsys.readouterr().out
