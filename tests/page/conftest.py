from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# The node in process belongs to the tests of the node, the one that only remembers to those of the wire.
sys.path.append(str(Path(__file__).parents[1] / "node"))
sys.path.append(str(Path(__file__).parents[1] / "wire"))

from in_process import InProcess, opened
from serving import file, served

from thread_service.settings import Settings
from thread_service.wire.http import create_app

CORPUS = Path(__file__).parents[2] / "examples" / "demo" / "corpus.jsonl"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
EXPECTED = ("401", "429", "503", "ERR_CONNECTION_REFUSED", "ERR_EMPTY_RESPONSE", "ERR_CONNECTION_RESET")
"""What a browser writes into its console by itself about answers that a test means to happen."""

TIMEOUT_MS = 10_000
OPENED = """hash => location.hash === hash || new Promise(opened => {
    addEventListener("hashchange", opened, { once: true });
    location.hash = hash;
})"""
"""Resolves when the page, which listened for it earlier, has opened the view of the address."""

Visit = Callable[..., Any]
Settled = Callable[[Any, str], None]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Not for the whole session: while playwright runs, its event loop is the one of the thread that tests run in."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    executable = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if executable is None:
        pytest.skip("no Chromium on the PATH; install one, such as Debian's package chromium")
    # Chromium's sandbox does not start for root.
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=executable, args=flags)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Visit]:
    """Opens a page of its own: `visit(url, owner=…, scheme=…, size=(width, height))`.

    A test fails on whatever the page writes into the console as an error, a breach of the content security policy
    included, and on every request that goes elsewhere.
    """
    wrong: list[str] = []
    contexts = []

    def listen(message: Any) -> None:
        if message.type in ("error", "warning") and not any(word in message.text for word in EXPECTED):
            wrong.append(message.text)

    def go(url: str, owner: str = "me", *, scheme: str = "light", size: tuple[int, int] = (1280, 860)) -> Any:
        width, height = size
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
        )
        contexts.append(context)
        context.set_default_timeout(TIMEOUT_MS)
        context.add_init_script(
            f"localStorage.getItem('thread.owner') ?? localStorage.setItem('thread.owner', '{owner}')"
        )
        page = context.new_page()
        page.on("console", listen)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: request.url.startswith(url.partition("#")[0]) or wrong.append(request.url))
        page.goto(url)
        return page

    yield go
    for context in contexts:
        context.close()
    assert wrong == []


@pytest.fixture
def expect(browser: Any) -> Any:
    """Playwright's assertions, which wait: a click returns before the page has done what it leads to."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    api.expect.set_options(timeout=TIMEOUT_MS)
    return api.expect


@pytest.fixture
def settled() -> Settled:
    """Goes to a view, such as `graph?name=Ada`, and waits until it has stopped asking the node."""

    def go(page: Any, view: str) -> None:
        page.evaluate(OPENED, f"#{view}")
        page.locator(f"#view-{view.partition('?')[0]}").wait_for()
        busy = page.locator("[data-state=busy]")
        while busy.count():
            busy.first.wait_for(state="detached")

    return go


@pytest.fixture
def node(tmp_path: Path) -> Iterator[InProcess]:
    with opened(tmp_path / "data") as node:
        yield node


@pytest.fixture
def url(node: InProcess) -> Iterator[str]:
    """A node of its own, with nothing in it."""
    with served(create_app(node.node, Settings())) as url:
        yield url


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The demo's corpus, filed for the owner `demo`. Nobody adds to it."""
    corpus = [json.loads(line) for line in CORPUS.read_text(encoding="utf-8").splitlines()]
    with (
        opened(tmp_path_factory.mktemp("page") / "data") as node,
        served(create_app(node.node, Settings())) as url,
    ):
        file(
            url,
            "demo",
            *(passage["text"] for passage in corpus),
            document_ids=[passage["id"] for passage in corpus],
            names=[passage["name"] for passage in corpus],
            entities=[passage.get("entities") for passage in corpus],
            relationships=[passage.get("relationships") for passage in corpus],
        )
        yield url
