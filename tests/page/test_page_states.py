"""A node that loads, has failed, is busy, is gone or wants a key: the page says so, and goes on when it can."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_node import FakeNode
from in_process import WordsEmbedder, opened
from serving import served

from thread_service.errors import Busy
from thread_service.node import operations
from thread_service.settings import Settings
from thread_service.wire.http import create_app
from thread_service.wire.secret import Stack

pytestmark = pytest.mark.browser

FOUND = operations.SearchAnswer(
    (operations.Passage("d:0", "d", "me", "Quay", "The quay was built in 1841.", "text", 1.5, (), None),),
    operations.Trace(),
)


def test_a_model_that_loads_is_shown_with_how_far_it_is_and_the_page_goes_on(visit: Any, expect: Any) -> None:
    node = FakeNode()
    node.found = FOUND
    node.health = operations.EmbedderHealth("org/model", "model@384", "downloading", fraction=0.42)
    with served(create_app(node, Settings())) as url:
        page = visit(f"{url}/#search?q=quay")
        page.get_by_text("The model org/model is downloading (42 %)").wait_for()
        expect(page.locator("#banner progress")).to_have_js_property("value", 0.42)
        node.health = operations.EmbedderHealth("org/model", "model@384", "ready", index="matches")
        page.locator("#banner").wait_for(state="hidden")
        expect(page.locator("#state")).to_have_text("ready")


def test_a_model_that_failed_is_shown_with_the_reason(visit: Any, expect: Any, tmp_path: Path) -> None:
    embedder = WordsEmbedder()
    embedder.load_error = "<b>no such file</b>"
    with (
        opened(tmp_path / "data", embedder, ready=False, retry_seconds=(3600.0,)) as node,
        served(create_app(node.node, Settings())) as url,
    ):
        page = visit(url)
        page.get_by_text("could not be loaded: <b>no such file</b>").wait_for()
        expect(page.locator("#state")).to_have_text("model failed")


def test_an_index_of_another_model_is_shown(visit: Any) -> None:
    node = FakeNode()
    node.health = operations.EmbedderHealth("a", "a@1", "ready", index="mismatch", indexed_with="b@2")
    with served(create_app(node, Settings())) as url:
        visit(url).get_by_text("This memory was indexed with b@2, and the node runs a").wait_for()


def test_a_busy_node_is_asked_again_when_it_says(visit: Any) -> None:
    node = FakeNode()
    node.found = FOUND
    with served(create_app(node, Settings())) as url:
        page = visit(f"{url}/#file")
        node.fails_with = Busy("The queue is full.", retry_after_seconds=1)
        page.goto(f"{url}/#search?q=quay")
        page.get_by_text("Too many requests: The queue is full. Asking again in 1 s.").wait_for()
        node.fails_with = None
        page.get_by_text("The quay was built in 1841.").wait_for()
        node.fails_with = Busy("No.")
        page.goto(f"{url}/#search?q=pier")
        page.locator("#search-line[data-state=failed]").wait_for()
        node.fails_with = None
        page.get_by_role("button", name="Try again").click()
        page.get_by_text("The quay was built in 1841.").wait_for()


def test_a_node_that_is_gone_is_said_to_be_and_found_again(visit: Any, expect: Any) -> None:
    node = FakeNode()
    node.found = FOUND
    with served(create_app(node, Settings())) as url:
        page = visit(url)
        page.locator("#state[data-state=ready]").wait_for()
    page.get_by_label("Question").fill("quay")
    page.get_by_role("button", name="Search").click()
    page.get_by_text("Nothing answers at").wait_for()
    expect(page.locator("#search-line")).to_contain_text("The node does not answer.")
    expect(page.locator("#banner").get_by_role("button", name="Try now")).to_be_visible()
    with served(create_app(node, Settings()), port=int(url.rpartition(":")[2])):
        page.locator("#banner").wait_for(state="hidden")
        page.get_by_text("The quay was built in 1841.").wait_for()


@pytest.mark.parametrize("kind", ["API key", "Stack secret"])
def test_the_key_or_the_secret_is_asked_for_and_kept_for_the_tab_alone(visit: Any, kind: str) -> None:
    node = FakeNode()
    node.found = FOUND
    settings, stack = (Settings(api_key="k3y"), None) if kind == "API key" else (Settings(), Stack("k3y"))
    with served(create_app(node, settings, stack=stack)) as url:
        page = visit(f"{url}/#search?q=quay")
        field = page.get_by_label(kind, exact=True)
        field.fill("wrong")
        page.get_by_role("button", name="Use it").click()
        page.get_by_text("It did not take the one given before").wait_for()
        field.fill("k3y")
        field.press("Enter")
        page.get_by_text("The quay was built in 1841.").wait_for()
        assert "k3y" in page.evaluate("Object.values(sessionStorage)")
        assert "k3y" not in page.evaluate("JSON.stringify(localStorage) + location.href + document.cookie")
        page.reload()
        page.get_by_text("The quay was built in 1841.").wait_for()


def test_without_the_key_the_page_says_what_is_wanted(visit: Any) -> None:
    with served(create_app(FakeNode(), Settings(api_key="k3y"))) as url:
        page = visit(f"{url}/#search?q=quay")
        page.get_by_role("dialog").wait_for()
        page.keyboard.press("Escape")
        page.locator("#search-line").get_by_text("this node wants its API key").wait_for()
