"""A headless Chromium, which no request leaves, and pages to look at."""

import shutil
from types import SimpleNamespace

import explorer_results
import pytest
from playwright.sync_api import sync_playwright
from runs import finished, shared, small, tiny_gpt2  # noqa: F401

from collapse import explorer

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def chromium():
    path = next(filter(None, map(shutil.which, NAMES)), None)
    assert path, f"There is no browser here, by none of the names {', '.join(NAMES)}: install the package chromium."
    with sync_playwright() as playwright:
        # Its sandbox refuses to run as root, as containers do; what it opens are our own files.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    """The explorer of one grid in both its forms: `embedded` and `split`."""
    root = tmp_path_factory.mktemp("explorer")
    embedded = explorer_results.write(root / "embedded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(explorer, "EMBEDDED_MAX", 0)
        split = explorer_results.write(root / "split")
    return SimpleNamespace(embedded=embedded, split=split)


@pytest.fixture
def visit(chromium):
    """Open a file; what the page complained about or asked for is in `seen`, which is looked at in the end."""
    context = chromium.new_context(viewport={"width": 1366, "height": 650}, reduced_motion="reduce")
    seen = SimpleNamespace(complaints=[], requests=[], expected=())

    def visit(path):
        page = context.new_page()
        page.on("console", lambda message: seen.complaints.append(message.text))
        page.on("pageerror", lambda error: seen.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (seen.complaints.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: seen.requests.append(request.url))
        page.goto(path.as_uri())
        page.seen = seen
        return page

    yield visit
    context.close()
    assert [text for text in seen.complaints if not text.startswith(tuple(seen.expected))] == []
    assert [url for url in seen.requests if not url.startswith("file:")] == []


@pytest.fixture
def explore(visit, pages):
    """Open the explorer and wait until it shows something."""

    def explore(path=pages.embedded):
        page = visit(path)
        page.wait_for_selector("html[data-ready]")
        return page

    return explore
