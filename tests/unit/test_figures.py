"""Every figure, drawn from tables that were never run: any number of models, nothing defined, one seed."""

import importlib
import itertools
import re
from functools import cache

import numpy as np
import pandas as pd
import pytest
from grids import PROMPTS, frame
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import FillBetweenPolyCollection
from matplotlib.figure import Figure
from matplotlib.text import Text

from collapse import tables
from collapse.figures import curves, differences, membership, projections, style
from collapse.gate import DEGENERATE_RANK
from collapse.registry import FIGURES

style.apply()
grid = cache(frame)
REASON = "row 3 is a zero vector"


@cache
def drawing(name, n_models=2, **options):
    """A figure of a grid, drawn once for all tests that look at it."""
    entry = FIGURES[name]
    model = options.get("model", "model-{}-of-a-size").format(0)
    subject = {"model": model, "beta": "b1"}.get(entry.per, "")
    frames = {table: grid(table, n_models=n_models, **options) for table in entry.tables}
    return module_of(name).draw(name, subject, frames, {})


def module_of(name):
    return importlib.import_module(f"collapse.figures.{FIGURES[name].module}")


@cache
def words_of(figure):
    """(text, its box in pixels) of all that is written on a figure."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    found = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    # An axis keeps labels of ticks outside its limits, which it does not draw.
    shown = [t for axis in figure.axes for which in (axis.xaxis, axis.yaxis) for t in drawn_ticks(which)]
    hidden = {id(t) for axis in figure.axes for which in (axis.xaxis, axis.yaxis) for t in which.get_ticklabels()}
    hidden -= set(map(id, shown))
    return [(text.get_text(), text.get_window_extent(renderer)) for text in found if id(text) not in hidden]


def drawn_ticks(axis):
    low, high = sorted(axis.get_view_interval())
    return [label for label, at in zip(axis.get_ticklabels(), axis.get_ticklocs()) if low <= at <= high]


def overlaps(figure):
    # A pixel of slack: boxes are a little larger than their letters.
    boxes = [(text, box.padded(-1)) for text, box in words_of(figure)]
    return [(a, b) for (a, p), (b, q) in itertools.combinations(boxes, 2) if p.overlaps(q)]


def outside(figure):
    width, height = figure.get_size_inches() * figure.dpi
    return [t for t, b in words_of(figure) if b.x0 < -1 or b.y0 < -1 or b.x1 > width + 1 or b.y1 > height + 1]


# One of each layout of panels, legend and marks: layouts take seconds to compute.
LAYOUTS = {
    *("mass_near_one", "energy", "effective_rank_sphere", "n_clusters", "fiedler_symmetric", "trained_minus_random"),
    *("inner_product_histograms", "clusters", "cluster_membership", "projections"),
    *("energy_by_beta", "cluster_life", "cluster_plateaus", "pair_groups_mean", "attention_noise"),
}
MANY = [name for name in FIGURES if name in LAYOUTS and FIGURES[name].per != "model"]
# With ten models legends are those of two: one figure of each scale of its panels.
TEN = ["mass_near_one", "energy", "trained_minus_random"]
# Depth is not on their axes.
WITHOUT_DEPTH = ["cluster_membership", "projections", "trained_minus_random"]
FEW = [name for name in FIGURES if name in LAYOUTS]
LONG_NAME = "a-very-long-name-of-a-model-in-a-grid-{:02}"
NINE = tuple(
    f"{n}_{'abcdefghijklmnopqrstuvwxyzabcdefghijkl' if n % 2 else 'a_name_that_is_long_and_in_short_words'}"
    for n in range(9)
)
OTHERS = (
    ("norm-matched-reset-s0", "norm-matched-reset", 0),
    ("orthogonal-qk-ov-reset-zero-bias-s0", "orthogonal-qk-ov-reset-zero-bias", 0),
    ("spectrum-matched-embeddings-mlp-reset-s0", "spectrum-matched-embeddings-mlp-reset", 0),
    ("library-init-s0", "library-init", 0),
    ("shuffled-s0", "shuffled", 0),
    ("identity-b2", "identity", None),
    ("identity-b5-step0.1-n400", "identity", None),
)


def test_every_module_has_a_figure_among_the_layouts():
    assert {FIGURES[name].module for name in LAYOUTS} == {figure.module for figure in FIGURES.values()}
    assert {len(name) for name in (LONG_NAME.format(0), *NINE)} == {40}


@pytest.mark.parametrize(("name", "n_models"), [*itertools.product(MANY, [1, 2]), *itertools.product(TEN, [10])])
def test_no_words_overlap_with_any_number_of_models(name, n_models):
    figure = drawing(name, n_models, **{"model": LONG_NAME} if n_models == 10 else {}).figure
    assert overlaps(figure) == [] and outside(figure) == []
    # At 300 dpi, below what image viewers refuse.
    assert max(figure.get_size_inches()) < 60


@pytest.mark.parametrize("name", FEW)
def test_no_words_overlap_with_many_kinds_of_weights_on_one_prompt(name):
    figure = drawing(name, 1, model=LONG_NAME, prompts=NINE[:1], others=OTHERS).figure
    assert overlaps(figure) == [] and outside(figure) == []


@pytest.mark.parametrize(
    "name", ["mean_inner_product", "cluster_plateaus", "cluster_membership", "trained_minus_random"]
)
def test_no_words_overlap_on_nine_prompts_of_long_names(name):
    figure = drawing(name, 1, prompts=NINE).figure
    assert overlaps(figure) == [] and outside(figure) == []
    assert max(figure.get_size_inches()) < 60


def test_a_projection_has_panels_for_nine_prompts_and_nothing_overlaps():
    figure = drawing("projections", 1, prompts=NINE, n_seeds=0).figure
    assert len(figure.axes) == 9 * 9
    assert overlaps(figure) == [] and outside(figure) == []


@pytest.mark.parametrize("name", [name for name in FEW if name not in MANY])
def test_no_words_overlap_in_the_figures_of_one_model(name):
    figure = drawing(name).figure
    assert overlaps(figure) == [] and outside(figure) == []


def test_overlaps_are_seen_of_titles_labels_ticks_legends_and_notes():
    """The check above can fail: each kind of words is laid over another."""

    def panels():
        figure = Figure(figsize=(3, 2), dpi=100)
        axis = figure.subplots()
        axis.plot([0, 1], [0, 1], label="line")
        return figure, axis

    figure, axis = panels()
    axis.set_xticks([0, 0.5, 1], ["a label much too long to fit", "one that is as long as that", "a third"])
    assert overlaps(figure)
    figure, axis = panels()
    axis.set_title("title")
    figure.legend(loc="upper center")
    figure.suptitle("over the legend")
    assert overlaps(figure)
    figure, axis = panels()
    axis.text(0.5, 0.5, "note")
    axis.text(0.5, 0.52, "another")
    assert overlaps(figure)
    figure, axis = panels()
    axis.set_ylabel("y label")
    figure.supylabel("the label of all", x=0.01, fontsize=8)
    assert overlaps(figure)
    figure, axis = panels()
    axis.set_xlabel("a label wider than the figure is, which is cut off at both of its sides")
    assert outside(figure)


@pytest.mark.parametrize("name", FEW)
def test_what_is_undefined_everywhere_is_drawn_and_said(name):
    drawn = drawing(name, 1, undefined=REASON)
    assert overlaps(drawn.figure) == [] and outside(drawn.figure) == []
    assert "undefined" in drawn.alternative.lower()


@pytest.mark.parametrize("name", FIGURES)
def test_every_axis_says_what_it_shows_and_in_which_unit(name):
    """Of projections, whose axes have no unit, the caption says so."""
    figure = drawing(name).figure
    panels = [axis for axis in figure.axes if axis.get_subplotspec()]
    if name == "projections":
        assert "Axes have no unit" in drawing(name).caption
        return
    assert all(axis.get_xlabel() for axis in panels if axis.get_subplotspec().is_last_row())
    titles = " ".join(axis.get_title() for axis in panels)
    assert re.search(r"share|cosine|rank|energy|CKA|number|Fiedler|nats|\(", figure.get_supylabel() + titles)
    if FIGURES[name].module == "curves":
        curve = curves.CURVES[name]
        unit = tables.description()["tables"][curve.table]["columns"][curve.column]["unit"]
        words = {"none": "no unit", "clusters": "number of clusters"}.get(unit, unit)
        assert words in figure.get_supylabel() and curve.axis == figure.get_supylabel()


@pytest.mark.parametrize("name", FIGURES)
def test_no_value_lies_beyond_its_axis(name):
    for axis in drawing(name).figure.axes:
        low, high = axis.get_ylim()
        for line in axis.lines:
            if line.get_transform().contains_branch(axis.transData) and line.get_clip_on():
                y = np.asarray(line.get_ydata(), dtype=float)
                assert np.isnan(y).all() or (min(low, high) <= np.nanmin(y) and np.nanmax(y) <= max(low, high))


@pytest.mark.parametrize("name", FEW)
def test_one_seed_has_no_band_and_the_caption_says_so(name):
    drawn = drawing(name, 1, n_seeds=1)
    assert "one seed" in drawn.caption or "1 seed " in drawn.caption
    bands = [
        band for axis in drawn.figure.axes for band in axis.collections if isinstance(band, FillBetweenPolyCollection)
    ]
    assert bands == []


@pytest.mark.parametrize("name", FIGURES)
def test_a_caption_states_models_weights_prompts_token_rule_and_band(name):
    drawn = drawing(name)
    assert "model-0-of-a-size" in drawn.caption and "random (norm-matched)" in drawn.caption
    assert all(prompt in drawn.caption for prompt in PROMPTS)
    assert "all tokens" in drawn.caption or "content tokens only" in drawn.caption
    assert "2 seeds" in drawn.caption and drawn.alternative


@pytest.mark.parametrize("name", FEW)
def test_the_depth_of_training_is_marked_for_a_model_that_runs_deeper_and_for_no_other(name):
    deep = {"model-0-of-a-size": {"depth": 48, "trained_depth": 12}}
    entry = FIGURES[name]
    subject = {"model": "model-0-of-a-size", "beta": "b1"}.get(entry.per, "")
    frames = {table: grid(table, n_models=2) for table in entry.tables}
    drawn, plain = module_of(name).draw(name, subject, frames, deep), drawing(name)
    assert "12 of 48" in drawn.caption and "12 of 48" not in plain.caption
    assert not any(map(is_marked, plain.figure.axes))
    if name not in WITHOUT_DEPTH:
        panels = [axis for axis in drawn.figure.axes if axis.get_subplotspec()]
        n_models = 1 if FIGURES[name].per == "model" else 2
        assert sum(map(is_marked, panels)) * n_models == len(panels)


def is_marked(axis):
    return any(list(line.get_xdata()) == [0.25, 0.25] for line in axis.lines)


@pytest.mark.parametrize("name", FEW)
def test_the_state_after_the_final_norm_is_not_joined(name):
    """It stands alone beyond depth 1, and no line reaches there."""
    for axis in drawing(name).figure.axes:
        for line in axis.lines:
            x = np.asarray(line.get_xdata(), dtype=float)
            if axis.get_xlabel().startswith("relative depth") and len(x) > 1:
                assert x.max() <= 1.0


def test_trained_minus_random_is_that_of_the_last_block_and_of_training_where_a_model_runs_deeper():
    table = grid("inner_products", n_models=1)
    for depths, layer in (({}, 6), ({"model-0-of-a-size": {"depth": 6, "trained_depth": 2}}, 2)):
        last = differences.last_block(table, depths)
        assert set(last["layer"]) == {layer} and set(last["stage"]) == {"block"} and set(last["tokens"]) == {"content"}
        found = differences.subtract(last, "mass_near_one", "norm-matched")["model-0-of-a-size"]
        for prompt in PROMPTS:
            values = last[last["prompt"] == prompt].set_index("weights")["mass_near_one"]
            expected = [values["trained"] - values[f"norm-matched-s{seed}"] for seed in (0, 1)]
            assert found[prompt].tolist() == expected


def test_without_random_weights_there_is_no_difference_to_draw_and_the_caption_says_so():
    frames = {table: grid(table, n_models=1, n_seeds=0) for table in FIGURES["trained_minus_random"].tables}
    drawn = differences.draw("trained_minus_random", "", frames, {})
    assert "no random ones in this grid" in drawn.caption and "undefined" in drawn.alternative


def test_an_interval_over_prompts_is_drawn_from_three_on():
    def lines(prompts):
        drawn = drawing("trained_minus_random", 1, prompts=prompts)
        return sum(line.get_linestyle() == "-" and len(line.get_xdata()) == 2 for line in drawn.figure.axes[0].lines)

    # The line at 0, one per prompt for its seeds, and the model's.
    assert lines(("a", "b")) == 1 + 2
    assert lines(("a", "b", "c")) == 1 + 3 + 1


def test_projections_of_pca_alone_are_at_the_depths_of_the_study():
    frames = {table: grid(table, n_models=1) for table in FIGURES["projections"].tables}
    table = frames["projections"]
    drawn = projections.draw(
        "projections", "model-0-of-a-size", frames | {"projections": table[table["method"] == "pca"]}, {}
    )
    assert [axis.get_title() for axis in drawn.figure.axes[:3]] == [
        f"PCA\ndepth {depth}" for depth in ("0.00", "0.67", "1.00")
    ]


def test_projections_show_the_token_rule_under_which_all_methods_ran_and_content_where_they_ran_under_both():
    frames = {table: grid(table, n_models=1) for table in FIGURES["projections"].tables}
    content = frames["projections"]
    layouts = content[content["method"] != "pca"]
    everything = layouts.assign(tokens="all")
    for added, words in (
        ([layouts], "content tokens only"),
        ([layouts, everything], "content tokens only"),
        ([everything], "all tokens"),
    ):
        table = pd.concat([content[content["method"] == "pca"], *added], ignore_index=True)
        drawn = projections.draw("projections", "model-0-of-a-size", frames | {"projections": table}, {})
        assert f"Tokens: {words}" in drawn.caption
        assert "undefined" not in drawn.alternative and all(axis.lines for axis in drawn.figure.axes)


def test_noise_is_grey_crosses_and_clusters_differ_in_colour_and_shape():
    drawn = drawing("projections", 1).figure
    looks = {(line.get_marker(), line.get_markerfacecolor()) for axis in drawn.axes for line in axis.lines}
    assert {line.get_color() for axis in drawn.axes for line in axis.lines if line.get_marker() == "x"} == {"#999999"}
    clusters = [look for look in looks if look[0] != "x"]
    assert len({shape for shape, _ in clusters}) == len({colour for _, colour in clusters}) == len(clusters) > 2


def test_membership_of_the_theory_is_drawn_on_the_axes_of_the_models():
    table = grid("cluster_membership", n_models=1)
    own = table[(table["tokens"] == "content") & (table["prompt"] == PROMPTS[0]) & (table["scheme"] == "identity")]
    drawn = [list(line.get_ydata()) for line in drawing("cluster_membership", 1).figure.axes[0].lines]
    assert own.sort_values("position")["clustered_share"].tolist() in drawn and len(drawn) == 3


def test_membership_band_is_that_of_the_seeds():
    table = grid("cluster_membership", n_models=1)
    own = table[(table["tokens"] == "content") & (table["prompt"] == PROMPTS[0]) & (table["scheme"] == "norm-matched")]
    positions, shares = membership.shares_of(own)
    assert shares.shape == (2, len(positions))
    assert shares[1].tolist() == own[own["seed"] == 1].sort_values("position")["clustered_share"].tolist()


def test_clusters_are_drawn_beside_the_null_of_the_trained_cloud():
    table = grid("clusters", n_models=1)
    own = table[(table["tokens"] == "content") & (table["prompt"] == PROMPTS[0]) & (table["scheme"] == "trained")]
    null = own.loc[own["stage"] != "final_norm", "null_n_clusters"].tolist()
    drawn = [list(line.get_ydata()) for line in drawing("n_clusters", 1).figure.axes[0].lines]
    assert null in drawn


def test_where_no_cluster_was_found_the_mean_inner_product_is_said():
    """0 clusters and 100 % noise are what HDBSCAN says both of collapse and of a scattered cloud."""
    table = grid("clusters", n_models=1).copy()
    table.loc[table["scheme"] == "trained", ["n_clusters", "mean_inner_product"]] = [0, 0.25]
    table.loc[table["scheme"] != "trained", "n_clusters"] = 3
    for name in ("n_clusters", "noise_fraction"):
        caption = curves.draw(name, "", {"clusters": table}, {}).caption
        assert (
            "Mean inner product where no cluster was found, per model and weights: model-0-of-a-size trained" in caption
        )
        assert "states: 0.25 to 0.25." in caption
        table.loc[table["scheme"] == "trained", "n_clusters"] = 1
        assert "no cluster was found" not in curves.draw(name, "", {"clusters": table}, {}).caption
        table.loc[table["scheme"] == "trained", "n_clusters"] = 0


def test_states_below_the_gate_are_marked_where_rank_is_drawn_and_the_gate_itself_where_it_looks():
    table = grid("effective_rank", n_models=1).copy()
    table["effective_rank_sphere"] = np.where(table["layer"] >= 4, DEGENERATE_RANK - 0.5, DEGENERATE_RANK + 0.5)
    for name, has_line in (("effective_rank_raw", False), ("effective_rank_sphere", True)):
        drawn = curves.draw(name, "", {"effective_rank": table}, {})
        axis = drawn.figure.axes[0]
        marks = [line for line in axis.lines if line.get_marker() == "v" and len(line.get_xdata())]
        # Trained, random and the theory, at the three deepest layers.
        assert [list(line.get_xdata()) for line in marks] == [[4 / 6, 5 / 6, 1.0]] * 3
        assert has_line == any(list(line.get_ydata()) == [DEGENERATE_RANK] * 2 for line in axis.lines)
        assert "degenerate" in drawn.caption
    table["effective_rank_sphere"] = DEGENERATE_RANK + 0.5
    axis = curves.draw("effective_rank_raw", "", {"effective_rank": table}, {}).figure.axes[0]
    assert not any(line.get_marker() == "v" and len(line.get_xdata()) for line in axis.lines)


def test_energy_has_a_panel_for_each_beta():
    axes = drawing("energy_by_beta", 1).figure.axes
    assert [axis.get_title() for axis in axes[:2]] == ["beta 1", "beta 5"]
    table = grid("energy", n_models=1)
    own = table[(table["tokens"] == "content") & (table["prompt"] == PROMPTS[0]) & (table["weights"] == "trained")]
    for axis, beta in zip(axes, (1.0, 5.0)):
        values = own[(own["beta"] == beta) & (own["stage"] != "final_norm")]["energy"].tolist()
        assert values in [list(line.get_ydata()) for line in axis.lines]
