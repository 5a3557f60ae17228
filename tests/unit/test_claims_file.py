"""The claims file: what names something that is not there is refused before any job, with what is allowed."""

import copy
import re
from pathlib import Path

import pytest
import yaml

from collapse.claims_file import expected, in_words, layered_tables, read_claims, schema
from collapse.components import COMPONENTS
from collapse.config import schemes
from collapse.metrics.attention_received import GROUPS as TOKEN_GROUPS
from collapse.metrics.pair_groups import GROUPS as PAIR_GROUPS
from collapse.token_rules import TOKEN_RULES

REPOSITORY = Path(__file__).resolve().parents[2]
CLAIM = {
    "id": "mine",
    "statement": "Tokens collapse.",
    "source": "me",
    "test": {
        "table": "inner_products",
        "column": "mass_near_one",
        "scheme": "trained",
        "tokens": "all",
        "layers": "last",
        "expect": {"above": 0.5},
    },
    "controls": [{"name": "content", "change": {"tokens": "content"}}],
}
MODELS = ["gpt2", "albert"]


def read(path, entries):
    path.write_text(entries if isinstance(entries, str) else yaml.safe_dump(entries))
    return read_claims(path, MODELS, schemes())


def changed(path, value):
    claim = copy.deepcopy(CLAIM)
    *parents, last = path
    place = claim
    for key in parents:
        place = place[key]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return claim


def of(table, **keys):
    test = CLAIM["test"] | {"table": table} | keys
    return CLAIM | {"test": test}


BAD = {
    "unknown table": (of("inner_product"), ["table: 'inner_product'", "did you mean 'inner_products'"]),
    "table per token": (of("cluster_labels", column="label"), ["table: 'cluster_labels'", "row per layer"]),
    "table per run": (of("runs", column="n_tokens"), ["table: 'runs'", "row per layer"]),
    "unknown column": (
        changed(["test", "column"], "mass_near_1"),
        ["column 'mass_near_1'", "did you mean 'mass_near_one'"],
    ),
    "column of lists": (changed(["test", "column"], "histogram"), ["no column 'histogram' of numbers"]),
    "unknown model": (changed(["models"], ["gtp2"]), ["models: 'gtp2'", "did you mean 'gpt2'", "it has: gpt2, albert"]),
    "unknown scheme": (
        changed(["test", "scheme"], "norm-mached"),
        ["scheme: 'norm-mached'", "did you mean 'norm-matched'"],
    ),
    "unknown scheme subtracted": (
        changed(["test", "minus"], {"scheme": "x"}),
        ["minus.scheme: 'x'", "config/README.md"],
    ),
    "unknown column subtracted": (changed(["test", "minus"], {"column": "x"}), ["minus.column", "no column 'x'"]),
    "unknown token rule": (changed(["test", "tokens"], "some"), ["test.tokens", "'some'", "allowed: all, content"]),
    "unknown layers": (changed(["test", "layers"], "lst"), ["test.layers", "did you mean 'last'"]),
    "layers a number": (changed(["test", "layers"], 7), ["test.layers", "found 7", "text or a mapping"]),
    "depth beyond 1": (changed(["test", "layers"], {"from": 0, "to": 12}), ["test.layers.to", "12"]),
    "depth reversed": (changed(["test", "layers"], {"from": 1, "to": 0.5}), ["layers: from 1 lies beyond to 0.5"]),
    "depth lacks an end": (changed(["test", "layers"], {"from": 0.5}), ["test.layers: lacks to"]),
    "no expectation": (changed(["test", "expect"], None), ["test: lacks expect"]),
    "two expectations": (changed(["test", "expect"], {"above": 0, "below": 1}), ["test.expect", "one of above, below"]),
    "unknown expectation": (changed(["test", "expect"], {"abov": 0}), ["test.expect.abov", "did you mean 'above'"]),
    "expectation as text": (changed(["test", "expect"], {"above": "1e-3"}), ["test.expect.above", "write 0.001"]),
    "between reversed": (changed(["test", "expect"], {"between": [2, 1]}), ["expect.between: 2 is not below 1"]),
    "no control": (changed(["controls"], []), ["controls"]),
    "controls missing": (changed(["controls"], None), ["lacks controls"]),
    "control changes nothing": (changed(["controls", 0, "change"], {"tokens": "all"}), ["'content': changes nothing"]),
    "control with another column": (
        changed(["controls", 0, "change"], {"column": "x"}),
        ["control 'content': column", "no column 'x'"],
    ),
    "control twice": (changed(["controls"], CLAIM["controls"] * 2), ["controls: 'content' stands 2 times"]),
    "unknown key": (changed(["test", "layer"], 3), ["test.layer: unknown key", "did you mean 'layers'"]),
    "group missing": (of("pair_groups", column="mass_near_one"), ["has a value per group", "`group`"]),
    "group unknown": (of("pair_groups", group="wihtin"), ["group 'wihtin'", "did you mean 'within'"]),
    "group of a table without": (changed(["test", "group"], "within"), ["group: inner_products has no groups"]),
    "order of one group": (of("pair_groups", order=["within"]), ["test.order"]),
    "order with an unknown group": (of("pair_groups", order=["within", "x"]), ["group 'x' is not in pair_groups"]),
    "order and group": (of("pair_groups", order=["within", "between"], group="within"), ["has a value per group"]),
    "beta missing": (of("energy", column="energy"), ["lacks beta", "name one, or every"]),
    "beta misspelt": (of("energy", column="energy", beta="evry"), ["test.beta", "did you mean 'every'"]),
    "beta of a table without": (changed(["test", "beta"], 1), ["beta: inner_products has none"]),
    "head of a table without": (changed(["test", "head"], 1), ["head: inner_products has none"]),
    "tolerance of a mean": (changed(["test", "tolerance"], 0.1), ["tolerance: a mean over layers has none"]),
    "id no slug": (changed(["id"], "My claim"), ["id", "'My claim'", "lower case"]),
    "statement empty": (changed(["statement"], ""), ["statement"]),
    "no claim": ("a claim", ["the claim: found 'a claim', allowed: a mapping"]),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_claim_is_named(name, tmp_path):
    entry, words = BAD[name]
    _, faults = read(tmp_path / "claims.yaml", [entry])
    said = "\n".join(faults)
    for word in [str(tmp_path / "claims.yaml"), *words]:
        assert word in said, said


def test_a_fault_says_which_claim_has_it(tmp_path):
    _, faults = read(tmp_path / "claims.yaml", [CLAIM, changed(["test", "column"], "x") | {"id": "other"}, {}])
    assert re.search(r"claims.yaml, other: test: column: .*", faults[0])
    assert re.search(r"claims.yaml, \[2\]: the claim: lacks id", faults[1])


def test_a_claim_may_stand_once(tmp_path):
    _, faults = read(tmp_path / "claims.yaml", [CLAIM, CLAIM])
    assert faults == [f"{tmp_path / 'claims.yaml'}: 'mine' stands 2 times; each may stand once"]


@pytest.mark.parametrize(
    ("text", "word"), [("a: 1", "holds dict"), ("", "holds NoneType"), ("[", "cannot be read as YAML")]
)
def test_a_file_without_a_list_is_refused(text, word, tmp_path):
    _, (fault,) = read(tmp_path / "claims.yaml", text)
    assert word in fault


def test_a_file_that_is_absent_is_named(tmp_path):
    assert read_claims(tmp_path / "x.yaml", MODELS, []) == ([], [f"claims: {tmp_path / 'x.yaml'} does not exist"])


def test_no_claim_is_allowed(tmp_path):
    assert read(tmp_path / "claims.yaml", []) == ([], [])


def test_a_control_is_the_test_with_its_change(tmp_path):
    (claim,), faults = read(tmp_path / "claims.yaml", [CLAIM])
    assert faults == []
    own, control = claim["tests"]
    assert own == {"name": "claim"} | CLAIM["test"]
    assert control == own | {"name": "content", "tokens": "content"}
    assert claim["models"] is None


def test_a_control_on_another_table_leaves_the_groups_of_the_first(tmp_path):
    entry = of("pair_groups", column="mean_inner_product", group="within")
    entry = entry | {"controls": [{"name": "all pairs", "change": {"table": "inner_products"}}]}
    (claim,), faults = read(tmp_path / "claims.yaml", [entry])
    assert faults == [] and "group" not in claim["tests"][1]


def test_the_claims_of_this_repository_are_right():
    claims, faults = read_claims(REPOSITORY / "config/claims.yaml", [], schemes())
    assert faults == []
    assert len(claims) >= 15
    assert all(len(claim["tests"]) > 1 for claim in claims)
    # With and without position 0, at least once each.
    assert all({test["tokens"] for test in claim["tests"]} == set(TOKEN_RULES) for claim in claims)


def test_each_claim_about_random_weights_stands_for_norm_matched_and_for_orthogonal_ones():
    """The study says the first and its code drew the second."""

    def schemes_of(claim):
        named = [test[key] for test in claim["tests"] for key in ("scheme", "minus") if key in test]
        return {name if isinstance(name, str) else name.get("scheme") for name in named} - {"trained", None}

    claims, _ = read_claims(REPOSITORY / "config/claims.yaml", [], schemes())
    by_id = {claim["id"]: claim for claim in claims}
    random = [claim for claim in claims if "norm-matched" in schemes_of(claim)]
    assert len(random) == 8
    for claim in random:
        twin = by_id[f"{claim['id']}-orthogonal"]
        assert schemes_of(twin) == {"orthogonal"} and "orthogonal" in twin["statement"]
        said = str(twin["tests"]).replace("orthogonal", "norm-matched")
        assert said == str(claim["tests"])


def test_schemes_are_what_a_config_can_make_and_nothing_else():
    names = schemes()
    assert len(set(names)) == len(names)
    made = ["trained", "identity", "norm-matched-reset-zero-bias", "orthogonal-qk-zero-bias", "library-init-mlp"]
    assert {*made, "library-init", "shuffled-embeddings-qk-ov-mlp"} <= set(names)
    # library-init has neither norms nor biases of its own; norms belong to no component.
    assert not [name for name in names if name.startswith("library-init") and ("reset" in name or "bias" in name)]
    assert not [name for name in names if "reset" in name and any(part in name.split("-") for part in COMPONENTS)]
    # Four kinds with norms and biases: 4 ways for all components, 2 for each of 15 choices of some.
    assert len(names) == 2 + 4 * (4 + 2 * 15) + 16


def test_every_key_of_a_test_is_explained():
    text = (REPOSITORY / "docs/claims.md").read_text()
    spec = schema()
    keys = [*spec["properties"], *spec["$defs"]["test"]["properties"], *spec["$defs"]["layers"]["then"]["enum"]]
    keys += [*spec["$defs"]["test"]["properties"]["expect"]["properties"], "share_rising", "share_falling"]
    for key in keys:
        assert f"`{key}`" in text, key


def test_groups_and_token_rules_are_those_of_the_metrics():
    tables = layered_tables()
    assert tuple(tables["pair_groups"]["groups"]) == PAIR_GROUPS
    assert tuple(tables["attention_received"]["groups"]) == TOKEN_GROUPS
    assert all(("group" in spec["keys"]) == ("groups" in spec) for spec in tables.values())
    assert tuple(schema()["$defs"]["test"]["properties"]["tokens"]["enum"]) == TOKEN_RULES


def test_a_test_in_words_says_all_of_it():
    test = of("pair_groups", group="within", minus={"scheme": "norm-matched"}, layers={"from": 0.5, "to": 1})["test"]
    assert in_words(test) == (
        "mass_near_one of pair_groups, trained, all tokens, layers: depth 0.5 to 1, group within, minus the same of "
        "scheme norm-matched; above 0.5"
    )
    energy = of("energy", column="energy", beta="every", statistic="share_falling", expect={"at_most": 0})["test"]
    assert in_words(energy).startswith(
        "share of falling steps of energy of energy, trained"
    ) and "beta every" in in_words(energy)
    assert expected({"between": [1, 2.5]}) == "between 1 and 2.5"
