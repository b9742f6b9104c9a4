"""Whether a node holds exactly what a ledger says, and finds it: read back, searched, and seen through the graph."""

from __future__ import annotations

import base64
import random
import time
from collections import defaultdict
from pathlib import Path

from ledger import Document, Edge, Ledger
from node_process import Client
from operations import COMMON_WORD, ENTITIES, WIDTH

from thread_service.store import verification
from thread_service.store.directory import DataDirectory

SAMPLE = 3
INDEXED_SECONDS = 60.0


def read_back(client: Client, ledger: Ledger) -> dict[str, Document]:
    """Everything the node holds under any id the owner ever used."""
    body = {"owner_id": ledger.owner, "document_ids": sorted(ledger.ids), "include_embeddings": True}
    return {
        document["id"]: Document(
            tuple(document["texts"]),
            document.get("name"),
            base64.b64decode(document["metadata"]),
            tuple(tuple(partition["embedding"]) for partition in document["partitions"]),
            document["group_id"],
        )
        for document in client.post("/v1/documents", body)["documents"]
    }


def check_found(client: Client, ledger: Ledger, rng: random.Random) -> None:
    """Every text is found and nothing else is, by vectors of the model and of the caller; some by their words."""
    embedded = {t for d in ledger.documents.values() for t, v in zip(d.texts, d.vectors, strict=True) if not v}
    brought = {(t, v) for d in ledger.documents.values() for t, v in zip(d.texts, d.vectors, strict=True) if v}
    assert search(client, ledger, query=COMMON_WORD).keys() == embedded
    assert search(client, ledger, query_embedding=[1.0] * WIDTH).keys() == {text for text, _ in brought}
    for text, vector in rng.sample(sorted(brought), min(SAMPLE, len(brought))):
        assert search(client, ledger, query_embedding=list(vector), top_k=1).keys() == {text}
    for text in rng.sample(sorted(embedded), min(SAMPLE, len(embedded))):
        assert raised_by_words(client, ledger, text.split()[1]) == {text}
    gone = sorted(ledger.texts - embedded - {text for text, _ in brought})
    for text in rng.sample(gone, min(SAMPLE, len(gone))):
        assert raised_by_words(client, ledger, text.split()[1]) == set()


def search(
    client: Client, ledger: Ledger, *, top_k: int = 1_000, lexical: bool = False, **query: str | list[float]
) -> dict[str, float]:
    """The texts found and their distances; each must be a text of the document it is said to be of."""
    thread = {"owner_id": ledger.owner, "top_k": top_k, "graph_mode": "off", "lexical": lexical}
    answer = client.post("/v1/search", {"thread": thread, **query})
    for text, reference in zip(answer["texts"], answer["references"], strict=True):
        assert text in ledger.documents[reference["document_id"]].texts, (ledger.owner, reference)
        assert reference["owner_id"] == ledger.owner
    return {text: found["distance"] for text, found in zip(answer["texts"], answer["references"], strict=True)}


def raised_by_words(client: Client, ledger: Ledger, word: str) -> set[str]:
    """The texts that are nearer when words count: those that hold the word."""
    plain, with_words = search(client, ledger, query=word), search(client, ledger, query=word, lexical=True)
    return {text for text, distance in with_words.items() if distance < plain[text] - 1e-6}


def check_graph(client: Client, ledger: Ledger) -> None:
    """The graph says what the documents that are there said, and the groups list them."""
    answer = client.post("/v1/graph", {"thread": {"owner_id": ledger.owner}, "limit": 1_000})
    names = {entity["id"]: entity["name"] for entity in answer["entities"]}
    listed = {e["name"]: set(e["document_ids"]) for e in answer["entities"] if e["name"] in ENTITIES}
    said: defaultdict[str, set[str]] = defaultdict(set)
    edges: defaultdict[Edge, set[str]] = defaultdict(set)
    for document_id, document in ledger.documents.items():
        for name in document.entities or ():
            said[name].add(document_id)
        for edge in document.edges:
            edges[edge].add(document_id)
    assert listed == said
    found = {
        (names[edge["subject_id"]], edge["predicate"], names[edge["object_id"]]): edge["document_ids"]
        for edge in answer["relationships"]
    }
    assert {edge: set(ids) for edge, ids in found.items()} == edges
    assert all(edge["weight"] == len(edge["document_ids"]) for edge in answer["relationships"])
    groups: defaultdict[str, set[str]] = defaultdict(set)
    for document_id, document in ledger.documents.items():
        for group in document.groups:
            groups[group].add(document_id)
    library = client.post("/v1/library", {"owner_id": ledger.owner})
    shown = {group["id"]: {document["id"] for document in group["documents"]} for group in library["groups"]}
    assert {group: ids for group, ids in shown.items() if ids} == groups


def check_sound(data: Path) -> None:
    """Nothing is damaged on the disk of a node that does not run, whatever has ended it."""
    [node] = (data / "nodes").iterdir()
    directory = DataDirectory.open_existing(data, node.name)
    try:
        with verification.at_rest(directory) as place:
            report = verification.verify(place, full=True, progress=lambda *_: None)
    finally:
        directory.close()
    # A kill may have come between the making of a file and the commit of its first rows.
    assert [each["sentence"] for each in report["damage"] if "unknown to the database" not in each["what"]] == []


def wait_indexed(client: Client) -> None:
    """Until everything filed so far is indexed: documents are taken in order, so until one filed now is."""
    body = {"inputs": ["the last one filed"], "document_ids": ["last"], "thread": {"owner_id": "checker"}, "wait": True}
    deadline = time.monotonic() + INDEXED_SECONDS
    while True:
        status, answer = client.send("/v1/batch/embeddings", body)
        if status == 200:
            return
        assert status == 429, answer
        assert time.monotonic() < deadline, answer
        time.sleep(0.05)
