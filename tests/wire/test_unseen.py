"""A caller is answered the same whether others have filed anything or not, as long as none of it is available.

Two things are meant to differ and are left out: the counts of the whole node in `/v1/stats`, and what the rarity of
words and entities decides, which is counted over the whole node: distances, and the order of a passage's entities.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from in_process import InProcess, document, group, opened
from litestar.testing import TestClient

from thread_service.settings import Settings
from thread_service.text import ids
from thread_service.wire.http import create_app

Json = Any

EVE = {"owner_id": "eve"}
PERSON = ids.entity_id("person", "Ada Quill")
SHIP = ids.entity_id("ship", "Heron")
EQUAL = "Ada Quill keeps the light."
"""A text that both have filed."""
FILED = {
    "inputs": [EQUAL, ["The tide is out.", "The quay is dry."]],
    "document_ids": ["one", "two"],
    "names": ["minutes", None],
    "entities": [[{"name": "Ada Quill", "kind": "person"}], [{"name": "Quay", "kind": "place"}]],
    "relationships": [[], [{"subject": "Quay", "predicate": "is", "object": "dry"}]],
    "thread": {**EVE, "group": {"id": "notes", "label": "Notes"}},
    "wait": True,
}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient[Any], TestClient[Any]]]:
    """Clients of a node for eve alone, and of one that ann has filled."""
    path: Path = tmp_path_factory.mktemp("unseen")
    with opened(path / "alone") as alone, opened(path / "crowded") as crowded:
        fill(crowded)
        with (
            TestClient(create_app(alone.node, Settings())) as first,
            TestClient(create_app(crowded.node, Settings())) as second,
        ):
            for client in (first, second):
                assert client.post("/v1/batch/embeddings", json=FILED).status_code == 200
            alone.settle()
            crowded.settle()
            yield first, second


def fill(node: InProcess) -> None:
    """Restricted documents of ann: with eve's ids, texts, names and groups, and with others."""
    entities = [("Ada Quill", "person"), ("Heron", "ship"), ("Quay", "place")]
    edges = [("Heron", "passes", "Ada Quill"), ("Quay", "is", "dry")]
    for number, text in enumerate([EQUAL, "The tide is out.", "Ada Quill boards the Heron.", "def tide(): ..."]):
        media = "code" if text.startswith("def") else "text"
        said = document(
            text, id=("one", "two", "three", "four")[number], name="ann's", entities=entities, edges=edges,
            media_type=media, metadata=b"ann's", group_tags=("ann's tag",),
        )  # fmt: skip
        node.file("ann", said, group=group(("notes", "papers")[number % 2], label="ann's", tags=("ann's",)))
    node.settle()


ASKED: list[tuple[str, Json]] = [
    *[
        (
            "/v1/search",
            {"query": query, "thread": {**EVE, "top_k": top_k, "graph_mode": mode, "lexical": words, **more}},
        )
        for query in (EQUAL, "boards the Heron", "tide")
        for top_k in (1, 10)
        for mode, words in (("off", False), ("boost", True), ("narrow", True))
        for more in ({}, {"scope": "global"}, {"groups": ["papers", "notes"]}, {"media_type": "code"})
    ],
    ("/v1/search", {"query": "tide", "thread": {**EVE, "entities": ["Heron", "Ada Quill"], "aggregate": True}}),
    *[
        ("/v1/graph", {"thread": EVE, "hops": 3, "limit": 100, **more})
        for more in ({}, {"entity": "Heron"}, {"query": "Ada Quill passes"}, {"entity": "quay"}, {"kinds": ["ship"]})
    ],
    *[("/v1/library", {**EVE, "include_available": available}) for available in (True, False)],
    *[("/v1/library", {**EVE, "limit": 1, "after_id": after, "include_available": True}) for after in ("", "notes")],
    *[("/v1/library/document", {**EVE, "document_id": id}) for id in ("one", "three")],
    ("/v1/library/document", {"document_id": "one"}),
    ("/v1/documents", {**EVE, "document_ids": ["three", "one", "four"], "include_embeddings": True}),
    *[("/v1/export", {**EVE, **more}) for more in ({}, {"after_id": "one"}, {"group_ids": ["papers"]})],
    ("/v1/export", {**EVE, "document_id_prefix": "t", "limit": 1}),
    ("/v1/graph/entity/rename", {"thread": EVE, "id": SHIP, "name": "Tern"}),
    ("/v1/graph/entity/set-kind", {"thread": EVE, "id": SHIP, "kind": "bird"}),
    ("/v1/graph/entity/merge", {"thread": EVE, "from": SHIP, "into": PERSON}),
    ("/v1/graph/entity/merge", {"thread": EVE, "from": PERSON, "into": SHIP}),
    ("/v1/graph/entity/delete", {"thread": EVE, "id": SHIP}),
    ("/v1/graph/relationship/delete", {"thread": EVE, "id": ids.relationship_id(SHIP, "passes", PERSON)}),
    ("/v1/graph/re-extract", {"thread": EVE, "document_id": "three"}),
    ("/v1/group/update", {**EVE, "group_id": "papers", "access": "available", "label": "eve's"}),
    ("/v1/document/update", {**EVE, "document_id": "three", "access": "available"}),
    ("/v1/document/update", {**EVE, "document_id": "one", "group_id": "papers"}),
    ("/v1/remove", {**EVE, "document_ids": ["three", "four"]}),
    ("/v1/batch/embeddings", {"inputs": ["Ada Quill boards the Heron."], "thread": EVE, "wait": True}),
    ("/v1/batch/embeddings", {"inputs": ["def tide(): ..."], "thread": EVE, "media_type": "code", "wait": True}),
    ("/v1/batch/embeddings", {"inputs": [EQUAL], "document_ids": ["three"], "thread": EVE, "wait": True}),
    ("/v1/search", {"query": "boards the Heron", "thread": {**EVE, "graph_mode": "off", "lexical": False}}),
    ("/v1/remove", {**EVE, "all": True}),
    ("/v1/search", {"query": "boards the Heron", "thread": {**EVE, "scope": "global"}}),
]
"""In this order, reads before writes."""


def answer(client: TestClient[Any], path: str, body: Json) -> Json:
    answered = client.post(path, json=body)
    assert answered.status_code in (200, 400, 404), answered.text
    thread = body.get("thread", {})
    found = json.loads(re.sub(r'"(thread_id|created_at|url)":"[^"]*"', r'"\1":""', answered.text))
    if path == "/v1/search" and (thread.get("graph_mode") != "off" or thread.get("lexical") is not False):
        for reference in found["references"]:
            del reference["distance"]
            reference["entities"].sort(key=lambda entity: entity["id"])
    return found


def test_what_others_have_filed_changes_no_answer(nodes: tuple[TestClient[Any], TestClient[Any]]) -> None:
    alone, crowded = nodes
    for path, body in ASKED:
        assert answer(crowded, path, body) == answer(alone, path, body), (path, body)
    assert alone.post("/v1/stats").json()["document_count"] == 0
    assert crowded.post("/v1/stats").json()["document_count"] == 4, "what of ann's is left"
