"""The tags of a group: its owner's own, and what the documents filed in it add as long as they are there."""

from __future__ import annotations

import dataclasses
from typing import Any

from in_process import InProcess, document, group

from thread_service.node.operations import DocumentIn, GroupMetadata, UpdateDocumentRequest, UpdateGroupRequest


def tagged(id: str, *tags: str, text: str = "", **more: Any) -> DocumentIn:
    return dataclasses.replace(document(text or f"text of {id}", id=id, **more), group_tags=tags)


def tags(node: InProcess, owner: str = "ann", **more: Any) -> dict[str, tuple[str, ...]]:
    return {found.group_id: found.tags for found in node.library(owner, **more).groups}


def test_names_of_new_and_linked_documents_join_the_owners_own_tags_sorted(node: InProcess) -> None:
    node.file("ann", tagged("a", "Quill", "Ledger"), document("b", id="b"), group=group("g", tags=("sea",)))
    assert tags(node) == {"g": ("Ledger", "Quill", "sea")}
    assert tags(node, include_documents=False) == tags(node)
    node.file("ann", tagged("c", "Quill", "Abacus"), group="g", gate=True)
    node.file("ann", tagged("a", "Linked"), group="h", gate=True)
    assert tags(node) == {"g": ("Abacus", "Ledger", "Quill", "sea"), "h": ("Linked",)}
    [passage] = node.search("ann", "text of c", group_ids=("g",), top_k=1).passages
    assert passage.group.tags == ("Abacus", "Ledger", "Quill", "sea")


def test_what_a_document_adds_goes_with_it(node: InProcess) -> None:
    node.file("ann", tagged("a", "Quill"), tagged("b", "Quill", "Ledger"), group=group("g", tags=("sea",)))
    node.file("ann", tagged("b", "Tide", text="other"), group="g")
    assert tags(node) == {"g": ("Quill", "Tide", "sea")}
    node.remove("ann", "a")
    assert tags(node) == {"g": ("Tide", "sea")}
    node.file("ann", document("more", id="x"), group="h")
    node.run(node.node.update_document(UpdateDocumentRequest("ann", "b", group_id="h")))
    assert tags(node) == {"g": ("sea",), "h": ("Tide",)}
    node.file("ann", document("silent", id="b"))
    assert tags(node) == {"g": ("sea",), "h": ()}
    node.remove("ann")
    assert node.value("SELECT count(*) FROM group_tags") == 0


def test_replacing_a_groups_metadata_replaces_all_its_tags(node: InProcess) -> None:
    node.file("ann", tagged("a", "Quill"), group=group("g", tags=("sea",)))
    node.run(node.node.update_group(UpdateGroupRequest("ann", "g", metadata=GroupMetadata("d", ("z", "b")))))
    assert tags(node) == {"g": ("z", "b")}
    node.file("ann", tagged("b", "Tide"), group="g")
    assert tags(node) == {"g": ("Tide", "b", "z")}


def test_others_see_no_tag_of_a_document_they_may_not_read(node: InProcess) -> None:
    node.file("ann", tagged("open", "Quill"), tagged("shut", "SECRET", "Quill"), group=group("g", "available"))
    node.run(node.node.update_document(UpdateDocumentRequest("ann", "shut", access="restricted")))
    assert tags(node, "ben", include_available=True) == {"g": ("Quill",)}
    assert "SECRET" not in repr(node.search("ben", "text", scope="global"))
    assert tags(node) == {"g": ("Quill", "SECRET")}


def test_a_large_group_shows_a_bounded_number(node: InProcess) -> None:
    shared = [f"name {number:04}" for number in range(1_200)]
    node.file("ann", tagged("a", *shared), tagged("b", *shared), group=group("g", tags=("zenith",)))
    assert tags(node) == {"g": (*shared[:1_000], "zenith")}
    [passage] = node.search("ann", "text of a", top_k=1).passages
    assert passage.group.tags == (*shared[:32], "zenith")
