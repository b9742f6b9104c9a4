"""Names that came or went: which earlier documents are gone through, in what order, and that none is missed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from opened_store import Opened, opened_store

from thread_service.store import back_links, graph, links


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Opened]:
    with opened_store(tmp_path) as store:
        for number in range(5):
            store.file("ann", f"t{number}", f"Ada Quill and Orrin Vale, {number}")
            store.file("ben", f"t{number}", f"Ada Quill, says Ben, {number}")
        store.link()
        yield store


def said(*names: str) -> graph.Contribution:
    return graph.contribution([(name, "") for name in names], [])


def next_round(store: Opened, size: int = 2) -> back_links.Round:
    with store.store.read() as connection:
        found = back_links.next_round(connection, in_texts=True, size=size)
    assert found is not None
    return found


def ids(store: Opened, found: back_links.Round) -> list[str]:
    known = dict(store.rows("SELECT document_key, document_id FROM documents"))
    return [known[key] for key in found.document_keys]


def finish(store: Opened, found: back_links.Round) -> None:
    store.write(lambda connection, _: back_links.done(connection, found.progress))


def mentions(store: Opened) -> set[tuple[str, str]]:
    return set(
        store.rows(
            "SELECT document_id, entities.name_key FROM mentions JOIN documents USING (document_key)"
            " JOIN entities USING (entity_key)"
        )
    )


def test_a_name_in_many_texts_is_gone_through_in_rounds(store: Opened) -> None:
    store.file("ann", "x", "-", said=said("Ada Quill"))
    seen: list[list[str]] = []
    while store.column("SELECT count(*) FROM changed_names") != [0]:
        found = next_round(store)
        seen.append(ids(store, found))
        finish(store, found)
    assert seen == [["t0", "t1"], ["t2", "t3"], ["t4"]]


def test_names_that_came_together_have_each_document_linked_once(store: Opened) -> None:
    store.file("ann", "x", "-", said=said("Ada Quill", "Orrin Vale", "Nobody At All"))
    found = next_round(store, size=100)
    assert ids(store, found) == ["t0", "t1", "t2", "t3", "t4"]
    finish(store, found)
    assert store.column("SELECT count(*) FROM changed_names") == [0]


def test_a_new_name_has_its_first_round_before_others_go_on(store: Opened) -> None:
    store.file("ann", "x", "-", said=said("Ada Quill"))
    finish(store, next_round(store))
    store.file("ann", "y", "-", said=said("Orrin Vale"))
    assert ids(store, next_round(store)) == ["t0", "t1"]
    finish(store, next_round(store))
    assert ids(store, next_round(store)) == ["t2", "t3"]  # Ada Quill's, and then


def test_a_name_that_comes_again_is_gone_through_from_the_start(store: Opened) -> None:
    store.file("ann", "x", "-", said=said("Ada Quill"))
    found = next_round(store)
    store.remove("ann", "x")
    store.file("ann", "x", "-", said=said("Ada Quill"))
    finish(store, found)  # of what was there before
    assert ids(store, next_round(store)) == ["t0", "t1"]


def test_documents_filed_after_a_name_are_not_gone_through_for_it(store: Opened) -> None:
    store.file("ann", "x", "-", said=said("Ada Quill"))
    store.file("ann", "later", "Ada Quill again")
    assert ids(store, next_round(store, size=100)) == ["t0", "t1", "t2", "t3", "t4"]
    store.link()
    assert ("later", "ada quill") in mentions(store)


def test_a_document_whose_links_take_a_change_into_account_is_not_gone_through_for_it(store: Opened) -> None:
    store.file("ann", "x", "-", said=said("Ada Quill"))
    [t0, t1, *_] = next_round(store, size=100).document_keys
    with store.store.read() as connection:
        newest = back_links.newest(connection)
        known = {t0: newest, t1: newest - 1}
        found = back_links.next_round(connection, in_texts=True, linked=known)
    assert found is not None
    assert ids(store, found) == ["t1", "t2", "t3", "t4"]
    finish(store, found)
    store.file("ann", "y", "-", said=said("Orrin Vale"))
    with store.store.read() as connection:
        later = back_links.next_round(connection, in_texts=True, linked=known)
    assert later is not None
    assert ids(store, later) == ["t0", "t1", "t2", "t3", "t4"]


def test_a_round_ends_also_when_all_that_it_looks_at_is_linked_already(
    store: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(back_links, "LOOKED_AT_MAX", 4)
    store.file("ann", "x", "-", said=said("Ada Quill", "Orrin Vale"))
    with store.store.read() as connection:
        newest = back_links.newest(connection)
        linked = dict.fromkeys(store.column("SELECT document_key FROM documents"), newest)
        found = back_links.next_round(connection, in_texts=True, linked=linked)
    assert found is not None
    assert (found.document_keys, len(found.progress)) == ([], 1)
    finish(store, found)
    assert store.column("SELECT name_key FROM changed_names") == ["orrin vale"]


def test_of_a_name_that_goes_only_documents_that_mention_it_are_gone_through(store: Opened) -> None:
    store.file("ann", "x", "-", said=said("Ada Quill", "Ada Quill And"))
    store.link()
    assert {name for _, name in mentions(store)} == {"ada quill and"}
    store.remove("ann", "x")
    for _ in range(3):
        found = next_round(store)
        assert set(ids(store, found)) <= {"t0", "t1", "t2", "t3", "t4"}
        finish(store, found)
    assert store.column("SELECT count(*) FROM changed_names") == [0]


def test_nothing_of_a_removed_name_is_kept_for_going_through_its_documents(store: Opened) -> None:
    store.file("ann", "x", "-", said=said("Ada Quill"))
    store.link()
    store.remove("ann", "x")
    assert mentions(store) == {(f"t{number}", "") for number in range(5)}
    for table in ("names", "entity_words", "changed_names WHERE name_key IS NOT NULL"):
        assert store.column(f"SELECT count(*) FROM {table}") == [0]
    store.link()
    assert store.column("SELECT count(*) FROM entities") == [0]


def test_a_name_that_went_while_a_text_was_searched_leaves_the_shorter_one(store: Opened) -> None:
    store.file("ann", "x", "-", said=said("Ada Quill"))
    store.file("ann", "y", "-", said=said("Ada Quill And Orrin"))
    store.link()
    [key] = store.column("SELECT document_key FROM documents WHERE document_id = 't0' AND owner_key = 1")
    with store.store.read() as connection:
        found = links.names_in(connection, key, by_text=True)
    assert found is not None
    assert found.names == {"ada quill and orrin"}
    store.remove("ann", "y")
    store.write(lambda connection, changes: links.link(connection, {key: found}, changes))
    assert ("t0", "ada quill") in mentions(store)


@pytest.mark.parametrize("is_new", [True, False])
def test_a_document_that_gives_up_its_name_leaves_the_shorter_one_to_those_linked_with_it(
    store: Opened, is_new: bool
) -> None:
    text = ("ann", "text", "read Ada Quill Report today")
    if not is_new:
        store.file(*text)
    store.file("ann", "report", "-", name="Ada Quill Report")
    store.file("ann", "x", "-", said=said("Ada Quill"))
    store.link()
    store.rename("ann", "report", "Minutes of May")
    if is_new:
        store.file(*text)
    else:
        [key] = store.column("SELECT document_key FROM documents WHERE document_id = 'text'")
        store.write(lambda connection, _: links.mark(connection, key))
    store.link()
    assert {name for id, name in mentions(store) if id == "text"} == {"ada quill"}


def test_documents_that_swap_their_names_at_once_are_called_by_the_new_ones(store: Opened) -> None:
    store.file("ann", "text", "Harbour Log and Tide Table")
    store.file("ann", "one", "-", name="Harbour Log")
    store.file("ann", "two", "-", name="Tide Table")
    store.link()
    store.rename("ann", "one", "Tide Table")
    store.rename("ann", "two", "Harbour Log")
    store.link()
    asserted = "SELECT document_id, spelling FROM assertions JOIN documents USING (document_key) WHERE source = 'name'"
    assert sorted(store.rows(asserted)) == [("one", "Tide Table"), ("two", "Harbour Log")]
    assert {name for id, name in mentions(store) if id == "text"} == {"harbour log", "tide table"}


def test_a_document_replaced_while_its_text_was_searched_is_left_alone(store: Opened) -> None:
    store.file("ann", "x", "-", said=said("Ada Quill"))
    [key] = store.column("SELECT document_key FROM documents WHERE document_id = 't0' AND owner_key = 1")
    with store.store.read() as connection:
        found = links.names_in(connection, key, by_text=True)
    assert found is not None
    other = found._replace(content_key=found.content_key + 1)
    store.write(lambda connection, changes: links.link(connection, {key: other}, changes))
    assert mentions(store) == set()


def test_of_very_many_names_that_start_alike_the_longest_in_the_text_is_found(store: Opened) -> None:
    alike = [f"House of w{number}" for number in range(3 * links.NAMES_A_HEAD)]
    store.file("ann", "x", "-", said=said(*alike, "House of w7 and w8", "House of", "w9"))
    store.file("ann", "text", "The House of w70, House of w7 and w9, house of w7 and w8; House of nothing.")
    store.link()
    assert {name for id, name in mentions(store) if id == "text"} == {
        "house of w70", "house of w7", "w9", "house of w7 and w8", "house of",
    }  # fmt: skip
