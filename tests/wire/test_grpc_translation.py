"""What each message asks the node, and what each answer of the node becomes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fake_node import NODE_ID, FakeNode
from grpc_caller import Caller, protocol, serving

from thread_service import errors
from thread_service.node import operations

LONG = "x" * 1_025


@pytest.fixture
def caller(node: FakeNode) -> Iterator[Caller]:
    with serving(node) as caller:
        yield caller


def vector(*numbers: float, width: int = 16) -> list[float]:
    return [*numbers, *[0.0] * (width - len(numbers))]


# ---------------------------------------------------------------------------------------------------- filing


def test_index_files_every_item_with_all_it_says(caller: Caller, node: FakeNode) -> None:
    item = {
        "document_id": "../ä\0",
        "texts": ["one", ""],
        "tags": ["hidden"],
        "name": "A",
        "metadata": b"\0\xff",
        "media_type": "code",
        "entities": [{"name": "Ada", "kind": "person"}, {"name": " ", "kind": "nobody"}, {"name": "Ben"}],
        "relationships": [{"subject": "Ada", "predicate": "knows", "object": "Ben"}],
        "partitions": [{"embedding": vector(1, -0.0), "url": "https://a/1"}, {"embedding": vector(2)}],
    }
    answer = caller.call(
        "ThreadQuery/Index",
        {"owner_id": " Ada ", "group_id": "g", "group_label": "G", "items": [item, {"texts": ["two"]}]},
    )
    assert (answer.success, answer.indexed_count, list(answer.full_cids)) == (True, 2, ["../ä\0", "content-1"])
    (asked,) = node.asked
    first, second = asked.documents
    assert (asked.owner_id, asked.group, asked.gate, asked.wait) == ("ada", operations.GroupIn("g", "G"), False, False)
    assert (first.document_id, first.texts, first.name, first.metadata) == ("../ä\0", ("one", ""), "A", b"\0\xff")
    assert first.media_type == "code"
    assert first.entities == (operations.EntityIn("Ada", "person"), operations.EntityIn("Ben", ""))
    assert first.relationships == (operations.RelationshipIn("Ada", "knows", "Ben"),)
    assert [part.url for part in first.partitions] == ["https://a/1", None]
    assert first.partitions[0].embedding is not None
    assert first.partitions[0].embedding.tobytes() == np.array(vector(1, -0.0), "<f4").tobytes()
    assert second == operations.DocumentIn(("two",))


def test_index_takes_the_nodes_own_owner_no_group_and_tags_as_concepts(caller: Caller, node: FakeNode) -> None:
    caller.call("ThreadQuery/Index", {"owner_id": " ", "items": [{"texts": ["t"], "tags": ["Tide", " "]}]})
    (asked,) = node.asked
    assert (asked.owner_id, asked.group) == (f"{NODE_ID.lower()}-thread", None)
    assert asked.documents[0].entities == (operations.EntityIn("Tide", "concept"),)
    assert asked.documents[0].media_type == "text"


def test_items_without_texts_are_skipped_and_nothing_left_is_a_success(caller: Caller, node: FakeNode) -> None:
    answer = caller.call("ThreadQuery/Index", {"items": [{"document_id": "a"}, {"document_id": "b", "texts": ["t"]}]})
    assert (answer.success, answer.indexed_count, list(answer.full_cids)) == (True, 1, ["b"])
    for items in ([], [{"document_id": LONG}]):
        answer = caller.call("ThreadQuery/Index", {"items": items})
        assert (answer.success, answer.indexed_count, list(answer.full_cids)) == (True, 0, [])
    assert len(node.asked) == 1


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"partitions": [{}]}, "items[1].partitions: holds 1 entries for 2 texts"),
        ({"partitions": [{"embedding": vector(1, width=24)}, {}]}, "items[1].partitions[0].embedding: has 24 dim"),
        ({"partitions": [{"embedding": vector(1)}, {"embedding": vector(1, width=32)}]}, "has 32 dimensions beside 16"),
        ({"partitions": [{}, {"embedding": vector(float("nan"))}]}, "items[1].partitions[1].embedding: holds NaN"),
        ({"partitions": [{}, {"embedding": vector(float("-inf"))}]}, "infinity"),
        ({"partitions": [{"embedding": vector(1, width=16_400)}, {}]}, "16,400 entries; at most 16,384"),
        ({"document_id": LONG}, "items[1].document_id: is longer than 1,024 bytes"),
        ({"document_id": "é" * 513}, "1,024 bytes"),
        ({"name": "x" * 4_097}, "items[1].name"),
        ({"tags": ["x"] * 1_001}, "items[1].tags: holds 1,001 entries; at most 1,000"),
        ({"entities": [{"name": "x" * 4_097}]}, "items[1].entities[0].name"),
        ({"relationships": [{"predicate": "x" * 4_097}]}, "items[1].relationships[0].predicate"),
    ],
)
def test_an_item_that_cannot_be_filed_refuses_all_and_names_the_field(
    caller: Caller, node: FakeNode, item: dict[str, Any], said: str
) -> None:
    items = [{}, {"texts": ["one", "two"], **item}, {"texts": ["fine"]}]
    error = caller.refusal("ThreadQuery/Index", {"items": items})
    assert error.code().name == "INVALID_ARGUMENT"
    assert said in error.details()
    assert node.asked == []


def test_remove_answers_what_the_node_removed(caller: Caller, node: FakeNode) -> None:
    answer = caller.call("ThreadQuery/Remove", {"owner_id": " ADA", "document_ids": ["a", ""]})
    assert (answer.success, answer.removed_count) == (True, 2)
    caller.call("ThreadQuery/Remove", {"owner_id": "ada"})
    assert node.asked == [operations.RemoveRequest("ada", ("a", "")), operations.RemoveRequest("ada")]


# ---------------------------------------------------------------------------------------------------- searching


def test_search_asks_with_every_field(caller: Caller, node: FakeNode) -> None:
    request = {
        "query_embedding": [0.5, -0.25],
        "query_entity_embedding": [1.0],
        "owner_id": " Ada",
        "scope": "global",
        "top_k": 7,
        "group_ids": ["g", "", "h"],
        "aggregate": True,
        "query_text": "who?",
        "entities": ["Tide"],
        "media_type": "image",
    }
    caller.call("ThreadQuery/Search", request)
    (asked,) = node.asked
    assert asked.query_embedding.dtype == np.float32
    assert asked.query_embedding.tolist() == [0.5, -0.25]
    assert (asked.owner_id, asked.scope, asked.top_k, asked.group_ids) == ("ada", "global", 7, ("g", "h"))
    assert (asked.aggregate, asked.query, asked.entities, asked.media_type) == (True, "who?", ("Tide",), "image")
    assert (asked.expand, asked.graph_mode, asked.lexical) == (True, None, None)
    assert asked.entities_are_predicates


@pytest.mark.parametrize(("word", "meant"), [("", None), ("text", "text"), ("code", "code"), ("CODE", "text")])
def test_an_unknown_media_type_is_text_and_what_was_applied_is_echoed(
    caller: Caller, node: FakeNode, word: str, meant: str | None
) -> None:
    answer = caller.call("ThreadQuery/Search", {"query_text": "q", "media_type": word})
    assert node.asked[0].media_type == meant
    assert answer.HasField("trace") == (meant is not None)
    assert answer.trace.media_type == (meant or "")


@pytest.mark.parametrize("scope", ["", "personal", "Global", "ability"])
def test_only_global_is_global_and_a_negative_top_k_is_none(caller: Caller, node: FakeNode, scope: str) -> None:
    caller.call("ThreadQuery/Search", {"query_text": "q", "scope": scope, "top_k": -(2**31)})
    assert (node.asked[0].scope, node.asked[0].top_k) == ("personal", 0)


@pytest.mark.parametrize("request_", [{}, {"query_text": " \n"}, {"query_entity_embedding": [1.0], "top_k": 3}])
def test_nothing_to_search_for_finds_nothing(caller: Caller, node: FakeNode, request_: dict[str, Any]) -> None:
    assert caller.call("ThreadQuery/Search", request_) == protocol.ThreadSearchResponse()
    assert node.asked == []


def test_results_ascend_by_score_beside_a_trace_of_parallel_names(caller: Caller, node: FakeNode) -> None:
    def passage(name: str, distance: float) -> operations.Passage:
        return operations.Passage(f"{name}:0", name, "ada", None, f"text {name}", "text", distance, (), None)

    entities = (operations.EntityRef("11", "Ada Quill", "person"), operations.EntityRef("22", "Tide", "concept"))
    edge = operations.RelationshipRef("33", "Ada Quill", "keeps", "Tide", 2)
    node.found = operations.SearchAnswer(
        (passage("b", 2.5), passage("a", 0.1), passage("c", 3.0)), operations.Trace(entities, (edge,), 4)
    )
    answer = caller.call("ThreadQuery/Search", {"query_text": "q"})
    assert [result.document_id for result in answer.results] == ["a", "b", "c"]
    first = answer.results[0]
    assert (first.thread_id, first.partition_id, first.owner_id, first.text) == (NODE_ID, "a:0", "ada", "text a")
    assert (first.score, first.shard_index) == (float(np.float32(0.1)), 0)
    trace = answer.trace
    assert list(zip(trace.matched_entity_ids, trace.matched_entity_names, strict=True)) == [
        ("11", "Ada Quill"),
        ("22", "Tide"),
    ]
    assert (list(trace.expansion_edge_ids), trace.expanded_document_count, trace.media_type) == (["33"], 4, "")


def test_the_best_results_that_fit_are_sent(caller: Caller, node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(count: int) -> list[str]:
        passages = (
            operations.Passage(f"{k}:0", str(k), "o", None, "x" * 400, "text", k, (), None) for k in range(count)
        )
        node.found = operations.SearchAnswer(tuple(passages), operations.Trace())
        return [result.document_id for result in caller.call("ThreadQuery/Search", {"query_text": "q"}).results]

    monkeypatch.setattr(operations, "ANSWER_BYTES_MAX", 2_000)
    assert found(4) == ["0", "1", "2", "3"]
    assert found(6) == ["0", "1", "2"]
    monkeypatch.setattr(operations, "ANSWER_BYTES_MAX", 100)
    assert found(6) == ["0"]


# ---------------------------------------------------------------------------------------------------- graph


@pytest.mark.parametrize(
    ("said", "hops", "limit"),
    [
        ({}, 0, 20),
        ({"hops": -5, "limit": -5}, 0, 20),
        ({"hops": 2**31 - 1, "limit": 2**31 - 1}, 3, 1_000),
        ({"hops": 2, "limit": 7}, 2, 7),
    ],
)
def test_hops_and_limit_are_clamped(caller: Caller, node: FakeNode, said: Any, hops: int, limit: int) -> None:
    caller.call("ThreadGraph/Query", {"owner_id": "A", "entity": "Tide", "query": "q", **said})
    assert node.asked == [
        operations.GraphRequest("a", "Tide", "q", kinds=None, hops=hops, limit=limit, include_documents=False)
    ]


def test_graph_answers_entities_relationships_documents_and_counts(caller: Caller, node: FakeNode) -> None:
    node.graph_found = operations.GraphAnswer(
        (operations.GraphEntity("1", "Ada", "person", 0.5, 3, ("a", "b")),),
        (operations.GraphRelationship("9", "1", "keeps", "2", 4, ("a",)),),
        (operations.GraphDocument("a", None, "ada"), operations.GraphDocument("b", "B", "ben")),
        5,
        6,
    )
    answer = caller.call("ThreadGraph/Query", {"kinds": ["person"], "include_documents": True})
    assert node.asked[0].kinds == ("person",)
    assert node.asked[0].include_documents
    assert answer == protocol.ThreadGraphQueryResponse(
        entities=[
            {"id": "1", "name": "Ada", "kind": "person", "score": 0.5, "mention_count": 3, "document_ids": ["a", "b"]}
        ],
        relationships=[
            {"id": "9", "subject_id": "1", "predicate": "keeps", "object_id": "2", "weight": 4, "document_ids": ["a"]}
        ],
        documents=[{"id": "a", "owner_id": "ada"}, {"id": "b", "name": "B", "owner_id": "ben"}],
        stats={"entity_count": 5, "relationship_count": 6},
    )


# ---------------------------------------------------------------------------------------------------- library


def test_library_lists_groups_with_their_documents(caller: Caller, node: FakeNode) -> None:
    filed = operations.LibraryDocument("d", "file:///d", "ben", None, 1_700_000_000)
    group = operations.LibraryGroup("g", "G", "ben", "available", None, ("t",), (filed,))
    node.groups = operations.LibraryAnswer((group,), has_more=True)
    request = {"owner_id": "A", "include_available": True, "limit": -3, "after_id": "f", "document_ids": ["d", ""]}
    answer = caller.call("ThreadLibrary/Library", {**request, "thread_id": "whoever"})
    assert node.asked == [operations.LibraryRequest("a", True, 0, "f", ("d",))]
    assert answer == protocol.ThreadLibraryResponse(
        groups=[
            {
                "id": "g",
                "label": "G",
                "owner_id": "ben",
                "access": "available",
                "tags": ["t"],
                "documents": [{"id": "d", "url": "file:///d", "owner_id": "ben", "created_at": 1_700_000_000}],
            }
        ],
        has_more=True,
    )


def content(document_id: str) -> operations.DocumentContent:
    embedding = np.array([0.5, -0.0], np.float32)
    partition = operations.PartitionContent(f"{document_id}:0", "u", embedding)
    return operations.DocumentContent(
        document_id, "N", "ada", "g", "G", 1_700_000_000, ("one",), "code", b"\xff", (partition,)
    )


def test_documents_and_export_carry_contents_and_metadata_as_field_10(caller: Caller, node: FakeNode) -> None:
    node.contents = operations.DocumentsAnswer((content("a"),))
    node.exported = operations.ExportAnswer((content("a"),), has_more=True)
    read = caller.call("ThreadLibrary/Documents", {"owner_id": "A", "document_ids": ["a"], "include_embeddings": True})
    exported = caller.call(
        "ThreadLibrary/ExportCorpus",
        {"owner_id": "A", "group_ids": ["g"], "document_id_prefix": "p", "after_id": "q", "limit": 2},
    )
    assert node.asked == [
        operations.DocumentsRequest("a", ("a",), include_embeddings=True),
        operations.ExportRequest("a", ("g",), "p", "q", 2),
    ]
    expected = protocol.ThreadDocumentContent(
        id="a",
        name="N",
        owner_id="ada",
        group_id="g",
        group_label="G",
        created_at=1_700_000_000,
        texts=["one"],
        media_type="code",
        partitions=[{"id": "a:0", "url": "u", "embedding": [0.5, -0.0]}],
    )
    (document,) = read.documents
    # The tables do not know field 10, so that it travels as an unknown one: its tag, its length, its byte.
    assert document.SerializeToString() == expected.SerializeToString() + b"\x52\x01\xff"
    assert exported.documents[0] == document
    assert exported.has_more


def test_documents_that_do_not_fit_are_refused_not_left_out(caller: Caller, node: FakeNode) -> None:
    node.contents = operations.DocumentsAnswer((content("a"),), is_cut=True)
    error = caller.refusal("ThreadLibrary/Documents", {"document_ids": ["a", "b"]})
    assert error.code().name == "RESOURCE_EXHAUSTED"
    assert error.details().endswith("ask for fewer at a time")


# ---------------------------------------------------------------------------------------------------- updating


def test_updates_change_what_they_say_and_echo_the_id(caller: Caller, node: FakeNode) -> None:
    group = {"owner_id": "A", "group_id": "g", "group_description": "D", "tags": ["t"]}
    document = {"owner_id": "A", "document_id": "d", "access": "restricted", "group_id": "h"}
    answer = caller.call("ThreadUpdate/UpdateGroup", {**group, "access": "open", "label": "L"})
    assert (answer.success, answer.group_id) == (True, "g")
    caller.call("ThreadUpdate/UpdateGroup", {**group, "access": "available", "update_metadata": True})
    caller.call("ThreadUpdate/UpdateGroup", {"owner_id": "A", "group_id": "g", "update_metadata": True})
    node.applies = False
    answer = caller.call("ThreadUpdate/UpdateDocument", document)
    assert (answer.success, answer.document_id) == (False, "d")
    assert node.asked == [
        operations.UpdateGroupRequest("a", "g", None, "L"),
        operations.UpdateGroupRequest("a", "g", "available", "", operations.GroupMetadata("D", ("t",))),
        operations.UpdateGroupRequest("a", "g", None, "", operations.GroupMetadata(None, ())),
        operations.UpdateDocumentRequest("a", "d", "restricted", "h"),
    ]


def test_stats_are_counts(caller: Caller, node: FakeNode) -> None:
    node.counted = operations.Stats(documents=2**40, groups=2, owners=3, available_documents=4)
    answer = caller.call("ThreadUpdate/Stats")
    assert (answer.document_count, answer.group_count, answer.owner_count) == (2**40, 2, 3)
    assert answer.available_document_count == 4


# ---------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.InvalidRequest.field("a", "b"), "INVALID_ARGUMENT"),
        (errors.NotFound("gone"), "NOT_FOUND"),
        (errors.IndexMismatch("other"), "FAILED_PRECONDITION"),
        (errors.TooLarge("big"), "RESOURCE_EXHAUSTED"),
        (errors.Busy("full", retry_after_seconds=5), "RESOURCE_EXHAUSTED"),
        (errors.NotReady("loading 42 %", retry_after_seconds=2), "UNAVAILABLE"),
        (errors.StorageFull("full", retry_after_seconds=30), "RESOURCE_EXHAUSTED"),
        (errors.NotReady("é\udfff" * 9_999), "UNAVAILABLE"),
    ],
)
def test_errors_become_their_status_with_the_sentence_and_when_to_retry(
    caller: Caller, node: FakeNode, error: errors.ThreadError, status: str
) -> None:
    node.fails_with = error
    refusal = caller.refusal("ThreadQuery/Search", {"query_text": "q"})
    assert refusal.code().name == status
    sent = str(error) if len(str(error)) <= 400 else str(error)[:399] + "…"
    assert refusal.details() == sent.encode("utf-8", "backslashreplace").decode()
    retry_after = dict(refusal.trailing_metadata() or ()).get("retry-after")
    assert retry_after == (None if error.retry_after_seconds is None else str(error.retry_after_seconds))


def test_a_failed_store_names_no_file_to_a_caller(
    caller: Caller, node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    node.fails_with = errors.StoreFailed("/var/lib/thread.db: broken")
    error = caller.refusal("ThreadUpdate/Stats")
    assert (error.code().name, "thread.db" in error.details()) == ("INTERNAL", False)
    assert "/var/lib/thread.db: broken" in caplog.text


def test_a_failure_nobody_foresaw_says_nothing_of_the_inside(
    caller: Caller, node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    node.fails_with = RuntimeError("the inside")
    error = caller.refusal("ThreadUpdate/Stats")
    assert (error.code().name, error.details()) == ("INTERNAL", "the node failed to answer; its log says why")
    assert "the inside" in caplog.text
    node.fails_with = None
    assert caller.call("ThreadUpdate/Stats").document_count == 0


@pytest.mark.parametrize("data", [b"\xff\xff\xff", b"\x1a\x02\xff\xfe", b"\x1a\x03\xed\xa0\x80"])
def test_bytes_that_are_no_message_are_refused(caller: Caller, node: FakeNode, data: bytes) -> None:
    error = caller.refusal("ThreadQuery/Search", data)
    assert error.code().name == "INVALID_ARGUMENT"
    assert "thread.v1.ThreadSearchRequest" in error.details()
    assert node.asked == []
