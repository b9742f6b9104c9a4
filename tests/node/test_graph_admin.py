"""Administration of the graph: whose contributions change, what is answered, and what a change leaves behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from in_process import InProcess, WordsEmbedder, document, group, opened
from snapshot import stored

from thread_service.errors import NotReady
from thread_service.node.operations import DocumentIn
from thread_service.text.ids import entity_id, relationship_id

ADA, QUILL, LEDGER = entity_id("person", "Ada"), entity_id("person", "Ada Quill"), entity_id("concept", "Tidal Ledger")
TEXT = "Ada Quill opened the Tidal Ledger in the harbour office."


def edges(node: InProcess, owner: str) -> set[tuple[str, str, str, int]]:
    """(subject, predicate, object, weight) by the names the owner sees."""
    answer = node.graph(owner, limit=1_000)
    names = {entity.entity_id: entity.name for entity in answer.entities}
    return {
        (names[edge.subject_id], edge.predicate, names[edge.object_id], edge.weight) for edge in answer.relationships
    }


def entities(node: InProcess, owner: str) -> dict[tuple[str, str], int]:
    """(name, kind) → mention count."""
    return {(entity.name, entity.kind): entity.mention_count for entity in node.graph(owner, limit=1_000).entities}


def told(*names: str | tuple[str, str], edges: list[tuple[str, str, str]], id: str = "told") -> DocumentIn:
    return document(TEXT, id=id, entities=names, edges=edges)


BEFORE = told(
    *(("Ada", "person"), ("Ada Quill", "person"), "Tidal Ledger"),
    edges=[
        *(("Ada", "keeps", "Tidal Ledger"), ("Ada", "keeps", "Tidal Ledger"), ("Ada Quill", "keeps", "Tidal Ledger")),
        *(("Ada", "is", "Ada Quill"), ("Tidal Ledger", "names", "Ada")),
    ],
)
MERGED = told(
    *(("Ada Quill", "person"), ("Ada Quill", "person"), "Tidal Ledger"),
    edges=[*[("Ada Quill", "keeps", "Tidal Ledger")] * 3, ("Tidal Ledger", "names", "Ada Quill")],
)


@pytest.mark.parametrize(
    ("edit", "after"),
    [
        (lambda node: node.node.graph_admin.merge_entities("ann", ADA, QUILL), MERGED),
        (lambda node: node.node.graph_admin.rename_entity("ann", ADA, " Ada Quill "), MERGED),
        (
            lambda node: node.node.graph_admin.set_entity_kind("ann", ADA, "Ship"),
            told(
                *(("Ada Quill", "person"), ("Ada", "ship"), "Tidal Ledger"),
                edges=[(edge.subject, edge.predicate, edge.object) for edge in BEFORE.relationships],
            ),
        ),
        (
            lambda node: node.node.graph_admin.delete_entity("ann", ADA),
            told(("Ada Quill", "person"), "Tidal Ledger", edges=[("Ada Quill", "keeps", "Tidal Ledger")]),
        ),
        (
            lambda node: node.node.graph_admin.delete_relationship("ann", relationship_id(ADA, "is", QUILL)),
            told(
                *(("Ada", "person"), ("Ada Quill", "person"), "Tidal Ledger"),
                edges=[(e.subject, e.predicate, e.object) for e in BEFORE.relationships if e.predicate != "is"],
            ),
        ),
    ],
    ids=["merge", "rename to a name that is taken", "set kind", "delete", "delete an edge"],
)
def test_an_edit_leaves_what_filing_it_so_leaves_and_others_as_they_were(
    tmp_path: Path, edit: Callable[[InProcess], object], after: DocumentIn
) -> None:
    with opened(tmp_path / "edited") as node, opened(tmp_path / "filed") as fresh:
        for each, said in ((node, BEFORE), (fresh, after)):
            each.file("ann", said, group=group("g", "available"))
            each.file("ben", BEFORE)
            each.file("ann", document(f"{TEXT} Says Ada.", id="mentions"))
        node.run(edit(node))  # type: ignore[arg-type]
        node.settle()
        assert stored(node) == stored(fresh)
        reopened = node.reopened()
        try:
            assert stored(reopened) == stored(fresh)
            assert edges(reopened, "ann") == edges(fresh, "ann")
        finally:
            reopened.close()


def test_an_edit_is_in_memory_when_it_is_answered_and_moved_edges_are_embedded(node: InProcess) -> None:
    node.file("ann", BEFORE)
    assert node.embedder.count("person: Ada keeps concept: Tidal Ledger") == 1
    assert node.run(node.node.graph_admin.rename_entity("ann", ADA, "Ava Vale")) == entity_id("person", "Ava Vale")
    assert "Ava Vale" in {
        entity.name for passage in node.search("ann", "Ava Vale").passages for entity in passage.entities
    }
    node.settle()
    assert node.embedder.count("person: Ava Vale keeps concept: Tidal Ledger") == 1
    assert node.embedder.count("person: Ada Quill keeps concept: Tidal Ledger") == 1  # it did not change
    assert ("Ava Vale", "keeps", "Tidal Ledger", 2) in edges(node, "ann")
    orphans = "SELECT count(*) FROM vectors WHERE purpose = 'relationship' AND subject_key NOT IN"
    assert node.value(f"{orphans} (SELECT relationship_key FROM relationships)") == 0


def test_what_only_others_say_does_not_exist_for_the_caller(node: InProcess) -> None:
    node.file("ben", BEFORE, group=group("g", "available"))
    node.file("ann", document("nothing", id="a", entities=[("Ada Quill", "person")]))
    before = stored(node)
    admin = node.node.graph_admin
    for owner in ("ann", "nobody"):
        assert node.run(admin.rename_entity(owner, ADA, "Eve")) is None
        assert node.run(admin.set_entity_kind(owner, ADA, "ship")) is None
        assert node.run(admin.merge_entities(owner, QUILL, LEDGER)) is None
        node.run(admin.delete_entity(owner, ADA))
        node.run(admin.delete_relationship(owner, relationship_id(ADA, "is", QUILL)))
        assert node.run(admin.re_extract(owner, "told")) == 0
    assert node.run(admin.merge_entities("ann", ADA, QUILL)) == QUILL
    assert stored(node) == before


def test_others_keep_what_they_say_of_an_entity_that_is_shared(node: InProcess) -> None:
    node.file("ann", BEFORE)
    node.file("ben", BEFORE)
    kept = entities(node, "ben"), edges(node, "ben")
    node.run(node.node.graph_admin.merge_entities("ann", ADA, QUILL))
    node.run(node.node.graph_admin.rename_entity("ann", LEDGER, "Secret Ledger"))
    node.settle()
    assert (entities(node, "ben"), edges(node, "ben")) == kept
    assert entities(node, "ann") == {("Ada Quill", "person"): 2, ("Secret Ledger", "concept"): 1}
    assert edges(node, "ann") == {
        ("Ada Quill", "keeps", "Secret Ledger", 3),
        ("Secret Ledger", "names", "Ada Quill", 1),
    }


def test_another_spelling_of_the_same_name_changes_only_what_is_shown(node: InProcess) -> None:
    node.file("ann", document("x", id="a", entities=["tidal"]))
    node.file("ann", document("About Tidal power", id="b"))
    assert node.mentions("ann") == set()
    tidal = entity_id("concept", "tidal")
    assert node.run(node.node.graph_admin.rename_entity("ann", tidal, "Tidal")) == tidal
    node.settle()
    # A word with a capital is a name that texts are searched for.
    assert node.mentions("ann") == {("b", "Tidal")}
    assert entities(node, "ann") == {("Tidal", "concept"): 1}


@pytest.mark.parametrize("name", [" ", "\t\n", "\u3000"])
def test_a_blank_name_changes_nothing(node: InProcess, name: str) -> None:
    node.file("ann", BEFORE)
    before = stored(node)
    assert node.run(node.node.graph_admin.rename_entity("ann", ADA, name)) == ADA
    assert node.run(node.node.graph_admin.rename_entity("ann", "unknown", name)) is None
    assert node.run(node.node.graph_admin.merge_entities("ann", ADA, ADA)) == ADA
    assert stored(node) == before


def test_names_of_any_characters_can_be_given_and_taken(node: InProcess) -> None:
    node.file("ann", BEFORE)
    where = ADA
    for name in ("📚", "\0", "../etc/passwd", "Ω" * 4_096, '"quoted" ; DROP TABLE entities', "Ada"):
        there = node.run(node.node.graph_admin.rename_entity("ann", where, name))
        assert there == entity_id("person", name)
        node.settle()
        where = there
    assert where == ADA
    assert node.run(node.node.graph_admin.set_entity_kind("ann", ADA, " ")) == entity_id("concept", "Ada")


# ---------------------------------------------------------------------------------------------------- own names


def test_a_documents_own_name_can_be_made_something_else(node: InProcess) -> None:
    """The document is given the new entity; its name stays for people and makes no entity again."""
    node.file("ann", document("x", id="a", name="Long Clock"), document("y", id="b", name="Long Clock"))
    node.file("ann", document("The Long Clock ticks", id="c"))
    own = entity_id("document", "Long Clock")
    assert node.run(node.node.graph_admin.set_entity_kind("ann", own, "work")) == entity_id("work", "Long Clock")
    node.settle()
    assert entities(node, "ann") == {("Long Clock", "work"): 2}
    assert node.mentions("ann") >= {("c", "Long Clock")}
    assert [found.name for found in node.documents("ann", "a", "b")] == ["Long Clock", "Long Clock"]
    assert node.run(node.node.graph_admin.rename_entity("ann", entity_id("work", "Long Clock"), "Short Clock"))
    node.settle()
    assert entities(node, "ann") == {("Short Clock", "work"): 2}
    assert node.mentions("ann") == set()


def test_a_documents_own_name_can_be_deleted_from_the_graph_until_it_is_filed_again(node: InProcess) -> None:
    named = document("The Long Clock ticks", id="a", name="Long Clock")
    node.file("ann", named)
    node.run(node.node.graph_admin.delete_entity("ann", entity_id("document", "Long Clock")))
    node.settle()
    assert (entities(node, "ann"), node.mentions("ann")) == ({}, set())
    assert node.documents("ann", "a")[0].name == "Long Clock"
    node.file("ann", named)
    assert entities(node, "ann") == {("Long Clock", "document"): 1}


def test_without_the_entity_that_bore_it_a_documents_name_is_one_of_its_own(node: InProcess) -> None:
    node.file("ann", document("x", id="a", name="Ada Quill"), document("y", id="b", entities=[("Ada Quill", "person")]))
    assert entities(node, "ann") == {("Ada Quill", "person"): 1}
    node.run(node.node.graph_admin.delete_entity("ann", QUILL))
    node.settle()
    assert entities(node, "ann") == {("Ada Quill", "document"): 1}


def test_filing_a_document_again_replaces_what_was_changed(node: InProcess) -> None:
    node.file("ann", BEFORE)
    before = stored(node)
    node.run(node.node.graph_admin.merge_entities("ann", ADA, QUILL))
    node.run(node.node.graph_admin.delete_entity("ann", LEDGER))
    node.file("ann", BEFORE)
    assert stored(node) == before


# ---------------------------------------------------------------------------------------------------- extraction


def test_extracting_again_replaces_what_was_found_and_keeps_what_was_given(node: InProcess) -> None:
    node.file("ann", document(TEXT, id="a", entities=None, edges=[("Ada Quill", "opened", "Tidal Ledger")]))
    harbour = entity_id("concept", "harbour")
    node.run(node.node.graph_admin.rename_entity("ann", harbour, "Old Harbour"))
    node.run(node.node.graph_admin.delete_entity("ann", entity_id("concept", "office")))
    before = entities(node, "ann")
    assert ("Old Harbour", "concept") in before
    assert node.run(node.node.graph_admin.re_extract("ann", "a")) == 6
    node.settle()
    found = {("Ada Quill", "concept"), ("Tidal Ledger", "concept")} | {
        (word, "concept") for word in ("harbour", "ledger", "office", "opened", "quill", "tidal")
    }
    assert entities(node, "ann") == dict.fromkeys(found, 1)
    assert edges(node, "ann") == {("Ada Quill", "opened", "Tidal Ledger", 1)}


def test_extracting_is_forced_for_a_document_that_was_given_entities(node: InProcess) -> None:
    node.file("ann", document(TEXT, id="a", entities=[("Ada Quill", "person")]))
    assert node.run(node.node.graph_admin.re_extract("ann", "a")) == 6
    assert len(entities(node, "ann")) == 7


def test_extracting_waits_for_a_document_that_is_still_being_indexed(node: InProcess) -> None:
    node.embedder.open.clear()
    node.file("ann", document(TEXT, id="a"), wait=False)

    async def extract_meanwhile() -> int:
        extracting = asyncio.ensure_future(node.node.graph_admin.re_extract("ann", "a"))
        await asyncio.sleep(0)
        node.embedder.open.set()
        return await extracting

    assert node.run(extract_meanwhile()) == 6
    assert len(entities(node, "ann")) == 6


def test_extracting_finds_nothing_where_there_is_nothing(node: InProcess) -> None:
    node.file("ann", document("of the at", id="words", entities=["Kept"]), document("  ", id="failed"))
    before = stored(node)
    for id in ("words", "failed", "unknown", ""):
        assert node.run(node.node.graph_admin.re_extract("ann", id)) == 0
    assert stored(node) == before


def test_extracting_from_a_document_that_waits_for_a_stopped_node_says_so(tmp_path: Path) -> None:
    embedder = WordsEmbedder()
    with opened(tmp_path, embedder) as node:
        embedder.is_away = True
        node.file("ann", document(TEXT, id="a"), wait=False)
        node.node.stop()
        with pytest.raises(NotReady):
            node.run(node.node.graph_admin.re_extract("ann", "a"))
