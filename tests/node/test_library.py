"""The library: pages of groups, the way back from documents to groups, removal and clearing."""

from __future__ import annotations

import numpy as np
import pytest
from in_process import InProcess, document, group, ids, unit

from thread_service.node.operations import Cleared


def groups(node: InProcess, owner: str, **more: object) -> list[tuple[str, str]]:
    return [(found.owner_id, found.group_id) for found in node.library(owner, **more).groups]


def test_pages_follow_the_cursor_and_say_whether_there_is_more(node: InProcess) -> None:
    for name in ("d", "b", "a", "c", "é"):
        node.file("ann", document(name, id=name), group=name)
    seen: list[str] = []
    for _ in range(10):
        page = node.library("ann", limit=2, after_id=seen[-1] if seen else "")
        seen += [found.group_id for found in page.groups]
        if not page.has_more:
            break
    assert seen == ["a", "b", "c", "d", "é"]
    assert not node.library("ann", limit=5).has_more
    for limit in (0, -3, 99):
        assert len(node.library("ann", limit=limit).groups) == 5
    assert node.library("ann", after_id="é").groups == ()


def test_all_readable_groups_of_one_id_are_on_one_page(node: InProcess) -> None:
    for owner in ("ann", "ben", "cat"):
        node.file(owner, document(owner, id=owner), group=group("shared", "available" if owner != "cat" else None))
        node.file(owner, document(owner, id=owner), group=f"{owner}'s")
    page = node.library("ann", include_available=True, limit=2)
    assert [(g.owner_id, g.group_id) for g in page.groups] == [("ann", "ann's"), ("ann", "shared"), ("ben", "shared")]
    assert not page.has_more
    assert groups(node, "ann") == [("ann", "ann's"), ("ann", "shared")]
    assert groups(node, "nobody") == []
    assert groups(node, "nobody", include_available=True) == [("ann", "shared"), ("ben", "shared")]


def test_a_group_lists_its_documents_by_id_and_keeps_its_label_while_tags_gather(node: InProcess) -> None:
    node.file(
        "ann", document("b", id="b", name="B"), document("a", id="a"), group=group("g", label="L", tags=("z", "a"))
    )
    node.file("ann", document("c", id="c"), group=group("g", label="ignored", description="ignored", tags=("m", "z")))
    [found] = node.library("ann").groups
    assert (found.label, found.description, found.tags, found.access) == ("L", None, ("a", "m", "z"), "restricted")
    assert [(d.document_id, d.name, d.owner_id) for d in found.documents] == [
        ("a", None, "ann"), ("b", "B", "ann"), ("c", None, "ann"),
    ]  # fmt: skip
    assert all(d.created_at > 1_600_000_000 for d in found.documents)


def test_a_document_leads_back_to_the_readable_groups_that_hold_it(node: InProcess) -> None:
    node.file("ann", document("x", id="x"), group="one")
    node.file("ann", document("x", id="x"), group="two")
    node.file("ann", document("y", id="y"), group="three")
    node.file("ben", document("x", id="x"), group=group("two", "available"))
    node.file("ben", document("z", id="z"), group=group("three", "available"))
    assert groups(node, "ann", document_ids=("x", "unknown")) == [("ann", "one"), ("ann", "two"), ("ben", "two")]
    assert groups(node, "ann", document_ids=("y",), limit=1) == [("ann", "three")]
    assert groups(node, "eve", document_ids=("x", "y")) == [("ben", "two")]
    assert groups(node, "eve", document_ids=("unknown",)) == []


def test_documents_come_in_the_order_asked_for_without_the_unknown(node: InProcess) -> None:
    node.file(
        "ann", document("one", "two", id="a", name="A", metadata=b"\0\1"), document("code", id="b", media_type="code")
    )
    b, a = node.documents("ann", "b", "nothing", "a")
    assert (a.document_id, a.name, a.texts, a.metadata, a.media_type) == ("a", "A", ("one", "two"), b"\0\1", "text")
    assert (b.document_id, b.media_type, b.group_id, b.partitions) == ("b", "code", "", ())
    assert all(part.embedding.size == 0 for part in node.documents("ann", "a", embeddings=True)[0].partitions)


# ---------------------------------------------------------------------------------------------------- taking away


def test_removal_counts_what_was_really_removed(node: InProcess) -> None:
    node.file("ann", document("one", id="1"), document("two", id="2"), document("three", id="3"), group="g")
    node.file("ben", document("one", id="1"))
    assert node.remove("ann", "1", "1", "nothing", "2") == 2
    assert node.remove("ann", "1") == 0
    assert node.remove("nobody") == 0
    assert ids(node.search("ben", "one")) == ["1"]
    assert [len(found.documents) for found in node.library("ann").groups] == [1]  # groups outlive their documents
    assert node.remove("ann") == 1
    assert node.library("ann").groups == ()
    assert node.remove("ann") == 0


def test_removal_of_what_is_still_pending_leaves_nothing(node: InProcess) -> None:
    node.embedder.open.clear()
    node.file("ann", document("one", id="1", name="One Two", entities=["Heron"]), group="g", wait=False)
    assert node.remove("ann", "1") == 1
    node.embedder.open.set()
    node.file("ann", document("two", id="2"))
    assert ids(node.search("ann", "one two")) == ["2"]
    assert node.graph("ann").entities == ()


def test_what_is_removed_is_gone_from_every_answer_and_stays_gone_after_reopening(node: InProcess) -> None:
    said = document("The heron", id="x", name="Heron", edges=[("Heron", "eats", "Crab")], metadata=b"secret-metadata")
    node.file("ann", said, document("brought", id="y", vectors=[unit(1)]), group=group("g", "available"))
    assert node.remove("ann", "x", "y") == 2

    def check(open_node: InProcess) -> None:
        assert open_node.search("ann", "the heron eats crab", scope="global").passages == ()
        assert open_node.search("ann", query_embedding=unit(1)).passages == ()
        assert open_node.graph("ann", "heron", query="eats").entities == ()
        assert open_node.documents("ann", "x", "y") == ()
        assert open_node.library("ann").groups[0].documents == ()
        tables = (
            "documents", "contents", "partitions", "brought_vectors", "vectors", "words", "entities", "relationships",
            "predicates",
        )  # fmt: skip
        assert [open_node.value(f"SELECT count(*) FROM {name}") for name in tables] == [0] * 9

    check(node)
    again = node.reopened()
    try:
        check(again)
    finally:
        again.close()


def test_clearing_empties_everything_and_filing_starts_afresh(node: InProcess) -> None:
    node.file("ann", document("one", id="1", entities=["Ann One"]), document("one", id="2"), group="g")
    node.file("ben", document("one", id="1", vectors=[unit(1)]), document("one", id="3"))
    assert node.run(node.node.clear()) == Cleared(documents=4, entities=1)
    assert node.run(node.node.clear()) == Cleared(documents=0, entities=0)
    assert node.search("ann", "one", scope="global").passages == ()
    assert (node.library("ann").groups, node.graph("ann").entities) == ((), ())
    assert list(node.store.directory.vectors.iterdir()) == []
    node.file("ann", document("one", id="1", name="Ann One"))
    assert ids(node.search("ann", "ann one")) == ["1"]
    again = node.reopened()
    try:
        assert ids(again.search("ann", "ann one")) == ["1"]
    finally:
        again.close()


def test_a_document_filed_by_several_under_one_id_counts_once_when_it_says_the_same(node: InProcess) -> None:
    for owner in ("ann", "ben"):
        node.file(owner, document("same", id="x"))
    node.file("cat", document("other", id="x"))
    assert node.run(node.node.clear()).documents == 2


def test_clearing_while_documents_are_being_embedded_leaves_nothing_of_them(node: InProcess) -> None:
    node.embedder.open.clear()
    node.file("ann", document("one", id="1", edges=[("Ann", "is", "One")]), wait=False)
    node.run(node.node.clear())
    node.embedder.open.set()
    node.file("ann", document("two", id="2"))
    assert ids(node.search("ann", query_embedding=np.asarray(node.embedder.vector("one")))) == ["2"]
    assert node.graph("ann").entities == ()
    assert node.value("SELECT count(*) FROM vectors") == 1


@pytest.mark.parametrize("owner", ["ann", ""])
def test_reads_of_an_empty_node_are_empty(node: InProcess, owner: str) -> None:
    assert node.library(owner, include_available=True).groups == ()
    assert node.documents(owner, "x") == ()
    assert node.remove(owner) == 0
