"""Export, stats and updates over HTTP: the fields of the wire messages as JSON."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fake_node import FakeNode
from litestar.testing import TestClient

from thread_service.node import operations

Client = TestClient[Any]


def content(*embedding: float) -> operations.DocumentContent:
    partition = operations.PartitionContent("a:0", "u", np.array(embedding, np.float32))
    return operations.DocumentContent("a", None, "ada", "g", "G", 0, ("one",), "text", b"\xff", (partition,))


@pytest.mark.parametrize("with_embeddings", [False, True])
def test_export_asks_for_a_page_and_says_whether_there_are_more(
    client: Client, node: FakeNode, with_embeddings: bool
) -> None:
    node.exported = operations.ExportAnswer((content(0.5),), has_more=True)
    body = {
        "owner_id": " Ada",
        "group_ids": ["g"],
        "document_id_prefix": "p-",
        "after_id": "p-1",
        "limit": 2,
        "include_embeddings": with_embeddings,
    }
    answer = client.post("/v1/export", json=body).json()
    assert node.asked == [operations.ExportRequest("ada", ("g",), "p-", "p-1", 2, with_embeddings)]
    (document,) = answer["documents"]
    assert (answer["has_more"], document["metadata"], document["created_at"]) == (True, "/w==", "1970-01-01T00:00:00Z")
    assert document.get("partitions") == ([{"id": "a:0", "url": "u", "embedding": [0.5]}] if with_embeddings else None)


def test_export_of_everything_needs_only_the_owner(client: Client, node: FakeNode) -> None:
    assert client.post("/v1/export", json={"owner_id": "ada", "limit": -1}).json() == {
        "documents": [],
        "has_more": False,
    }
    assert node.asked == [operations.ExportRequest("ada")]


def test_documents_that_do_not_fit_are_413_not_left_out(client: Client, node: FakeNode) -> None:
    node.contents = operations.DocumentsAnswer((content(),), is_cut=True)
    answer = client.post("/v1/documents", json={"owner_id": "ada", "document_ids": ["a", "b"]})
    assert (answer.status_code, answer.json()["title"]) == (413, "Request too large")
    assert "ask for fewer" in answer.json()["detail"]


@pytest.mark.parametrize("body", [None, {}, {"ignored": 1}])
def test_stats_need_no_body(client: Client, node: FakeNode, body: Any) -> None:
    node.counted = operations.Stats(1, 2, 3, 4)
    assert client.post("/v1/stats", json=body).json() == {
        "document_count": 1,
        "group_count": 2,
        "owner_count": 3,
        "available_document_count": 4,
    }


def test_updates_say_what_to_change_and_are_told_whether_anything_was(client: Client, node: FakeNode) -> None:
    group = {"owner_id": "Ada", "group_id": "g", "group_description": "D", "tags": ["t"]}
    assert client.post("/v1/group/update", json={**group, "access": "", "label": "L"}).json() == {
        "success": True,
        "group_id": "g",
    }
    client.post("/v1/group/update", json={**group, "access": "available", "update_metadata": True})
    node.applies = False
    document = {"owner_id": "Ada", "document_id": "d", "access": "restricted", "group_id": "h"}
    refusal = {"success": False, "document_id": "d", "reason": "why"}
    assert client.post("/v1/document/update", json=document).json() == refusal
    assert node.asked == [
        operations.UpdateGroupRequest("ada", "g", label="L"),
        operations.UpdateGroupRequest("ada", "g", "available", metadata=operations.GroupMetadata("D", ("t",))),
        operations.UpdateDocumentRequest("ada", "d", "restricted", "h"),
    ]


@pytest.mark.parametrize(
    ("route", "body", "field"),
    [
        ("group/update", {"owner_id": "a"}, "group_id"),
        ("group/update", {"owner_id": "a", "group_id": "g", "access": "open"}, "access"),
        ("group/update", {"owner_id": "a", "group_id": "g", "tags": ["x" * 4_097]}, "tags[0]"),
        ("document/update", {"owner_id": "a", "document_id": "é" * 513}, "document_id"),
        ("document/update", {"owner_id": "a", "document_id": "d", "access": 1}, "access"),
        ("export", {"owner_id": "a", "limit": 2**31}, "limit"),
        ("export", {"owner_id": "a", "group_ids": ["é" * 513]}, "group_ids[0]"),
        ("export", {}, "owner_id"),
    ],
)
def test_a_wrong_value_names_its_field(client: Client, node: FakeNode, route: str, body: Any, field: str) -> None:
    answer = client.post(f"/v1/{route}", json=body)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, field)
    assert node.asked == []
