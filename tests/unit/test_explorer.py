"""The explorer's data: what tables say, within the stated resolution, and nothing in it that a browser would run."""

import base64
import json
import re

import explorer_results as results
import numpy as np
import pyarrow.parquet as pq
import pytest

from collapse import explorer, tables
from collapse.by_run import ByRun
from collapse.errors import Refusal
from collapse.explorer import as_json, run_data
from collapse.explorer_curves import CURVES, TABLES
from collapse.figures import style
from collapse.states import StatesFile

TRAINED = ("post", "trained", "hostile")
RANDOM = ("pre", "norm-matched-s0", "plain")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return results.make(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def readers(made):
    return {path.stem: ByRun(path, path.stem) for path in made[0]}


def data_of(made, readers, run):
    (states,) = [path for path in made[1] if path.parts[-3:] == (run[0], "trained", f"{run[2]}.parquet")]
    curves = explorer._with_betas(readers, run)
    data = run_data(
        {name: reader.read(run) for name, reader in readers.items()}, StatesFile(states), curves, results.METHODS
    )
    return data, curves


def integers(text):
    return np.frombuffer(base64.b64decode(text), dtype="<i2").astype(int)


def embedded(page):
    found = re.findall(
        r'<script type="application/json" data-run="([^"]+)">(.*?)</script>', page.read_text(), re.DOTALL
    )
    return {name: json.loads(text) for name, text in found}


@pytest.mark.parametrize("run", [TRAINED, RANDOM], ids="/".join)
@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_distances_between_tokens_are_those_of_the_table(made, readers, run, method):
    data, _ = data_of(made, readers, run)
    picture = data["rules"]["content"]["methods"][method]
    n = len(data["rules"]["content"]["positions"])
    xy = integers(picture["xy"]).reshape(-1, n, 2) * picture["unit"]
    for frame in picture["frames"]:
        layer, _, _ = data["states"][frame["state"]]
        if frame["undefined"]:
            continue
        expected = results.place_of(*run, layer, n, method)
        found = xy[frame["picture"]]
        apart = [np.linalg.norm(p[:, None] - p[None], axis=-1) for p in (expected, found)]
        assert np.abs(apart[0] - apart[1]).max() < 2 * picture["unit"]


def test_each_layer_is_turned_onto_the_one_before(made, readers):
    data, _ = data_of(made, readers, RANDOM)
    picture = data["rules"]["all"]["methods"]["pca"]
    xy = integers(picture["xy"]).reshape(len(picture["frames"]), -1, 2) * picture["unit"]
    # Ellipses that grow on one axis, whatever their turn and side in the table.
    for layer, (before, after) in enumerate(zip(xy[:6], xy[1:7])):
        growth = (0.3 + 0.1 * (layer + 1)) / (0.3 + 0.1 * layer)
        axes = [np.linalg.svd(p)[1] for p in (before, after)]
        np.testing.assert_allclose(axes[1] / axes[0], [1, growth], rtol=1e-3)
        assert np.abs(after - before).max() < 0.11


def test_the_range_holds_every_layer(made, readers):
    data, _ = data_of(made, readers, RANDOM)
    picture = data["rules"]["all"]["methods"]["pca"]
    xy = integers(picture["xy"]).reshape(-1, 2) * picture["unit"]
    for axis, (low, high) in zip(xy.T, picture["box"]):
        assert low == pytest.approx(axis.min(), abs=picture["unit"])
        assert high == pytest.approx(axis.max(), abs=picture["unit"])


def test_a_layer_without_a_picture_has_its_reason(made, readers):
    data, _ = data_of(made, readers, TRAINED)
    frames = data["rules"]["all"]["methods"]["pca"]["frames"]
    assert [frame["undefined"] for frame in frames] == [None, None, results.NO_PICTURE, None, None]
    assert [frame["picture"] for frame in frames] == [0, 1, None, 2, 3]


def test_states_are_in_order_and_the_one_after_the_final_norm_is_marked(made, readers):
    data, _ = data_of(made, readers, RANDOM)
    assert [tuple(state[:2]) for state in data["states"]][-2:] == [(6, "block"), (6, "final_norm")]
    tsne = data["rules"]["content"]["methods"]["tsne"]["frames"]
    assert [data["states"][frame["state"]][0] for frame in tsne] == [0, 2, 6]
    assert {frame["neighbourhood"] for frame in tsne} == {3.0}


def test_clusters_are_those_of_the_table_and_keep_their_numbers(made, readers):
    data, _ = data_of(made, readers, TRAINED)
    labels = data["rules"]["content"]["labels"]
    n = len(data["rules"]["content"]["positions"])
    values = integers(labels["values"]).reshape(-1, n)
    assert len(values) == 5
    # In the table they change places.
    assert (values == values[0]).all()
    assert labels["alone"] == {}


def test_where_all_is_noise_the_mean_inner_product_stands_beside_it(made, readers):
    data, _ = data_of(made, readers, RANDOM)
    assert data["rules"]["all"]["labels"]["alone"] == {6: 0.987, 7: 0.987}


def test_tokens_are_those_of_the_states_file_with_their_kinds(made, readers):
    data, _ = data_of(made, readers, TRAINED)
    assert data["text"] == results.HOSTILE
    kinds = [list(style.KINDS)[kind] for kind in data["kind"]]
    assert (kinds[0], kinds[1], kinds[-1]) == ("special", "other", "punctuation")
    data, _ = data_of(made, readers, ("post", "trained", "plain"))
    assert list(style.KINDS)[data["kind"][0]] == "first position"
    assert data["rules"]["content"]["positions"] == list(range(1, len(results.PLAIN)))


def test_curves_are_of_the_tables_that_are_there_and_energy_has_one_for_each_beta(made, readers):
    data, curves = data_of(made, readers, RANDOM)
    titles = [curve.title for curve in curves]
    assert "Interaction energy, beta 0.5" in titles and "Interaction energy, beta 2" in titles
    assert {curve.table for curve in curves} == {"inner_products", "clusters", "energy"}
    mean = data["rules"]["all"]["curves"][titles.index("Mean inner product")]["values"]
    np.testing.assert_allclose(mean, [depth for _, _, depth in data["states"]], atol=1e-5)


def test_every_curve_names_a_column_of_its_table_and_is_read():
    for curve in CURVES:
        assert {curve.column, *curve.where} <= tables.columns(curve.table).keys()
        assert curve.table in TABLES


def test_every_shape_of_the_figures_has_a_name_in_plotly():
    markers = {*style.CLUSTER_SHAPES, *(look["marker"] for look in style.KINDS.values())}
    assert markers <= explorer.SHAPES.keys()


@pytest.mark.parametrize("text", [*results.HOSTILE, "\u2029", "a\\u003cb", "\U0001f600", '"', "\x00"])
def test_json_means_what_it_says_and_holds_no_markup(text):
    written = as_json({"text": [text]})
    assert json.loads(written) == {"text": [text]}
    assert not set(written) & set("<>&\u2028\u2029\n")


def test_small_grids_lie_in_the_page(tmp_path):
    page = results.write(tmp_path)
    found = embedded(page)
    assert len(found) == 8 and found["/".join(TRAINED)]["text"] == results.HOSTILE
    assert list((tmp_path / "report/explorer").iterdir()) == []
    assert "<script>alert" not in page.read_text()


@pytest.mark.parametrize("limit", [0, 10_000])
def test_large_grids_lie_beside_it_and_hold_the_same(tmp_path, monkeypatch, limit):
    whole = embedded(results.write(tmp_path / "whole"))
    monkeypatch.setattr(explorer, "EMBEDDED_MAX", limit)
    page = results.write(tmp_path / "split")
    assert embedded(page) == {}
    files = {
        str(path.relative_to(tmp_path / "split/report/explorer").with_suffix("")): path.read_text()
        for path in (tmp_path / "split/report/explorer").rglob("*.js")
    }
    assert files.keys() == whole.keys()
    for name, text in files.items():
        said, written = re.fullmatch(r'explorer\.add\("([^"]+)",(.*)\);\n', text).groups()
        assert said == name and json.loads(written) == whole[name]


def test_the_same_results_give_the_same_page(tmp_path):
    assert results.write(tmp_path / "a").read_bytes() == results.write(tmp_path / "b").read_bytes()


def test_without_clusters_there_is_no_colour_for_them(tmp_path):
    page = results.write(tmp_path, ["runs", "projections"])
    assert 'value="cluster"' not in page.read_text()
    assert next(iter(embedded(page).values()))["rules"]["all"]["labels"] is None


def test_a_method_that_did_not_run_under_a_token_rule_says_so_at_the_layers_of_the_other(made, readers):
    data, _ = data_of(made, readers, RANDOM)
    content, everything = (data["rules"][rule]["methods"]["tsne"] for rule in ("content", "all"))
    assert [frame["state"] for frame in everything["frames"]] == [frame["state"] for frame in content["frames"]]
    assert {(frame["picture"], frame["undefined"]) for frame in everything["frames"]} == {(None, explorer.NOT_RUN)}
    assert (everything["xy"], everything["box"]) == ("", [[0.0, 0.0], [0.0, 0.0]])
    assert {frame["undefined"] for frame in content["frames"]} == {None}
    frames = data["rules"]["all"]["methods"]["pca"]["frames"]
    assert len(frames) == 8 and {frame["undefined"] for frame in frames} == {None}


def test_a_method_that_ran_under_both_token_rules_has_pictures_under_both(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "TSNE_TOKENS", ["all", "content"])
    for data in embedded(results.write(tmp_path)).values():
        for rule in data["rules"].values():
            assert [frame["picture"] for frame in rule["methods"]["tsne"]["frames"]] == [0, 1, 2]


@pytest.mark.parametrize(
    ("rules", "tsne", "reason"),
    [(["content"], [0, 1, 2, 3, 4], explorer.NOT_RUN), (["all", "content"], [0, 2, 4], None)],
    ids=["no t-SNE of the run", "t-SNE of all tokens"],
)
def test_a_prompt_whose_tokens_are_all_left_out_says_so_at_every_layer(tmp_path, monkeypatch, rules, tsne, reason):
    monkeypatch.setattr(results, "tokens_of", lambda model, prompt: results.PLAIN[:1])
    monkeypatch.setattr(results, "TSNE_TOKENS", rules)
    data = embedded(results.write(tmp_path))["/".join(TRAINED)]
    content = data["rules"]["content"]
    assert content["positions"] == []
    for method, states in {"pca": [0, 1, 2, 3, 4], "tsne": tsne}.items():
        frames = content["methods"][method]["frames"]
        assert [frame["state"] for frame in frames] == states
        assert {(frame["picture"], frame["undefined"]) for frame in frames} == {(None, explorer.NO_TOKENS)}
    assert content["labels"]["undefined"] == dict.fromkeys("01234", explorer.NO_TOKENS)
    methods = data["rules"]["all"]["methods"]
    assert len(methods["pca"]["frames"]) == 5
    assert {frame["undefined"] for frame in methods["tsne"]["frames"]} == {reason}


def test_tokens_of_another_text_are_refused(made, readers):
    run = ("post", "trained", "plain")
    rows = {name: reader.read(run) for name, reader in readers.items()}
    (states,) = [path for path in made[1] if path.parts[-3:] == ("post", "trained", "hostile.parquet")]
    with pytest.raises(Refusal, match=r"post/trained/hostile.parquet: holds other tokens .* post/plain"):
        run_data(rows, StatesFile(states), [], results.METHODS)


def test_rows_of_other_tokens_are_refused(made, readers):
    rows = {name: reader.read(TRAINED) for name, reader in readers.items()}
    rows["projections"] = rows["projections"].slice(1)
    (states,) = [path for path in made[1] if path.parts[-3:] == ("post", "trained", "hostile.parquet")]
    with pytest.raises(Refusal, match=r"the run post/trained/hostile .* layer 0 \(embedding\)"):
        run_data(rows, StatesFile(states), [], results.METHODS)


def test_a_table_is_read_run_by_run_across_row_groups(made, tmp_path):
    (path,) = [path for path in made[0] if path.stem == "projections"]
    whole = tables.read(path, "projections")
    cut = tmp_path / "projections.parquet"
    pq.write_table(pq.read_table(path), cut, row_group_size=97, write_page_checksum=True)
    reader = ByRun(cut, "projections")
    assert pq.ParquetFile(cut).num_row_groups > 8
    assert reader.runs == list(dict.fromkeys(zip(*(whole[key].to_pylist() for key in ("model", "weights", "prompt")))))
    rows = whole.to_pylist()
    for run in reader.runs:
        own = [row for row in rows if (row["model"], row["weights"], row["prompt"]) == run]
        assert reader.read(run).to_pylist() == own


def test_what_is_no_such_table_is_refused_by_name(made, tmp_path):
    (path,) = [path for path in made[0] if path.stem == "projections"]
    with pytest.raises(Refusal, match="is not a clusters table"):
        ByRun(path, "clusters")
    with pytest.raises(Refusal, match="holds nothing of the run a/b/c"):
        ByRun(path, "projections").read(("a", "b", "c"))
    short = tmp_path / "projections.parquet"
    short.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(Refusal, match="cannot be read as parquet"):
        ByRun(short, "projections")
