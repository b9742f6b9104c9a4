"""Links by name: which documents mention an entity, whatever came first, and which words are never linked."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_process import InProcess, document, group, ids, opened

TEXT = "They met Ada Quill Hall keepers and Ada Quill at the Ledger."


def test_a_text_is_linked_to_a_name_whichever_came_first(node: InProcess) -> None:
    node.file("ann", document("Nobody", id="first", entities=["Ada Quill"]))
    node.file("ann", document("ADA  quill's house", id="text"))
    node.file("ann", document("Orrin-Vale came later", id="early"))
    node.file("ann", document("Nobody else", id="second", entities=["Orrin Vale"]))
    assert node.mentions("ann") == {("text", "Ada Quill"), ("early", "Orrin Vale")}


def test_the_longest_name_wins_and_links_change_as_names_come_and_go(node: InProcess) -> None:
    def linked() -> set[str]:
        return {name for id, name in node.mentions("ann") if id == "text"}

    node.file("ann", document("-", id="short", entities=["Ada Quill"]), document(TEXT, id="text"))
    assert linked() == {"Ada Quill"}
    node.file("ann", document("-", id="long", entities=["Ada Quill Hall", "Ledger"]))
    assert linked() == {"Ada Quill", "Ada Quill Hall", "Ledger"}
    node.file("ann", document("Only Ada Quill Hall.", id="text"))
    assert linked() == {"Ada Quill Hall"}
    node.remove("ann", "long")
    node.settle()
    assert linked() == {"Ada Quill"}
    node.remove("ann", "short")
    node.settle()
    assert node.mentions("ann") == set()
    assert node.value("SELECT count(*) FROM entities") == 0


@pytest.mark.parametrize(
    ("name", "text", "linked"),
    [
        ("Ledger", "the ledger", True),
        ("ledger", "the Ledger", False),
        ("model 3", "a Model-3 car", True),
        ("x9", "the X9", True),
        ("the of", "the of", False),
        ("Ada Quill", "Ada-Quill", True),
        ("Ada Quill", "Quill, Ada", False),
        ("Ada Quill", "Adah Quillon", False),
        ("running water", "runs watering", False),  # the word index compares stems, links do not
        ("東京", "私は東京都に", True),
        ("Straße 9", "STRASSE 9", True),
    ],
)
def test_which_names_are_linked(node: InProcess, name: str, text: str, linked: bool) -> None:
    node.file("ann", document("-", id="name", entities=[name]), document(text, id="text"))
    assert node.mentions("ann") == ({("text", name)} if linked else set())


def test_keywords_are_never_linked_and_make_no_name_linkable(node: InProcess) -> None:
    node.file("ann", document("Heronry heronry x99999", id="kw", entities=None), document("Heronry X99999", id="text"))
    assert node.mentions("ann") == set()
    assert {"heronry", "x99999"} <= {entity.name for entity in node.graph("ann").entities}


def test_a_spelling_that_may_be_linked_makes_the_name_of_every_kind_linkable(node: InProcess) -> None:
    node.file("ann", document("-", id="tool", entities=[("quill", "tool")]), document("a quill", id="text"))
    assert node.mentions("ann") == set()
    node.file("ann", document("-", id="person", entities=[("Quill", "person")]))
    assert node.mentions("ann") == {("text", "Quill"), ("text", "quill")}
    node.remove("ann", "tool")
    node.settle()
    assert node.mentions("ann") == {("text", "Quill")}
    node.file("ann", document("-", id="tool", entities=[("quill", "tool")]))
    assert node.mentions("ann") == {("text", "Quill"), ("text", "quill")}
    node.remove("ann", "person")
    node.settle()
    assert node.mentions("ann") == set()


def test_a_documents_name_becomes_an_entity_and_gives_way_to_a_given_one(node: InProcess) -> None:
    def named() -> set[tuple[str, str]]:
        return {(entity.name, entity.kind) for entity in node.graph("ann").entities}

    node.file("ann", document("about a clock", id="own", name="Long Clock"), document("the Long Clock", id="text"))
    assert named() == {("Long Clock", "document")}
    assert node.mentions("ann") == {("text", "Long Clock")}
    node.file("ann", document("-", id="given", entities=[("long clock", "thing")]))
    assert named() == {("long clock", "thing")}
    assert node.mentions("ann") == {("text", "long clock"), ("own", "long clock")}
    node.remove("ann", "given")
    node.settle()
    assert named() == {("Long Clock", "document")}
    node.file("ann", document("about a clock", id="own", name="Short Clock"))
    assert named() == {("Short Clock", "document")}
    assert node.mentions("ann") == set()
    node.file("ann", document("about a clock", id="own"))
    assert named() == set()


def test_only_an_owners_own_names_link_his_texts(node: InProcess) -> None:
    node.file("ann", document("-", id="name", entities=["Ada Quill"]), group=group("g", "available"))
    node.file("ben", document("Ada Quill", id="text"))
    assert node.mentions("ben") == set()
    node.file("ben", document("-", id="own", entities=["Ada Quill"]))
    assert node.mentions("ben") == {("text", "Ada Quill")}
    assert node.mentions("ann") == set()
    node.remove("ben", "own")
    node.settle()
    assert node.mentions("ben") == set()
    assert node.value("SELECT count(*) FROM entities") == 1


def test_one_content_is_linked_for_each_owner_by_his_own_names(node: InProcess) -> None:
    node.file("ann", document(TEXT, id="text"), document("-", id="name", entities=["Ada Quill"]))
    node.file("ben", document(TEXT, id="text"), document("-", id="name", entities=["Ledger"]))
    assert (node.mentions("ann"), node.mentions("ben")) == ({("text", "Ada Quill")}, {("text", "Ledger")})


def test_mentions_raise_no_counts_but_list_the_document(node: InProcess) -> None:
    node.file("ann", document("-", id="name", entities=["Ada Quill"]), document("Ada Quill", id="text"))
    [entity] = node.graph("ann").entities
    assert (entity.mention_count, entity.document_ids) == (1, ("name", "text"))
    assert node.graph("ann").entity_count == 1
    [passage] = node.search("ann", "Ada Quill", top_k=1).passages
    assert (passage.document_id, [found.name for found in passage.entities]) == ("text", ["Ada Quill"])


def test_without_mention_linking_texts_are_not_searched_for_names(tmp_path: Path) -> None:
    with opened(tmp_path, mention_linking=False) as node:
        node.file(
            "ann", document("Ada Quill", id="text", name="Note"), document("-", id="name", entities=["Ada Quill"])
        )
        assert node.mentions("ann") == set()
        assert {entity.name for entity in node.graph("ann").entities} == {"Ada Quill", "Note"}
        assert ids(node.search("ann", "Ada Quill"))[0] == "text"
