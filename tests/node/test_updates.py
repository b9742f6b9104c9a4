"""Changing access, labels and groups of what is filed, and the counts of a node."""

from __future__ import annotations

from typing import Any

import pytest
from in_process import InProcess, document, group, ids, unit

from thread_service.node.operations import GroupMetadata, Stats, UpdateDocumentRequest, UpdateGroupRequest


def update_group(node: InProcess, owner: str, group_id: str, **more: Any) -> bool:
    return node.run(node.node.update_group(UpdateGroupRequest(owner, group_id, **more))).applied


def update_document(node: InProcess, owner: str, document_id: str, **more: Any) -> bool:
    return node.run(node.node.update_document(UpdateDocumentRequest(owner, document_id, **more))).applied


def stats(node: InProcess) -> Stats:
    return node.run(node.node.stats())


def groups_of(node: InProcess, owner: str) -> dict[str, list[str]]:
    return {found.group_id: [filed.document_id for filed in found.documents] for found in node.library(owner).groups}


def test_access_of_a_group_goes_to_its_documents_and_their_graph_and_back(node: InProcess) -> None:
    said = document("heron", id="a", vectors=[unit(1)], entities=["Heron"], edges=[("Heron", "eats", "Crab")])
    node.file("ann", said, group=group("g"))
    node.file("ann", document("crab", id="b", vectors=[unit(0, 1)]))
    node.settle()
    assert node.search("ben", query_embedding=unit(1), scope="global").passages == ()
    assert update_group(node, "ann", "g", access="available")
    assert ids(node.search("ben", query_embedding=unit(1), scope="global")) == ["a"]
    assert ids(node.search("ben", query_embedding=unit(1), group_ids=("g",))) == ["a"]
    assert [edge.predicate for edge in node.graph("ben", "heron").relationships] == ["eats"]
    [found] = node.library("ben", include_available=True).groups
    assert (found.access, [filed.document_id for filed in found.documents]) == ("available", ["a"])
    assert update_group(node, "ann", "g", access="restricted")
    assert node.search("ben", query_embedding=unit(1), scope="global").passages == ()
    assert node.graph("ben", "heron").relationships == ()
    assert node.documents("ben", "a", "b") == ()


def test_label_and_metadata_are_replaced_and_nothing_said_changes_nothing(node: InProcess) -> None:
    node.file("ann", document("a", id="a"), group=group("g", label="old", description="was", tags=("t",)))
    assert not update_group(node, "ann", "g")
    assert update_group(node, "ann", "g", label="new")
    [found] = node.library("ann").groups
    assert (found.label, found.description, found.tags) == ("new", "was", ("t",))
    assert update_group(node, "ann", "g", metadata=GroupMetadata(None, ("z", "b", "z")))
    [found] = node.library("ann").groups
    assert (found.label, found.description, found.tags, found.access) == ("new", None, ("z", "b"), "restricted")


def test_a_document_moves_from_its_primary_group_and_keeps_its_others_and_its_access(node: InProcess) -> None:
    node.file("ann", document("a", id="a", vectors=[unit(1)]), group=group("kept"))
    node.file("ann", document("a", id="a", vectors=[unit(1)]), group=group("left"))
    node.file("ann", document("b", id="b"), group=group("open", "available"))
    assert update_document(node, "ann", "a", group_id="open")
    assert groups_of(node, "ann") == {"kept": ["a"], "left": [], "open": ["a", "b"]}
    assert node.documents("ann", "a")[0].group_id == "open"
    assert node.documents("ben", "a") == ()
    assert ids(node.search("ann", query_embedding=unit(1), group_ids=("open",)))[0] == "a"
    assert node.search("ann", query_embedding=unit(1), group_ids=("left",)).passages == ()
    assert update_document(node, "ann", "a", group_id="open")
    assert groups_of(node, "ann") == {"kept": ["a"], "left": [], "open": ["a", "b"]}


def test_access_of_one_document_leaves_its_group_alone(node: InProcess) -> None:
    node.file("ann", document("a", id="a"), document("b", id="b"), group=group("g"))
    assert update_document(node, "ann", "a", access="available")
    assert [found.document_id for found in node.documents("ben", "a", "b")] == ["a"]
    assert node.library("ann").groups[0].access == "restricted"
    assert update_document(node, "ann", "a", access="restricted")
    assert node.documents("ben", "a") == ()


@pytest.mark.parametrize("owner", ["ben", "nobody", ""])
def test_what_belongs_to_another_or_to_nobody_is_not_updated(node: InProcess, owner: str) -> None:
    node.file("ann", document("a", id="a"), group=group("g"))
    node.file("ben", document("b", id="b"), group=group("h"))
    assert not update_group(node, owner, "g", access="available", label="mine")
    assert not update_document(node, owner, "a", access="available", group_id="h")
    assert not update_document(node, "ann", "a", group_id="h")
    assert not update_document(node, "ann", "a", group_id="new")
    [found] = node.library("ann").groups
    assert (found.label, found.access, [filed.document_id for filed in found.documents]) == ("", "restricted", ["a"])
    assert node.documents("ben", "a") == ()


def test_updates_survive_a_restart(node: InProcess) -> None:
    node.file("ann", document("heron", id="a", vectors=[unit(1)]), group=group("g"))
    node.file("ann", document("crab", id="b", vectors=[unit(0, 1)]), group=group("h"))
    update_group(node, "ann", "g", access="available")
    update_document(node, "ann", "b", group_id="g")
    again = node.reopened()
    try:
        assert ids(again.search("ben", query_embedding=unit(1), scope="global")) == ["a"]
        assert groups_of(again, "ann") == {"g": ["a", "b"], "h": []}
    finally:
        again.close()


def test_stats_count_distinct_documents_groups_and_owners_who_hold_any(node: InProcess) -> None:
    assert stats(node) == Stats(0, 0, 0, 0)
    node.file("ann", document("a", id="a"), document("b", id="b"), group=group("g", "available"))
    node.file("ben", document("a", id="a"), document("other", id="b"), group=group("g"))
    node.file("eve", document("c", id="c"))
    assert stats(node) == Stats(documents=4, groups=2, owners=3, available_documents=2)
    node.remove("eve", "c")
    assert stats(node) == Stats(documents=3, groups=2, owners=2, available_documents=2)
