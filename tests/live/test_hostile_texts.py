"""Whatever a caller sends comes back byte for byte, in every place that takes text, and breaks no search."""

from __future__ import annotations

import base64

import pytest
from hostile_texts import HOSTILE_TEXTS
from node_process import Client, Json

from thread_service.text.ids import entity_id, normalise_name, normalise_predicate

OWNER = "hostile texts"
IDS = [f"{text[:100]} #{number}" for number, text in enumerate(HOSTILE_TEXTS)]
NAMES = [text[:60] for text in HOSTILE_TEXTS]
FILED = [number for number, text in enumerate(HOSTILE_TEXTS) if text]
NAMED = [number for number in FILED if NAMES[number].strip()]
AS_IDS = [text for text in HOSTILE_TEXTS if text.strip() and len(text.strip().lower().encode()) <= 1_024]


def named(number: int) -> list[Json]:
    return [{"name": NAMES[number], "kind": f"kind {NAMES[number]}"}, {"name": f"anchor {number}"}]


@pytest.fixture(scope="module")
def filed(node) -> Json:
    """All of them filed as texts, names, metadata, entities and predicates; an id is one with its number behind it."""
    body = {
        "thread": {"owner_id": OWNER},
        "wait": True,
        "inputs": list(HOSTILE_TEXTS),
        "document_ids": IDS,
        "names": NAMES,
        "metadata": [base64.b64encode(text.encode()).decode() for text in HOSTILE_TEXTS],
        "entities": [named(number) for number in range(len(HOSTILE_TEXTS))],
        "relationships": [
            [{"subject": name, "predicate": f"is {name}", "object": f"anchor {number}"}] if name.strip() else []
            for number, name in enumerate(NAMES)
        ],
    }
    return node.client().post("/v1/batch/embeddings", body)


def test_texts_names_ids_and_metadata_come_back_byte_for_byte(client: Client, filed: Json) -> None:
    outcomes = [document["outcome"] for document in filed["documents"]]
    # A text without anything to embed is kept and cannot be searched.
    assert outcomes == ["new" if text.strip() else "failed" for text in HOSTILE_TEXTS]
    documents = client.post("/v1/documents", {"owner_id": OWNER, "document_ids": IDS})["documents"]
    assert [document["id"] for document in documents] == [IDS[number] for number in FILED]
    assert [document["texts"] for document in documents] == [[HOSTILE_TEXTS[number]] for number in FILED]
    assert [document.get("name", "") for document in documents] == [NAMES[number] for number in FILED]
    assert [base64.b64decode(d["metadata"]).decode() for d in documents] == [HOSTILE_TEXTS[number] for number in FILED]


def test_entities_and_predicates_come_back_and_are_found_by_their_names(client: Client, filed: Json) -> None:
    for number in NAMED:
        thread = {"owner_id": OWNER}
        answer = client.post("/v1/graph", {"thread": thread, "entity": NAMES[number], "limit": 1_000, "hops": 1})
        found = {entity["id"]: entity for entity in answer["entities"]}
        entity = found[entity_id(f"kind {NAMES[number]}", NAMES[number])]
        assert normalise_name(entity["name"]) == normalise_name(NAMES[number])
        assert IDS[number] in entity["document_ids"]
        predicates = {edge["predicate"] for edge in answer["relationships"] if edge["subject_id"] == entity["id"]}
        assert normalise_predicate(f"is {NAMES[number]}") in {normalise_predicate(word) for word in predicates}


def test_every_text_can_be_searched_with_and_asked_of_the_graph(client: Client, filed: Json) -> None:
    for text in HOSTILE_TEXTS:
        thread = {"owner_id": OWNER, "top_k": 3, "entities": [text[:4_096]]}
        status, answer = client.send("/v1/search", {"query": text, "thread": thread})
        if text.strip():
            assert status == 200, (text, answer)
            assert len(answer["texts"]) == 3
            status, answer = client.send("/v1/graph", {"query": text, "thread": {"owner_id": OWNER}, "hops": 0})
            assert status == 200, (text, answer)
        else:
            assert (status, answer["errors"][0]["field"]) == (400, "query")


@pytest.mark.parametrize("text", [text for text in HOSTILE_TEXTS if len(text) > 40 and text.isascii() and "a" in text])
def test_a_text_of_some_length_is_the_nearest_to_itself(client: Client, filed: Json, text: str) -> None:
    answer = client.post("/v1/search", {"query": text, "thread": {"owner_id": OWNER, "top_k": 1}})
    assert answer["texts"] == [text]


def test_a_name_may_be_as_long_as_the_limit(client: Client) -> None:
    name = "🏴‍☠️" * 1_024
    body = {"inputs": ["a text"], "document_ids": ["long"], "names": [name], "thread": {"owner_id": "long names"}}
    client.post("/v1/batch/embeddings", body)
    (document,) = client.post("/v1/documents", {"owner_id": "long names", "document_ids": ["long"]})["documents"]
    assert document["name"] == name


def test_any_string_is_an_owner_of_its_own_a_group_and_a_document_id(client: Client) -> None:
    owners: dict[str, str] = {}
    for text in AS_IDS:
        owner = text.strip().lower()
        secret = f"secret of owner {len(owners)}"
        if owner in owners:
            continue
        owners[owner] = secret
        thread = {"owner_id": text, "group": {"id": text, "label": text, "owner_id": text}}
        body = {"inputs": [secret], "document_ids": [text], "thread": thread, "entities": [[]], "wait": True}
        filed = client.post("/v1/batch/embeddings", body)
        assert filed["documents"] == [{"id": text, "outcome": "new"}]
        assert [(group["id"], group["owner_id"]) for group in filed["user"]["groups"]] == [(text, owner)]
    assert len(owners) > 150
    for owner, secret in owners.items():
        ids = client.post("/v1/library", {"owner_id": owner})["groups"][0]["documents"]
        assert len(ids) == 1
        (document,) = client.post("/v1/documents", {"owner_id": owner, "document_ids": [ids[0]["id"]]})["documents"]
        assert (document["texts"], document["owner_id"]) == ([secret], owner)
        assert document["group_id"] == ids[0]["id"]
        thread = {"owner_id": owner, "groups": [document["group_id"]]}
        assert client.post("/v1/search", {"query": "secret", "thread": thread})["texts"] == [secret]
    for owner in owners:
        assert client.post("/v1/remove", {"owner_id": owner, "all": True})["removed_count"] == 1


@pytest.mark.parametrize("document_id", ["../../x", "\0", "\0/\0", "/etc/passwd", "🏳️‍🌈" * 73, "x" * 1_024])
def test_ids_are_never_file_names(client: Client, node, document_id: str) -> None:
    before = sorted(node.log.parent.rglob("*"))
    body = {"inputs": ["an ordinary text"], "document_ids": [document_id], "thread": {"owner_id": "ids"}}
    client.post("/v1/batch/embeddings", body)
    (document,) = client.post("/v1/documents", {"owner_id": "ids", "document_ids": [document_id]})["documents"]
    assert (document["id"], document["texts"]) == (document_id, ["an ordinary text"])
    assert client.post("/v1/remove", {"owner_id": "ids", "document_ids": [document_id]})["removed_count"] == 1
    assert sorted(node.log.parent.rglob("*")) == before
