"""A real node behind gRPC, called by a client that knows the protocol from its tables only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grpc_caller import Caller, serving
from in_process import InProcess, WordsEmbedder, opened, until

from thread_service.wire.dispatch import Dispatch
from thread_service.wire.v1 import thread_pb2 as pb


@pytest.fixture
def embedder() -> WordsEmbedder:
    return WordsEmbedder()


@pytest.fixture
def filed(tmp_path: Path, embedder: WordsEmbedder) -> Iterator[InProcess]:
    with opened(tmp_path, embedder) as node:
        yield node


@pytest.fixture
def caller(filed: InProcess) -> Iterator[Caller]:
    with serving(filed.node) as caller:
        yield caller


def vector(*numbers: float, width: int = 64) -> list[float]:
    return [*numbers, *[0.0] * (width - len(numbers))]


def item(document_id: str, *texts: str, **more: Any) -> dict[str, Any]:
    return {"document_id": document_id, "texts": texts, **more}


def index(caller: Caller, owner: str, *items: dict[str, Any], group: str = "", **more: Any) -> Any:
    return caller.call("ThreadQuery/Index", {"owner_id": owner, "group_id": group, "items": items, **more})


def found(caller: Caller, owner: str, **query: Any) -> list[str]:
    answer = caller.call("ThreadQuery/Search", {"owner_id": owner, **query})
    assert [result.score for result in answer.results] == sorted(result.score for result in answer.results)
    return list(dict.fromkeys(result.document_id for result in answer.results))


def count(caller: Caller) -> int:
    return int(caller.call("ThreadUpdate/Stats").document_count)


def test_the_life_of_a_document(caller: Caller, filed: InProcess) -> None:
    given = np.random.default_rng(7).standard_normal(64).astype("<f4")
    harbour = item(
        "mary-unit-1",
        "Ada Quill keeps the Tidal Ledger.",
        "\0 The harbour office.",
        name="harbour.md",
        metadata=b"\xff{}",
        entities=[{"name": "Ada Quill", "kind": "person"}, {"name": "Tidal Ledger", "kind": "work"}],
        relationships=[{"subject": "Ada Quill", "predicate": "keeps", "object": "Tidal Ledger"}],
        partitions=[{}, {"embedding": given.tolist(), "url": "https://a/2"}],
    )
    answer = index(caller, " ANN", harbour, item("", "another text"), item("skipped"), group="g", group_label="Notes")
    assert (answer.success, answer.indexed_count, answer.full_cids[0]) == (True, 2, "mary-unit-1")
    content_id = answer.full_cids[1]
    assert len(content_id) == 64
    until(lambda: found(caller, "ann", query_text="who keeps the Tidal Ledger?")[:1] == ["mary-unit-1"])

    answer = caller.call("ThreadQuery/Search", {"owner_id": "Ann", "query_text": "who is Ada Quill?", "top_k": 1})
    (best,) = answer.results
    assert (best.thread_id, best.document_id, best.owner_id) == (filed.node.node_id, "mary-unit-1", "ann")
    assert best.partition_id == "mary-unit-1:0"
    assert "Ada Quill" in answer.trace.matched_entity_names
    assert len(answer.trace.matched_entity_ids) == len(answer.trace.matched_entity_names)
    assert found(caller, "ann", query_embedding=given.tolist())[0] == "mary-unit-1"
    assert found(caller, "ben", query_text="Tidal Ledger", scope="global") == []

    (document,) = caller.call(
        "ThreadLibrary/Documents",
        {"owner_id": "ann", "document_ids": ["mary-unit-1", "unknown"], "include_embeddings": True},
    ).documents
    assert tuple(document.texts) == harbour["texts"]
    assert (document.name, document.group_id, document.group_label) == ("harbour.md", "g", "Notes")
    assert [np.array(part.embedding, "<f4").tobytes() for part in document.partitions] == [b"", given.tobytes()]
    assert document.partitions[1].url == "https://a/2"
    assert document.SerializeToString().endswith(b"\x52\x03\xff{}")

    graph = caller.call("ThreadGraph/Query", {"owner_id": "ann", "entity": "ledger", "hops": 1, "limit": -1})
    assert [(edge.predicate, list(edge.document_ids)) for edge in graph.relationships] == [("keeps", ["mary-unit-1"])]
    assert {entity.name for entity in graph.entities} >= {"Ada Quill", "Tidal Ledger"}

    exported = caller.call("ThreadLibrary/ExportCorpus", {"owner_id": "ann", "document_id_prefix": "mary-"})
    assert [found.id for found in exported.documents] == ["mary-unit-1"]
    answer = caller.call("ThreadQuery/Remove", {"owner_id": "ann", "document_ids": ["mary-unit-1", "unknown"]})
    assert (answer.success, answer.removed_count) == (True, 1)
    answer = caller.call("ThreadQuery/Remove", {"owner_id": "ann"})
    assert (answer.success, answer.removed_count, count(caller)) == (True, 1, 0)
    assert list(caller.call("ThreadLibrary/Library", {"owner_id": "ann"}).groups) == []


def test_one_document_in_several_groups_and_pages_of_the_library(caller: Caller) -> None:
    for number in range(5):
        index(caller, "ann", item("d", "text"), group=f"mary-scope-{number}")
    caller.call("ThreadUpdate/UpdateGroup", {"owner_id": "ann", "group_id": "mary-scope-3", "access": "available"})
    ids, after_id, has_more = [], "", True
    while has_more:
        page = caller.call("ThreadLibrary/Library", {"owner_id": "ann", "limit": 2, "after_id": after_id})
        assert page.groups
        ids += [(group.id, [document.id for document in group.documents]) for group in page.groups]
        after_id, has_more = page.groups[-1].id, page.has_more
    assert ids == [(f"mary-scope-{number}", ["d"]) for number in range(5)]
    public = caller.call("ThreadLibrary/Library", {"include_available": True})
    assert [(group.id, group.access) for group in public.groups] == [("mary-scope-3", "available")]
    holding = caller.call("ThreadLibrary/Library", {"owner_id": "ann", "document_ids": ["d"]})
    assert len(holding.groups) == 5
    assert count(caller) == 1


@pytest.mark.parametrize(
    "bad",
    [
        {"partitions": [{"embedding": vector(float("nan"))}]},
        {"partitions": [{"embedding": vector(float("inf"))}]},
        {"partitions": [{"embedding": vector(1e30)}]},
        {"partitions": [{"embedding": vector(1, width=17)}]},
        {"partitions": [{}, {}]},
        {"document_id": "x" * 1_025},
    ],
)
def test_of_a_batch_with_a_bad_item_nothing_is_stored(caller: Caller, bad: dict[str, Any]) -> None:
    items = [item("fine", "fine"), {**item("bad", "text"), **bad}]
    error = caller.refusal("ThreadQuery/Index", {"owner_id": "ann", "items": items, "group_id": "g"})
    assert error.code().name == "INVALID_ARGUMENT"
    assert "items[1]" in error.details()
    assert count(caller) == 0
    assert list(caller.call("ThreadLibrary/Library", {"owner_id": "ann"}).groups) == []


def test_a_bad_query_vector_is_refused_and_one_of_another_width_finds_nothing(caller: Caller) -> None:
    index(caller, "ann", item("a", "heron", partitions=[{"embedding": vector(1)}]))
    until(lambda: found(caller, "ann", query_embedding=vector(1)) == ["a"])
    for bad in (vector(float("nan")), vector(float("-inf"))):
        error = caller.refusal("ThreadQuery/Search", {"owner_id": "ann", "query_embedding": bad})
        assert (error.code().name, "query_embedding" in error.details()) == ("INVALID_ARGUMENT", True)
    assert found(caller, "ann", query_embedding=vector(1, width=48)) == []
    assert found(caller, "ann", query_embedding=vector(1), top_k=2**31 - 1) == ["a"]


def test_while_the_model_loads_only_ready_vectors_are_taken(tmp_path: Path, embedder: WordsEmbedder) -> None:
    embedder.may_load.clear()
    ready = item("v", "heron", partitions=[{"embedding": vector(1)}])
    with opened(tmp_path, embedder, ready=False) as node, serving(node.node) as caller:
        for rpc, request in (
            ("ThreadQuery/Index", {"items": [item("t", "text"), ready]}),
            ("ThreadQuery/Search", {"query_text": "q"}),
            ("ThreadGraph/Query", {"query": "q"}),
        ):
            assert caller.refusal(rpc, {"owner_id": "ann", **request}).code().name == "UNAVAILABLE"
        assert count(caller) == 0
        assert index(caller, "ann", ready).indexed_count == 1
        until(lambda: found(caller, "ann", query_embedding=vector(1)) == ["v"])
        index_request = pb.ThreadIndexRequest(items=[pb.ThreadIndexItem(texts=["text"])])
        message = pb.ThreadSessionMessage(correlation_id="c", index_request=index_request)
        answer = caller.run(Dispatch(node.node).answer(message))
        assert answer == pb.ThreadSessionMessage(correlation_id="c", index_response={})


def test_a_full_queue_says_when_to_come_back(tmp_path: Path, embedder: WordsEmbedder) -> None:
    with opened(tmp_path, embedder, pending_documents_max=1) as node, serving(node.node) as caller:
        error = caller.refusal("ThreadQuery/Index", {"items": [item("a", "a"), item("b", "b")]})
        assert error.code().name == "RESOURCE_EXHAUSTED"
        assert int(dict(error.trailing_metadata() or ())["retry-after"]) > 0
        assert count(caller) == 0


def test_an_index_of_another_model_is_a_failed_precondition(tmp_path: Path) -> None:
    with opened(tmp_path) as node, serving(node.node) as caller:
        index(caller, "ann", item("a", "heron"))
        until(lambda: found(caller, "ann", query_text="heron") == ["a"])
    with opened(tmp_path, WordsEmbedder("other", width=32)) as node, serving(node.node) as caller:
        error = caller.refusal("ThreadQuery/Index", {"items": [item("b", "crab")]})
        assert error.code().name == "FAILED_PRECONDITION"
        assert caller.call("ThreadLibrary/Documents", {"owner_id": "ann", "document_ids": ["a"]}).documents
