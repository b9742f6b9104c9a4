"""Whether a node holds exactly what a ledger says, and finds it: read back, searched, and seen through the graph."""

from __future__ import annotations

import base64
import random
import re
from collections import defaultdict

from ledger import Document, Edge, Ledger
from node_process import Client
from operations import COMMON_WORD, ENTITIES, WIDTH

SAMPLE = 3


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
    assert search(client, ledger, query=COMMON_WORD, top_k=1_000, lexical=False) == embedded
    assert search(client, ledger, query_embedding=[1.0] * WIDTH, top_k=1_000) == {text for text, _ in brought}
    for text, vector in rng.sample(sorted(brought), min(SAMPLE, len(brought))):
        assert search(client, ledger, query_embedding=list(vector), top_k=1) == {text}
    for text in rng.sample(sorted(embedded), min(SAMPLE, len(embedded))):
        assert text in search(client, ledger, query=text.split()[1], top_k=3, lexical=True)
    gone = sorted(ledger.texts - embedded - {text for text, _ in brought})
    for text in rng.sample(gone, min(SAMPLE, len(gone))):
        assert text not in search(client, ledger, query=text.split()[1], top_k=1_000, lexical=True)


def search(
    client: Client,
    ledger: Ledger,
    *,
    top_k: int,
    query: str = "",
    query_embedding: list[float] | None = None,
    lexical: bool = False,
) -> set[str]:
    """The texts found, each of which must be one of the document it is said to be of."""
    thread = {"owner_id": ledger.owner, "top_k": top_k, "graph_mode": "off", "lexical": lexical}
    body = {"thread": thread, "query": query or None, "query_embedding": query_embedding}
    answer = client.post("/v1/search", body)
    for text, reference in zip(answer["texts"], answer["references"], strict=True):
        assert text in ledger.documents[reference["document_id"]].texts, (ledger.owner, reference)
        assert reference["owner_id"] == ledger.owner
    return set(answer["texts"])


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


def wait_indexed(client: Client) -> None:
    """Until everything filed so far is indexed: documents are taken in order, so until one filed now is."""
    body = {"inputs": ["the last one filed"], "document_ids": ["last"], "thread": {"owner_id": "checker"}, "wait": True}
    client.post("/v1/batch/embeddings", body)
    metrics = client.text("/metrics")
    for name, value in re.findall(r"^(thread_\w*pending\w*) (\S+)$", metrics, re.MULTILINE):
        assert float(value) == 0, name
