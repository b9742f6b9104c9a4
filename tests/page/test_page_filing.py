"""Filing in a browser: by paste and by drop, from an empty node on, and whatever the texts hold."""

from __future__ import annotations

import re
from typing import Any

import pytest
from serving import file

pytestmark = pytest.mark.browser

MARKUP = '<img src=x onerror="window.ran=1"><script>window.ran=1</script><b>bold</b>'
RTL = "\u202eright to left\u202c שלום"
HOSTILE = [MARKUP, RTL, "\x00\x07nul", "‮" * 50 + "x", "e" + "\u0301" * 500, "👩‍👩‍👧‍👦" * 300, "W" * 4_096]


def test_an_empty_node_leads_to_the_first_text_which_is_found_a_moment_later(visit: Any, expect: Any, url: str) -> None:
    page = visit(url)
    page.get_by_text("Nothing is here yet").wait_for()
    page.get_by_role("link", name="or begin with an example").click()
    expect(page.get_by_label("Paste a text")).to_have_value(re.compile("Tidal Ledger"))
    page.get_by_label("Paste a text").press("Control+Enter")
    page.locator("#jobs [data-state=searchable]").wait_for()
    expect(page.get_by_label("Paste a text")).to_have_value("")
    page.get_by_role("link", name="search").last.click()
    page.get_by_label("Question").fill("Who keeps the Tidal Ledger?")
    page.get_by_label("Question").press("Enter")
    expect(page.locator("#passages > li").first).to_contain_text("Ada Quill keeps the Tidal Ledger")
    page.locator("#passages").get_by_role("link", name="The Tidal Ledger").click()
    page.get_by_role("heading", name="The Tidal Ledger", level=2).wait_for()


def test_what_is_pending_says_so_until_it_can_be_searched(visit: Any, node: Any, url: str) -> None:
    node.embedder.open.clear()
    page = visit(f"{url}/#file")
    page.get_by_label("Paste a text").fill("A text that waits.")
    page.get_by_label("Group", exact=True).fill("notes")
    page.get_by_role("button", name="File", exact=True).click()
    page.get_by_text("safe on the disk, waiting to be searchable").wait_for()
    assert page.locator("#jobs progress").evaluate("bar => bar.value") == 2
    node.embedder.open.set()
    page.locator("#jobs [data-state=searchable]").wait_for()
    page.get_by_label("Paste a text").fill("A text that waits.")
    page.get_by_role("button", name="File", exact=True).click()
    page.get_by_text("was here already").wait_for()
    page.goto(f"{url}/#library")
    page.locator("summary", has_text="notes").wait_for()


def test_dropped_files_become_documents_and_what_is_no_text_is_refused(visit: Any, expect: Any, url: str) -> None:
    page = visit(f"{url}/#file")
    page.evaluate(
        """() => {
            const data = new DataTransfer();
            data.items.add(new File(["The quay was built in 1841."], "quay.txt"));
            data.items.add(new File([new Uint8Array([0xff, 0xfe, 0x00])], "picture.bin"));
            data.items.add(new File(["a\\u0000b"], "nul.txt"));
            data.items.add(new File([" "], "blank.txt"));
            const drop = document.getElementById("drop");
            for (const kind of ["dragenter", "dragover", "drop"]) {
                drop.dispatchEvent(new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true }));
            }
        }"""
    )
    jobs = page.locator("#jobs li")
    expect(jobs.filter(has_text="quay.txt")).to_have_attribute("data-state", "searchable")
    expect(jobs.filter(has_text="picture.bin")).to_contain_text("not text in UTF-8")
    expect(jobs.filter(has_text="nul.txt")).to_contain_text("NUL")
    expect(jobs.filter(has_text="blank.txt")).to_contain_text("It is empty")
    page.goto(f"{url}/#search?q=when+was+the+quay+built")
    page.locator("#passages").get_by_role("button", name="quay.txt").wait_for()


@pytest.mark.parametrize("size", [(1280, 860), (360, 740)], ids=["desk", "phone"])
def test_hostile_names_and_texts_are_shown_clipped_and_not_run(
    visit: Any, settled: Any, url: str, size: tuple[int, int]
) -> None:
    for at, text in enumerate(HOSTILE):
        file(
            url,
            "me",
            f"{text} harbour {text * (10_000 // len(text))}",
            names=[text],
            entities=[[{"name": text, "kind": text}, {"name": f"other {at}", "kind": "thing"}]],
            relationships=[[{"subject": text, "predicate": text, "object": f"other {at}"}]],
            group={"id": f"g{at}", "label": text, "metadata": {"description": text, "tags": [text]}},
        )
    page = visit(f"{url}/#search?q=harbour", size=size)
    page.locator("#passages > li").first.wait_for()

    def is_sound(view: str) -> None:
        assert page.evaluate("window.ran") is None, view
        assert page.locator("main img, main script, main b").count() == 0, view
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0], view
        assert page.evaluate("Math.max(...[...document.querySelectorAll('bdi')].map(e => e.textContent.length))") <= 501

    is_sound("search")
    # Shown as it is, also where a line from right to left stands beside it.
    assert page.locator("#passages h2 bdi", has_text="<script>").count() == 1
    assert page.locator("#passages h2 bdi", has_text="שלום").count() == 1
    page.get_by_role("button", name="Show all of it").first.click()
    for view in ("graph", "library", "search"):
        settled(page, view)
        is_sound(view)
    settled(page, "graph")
    page.locator("#beside a").filter(has_text="onerror").first.click()
    page.get_by_role("heading", name="<img src=x", level=2).wait_for()
    page.get_by_role("list", name="Passages").get_by_role("listitem").first.wait_for()
    is_sound("entity")
