"""Every kind of random weights is what its name says, in the components that it is limited to and nowhere else."""

import hashlib
import re
from functools import cache

import numpy as np
import pytest
import torch
from labs import Lab, arrays, norm, record
from scipy import stats
from tiny_models import make_model
from transformers import AutoConfig, AutoModel

from collapse.architectures import ARCHITECTURES, HEADS, Fused, fused, role
from collapse.checkpoint import frobenius, load_model, load_tokenizer, tensors
from collapse.components import COMPONENTS
from collapse.errors import Refusal
from collapse.library_init import fill, recipes
from collapse.schemes import DRAWS, expected_norm, parts, redraw
from collapse.weights import NORM_BIAS, NORM_GAIN

# One kind of checkpoint of each architecture.
ONE_EACH = [
    "albert",
    "bert",
    "distilbert",
    "gpt2",
    "gpt_neox",
    "llama",
    "mistral",
    "modernbert",
    "opt",
    "qwen2",
    "qwen3",
    "roberta",
]
SCHEMES = [*DRAWS, "library-init"]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return cache(lambda kind: Lab(tmp_path_factory.mktemp(kind), kind))


def trained(lab):
    return dict(zip(*zip(*((name, t.numpy()) for name, t in tensors(lab.snapshot)))))


def projections(lab, name, array):
    """{role: the parts of a tensor that play it}."""
    entry = ARCHITECTURES[AutoConfig.from_pretrained(lab.snapshot).model_type]
    split = fused(entry, name)
    found = {}
    for part_role, part in zip(split.roles if split else (role(entry, name),), parts(array, split, 4)):
        found.setdefault(part_role, []).append(part)
    return found


# Where the parts are


def test_every_architecture_of_the_table_is_tested_here(lab):
    assert {AutoConfig.from_pretrained(lab(kind).snapshot).model_type for kind in ONE_EACH} == set(ARCHITECTURES)


@pytest.mark.parametrize("kind", ONE_EACH)
def test_every_parameter_of_a_base_model_has_one_role_or_is_a_norm_s(lab, kind):
    model, entry = load_model(lab(kind).snapshot, "cpu")
    roles = {}
    for name, parameter in model.named_parameters():
        matches = sum(
            bool(re.search(rf"(^|\.)({p})\.(weight|bias)$", name)) for p in [*entry.components.values(), *entry.fused]
        )
        is_norm = bool(NORM_GAIN.search(name) or NORM_BIAS.search(name))
        assert matches == (not is_norm), name
        assert is_norm == (
            parameter.ndim == 1 and "norm" in type(model.get_submodule(name.rpartition(".")[0])).__name__.lower()
        )
        split = fused(entry, name)
        for part in split.roles if split else [role(entry, name)]:
            roles[part] = roles.get(part, 0) + (parameter.ndim == 2)
    blocks = 1 if entry.shares_block else 3
    assert all(roles[part] == blocks for part in "qkvo")
    assert roles["mlp"] >= 2 * blocks and roles["embeddings"] >= 1


@pytest.mark.parametrize("kind", ONE_EACH)
def test_queries_keys_values_and_output_are_where_the_table_says(lab, kind):
    """Without queries or keys attention is uniform over what may be seen; without values or output it is silent."""
    model, entry = load_model(lab(kind).snapshot, "cpu")
    ids = load_tokenizer(lab(kind).snapshot)("The ferry left in the fog.", return_tensors="pt")["input_ids"]

    def zeroed(part_role):
        twin, _ = load_model(lab(kind).snapshot, "cpu")
        for name, parameter in twin.named_parameters():
            split = fused(entry, name)
            roles = split.roles if split else (role(entry, name),)
            for own, part in zip(roles, parts(parameter.detach().numpy(), split, 4)):
                if own == part_role:
                    part[...] = 0
        return twin

    with torch.no_grad():
        for part_role in "qk":
            first = zeroed(part_role)(ids, output_attentions=True).attentions[0][0].numpy()
            for row in first.reshape(-1, first.shape[-1]):
                # Nothing tells one key from another: all that may be seen weigh the same.
                np.testing.assert_allclose(row[row > 0], 1 / (row > 0).sum(), rtol=1e-5)
        a, b = zeroed("v")(ids).last_hidden_state, zeroed("o")(ids).last_hidden_state
        whole = model(ids).last_hidden_state
    assert not np.allclose(a, whole, atol=1e-3)
    # Without values only the bias of the output is left, which zeroing the output takes away too.
    has_bias = any(name.endswith("bias") and role(entry, name) == "o" for name, _ in model.named_parameters())
    assert np.allclose(a, b, atol=1e-5) == (not has_bias)


def test_fused_parts_are_views_of_their_tensor():
    array = np.arange(2 * 3 * 2 * 5, dtype=np.float32).reshape(12, 5)
    one, two, three = parts(array, Fused(("q", "k", "v")), None)
    assert [part[0, 0] for part in (one, two, three)] == [0, 20, 40]
    q, k, v = parts(array, Fused(("q", "k", "v"), by_head=True), 2)
    # Head by head: rows 0, 1 are the first head's queries, 2, 3 its keys, 6, 7 the second head's queries.
    assert [row[0] for row in q.reshape(4, 5)] == [0, 5, 30, 35]
    assert [row[0] for row in k.reshape(4, 5)] == [10, 15, 40, 45]
    v[...] = -1
    assert (array[[4, 5, 10, 11]] == -1).all() and (array[:4] >= 0).all()
    columns = parts(np.ones((5, 12)), Fused(("q", "k", "v"), axis=-1), None)
    assert [part.shape for part in columns] == [(5, 4)] * 3


# The draws


@pytest.mark.parametrize("shape", [(30, 20), (20, 30), (25, 25), (4, 3, 6)])
def test_orthogonal_is_semi_orthogonal_at_gain_one_whatever_the_trained_norm(shape):
    for size in (1e-3, 1.0, 1e3):
        drawn = redraw("orthogonal", np.full(shape, size, np.float32), 0, "name")
        matrix = drawn.reshape(12, 6) if len(shape) == 3 else drawn
        n, m = matrix.shape
        gram = matrix @ matrix.T if n <= m else matrix.T @ matrix
        np.testing.assert_allclose(gram, np.eye(min(n, m)), atol=1e-5)
        assert norm(drawn) == pytest.approx(np.sqrt(min(n, m)), rel=1e-5)
        assert expected_norm("orthogonal", drawn) == pytest.approx(np.sqrt(min(n, m)))


def test_orthogonal_matrices_are_uniform_and_not_those_of_a_bare_qr():
    # A bare QR leaves the diagonal of R positive, so that the first entry of a 1 x 1 draw, say, is always -1 or 1.
    firsts = [redraw("orthogonal", np.ones((3, 3), np.float32), seed, "name")[0, 0] for seed in range(400)]
    # An entry of a uniform rotation in three dimensions is uniform on [-1, 1].
    assert stats.kstest(firsts, stats.uniform(-1, 2).cdf).pvalue > 1e-3


def test_shuffled_keeps_every_entry_and_no_place():
    array = np.random.default_rng(0).standard_normal((40, 50)).astype(np.float32)
    drawn = redraw("shuffled", array, 0, "name")
    assert np.array_equal(np.sort(drawn, axis=None), np.sort(array, axis=None))
    assert abs(np.corrcoef(drawn.ravel(), array.ravel())[0, 1]) < 0.1
    fused_draw = redraw("shuffled", array, 0, "name", Fused(("mlp", "mlp")))
    assert np.array_equal(np.sort(fused_draw[:20], axis=None), np.sort(array[:20], axis=None))


@pytest.mark.parametrize("shape", [(30, 20), (20, 30), (25, 25)])
def test_spectrum_matched_keeps_singular_values_and_no_vectors(shape):
    rng = np.random.default_rng(1)
    array = (rng.standard_normal(shape) * np.geomspace(1, 1e-3, shape[1])).astype(np.float32)
    drawn = redraw("spectrum-matched", array, 0, "name")
    before, after = (np.linalg.svd(m.astype(np.float64)) for m in (array, drawn))
    np.testing.assert_allclose(after.S, before.S, atol=1e-6 * before.S[0])
    assert abs(before.U[:, 0] @ after.U[:, 0]) < 0.75 and abs(before.Vh[0] @ after.Vh[0]) < 0.75


def test_gaussian_matrices_have_another_spectrum_than_the_trained_one():
    """What tells norm-matched from spectrum-matched: the same norm, spread over all directions."""
    array = np.outer(np.arange(1, 21), np.arange(1, 31)).astype(np.float32)
    ranks = {}
    for scheme in ("norm-matched", "spectrum-matched"):
        values = np.linalg.svd(redraw(scheme, array, 0, "name"), compute_uv=False)
        ranks[scheme] = np.sum(values > 1e-5 * values[0])
        assert np.sqrt(np.sum(values**2)) == pytest.approx(norm(array), rel=1e-5)
    assert ranks == {"norm-matched": 20, "spectrum-matched": 1}


# The library's own initialisation


@pytest.mark.parametrize("kind", [*ONE_EACH, "phi"])
def test_library_init_has_the_library_s_own_distribution_tensor_by_tensor_TF13(lab, kind, tmp_path):
    # Wide enough for a standard deviation to show, with biases and gains that were trained away from 0 and 1.
    big = {"initializer_range": 0.02} if kind != "opt" else {"init_std": 0.02}
    directory = make_model(kind, tmp_path / kind, **big)
    config = AutoConfig.from_pretrained(directory)
    steps = recipes(directory)
    theirs = [
        dict(
            AutoModel.from_config(
                config, **ARCHITECTURES.get(config.model_type, ARCHITECTURES["gpt2"]).load
            ).named_parameters()
        )
        for _ in range(6)
    ]
    for name in theirs[0]:
        library = np.stack([model[name].detach().numpy() for model in theirs])
        own = np.stack([fill(steps[name], library.shape[1:], np.random.default_rng(seed), name) for seed in range(6)])
        if library.std() == 0 or np.ptp(library) == 0:
            assert np.array_equal(own, library), name
            continue
        # Rows of padding tokens are zero in both.
        assert np.array_equal((own == 0).all(axis=(0, 2)), (library == 0).all(axis=(0, 2))), name
        assert own.std() == pytest.approx(library.std(), rel=4 / np.sqrt(own.size)), name
        assert stats.ks_2samp(own.ravel(), library.ravel()).pvalue > 1e-5, name


def test_library_init_scales_the_projections_into_the_residual_stream_of_gpt2_TF13(tmp_path):
    directory = make_model("gpt2", tmp_path / "gpt2", initializer_range=0.02, n_layer=12)
    steps = recipes(directory)
    for name, shape, expected in (("c_fc", (32, 128), 0.02), ("c_proj", (128, 32), 0.0040825)):
        drawn = fill(steps[f"h.0.mlp.{name}.weight"], shape, np.random.default_rng(0), name)
        assert drawn.std() == pytest.approx(expected, rel=0.05)


def test_a_tensor_of_another_shape_than_the_config_s_is_refused(lab):
    steps = recipes(lab("gpt2").snapshot)
    with pytest.raises(Refusal, match=r"wpe: has shape \(32, 32\)"):
        fill(steps["wpe.weight"], (32, 32), np.random.default_rng(0), "wpe")


def test_an_initialisation_that_is_not_known_is_refused_by_name():
    with pytest.raises(Refusal, match="h.0.weight: transformers initialises it with sparse_"):
        fill([("sparse_", {}, 0, 6)], (2, 3), np.random.default_rng(0), "h.0.weight")


def test_library_init_draws_a_checkpoint_with_a_head_like_one_without(lab):
    with_head, without = (arrays(lab(kind).drawn(scheme="library-init")) for kind in ("gpt2", "gpt2-base"))
    assert without
    for name, array in without.items():
        assert np.array_equal(with_head[f"transformer.{name}"], array)


def test_library_init_works_for_a_type_that_the_table_does_not_have(lab):
    target = lab("phi").drawn(scheme="library-init")
    model, entry = load_model(target / "checkpoint", "cpu")
    assert entry.is_causal is None
    assert record(target)["proof"]["max_norm_error"] is None
    assert record(target)["proof"]["min_relative_distance"] > 0.5


@pytest.mark.parametrize("scheme", DRAWS)
def test_what_needs_the_table_is_refused_for_a_type_that_it_does_not_have(lab, scheme):
    with pytest.raises(
        Refusal, match=f"'phi' has no entry in ARCHITECTURES .*fused tensors and components, which {scheme}"
    ):
        lab("phi").drawn(scheme=scheme)
    with pytest.raises(Refusal, match="'phi' has no entry"):
        lab("phi").drawn(scheme="library-init", components=("qk",))


# Whole checkpoints


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", ONE_EACH)
def test_every_scheme_on_every_architecture_loads_and_says_what_it_did(lab, kind, scheme):
    target = lab(kind).drawn(scheme=scheme)
    before, after, found = trained(lab(kind)), arrays(target), record(target)
    assert after.keys() == before.keys()
    load_model(target / "checkpoint", "cpu")
    matrices = [name for name in before if before[name].ndim >= 2]
    drawn = [name for name in matrices if not (scheme == "library-init" and HEADS.search(name))]
    assert all(not np.array_equal(after[name], before[name]) for name in drawn)
    assert {name for name in matrices if found["tensors"][name]["action"] == "redrawn"} >= set(drawn)
    assert (found["scheme"], found["seed"], found["components"]) == (scheme, 0, ["all"])
    error = found["proof"]["max_norm_error"]
    assert error is None if scheme == "library-init" else error < 1e-5
    for name in drawn:
        for old, new in zip(*(sum(projections(lab(kind), name, a).values(), []) for a in (before[name], after[name]))):
            wanted = expected_norm(scheme, old)
            assert wanted is None or norm(new) == pytest.approx(wanted, rel=2e-5)


@pytest.mark.parametrize("component", COMPONENTS)
@pytest.mark.parametrize("kind", ONE_EACH)
def test_a_limited_scheme_changes_its_component_alone_and_like_the_whole_one(lab, kind, component):
    before, whole = trained(lab(kind)), arrays(lab(kind).drawn())
    after = arrays(lab(kind).drawn(components=(component,)))
    changed = 0
    for name, array in before.items():
        found = (projections(lab(kind), name, a) for a in (array, whole[name], after[name]))
        for (part_role, old), drawn, new in zip(next(found).items(), *(tensor.values() for tensor in found)):
            chosen = part_role in COMPONENTS[component] and array.ndim >= 2
            changed += chosen
            for a, b in zip(drawn if chosen else old, new):
                assert np.array_equal(a, b), (name, part_role)
    assert changed


@pytest.mark.parametrize("scheme", SCHEMES)
def test_all_four_components_together_are_the_base_model_but_for_norms(lab, scheme):
    names = [*COMPONENTS]
    a, b = arrays(lab("gpt2").drawn(scheme=scheme)), arrays(lab("gpt2").drawn(scheme=scheme, components=names))
    for name in a:
        is_norm = NORM_GAIN.search(name) or NORM_BIAS.search(name)
        assert np.array_equal(a[name], b[name]) or (is_norm and scheme == "library-init")


def test_a_tied_head_follows_the_embeddings_and_an_untied_one_stays(lab):
    tied = arrays(lab("llama-tied").drawn(components=("embeddings",)))
    assert "lm_head.weight" not in tied
    before, after = trained(lab("llama")), arrays(lab("llama").drawn(components=("embeddings",)))
    assert np.array_equal(after["lm_head.weight"], before["lm_head.weight"])
    assert not np.array_equal(after["model.embed_tokens.weight"], before["model.embed_tokens.weight"])


@pytest.mark.parametrize("kind", ["gpt2", "bert", "opt", "gpt_neox"])
def test_zeroed_biases_are_those_of_the_components_and_no_norm_s(lab, kind):
    before, after = trained(lab(kind)), arrays(lab(kind).drawn(biases="zero"))
    for name, array in before.items():
        if array.ndim == 1:
            is_bias = name.endswith("bias") and not NORM_BIAS.search(name)
            assert np.array_equal(after[name], 0 * array if is_bias else array), name
    some = arrays(lab(kind).drawn(biases="zero", components=("qk",)))
    zeroed = 0
    for name, array in before.items():
        if array.ndim == 1:
            for part_role, found in projections(lab(kind), name, some[name]).items():
                gone = part_role in ("q", "k")
                zeroed += gone
                old = projections(lab(kind), name, array)[part_role]
                assert all(np.array_equal(new, 0 * was if gone else was) for new, was in zip(found, old))
    assert zeroed


def test_another_seed_gives_other_weights_under_every_scheme(lab):
    for scheme in SCHEMES:
        a, b = (record(lab("bert").drawn(scheme=scheme, seed=seed))["weights_hash"] for seed in (0, 1))
        assert a != b


@pytest.mark.parametrize("kind", ["gpt2", "gpt2-base", "bert-mlm", "albert", "llama-tied"])
def test_a_seed_draws_what_it_drew_in_the_first_release_to_the_last_bit(lab, kind):
    """Written out here as 0.1.0 had it: one stream per tensor, one factor per part."""
    before, after = trained(lab(kind)), arrays(lab(kind).drawn(seed=3))
    for name, array in before.items():
        expected = array
        if array.ndim == 2:
            key = hashlib.sha256(f"3\n{name}".encode()).digest()
            rng = np.random.Generator(np.random.PCG64(int.from_bytes(key[:16], "big")))
            expected = rng.standard_normal(array.shape, dtype=np.float32)
            n = 3 if name.endswith("c_attn.weight") else 1
            for old, part in zip(np.split(array, n, 1), np.split(expected, n, 1)):
                part *= np.float32(frobenius(old) / frobenius(part))
        assert after[name].tobytes() == expected.tobytes(), name
