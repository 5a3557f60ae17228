"""The explorer in a real browser. That no page complains, runs a prompt or sends a request is held after every test."""

import re
import shutil

import explorer_results as results
import pytest

from collapse import explorer

POINTS = "(side) => { const [t] = document.querySelector(`#${side} .plot`).data; return [t.x, t.y]; }"
RANGE = """(side) => {
    const { xaxis, yaxis } = document.querySelector(`#${side} .plot`)._fullLayout;
    return [xaxis.range, yaxis.range];
}"""
PLACE = """([side, n]) => {
    const plot = document.querySelector(`#${side} .plot`);
    const { xaxis, yaxis } = plot._fullLayout, box = plot.getBoundingClientRect(), points = plot.data[0];
    return [box.left + xaxis._offset + xaxis.c2p(points.x[n]), box.top + yaxis._offset + yaxis.c2p(points.y[n])];
}"""


def points(page, side="left"):
    return page.evaluate(POINTS, side)


def ringed(page, side, n):
    """Whether the ring is on the n-th point; with None, whether there is none."""
    ring = page.locator(f"#{side} .ring")
    if n is None or not ring.is_visible():
        return n is None and not ring.is_visible()
    box, place = ring.bounding_box(), page.evaluate(PLACE, [side, n])
    return place == pytest.approx([box["x"] + box["width"] / 2, box["y"] + box["height"] / 2], abs=1)


def choose(page, side, **names):
    for key, value in names.items():
        page.select_option(f"#{side} [data-key={key}]", value)


def pick(page, name, value):
    page.check(f"input[name={name}][value={value}]", force=True)


def status(page, side="left"):
    return page.inner_text(f"#{side} .status")


def marked(page, side):
    return page.locator(f"#{side} .words .marked").all_text_contents()


def hover(page, side, n):
    page.mouse.move(*page.evaluate(PLACE, [side, n]))


@pytest.mark.parametrize("form", ["embedded", "split"])
def test_it_opens_from_a_disk_and_shows_two_runs(explore, pages, form):
    page = explore(getattr(pages, form))
    assert len(points(page, "left")[0]) == len(points(page, "right")[0]) == len(results.HOSTILE) - 1
    assert status(page, "left").startswith("Embedding, layer 0 of 4 · 2 clusters, ")
    said = page.get_attribute("#left .plot", "aria-label")
    assert said.startswith("left picture: post/trained/hostile, Embedding, layer 0 of 4, 2 clusters, ")
    files = [url for url in page.seen.requests if url.endswith(".js")]
    assert len(files) == {"embedded": 0, "split": 2}[form]


def test_a_run_is_loaded_when_it_is_chosen(explore, pages):
    page = explore(pages.split)
    choose(page, "right", model="pre", prompt="plain")
    page.locator("#right .words [data-position='11']").wait_for()
    assert page.seen.requests[-1].endswith("explorer/pre/norm-matched-s0/plain.js")


def test_a_run_whose_file_is_not_there_is_named(explore, pages, tmp_path):
    page = explore(pages.split)
    page.evaluate("document.querySelector('#left [data-key=model]').append(new Option('gone', 'gone'))")
    page.seen.expected = ["Failed to load resource: net::ERR_FILE_NOT_FOUND"]
    choose(page, "left", model="gone")
    reason = page.locator("#left .reason")
    reason.filter(has_text="gone/trained/hostile.js cannot be read: keep the folder explorer").wait_for()
    assert status(page) == "" and page.locator("#left .words [data-position]").count() == 0
    page.keyboard.press("ArrowRight")
    pick(page, "rule", "all")
    choose(page, "left", model="pre")
    reason.wait_for(state="hidden")
    assert status(page).startswith("Embedding, layer 0 of 6")


def test_beside_a_run_that_is_not_there_nothing_of_another_is_seen(explore, pages):
    page = explore(pages.split)
    page.evaluate("document.querySelector('#left [data-key=model]').append(new Option('gone', 'gone'))")
    page.seen.expected = ["Failed to load resource: net::ERR_FILE_NOT_FOUND"]
    choose(page, "left", model="gone")
    page.locator("#left .reason", has_text="cannot be read").wait_for()
    assert page.locator(".curve").count() == 0
    choose(page, "right", prompt="plain")
    page.locator("#right .reason", has_text="Shown as soon as the other side has a run").wait_for()
    assert status(page, "right") == ""
    choose(page, "left", model="post")
    page.locator("#right .reason").wait_for(state="hidden")
    assert status(page, "right").startswith("Embedding") and len(points(page, "right")[0]) == len(results.PLAIN) - 1
    assert page.locator(".curve").count() > 0


def test_a_run_whose_file_is_cut_short_is_named(explore, tmp_path, pages):
    shutil.copytree(pages.split.parent, tmp_path / "copy")
    file = tmp_path / "copy/explorer/pre/trained/hostile.js"
    file.write_text(file.read_text()[:-100])
    page = explore(tmp_path / "copy/explorer.html")
    page.seen.expected = ["Invalid or unexpected token", "Unexpected end of input", "missing )"]
    choose(page, "left", model="pre")
    page.locator("#left .reason", has_text="pre/trained/hostile.js does not hold its run").wait_for()


def test_a_prompt_without_a_content_token_is_a_choice_like_others(chromium, tmp_path, monkeypatch):
    tokens_of = results.tokens_of
    monkeypatch.setattr(results, "tokens_of", lambda m, p: results.PLAIN[:1] if p == "plain" else tokens_of(m, p))
    path = results.write(tmp_path)
    page = chromium.new_page()
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]")
    choose(page, "left", prompt="plain")
    reason = page.locator("#left .reason")
    reason.filter(has_text="No picture: no tokens under this token rule").wait_for()
    assert "NaN" not in status(page)
    pick(page, "rule", "all")
    reason.wait_for(state="hidden")
    assert len(points(page)[0]) == 1
    page.close()


def test_the_trained_depth_of_a_deepened_model_is_marked_on_its_own_side(explore):
    page = explore()
    assert page.is_hidden("#deep") and page.locator("line.trained").count() == 0
    page.evaluate("""() => {
        const holder = document.querySelector('script[data-run="pre/trained/hostile"]');
        holder.textContent = JSON.stringify({ ...JSON.parse(holder.textContent), trained: 2 });
    }""")
    choose(page, "left", model="pre")
    assert page.is_visible("#deep")
    row = page.locator(".curve").first
    assert row.locator("line.trained.left").count() == 1 and row.locator("line.trained.right").count() == 0
    page.fill("#layer", "3")
    assert status(page).startswith("Layer 3 of 6, trained to 2")


def test_a_layer_moves_the_points_and_not_the_axes(explore):
    page = explore()
    choose(page, "left", model="pre")
    before, axes = points(page), [page.evaluate(RANGE, side) for side in ("left", "right")]
    page.fill("#layer", "4")
    assert points(page) != before
    assert [page.evaluate(RANGE, side) for side in ("left", "right")] == axes
    assert axes[0] == axes[1]
    assert status(page).startswith("Layer 4 of 6")


def test_axes_are_equal_in_scale_and_shared_unless_each_side_has_its_own(explore):
    page = explore()
    choose(page, "left", model="pre")
    for shared in (True, False):
        ranges = [page.evaluate(RANGE, side) for side in ("left", "right")]
        assert (ranges[0] == ranges[1]) == shared
        lengths = page.evaluate(
            "['xaxis', 'yaxis'].map((a) => document.querySelector('#left .plot')._fullLayout[a]._length)"
        )
        (x0, x1), (y0, y1) = ranges[0]
        assert lengths[0] / (x1 - x0) == pytest.approx(lengths[1] / (y1 - y0), rel=1e-3)
        pick(page, "axes", "own")


def test_a_zoom_is_on_both_sides_stays_through_layers_and_goes_back(explore):
    page = explore()
    whole = page.evaluate(RANGE, "left")
    box = page.locator("#left .frame").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 60, y + 60, steps=4)
    page.mouse.up()
    page.wait_for_timeout(300)
    near = page.evaluate(RANGE, "left")
    assert near[0][1] - near[0][0] < 0.5 * (whole[0][1] - whole[0][0])
    page.keyboard.press("ArrowRight")
    for side in ("left", "right"):
        for axis, expected in zip(page.evaluate(RANGE, side), near):
            assert axis == pytest.approx(expected, rel=1e-6)
    page.mouse.dblclick(x, y)
    page.wait_for_timeout(600)
    for side in ("left", "right"):
        for axis, expected in zip(page.evaluate(RANGE, side), whole):
            assert axis == pytest.approx(expected, rel=1e-6)


def test_points_pass_between_their_places(chromium, pages):
    context = chromium.new_context(reduced_motion="no-preference")
    page = context.new_page()
    page.goto(pages.embedded.as_uri())
    page.wait_for_selector("html[data-ready]")
    choose(page, "left", model="pre")
    page.focus("#play")
    page.evaluate("""() => {
        const seen = new Set();
        const look = () => {
            seen.add(document.querySelectorAll('#left .plot .scatterlayer .point')[2].getAttribute('transform'));
            if (seen.size > 3) document.body.id = 'moved';
            else requestAnimationFrame(look);
        };
        look();
    }""")
    page.keyboard.press("End")
    page.wait_for_selector("#moved")
    context.close()


def test_a_point_shows_its_token_and_marks_its_word_on_both_sides(explore):
    page = explore()
    choose(page, "left", prompt="plain")
    choose(page, "right", prompt="plain")
    hover(page, "left", 3)
    page.wait_for_selector("#left .tip:not([hidden])")
    # Content tokens: without the first.
    assert page.inner_text("#left .tip").startswith("“ fox”")
    assert "position 4" in page.inner_text("#left .tip")
    for side in ("left", "right"):
        assert marked(page, side) == [" fox"]
        assert ringed(page, side, 3)
    page.mouse.move(5, 5)
    page.wait_for_selector("#left .tip", state="hidden")
    assert marked(page, "right") == [] and ringed(page, "right", None)


def test_a_word_marks_its_point_on_both_sides(explore):
    page = explore()
    choose(page, "left", prompt="plain")
    choose(page, "right", prompt="plain")
    page.hover("#right .words [data-position='2']")
    for side in ("left", "right"):
        assert ringed(page, side, 1)
        assert page.inner_text(f"#{side} .tip").startswith("“ and”")


def test_another_tokenizer_s_words_are_marked_where_they_share_letters(explore):
    page = explore()
    choose(page, "left", prompt="plain")
    choose(page, "right", model="pre", prompt="plain")
    for position, (word, piece) in {1: (" dog", "do"), 4: (" fox", "fox")}.items():
        page.hover(f"#left .words [data-position='{position}']")
        assert (marked(page, "left"), marked(page, "right")) == ([word], [piece])
    page.hover("#right .words [data-position='3']")
    assert (marked(page, "left"), marked(page, "right")) == ([" dog"], ["##g"])
    # Another prompt has none of these words, though it may have the same.
    choose(page, "right", prompt="hostile")
    page.hover("#left .words [data-position='1']")
    assert (marked(page, "left"), marked(page, "right")) == ([" dog"], [])
    choose(page, "right", prompt="plain")
    # What the other tokenizer added is nowhere on this side.
    page.hover("#right .words [data-position='0']")
    assert (marked(page, "left"), marked(page, "right")) == ([], ["[CLS]"])


def test_a_token_that_is_held_stays_marked_through_the_layers(explore):
    page = explore()
    page.click("#left .words [data-position='4']")
    page.mouse.move(5, 5)
    page.keyboard.press("ArrowRight")
    assert ringed(page, "left", 3)
    page.keyboard.press("Escape")
    assert ringed(page, "left", None)


def test_two_runs_of_other_depths_stand_at_the_same_depth(explore):
    page = explore()
    choose(page, "right", model="pre", weights="norm-matched-s0", prompt="plain")
    assert page.get_attribute("#layer", "max") == "7"
    page.fill("#layer", "3")
    assert status(page, "left").startswith("Layer 2 of 4")
    assert status(page, "right").startswith("Layer 3 of 6")
    page.keyboard.press("End")
    assert status(page, "right").startswith("After the final norm")
    assert status(page, "left").startswith("Layer 4 of 4 (no final norm)")


def test_what_is_after_the_final_norm_is_a_mark_of_its_own_beside_the_curve(explore):
    page = explore()
    choose(page, "left", model="pre")
    row = page.locator(".curve", has_text="Mean inner product").first
    # Six blocks and the embedding: seven points joined.
    assert len(re.findall("[ML]", row.locator("path.left").get_attribute("d"))) == 7
    assert row.locator("circle.left.after").count() == 1
    assert row.locator("circle.right.after").count() == 0


def test_a_state_after_the_norm_is_reached_beside_a_run_of_more_layers_without_one(explore):
    page = explore()
    # Five of the seven layers are gone, as where t-SNE is at few depths; its final norm is not.
    page.evaluate("""() => {
        const holder = document.querySelector('script[data-run="pre/norm-matched-s0/hostile"]');
        const run = JSON.parse(holder.textContent);
        for (const rule of Object.values(run.rules)) {
            rule.methods.pca.frames = rule.methods.pca.frames.filter(({ state }) => [0, 6, 7].includes(state));
        }
        holder.textContent = JSON.stringify(run);
    }""")
    choose(page, "right", model="pre")
    page.focus("#play")
    page.keyboard.press("End")
    assert page.get_attribute("#layer", "max") == "5"
    assert status(page, "right").startswith("After the final norm")
    page.keyboard.press("ArrowLeft")
    assert status(page, "left").startswith("Layer 4 of 4 ·") and status(page, "right").startswith("Layer 6 of 6 ·")


def test_curves_show_the_value_of_the_layer(explore):
    page = explore()
    row = page.locator(".curve", has_text="Mean inner product").first
    before = row.locator("circle.left:not(.after)").get_attribute("cx")
    page.fill("#layer", "1")
    assert row.locator("b.left").inner_text() == "0.250"
    assert row.locator("circle.left:not(.after)").get_attribute("cx") != before


def test_a_layer_without_a_picture_says_why(explore):
    page = explore()
    page.fill("#layer", "2")
    assert page.inner_text("#left .reason") == f"No picture: {results.NO_PICTURE}"
    assert points(page) == [[], []]
    assert not page.is_visible("#right .reason") and len(points(page, "right")[0]) == 11
    page.fill("#layer", "3")
    assert not page.is_visible("#left .reason") and len(points(page)[0]) == 11


def test_where_all_is_noise_the_mean_inner_product_is_said(explore):
    page = explore()
    page.keyboard.press("End")
    assert "0 clusters, 100 % noise · mean inner product 0.987" in status(page, "right")
    assert "mean inner product" not in status(page, "left")
    rows = page.locator(".curve", has_text="Number of clusters")
    assert "right: mean inner product 0.987" in rows.first.inner_text()
    # Of the null it says nothing.
    assert "mean inner product" not in rows.nth(1).inner_text()


def test_methods_that_are_at_few_depths_have_as_many_steps(explore):
    page = explore()
    page.fill("#layer", "4")
    pick(page, "method", "tsne")
    assert page.get_attribute("#layer", "max") == "2"
    assert status(page).startswith("Layer 4 of 4") and "perplexity 3" in status(page)
    page.keyboard.press("Home")
    assert status(page).startswith("Embedding")
    page.keyboard.press("ArrowRight")
    assert status(page).startswith("Layer 2 of 4")
    assert len(points(page)[0]) == 11


def test_a_method_that_did_not_run_under_the_token_rule_says_so(explore):
    page = explore()
    pick(page, "method", "tsne")
    page.focus("#play")
    page.keyboard.press("ArrowRight")
    assert len(points(page)[0]) == 11
    pick(page, "rule", "all")
    for side in ("left", "right"):
        assert page.inner_text(f"#{side} .reason") == f"No picture: {explorer.NOT_RUN}"
        assert points(page, side) == [[], []] and status(page, side).startswith("Layer 2 of 4")
    page.keyboard.press("End")
    assert page.is_visible("#left .reason") and status(page).startswith("Layer 4 of 4")
    pick(page, "method", "pca")
    assert not page.is_visible("#left .reason") and len(points(page)[0]) == len(results.HOSTILE)


def test_the_token_rule_is_a_choice(explore):
    page = explore()
    assert "out" in page.get_attribute("#left .words [data-position='0']", "class")
    pick(page, "rule", "all")
    assert len(points(page)[0]) == len(results.HOSTILE)
    assert "out" not in page.get_attribute("#left .words [data-position='0']", "class")


def test_points_are_coloured_by_cluster_kind_and_position(explore):
    page = explore()
    marker = "document.querySelector('#left .plot').data[0].marker"
    symbols = page.evaluate(f"{marker}.symbol")
    assert symbols.count("x-thin") == 3 and set(page.evaluate(f"{marker}.color")) >= {"#999999"}
    pick(page, "colour", "kind")
    assert set(page.evaluate(f"{marker}.symbol")) == {"circle", "triangle-up"}
    assert "punctuation" in page.inner_text("#legend")
    pick(page, "colour", "position")
    assert len(set(page.evaluate(f"{marker}.color"))) == 11


def test_arrows_home_end_and_space_work_from_anywhere_but_lists(explore):
    page = explore()
    step = page.locator("#layer").input_value
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert step() == "2"
    page.focus("#layer")
    page.keyboard.press("ArrowLeft")
    assert step() == "1"
    page.keyboard.press("End")
    page.keyboard.press("ArrowRight")
    assert step() == "4"
    page.keyboard.press("Home")
    assert step() == "0"
    page.focus("#left [data-key=weights]")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert step() == "0" and page.locator("#left [data-key=weights]").input_value() == "norm-matched-s0"
    page.focus("#play")
    page.keyboard.press("Space")
    assert page.inner_text("#play") == "Pause"
    page.keyboard.press("Space")
    assert page.inner_text("#play") == "Play"


def test_arrows_in_the_text_go_from_token_to_token(explore):
    page = explore()
    choose(page, "left", prompt="plain")
    choose(page, "right", prompt="plain")
    page.focus("#left .words")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert marked(page, "left") == marked(page, "right") == [" and"]
    assert page.text_content("#left .heard").startswith("“ and”, position 2")
    assert page.locator("#layer").input_value() == "0"


def test_play_stops_at_the_end(explore):
    page = explore()
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Space")
    assert page.get_attribute("#play", "aria-pressed") == "true"
    page.wait_for_selector("#play[aria-pressed=false]")
    assert page.inner_text("#play") == "Play" and page.locator("#layer").input_value() == "4"
    # At the end it starts over.
    page.keyboard.press("Space")
    assert page.locator("#layer").input_value() == "0"
    page.keyboard.press("Space")


def test_every_control_has_a_name_and_is_reached_in_the_order_of_the_page(explore):
    page = explore()
    reached = []
    page.evaluate("document.body.tabIndex = -1, document.body.focus()")
    for _ in range(20):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("""() => {
                const e = document.activeElement;
                return e.getAttribute('aria-label') ?? e.labels?.[0]?.textContent ?? e.textContent;
            }""")
        )
    expected = ["Report", "PCA", "content", "cluster", "same on both sides", "Play", "Layer"]
    expected += ["Model, left", "Weights, left", "Prompt, left"]
    assert reached[: len(expected)] == expected
    assert all(reached)


def test_a_prompt_with_markup_is_shown_and_not_run(explore):
    page = explore()
    shown = page.locator("#left .words [data-position]").all_text_contents()
    assert shown[1:9] == results.HOSTILE[1:9] and shown[10:] == results.HOSTILE[10:]
    assert page.locator("#left .words :not(span)").count() == 0
    for n in range(len(results.HOSTILE) - 1):
        hover(page, "left", n)
        token = results.HOSTILE[n + 1].replace("\n", "↵")
        page.locator("#left .tip", has_text=f"position {n + 1}").wait_for()
        assert page.evaluate("document.querySelector('#left .tip').firstChild.textContent") == f"“{token}”"
        assert page.locator("#left .tip :not(small)").count() == 0
    assert page.locator("img").count() == 0


def test_pictures_words_and_layer_are_seen_without_scrolling(explore):
    page = explore()
    for width in (1280, 1366, 1400):
        page.set_viewport_size({"width": width, "height": 650})
        for selector in ("#layer", "#left .frame", "#right .frame", "#left .words", "footer"):
            box = page.locator(selector).bounding_box()
            assert box["y"] >= 0 and box["y"] + box["height"] <= 650 and box["x"] + box["width"] <= width
        assert page.locator("#left .frame").bounding_box()["height"] > 250


def test_names_are_seen_whole(explore):
    page = explore()
    for width in (640, 1000, 1280, 1400):
        page.set_viewport_size({"width": width, "height": 720})
        for side in ("left", "right"):
            for key in ("model", "weights", "prompt"):
                shown = page.locator(f"#{side} [data-key={key}]")
                wanted = shown.evaluate("""(list) => {
                    const copy = list.cloneNode(true);
                    Object.assign(copy.style, { position: 'absolute', flex: 'none', width: 'max-content' });
                    list.parentNode.append(copy);
                    const { width } = copy.getBoundingClientRect();
                    copy.remove();
                    return width;
                }""")
                assert shown.bounding_box()["width"] >= wanted - 1
                assert shown.get_attribute("title") == shown.input_value()


def test_pictures_fit_the_paper(explore):
    page = explore()
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    frame, drawn = (page.locator(f"#left {part}").first.bounding_box() for part in (".frame", ".plot .main-svg"))
    assert 0 <= frame["width"] - drawn["width"] <= 4 and 0 <= frame["height"] - drawn["height"] <= 4
    page.emulate_media(media="screen")
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    page.wait_for_function(
        "document.querySelector('#left .plot').clientWidth === "
        "document.querySelector('#left .plot .main-svg').clientWidth"
    )


def test_nothing_is_wider_than_the_window(explore):
    page = explore()
    for width in (360, 640, 800, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_choice_by_pointer_leaves_the_arrows_to_the_layer(explore):
    page = explore()
    page.click("label:has(input[value=all])")
    page.keyboard.press("ArrowRight")
    assert page.locator("#layer").input_value() == "1"
    assert page.is_checked("input[name=rule][value=all]")


def test_the_explorer_and_the_report_of_a_finished_run_open(small, visit):
    page = visit(small.root / "results/report/index.html")
    page.wait_for_load_state()
    assert page.locator("img").count() > 0
    assert page.evaluate("[...document.images].every((image) => image.complete && image.naturalWidth > 0)")
    page.click("nav >> text=Explorer")
    page.wait_for_selector("html[data-ready]")
    before = points(page)
    page.keyboard.press("ArrowRight")
    assert points(page) != before and len(before[0]) > 5
    page.click("text=Report")
    page.wait_for_selector("#claims")
