"""What each route asks of the node, and what it answers, exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fake_node import NODE_ID, FakeNode
from litestar.testing import TestClient

from thread_service.node import operations as ops

Client = TestClient[Any]
EMPTY = "it is empty or blank; nothing was filed"


def test_batch_files_every_input_with_what_the_parallel_lists_say(client: Client, node: FakeNode) -> None:
    node.groups = ops.LibraryAnswer(
        (
            ops.LibraryGroup(
                "notes",
                "Notes",
                "ada",
                "restricted",
                None,
                ("sea",),
                (ops.LibraryDocument("d", "file:///d", "ada", None, 0),),
            ),
        )
    )
    node.filed = ops.Filed(("a1", "b2"), ("new", "linked"), 7, removed=1)
    answer = client.post(
        "/v1/batch/embeddings",
        json={
            "inputs": ["one", ["two", "", " "], ["", ""]],
            "thread": {
                "owner_id": " Ada ",
                "group": {
                    "id": "notes",
                    "label": "Notes",
                    "owner_id": "x",
                    "access": "available",
                    "documents": [],
                    "metadata": {"description": "d", "tags": ["sea"]},
                },
            },
            "names": ["first", None],
            "metadata": ["AAH/", None],
            "entities": [[{"name": "Ada", "kind": "person"}, {"name": "x"}], []],
            "tags": [["hidden"], ["hidden too"]],
            "relationships": [[{"subject": "Ada", "predicate": "knows", "object": "x"}]],
            "media_type": "code",
            "wait": True,
            "model": "ignored",
            "encoding_format": 3,
            "update": {"operation": "remove", "document_id": "old"},
        },
    )
    assert answer.status_code == 200
    assert answer.json() == {
        "object": "list",
        "model": "org/model",
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
        "success": False,
        "user": {
            "groups": [
                {
                    "id": "notes",
                    "label": "Notes",
                    "owner_id": "ada",
                    "access": "restricted",
                    "total_earnings": 0.0,
                    "metadata": {"tags": ["sea"]},
                    "documents": [],
                }
            ]
        },
        "documents": [
            {"id": "a1", "outcome": "new"},
            {"id": "b2", "outcome": "linked"},
            {"outcome": "failed", "reason": EMPTY},
        ],
        "removed_count": 1,
    }
    assert node.asked == [
        ops.FileRequest(
            owner_id="ada",
            documents=(
                ops.DocumentIn(
                    ("one",),
                    name="first",
                    metadata=b"\0\x01\xff",
                    media_type="code",
                    entities=(ops.EntityIn("Ada", "person"), ops.EntityIn("x")),
                    relationships=(ops.RelationshipIn("Ada", "knows", "x"),),
                    group_tags=("Ada", "x"),
                ),
                ops.DocumentIn(("two", " "), media_type="code", entities=()),
            ),
            group=ops.GroupIn("notes", "Notes", "available", "d", ("sea",)),
            gate=True,
            wait=True,
            remove_ids=("old",),
        ),
        ops.LibraryRequest("ada", include_documents=False),
    ]


def test_tags_become_concepts_and_no_tags_leave_the_node_to_look(client: Client, node: FakeNode) -> None:
    body = {"inputs": ["a", "b", "c"], "thread": {"owner_id": "ada"}, "tags": [["sea", " "], []]}
    assert client.post("/v1/batch/embeddings", json=body).json()["success"] is True
    entities = [document.entities for document in node.asked[0].documents]
    assert entities == [(ops.EntityIn("sea", "concept"),), None, None]


def test_explicit_ids_pass_the_gate_and_a_failed_input_keeps_its_id(client: Client, node: FakeNode) -> None:
    body = {"inputs": ["a", ""], "thread": {"owner_id": ""}, "document_ids": ["../é\0", "empty"]}
    answer = client.post("/v1/batch/embeddings", json=body).json()
    assert answer["documents"] == [
        {"id": "../é\0", "outcome": "new"},
        {"id": "empty", "outcome": "failed", "reason": EMPTY},
    ]
    filed, library = node.asked
    assert filed.gate is False
    assert filed.owner_id == library.owner_id == f"{NODE_ID.lower()}-thread"


def test_partitions_bring_vectors_bit_for_bit_and_may_stand_for_an_empty_text(client: Client, node: FakeNode) -> None:
    values = np.random.default_rng(1).standard_normal(32).astype(np.float32)
    body = {
        "inputs": [["text", "", ""]],
        "thread": {"owner_id": "ada"},
        "partitions": [[{"url": "https://a.example/1"}, {"embedding": values.tolist()}, {"embedding": []}]],
    }
    assert client.post("/v1/batch/embeddings", json=body).status_code == 200
    (document,) = node.asked[0].documents
    assert document.texts == ("text", "")
    assert document.partitions[0] == ops.PartitionIn(None, "https://a.example/1")
    assert document.partitions[1].embedding.dtype == np.float32
    assert document.partitions[1].embedding.tobytes() == values.tobytes()


def test_sanitize_cuts_texts_into_chunks(client: Client, node: FakeNode) -> None:
    body = {"inputs": [["word " * 600, "short"]], "thread": {"owner_id": "ada"}, "sanitize": True}
    assert client.post("/v1/batch/embeddings", json=body).status_code == 200
    texts = node.asked[0].documents[0].texts
    assert len(texts) > 2
    assert all(0 < len(text) <= 1_200 for text in texts)


def test_search_asks_with_every_field_and_answers_texts_beside_references(client: Client, node: FakeNode) -> None:
    quill = ops.EntityRef("17", "Ada Quill", "person")
    node.found = ops.SearchAnswer(
        (
            ops.Passage(
                "d:0",
                "d",
                "ada",
                "harbour.md",
                "text\0",
                "text",
                0.25,
                (quill,),
                ops.GroupRef("notes", "Notes", "about", ("sea",)),
            ),
            ops.Passage("e:0", "e", "bob", None, "other", "code", 0.5, (), None),
        ),
        ops.Trace((quill,), (ops.RelationshipRef("9", "Ada Quill", "keeps", "Ledger", 2),), 1),
    )
    body = {
        "query": "who?",
        "query_embedding": [1, 0.5],
        "expand": False,
        "train": True,
        "thread": {
            "owner_id": "ADA",
            "scope": "global",
            "groups": [{"id": "notes", "label": "", "owner_id": "ada"}, "plain"],
            "group": {"id": "unused"},
            "tags": ["Ledger"],
            "aggregate": True,
            "media_type": "image",
            "top_k": -3,
            "graph_mode": "off",
            "lexical": False,
        },
    }
    answer = client.post("/v1/search", json=body)
    assert answer.status_code == 200
    assert answer.json() == {
        "object": "list",
        "texts": ["text\0", "other"],
        "references": [
            {
                "document_id": "d",
                "partition_id": "d:0",
                "distance": 0.25,
                "owner_id": "ada",
                "thread_id": NODE_ID,
                "name": "harbour.md",
                "media_type": "text",
                "entities": [{"id": "17", "name": "Ada Quill", "kind": "person"}],
                "group": {"id": "notes", "label": "Notes", "description": "about", "tags": ["sea"]},
            },
            {
                "document_id": "e",
                "partition_id": "e:0",
                "distance": 0.5,
                "owner_id": "bob",
                "thread_id": NODE_ID,
                "media_type": "code",
                "entities": [],
            },
        ],
        "graph": {
            "entities": [{"id": "17", "name": "Ada Quill", "kind": "person"}],
            "relationships": [{"subject": "Ada Quill", "predicate": "keeps", "object": "Ledger", "weight": 2}],
            "expanded_documents": 1,
        },
    }
    (asked,) = node.asked
    assert asked.query_embedding.tolist() == [1.0, 0.5]
    assert (asked.owner_id, asked.query, asked.entities, asked.scope) == ("ada", "who?", ("Ledger",), "global")
    assert (asked.group_ids, asked.aggregate, asked.media_type, asked.top_k) == (("notes", "plain"), True, "image", -3)
    assert (asked.expand, asked.graph_mode, asked.lexical) == (False, "off", False)


def test_search_has_defaults_and_leaves_out_an_empty_graph(client: Client, node: FakeNode) -> None:
    body = {"query": "q", "thread": {"owner_id": "ada", "group": {"id": "g"}, "scope": None}}
    answer = client.post("/v1/search", json=body)
    assert answer.json() == {"object": "list", "texts": [], "references": []}
    assert node.asked == [ops.SearchRequest("ada", "q", group_ids=("g",))]


@pytest.mark.parametrize(
    ("sent", "hops", "limit"),
    [({}, 1, 20), ({"hops": 0, "limit": 0}, 0, 20), ({"hops": 9, "limit": 10**6}, 3, 1_000), ({"hops": -1}, 0, 20)],
)
def test_graph_bounds_hops_and_limit(client: Client, node: FakeNode, sent: Any, hops: int, limit: int) -> None:
    assert client.post("/v1/graph", json={"thread": {"owner_id": "ada"}, **sent}).status_code == 200
    assert node.asked == [ops.GraphRequest("ada", hops=hops, limit=limit)]


def test_graph_answers_entities_relationships_documents_and_counts(client: Client, node: FakeNode) -> None:
    node.graph_found = ops.GraphAnswer(
        (ops.GraphEntity("1", "Ada", "person", 1.0, 4, ("d",)),),
        (ops.GraphRelationship("2", "1", "keeps", "3", 2, ("d",)),),
        (ops.GraphDocument("d", None, "ada"), ops.GraphDocument("e", "E", "ada")),
        7,
        5,
    )
    body = {"thread": {"owner_id": "ada"}, "entity": "Ada", "query": "q", "kinds": [], "include_documents": False}
    assert client.post("/v1/graph", json=body).json() == {
        "object": "graph",
        "entities": [
            {"id": "1", "name": "Ada", "kind": "person", "score": 1.0, "mention_count": 4, "document_ids": ["d"]}
        ],
        "relationships": [
            {"id": "2", "subject_id": "1", "predicate": "keeps", "object_id": "3", "weight": 2, "document_ids": ["d"]}
        ],
        "documents": [{"id": "d", "owner_id": "ada"}, {"id": "e", "name": "E", "owner_id": "ada"}],
        "stats": {"entity_count": 7, "relationship_count": 5},
    }
    assert node.asked == [ops.GraphRequest("ada", "Ada", "q", (), include_documents=False)]


def test_library_lists_groups_with_their_documents(client: Client, node: FakeNode) -> None:
    document = ops.LibraryDocument("d", "file:///d", "ada", "D", 1_700_000_000)
    node.groups = ops.LibraryAnswer((ops.LibraryGroup("g", "G", "ada", "available", "about", (), (document,)),))
    answer = client.post("/v1/library", json={"owner_id": " ADA", "include_available": True})
    assert answer.json() == {
        "groups": [
            {
                "id": "g",
                "label": "G",
                "owner_id": "ada",
                "access": "available",
                "total_earnings": 0.0,
                "metadata": {"description": "about", "tags": []},
                "documents": [
                    {
                        "id": "d",
                        "url": "file:///d",
                        "owner_id": "ada",
                        "name": "D",
                        "created_at": "2023-11-14T22:13:20Z",
                    }
                ],
            }
        ],
        "has_more": False,
    }
    assert node.asked == [ops.LibraryRequest("ada", include_available=True)]


def test_library_pages_by_group_id(client: Client, node: FakeNode) -> None:
    client.post("/v1/library", json={"owner_id": "ada", "limit": 2, "after_id": "g"})
    assert node.asked == [ops.LibraryRequest("ada", limit=2, after_id="g")]


@pytest.mark.parametrize("with_embeddings", [False, True])
def test_documents_come_back_as_filed(client: Client, node: FakeNode, with_embeddings: bool) -> None:
    vector = np.array([0.1, 1e-40], np.float32)
    node.contents = ops.DocumentsAnswer(
        (
            ops.DocumentContent(
                "d",
                None,
                "ada",
                "",
                "",
                0,
                ("a", "b"),
                "text",
                b"\xff\0",
                (ops.PartitionContent("d:0", "u", vector), ops.PartitionContent("d:1", "v")),
            ),
        )
    )
    body = {"owner_id": "Ada", "document_ids": ["d", "?"], "include_embeddings": with_embeddings}
    (document,) = client.post("/v1/documents", json=body).json()["documents"]
    partitions = document.pop("partitions", None)
    assert document == {
        "id": "d",
        "owner_id": "ada",
        "group_id": "",
        "group_label": "",
        "created_at": "1970-01-01T00:00:00Z",
        "texts": ["a", "b"],
        "media_type": "text",
        "metadata": "/wA=",
    }
    if with_embeddings:
        assert np.array(partitions[0].pop("embedding"), np.float32).tobytes() == vector.tobytes()
        assert partitions == [{"id": "d:0", "url": "u"}, {"id": "d:1", "url": "v", "embedding": []}]
    else:
        assert partitions is None
    assert node.asked == [ops.DocumentsRequest("ada", ("d", "?"), with_embeddings)]


def test_remove_takes_ids_or_an_explicit_wish_for_all(client: Client, node: FakeNode) -> None:
    one = client.post("/v1/remove", json={"owner_id": "Ada", "document_ids": ["a", "b"]})
    assert one.json() == {"success": True, "removed_count": 2}
    everything = client.post("/v1/remove", json={"owner_id": "Ada", "all": True})
    assert everything.json() == {"success": True, "removed_count": 0}
    assert node.asked == [ops.RemoveRequest("ada", ("a", "b")), ops.RemoveRequest("ada")]


def test_clear_answers_what_was_there(client: Client, node: FakeNode) -> None:
    assert client.post("/v1/clear", json={"confirm": True}).json() == {"cleared": True, "documents": 3, "entities": 5}
    assert node.asked == ["clear"]


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_health_is_ok_and_shows_the_embedder(client: Client, node: FakeNode, method: str) -> None:
    node.health = ops.EmbedderHealth("m", "m@384", "downloading", "r1", 0.5, None, "mismatch", "other@8")
    answer = client.request(method, "/health")
    assert answer.status_code == 200
    body = answer.json()
    assert body.pop("timestamp").endswith("Z")
    assert body == {
        "status": "ok",
        "stack": "open",
        "embedder": {
            "model": "m",
            "revision": "r1",
            "vectorSpace": "m@384",
            "phase": "downloading",
            "progress": 0.5,
            "fraction": 0.5,
            "index": "mismatch",
            "indexedWith": "other@8",
        },
        "engine": {"device": "cpu"},
    }


def test_readyz_waits_for_the_store_and_livez_does_not(client: Client, node: FakeNode) -> None:
    assert client.get("/readyz").json() == {"status": "ok"}
    node.ready = False
    waiting = client.get("/readyz")
    assert (waiting.status_code, waiting.headers["retry-after"]) == (503, "1")
    assert client.get("/livez").status_code == 200
