"""Looking at what a node knows, in a browser: search, the graph, the library, the node."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fake_node import FakeNode
from serving import file, served

from thread_service.node import operations
from thread_service.settings import Settings
from thread_service.wire.http import create_app

pytestmark = pytest.mark.browser

QUESTION = "search?q=Which+guild+trained+Halloran+Finch"
VIEWS = [QUESTION, "search", "graph", "graph?name=Port+Averel&kind=place", "library", "file", "node"]


def texts(locator: Any) -> list[str]:
    return [text.strip() for text in locator.all_text_contents()]


def test_a_question_finds_passages_with_distances_entities_and_what_led_to_them(
    visit: Any, expect: Any, demo: str
) -> None:
    page = visit(demo, "demo")
    page.get_by_label("Question").fill("Which guild trained Halloran Finch?")
    page.get_by_text("Options").click()
    page.get_by_label("Passages", exact=True).fill("5")
    page.get_by_label("Say where each channel alone ranks a passage").check()
    page.get_by_role("button", name="Search").click()
    passages = page.locator("#passages > li")
    expect(passages).to_have_count(5)
    distances = [float(text.removeprefix("distance ")) for text in texts(page.locator(".distance"))]
    assert distances == sorted(distances)
    assert distances[0] > 0
    assert "Halloran" in texts(page.locator("#passages mark"))
    assert "Halloran Finch person" in texts(passages.locator("a.chip.led"))
    assert any("Tidewater Guild" in text for text in texts(passages.locator(".led-by li")))
    assert all(text.startswith("Alone: vectors ") for text in texts(page.locator(".channels")))
    expect(page.locator("summary", has_text="Through the graph")).to_be_visible()
    passages.first.get_by_role("button").first.click()
    page.get_by_role("dialog").get_by_text("Filed by").wait_for()
    page.keyboard.press("Escape")
    passages.locator("a.chip.led", has_text="Halloran Finch").first.click()
    page.get_by_role("heading", name="Halloran Finch", level=2).wait_for()


def test_the_graph_is_walked_by_clicking_in_the_picture(visit: Any, expect: Any, demo: str) -> None:
    page = visit(f"{demo}/#graph", "demo")
    expect(page.locator("#graph-line")).to_contain_text(re.compile("40 of .* entities shown"))
    places = "import('/page/picture.js').then((picture) => picture.whereabouts())"
    where = page.evaluate(places)
    assert len(where) == 40
    page.locator("#picture").click(position=where["Port Averel"])
    page.get_by_role("heading", name="Port Averel", level=2).wait_for()
    neighbours = page.get_by_role("list", name="Neighbours")
    expect(neighbours).to_contain_text("governs the quays of")
    expect(page.get_by_role("list", name="Passages")).to_contain_text("Port Averel")
    page.locator("#picture").click(position=page.evaluate(places)["Averel Harbour Board"])
    page.get_by_role("heading", name="Averel Harbour Board", level=2).wait_for()
    neighbours.get_by_role("link", name="Port Averel").first.click()
    page.get_by_role("heading", name="Port Averel", level=2).wait_for()
    page.go_back()
    page.get_by_role("heading", name="Averel Harbour Board", level=2).wait_for()


def test_everything_can_be_reached_with_the_keyboard_alone(visit: Any, expect: Any, demo: str) -> None:
    page = visit(f"{demo}/#graph", "demo")
    page.get_by_text("40 of").wait_for()

    def focused() -> str:
        return str(page.evaluate("(document.activeElement.innerText || document.activeElement.id).trim()"))

    def tab_to(wanted: str) -> None:
        for _ in range(80):
            page.keyboard.press("Tab")
            if focused() == wanted:
                outline = "getComputedStyle(document.activeElement).outlineStyle"
                assert page.evaluate(outline) == "solid", f"{wanted} does not show that it has the focus"
                return
        raise AssertionError(f"Tab does not lead to {wanted}")

    tab_to("Skip to the content")
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    tab_to("find")
    page.keyboard.type("Gull Tower")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Gull Tower", level=2).wait_for()
    tab_to("+")
    page.keyboard.press("Enter")
    tab_to("Halloran Finch")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Halloran Finch", level=2).wait_for()
    page.get_by_role("list", name="Passages").get_by_role("listitem").first.wait_for()
    tab_to("Corin Halvard")
    page.keyboard.press("Enter")
    page.get_by_role("dialog").get_by_text("Filed by").wait_for()
    page.keyboard.press("Escape")
    expect(page.locator(":focus")).to_have_text("Corin Halvard")
    page.keyboard.press("Shift+Tab")
    page.evaluate("document.body.focus(); document.activeElement.blur(); scrollTo(0, 0)")
    tab_to("Search")
    page.keyboard.press("Enter")
    tab_to("query")
    page.keyboard.type("pilots")
    page.keyboard.press("Enter")
    page.locator("#passages > li").first.wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_view_has_a_barrier(visit: Any, settled: Any, demo: str, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()
    # What the schemes do not share are their colours.
    options, views = ({}, VIEWS) if scheme == "light" else ({"runOnly": ["color-contrast"]}, [QUESTION, "file", "node"])
    page = visit(demo, "demo", scheme=scheme)
    for view in views:
        settled(page, view)
        found = axe.run(page, options=options)
        assert found.violations_count == 0, f"{view}\n{found.generate_report()}"
    paper = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) > 384) == (scheme == "light")
    settled(page, QUESTION)
    page.locator("#passages button.link").first.click()
    page.get_by_text("Filed by").wait_for()
    assert axe.run(page, options=options).violations_count == 0


def test_a_phone_shows_every_view_without_scrolling_sideways(visit: Any, settled: Any, demo: str) -> None:
    page = visit(demo, "demo", size=(360, 740))
    for view in VIEWS:
        settled(page, view)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, view


def test_the_library_lists_groups_by_owner_and_documents_page_by_page(visit: Any, expect: Any, url: str) -> None:
    file(url, "me", *(f"note {number}" for number in range(30)), names=[f"n{number}" for number in range(30)])
    file(url, "me", "of the harbour", names=["Harbour"], group={"id": "g", "label": "Notes"})
    file(url, "eve", "open to all", names=["Open"], group={"id": "e", "label": "Eve’s", "access": "available"})
    page = visit(f"{url}/#library")
    page.locator("summary", has_text="Notes").click()
    expect(page.locator("summary", has_text="Notes")).to_contain_text("1 document, restricted")
    page.locator(".group").get_by_role("button", name="Harbour").click()
    page.get_by_role("dialog").get_by_text("of the harbour").wait_for()
    page.get_by_role("button", name="Close").click()
    expect(page.locator("#documents > li")).to_have_count(25)
    page.get_by_role("button", name="Show more").click()
    expect(page.locator("#documents > li")).to_have_count(31)
    expect(page.get_by_role("button", name="Show more")).to_be_hidden()
    assert page.get_by_text("Groups of eve").count() == 0
    page.get_by_label("Other owners’ open groups too").check()
    page.get_by_text("Groups of eve").wait_for()


def test_the_node_says_what_it_runs_and_holds(visit: Any, demo: str) -> None:
    page = visit(f"{demo}/#node", "demo")
    page.get_by_text("Vector space").wait_for()
    facts = dict(zip(texts(page.locator("dt")), texts(page.locator("dd")), strict=True))
    assert (facts["Name"], facts["Vector space"], facts["State"]) == ("words", "words@64", "ready")
    assert (facts["Documents"], facts["Owners"], facts["Documents not searchable yet"]) == ("123", "1", "0")
    # The node runs in the process of the tests, which may have grown beyond a GiB.
    assert re.fullmatch(r"\d+(\.\d+)? [MG]iB", facts["Process"])
    assert facts["Vectors are searched on"] == "CPU"
    assert facts["model, 64 wide"].startswith("123 rows")


def test_of_a_very_large_graph_a_part_is_drawn_and_said(visit: Any) -> None:
    node = FakeNode()
    names = [f"entity {number}" for number in range(2_000)]
    node.graph_found = operations.GraphAnswer(
        tuple(operations.GraphEntity(name, name, "thing", 0.0, 3, ("d",)) for name in names),
        tuple(operations.GraphRelationship(f"r{name}", names[0], "knows", name, 1, ("d",)) for name in names[1:]),
        (),
        100_000,
        300_000,
    )
    with served(create_app(node, Settings())) as url:
        page = visit(f"{url}/#graph")
        page.get_by_text("40 of 100,000 entities shown").wait_for()
        page.goto(f"{url}/#graph?name=entity+0")
        page.get_by_text("39 of at least 1,999 neighbours shown, of 100,000 entities").wait_for()
        assert page.locator("#beside li").count() < 50
        assert len(page.evaluate("import('/page/picture.js').then((picture) => picture.whereabouts())")) == 40
