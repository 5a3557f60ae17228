"""Every kind of weights has a look and a label of its own."""

import itertools

import pytest

from collapse.components import COMPONENTS
from collapse.figures.style import CONTROL, LOOKS, NULL, look, prompt_label, shape
from collapse.schemes import DRAWS
from collapse.summary import BASELINES

WHOLE = [*DRAWS, "library-init"]
LIMITED = [f"{scheme}-{component}" for scheme in WHOLE for component in COMPONENTS]


def test_every_scheme_that_can_be_a_baseline_has_a_look_and_every_whole_scheme_can_be_one():
    assert set(WHOLE) <= set(LOOKS) and set(WHOLE) <= set(BASELINES)
    assert all(look(scheme, f"{scheme}-s0")["label"] for scheme in BASELINES)


@pytest.mark.parametrize(
    "schemes",
    [
        ["trained", *WHOLE, "norm-matched-reset"],
        *([[w, *(s for s in LIMITED if s.startswith(f"{w}-"))] for w in WHOLE]),
    ],
)
def test_lines_that_stand_in_one_panel_differ_in_colour_or_dash_and_in_their_label(schemes):
    looks = [look(scheme, scheme) for scheme in schemes]
    for a, b in itertools.combinations(looks, 2):
        assert a["label"] != b["label"]
        # Dashes alone tell them apart, as in grey print.
        assert a["linestyle"] != b["linestyle"]


def test_what_stands_beside_lines_differs_from_them_in_dash_or_mark():
    theory = [look("identity", f"identity-b{nth}", nth) for nth in range(20)]
    looks = [*(look(scheme, scheme) for scheme in ["trained", *WHOLE]), *theory[:5], CONTROL, NULL]
    kinds = [(str(own["linestyle"]), own.get("marker")) for own in looks]
    assert len(set(kinds)) == len(kinds)
    assert len({(own["color"], str(own["linestyle"])) for own in theory}) == len(theory)


def test_the_state_after_the_final_norm_has_a_shape_of_its_scheme():
    assert len({shape(scheme) for scheme in ["trained", *WHOLE]}) == len(WHOLE) + 1
    assert shape("orthogonal-qk-reset") == shape("orthogonal")


def test_long_names_are_broken_and_lose_no_letter():
    name = "abcdefghijklmnopqrstuvwxyz_abcdef_a_b"
    lines = prompt_label(name).splitlines()
    assert len(lines) > 2 and max(map(len, lines)) <= 15
    assert "".join(lines).replace(" ", "") == name.replace("_", "")


def test_a_label_says_all_that_a_variant_changes():
    assert look("norm-matched-qk-ov-zero-bias", "")["label"] == "random (norm-matched, qk and ov only, biases zero)"
    assert look("orthogonal-reset", "")["label"] == "random (orthogonal, norms reset)"
    assert look("library-init-mlp", "")["label"] == "random (library initialisation, mlp only)"


def test_a_label_of_the_theory_names_its_dynamics():
    assert look("identity", "identity-b1")["label"] == "theory, Q = K = V = I, beta 1"
    assert look("identity", "identity-b1e-05")["label"].endswith("beta 1e-05")
    assert look("identity", "identity-b2-step0.1-n400")["label"].endswith("beta 2, step 0.1, 400 steps")
