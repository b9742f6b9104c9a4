"""Requests that cannot be taken: a 400 that names the field, as problem+json, and a node that is none the worse."""

from __future__ import annotations

import json
from typing import Any

import pytest
from node_process import Client, Json

BATCH, SEARCH, GRAPH = "/v1/batch/embeddings", "/v1/search", "/v1/graph"
LIBRARY, DOCUMENTS, REMOVE, CLEAR = "/v1/library", "/v1/documents", "/v1/remove", "/v1/clear"

GOOD: dict[str, Json] = {
    BATCH: {"inputs": ["a text"], "thread": {"owner_id": "bad requests"}},
    SEARCH: {"query": "a text", "thread": {"owner_id": "bad requests"}},
    GRAPH: {"entity": "a name", "thread": {"owner_id": "bad requests"}},
    LIBRARY: {"owner_id": "bad requests"},
    DOCUMENTS: {"owner_id": "bad requests", "document_ids": ["x"]},
    REMOVE: {"owner_id": "bad requests", "document_ids": ["x"]},
}

# The fields of every request, each with a value of another type.
TYPES: list[tuple[str, str, Any]] = [
    (BATCH, "inputs", "a text"), (BATCH, "inputs[0]", 1), (BATCH, "inputs[0][1]", None), (BATCH, "thread", "me"),
    (BATCH, "thread.owner_id", 7), (BATCH, "thread.group", 1), (BATCH, "thread.group.id", []),
    (BATCH, "thread.group.label", 1), (BATCH, "thread.group.access", 1), (BATCH, "thread.group.metadata", []),
    (BATCH, "thread.group.metadata.tags", "x"), (BATCH, "thread.group.metadata.tags[0]", 1),
    (BATCH, "thread.group.metadata.description", 1), (BATCH, "sanitize", "yes"), (BATCH, "wait", 1),
    (BATCH, "media_type", 5), (BATCH, "document_ids", "x"), (BATCH, "document_ids[0]", 1), (BATCH, "names", {}),
    (BATCH, "names[0]", 1.5), (BATCH, "metadata", "x"), (BATCH, "metadata[0]", 1),
    (BATCH, "metadata[0]", "not base64!"), (BATCH, "tags", "x"), (BATCH, "tags[0]", "x"), (BATCH, "tags[0][0]", 1),
    (BATCH, "entities", {}), (BATCH, "entities[0]", {}), (BATCH, "entities[0][0]", "name"),
    (BATCH, "entities[0][0].name", None), (BATCH, "entities[0][0].kind", 1), (BATCH, "relationships", 1),
    (BATCH, "relationships[0]", 1), (BATCH, "relationships[0][0]", 1), (BATCH, "relationships[0][0].subject", 1),
    (BATCH, "partitions", 1), (BATCH, "partitions[0]", 1), (BATCH, "partitions[0][0]", 1),
    (BATCH, "partitions[0][0].embedding", "x"), (BATCH, "partitions[0][0].embedding[0]", "0.5"),
    (BATCH, "partitions[0][0].url", 1), (SEARCH, "query", 1), (SEARCH, "query", ["x"]),
    (SEARCH, "query_embedding", "x"), (SEARCH, "query_embedding[0]", True), (SEARCH, "expand", "true"),
    (SEARCH, "thread.groups", "x"), (SEARCH, "thread.groups[0]", 1), (SEARCH, "thread.groups[0].id", 1),
    (SEARCH, "thread.entities", "x"), (SEARCH, "thread.entities[0]", 1), (SEARCH, "thread.tags", 1),
    (SEARCH, "thread.aggregate", "no"), (SEARCH, "thread.scope", 1), (SEARCH, "thread.top_k", "5"),
    (SEARCH, "thread.top_k", 1.5), (SEARCH, "thread.graph_mode", True), (SEARCH, "thread.lexical", 0),
    (SEARCH, "thread.request_id", 1), (GRAPH, "entity", 1), (GRAPH, "query", {}), (GRAPH, "kinds", "x"),
    (GRAPH, "kinds[0]", 1), (GRAPH, "hops", "1"), (GRAPH, "limit", []), (GRAPH, "include_documents", "x"),
    (LIBRARY, "owner_id", 1), (LIBRARY, "include_available", "x"), (DOCUMENTS, "owner_id", None),
    (DOCUMENTS, "document_ids", "x"), (DOCUMENTS, "document_ids[0]", 1), (DOCUMENTS, "include_embeddings", 1),
    (REMOVE, "owner_id", []), (REMOVE, "document_ids", "x"), (REMOVE, "all", "yes"),
]  # fmt: skip

VALUES: list[tuple[str, str, Any]] = [
    (BATCH, "media_type", "video"), (SEARCH, "thread.media_type", "TEXT"), (SEARCH, "thread.scope", "everything"),
    (SEARCH, "thread.graph_mode", "hippo"), (BATCH, "thread.group.access", "public"), (BATCH, "thread.group.id", ""),
    (SEARCH, "thread.top_k", 2**31), (SEARCH, "thread.top_k", -(2**63)), (SEARCH, "thread.top_k", 10**40),
    (GRAPH, "limit", 2**31), (GRAPH, "hops", -(2**40)), (SEARCH, "query", " \u200a\n"),
    (SEARCH, "query", "x" * 100_001), (SEARCH, "query_embedding", [1e39]),
    (SEARCH, "query_embedding", [0.0] * 16_385), (BATCH, "partitions[0][0].embedding", [0.5] * 15),
    (BATCH, "partitions[0]", [{}, {}]), (BATCH, "document_ids[0]", "é" * 513),
    (BATCH, "document_ids[0]", "x" * 1_025), (BATCH, "thread.owner_id", "😀" * 257), (BATCH, "names[0]", "x" * 4_097),
    (BATCH, "entities[0]", [{"name": "x"}] * 1_001), (BATCH, "inputs", ["x"] * 10_001),
    (SEARCH, "thread.groups[0]", "g" * 1_025), (DOCUMENTS, "document_ids[1]", "é" * 600),
    (REMOVE, "document_ids", []), (GRAPH, "kinds", ["x"] * 1_001), (BATCH, "partitions[0][0].embedding", [1e20] * 16),
]  # fmt: skip

MISSING = [
    (BATCH, "inputs"), (BATCH, "thread"), (BATCH, "thread.owner_id"), (SEARCH, "thread"), (SEARCH, "thread.owner_id"),
    (SEARCH, "query"), (GRAPH, "thread"), (GRAPH, "thread.owner_id"), (LIBRARY, "owner_id"), (DOCUMENTS, "owner_id"),
    (DOCUMENTS, "document_ids"), (REMOVE, "owner_id"), (REMOVE, "document_ids"),
]  # fmt: skip


def steps(field: str) -> list[str | int]:
    parts = field.replace("[", ".[").split(".")
    return [int(part[1:-1]) if part.startswith("[") else part for part in parts]


def put(body: Any, path: list[str | int], value: Any) -> Any:
    """`body` with `value` at `path`; what is missing on the way is made up."""
    if not path:
        return value
    first, *rest = path
    if isinstance(first, int):
        items = body if isinstance(body, list) else [None if isinstance(body, dict) else body]
        items = [*items, *["made up"] * (first + 1 - len(items))]
        return [*items[:first], put(items[first] if rest else None, rest, value), *items[first + 1 :]]
    fields = body if isinstance(body, dict) else {"id": "g"} if first in ("label", "access", "metadata") else {}
    return {**fields, first: put(fields.get(first), rest, value)}


def refused(client: Client, path: str, body: Json | bytes) -> str:
    """The field the refusal names."""
    status, problem = client.send(path, body)
    assert status == 400, (path, body, problem)
    assert client.content_type == "application/problem+json"
    assert (problem["type"], problem["status"]) == ("/problems/invalid-request", 400)
    (error,) = problem["errors"]
    assert error["message"]
    assert len(problem["detail"]) <= 400
    return error["field"]


@pytest.mark.parametrize(("path", "field", "value"), [*TYPES, *VALUES], ids=lambda part: str(part)[:40])
def test_a_value_that_cannot_be_taken_is_named(client: Client, path: str, field: str, value: Any) -> None:
    named = refused(client, path, put(GOOD[path], steps(field), value))
    assert named == field or named.startswith((f"{field}[", f"{field}.")), named


@pytest.mark.parametrize(("path", "field"), MISSING)
def test_a_missing_field_is_named(client: Client, path: str, field: str) -> None:
    *above, last = steps(field)
    body = json.loads(json.dumps(GOOD[path]))
    inner = body
    for step in above:
        inner = inner[step]
    del inner[last]
    assert refused(client, path, body) == field


def test_clearing_and_removing_everything_must_be_said(client: Client) -> None:
    assert refused(client, CLEAR, {}) == "confirm"
    assert refused(client, CLEAR, {"confirm": False}) == "confirm"
    assert refused(client, CLEAR, {"confirm": "true"}) == "confirm"
    assert refused(client, REMOVE, {"owner_id": "x", "document_ids": ["y"], "all": True}) == "all"


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b"1", b'"text"', b"{'a': 1}", b"\xff\xfe", b"\x00", b'{"inputs": ["a"],}',
        b"owner_id=x", b"[" * 100_000, b'{"a":' * 100_000, b"[" * 100_000 + b"]" * 100_000,
        '{"owner_id": "x"}'.encode("utf-16"), b"\xef\xbb\xbf{}", b'{"owner_id": "x" "b": 1}', b'{"owner_id": "\x01"}',
        b'{"owner_id": "\\x"}', b'{"owner_id": 01}', b"NaN", b"\xed\xa0\x80",
    ],
    ids=lambda body: repr(body[:20]),
)  # fmt: skip
@pytest.mark.parametrize("path", [*GOOD, CLEAR])
def test_what_is_no_json_object_is_refused(client: Client, path: str, body: bytes) -> None:
    assert refused(client, path, body) in ("body", "owner_id")


@pytest.mark.parametrize("depth", [1_000, 100_000])
def test_deep_nesting_inside_a_field_is_refused_and_harmless(client: Client, depth: int) -> None:
    nested = b"[" * depth + b"]" * depth
    named = refused(client, BATCH, b'{"thread": {"owner_id": "x"}, "inputs": ' + nested + b"}")
    assert named.partition("[")[0] in ("inputs", "body")
    # Under a key nobody reads it may be passed over or refused, but not crash.
    status, answer = client.send(LIBRARY, b'{"owner_id": "x", "unknown": ' + nested + b"}")
    assert (status, answer) == (200, {"groups": [], "has_more": False}) or answer["errors"][0]["field"] == "body"


@pytest.mark.parametrize(
    ("path", "field", "literal"),
    [
        (BATCH, "inputs[1]", b'"\\ud800"'), (BATCH, "names[0]", b'"a\\udfffb"'), (SEARCH, "query", b'"\\ud83d"'),
        (SEARCH, "query", b'"\xff"'), (BATCH, "inputs[1]", b'"caf\xe9"'), (SEARCH, "query", b'"\xed\xa0\x80"'),
        (DOCUMENTS, "document_ids[0]", b'"\\udc00\\ud800"'), (LIBRARY, "owner_id", b'"\xc0\x80"'),
        (GRAPH, "entity", b'"\\uDEAD"'), (SEARCH, "query_embedding[0]", b"NaN"),
        (SEARCH, "query_embedding[0]", b"Infinity"), (BATCH, "partitions[0][0].embedding[0]", b"-Infinity"),
        (SEARCH, "query_embedding[0]", b"1e999"),
    ],
)  # fmt: skip
def test_what_json_text_cannot_hold_is_named(client: Client, path: str, field: str, literal: bytes) -> None:
    body = json.dumps(put(GOOD[path], steps(field), "MARK")).encode().replace(b'"MARK"', literal)
    named = refused(client, path, body)
    assert named == field or field == f"{named}[0]"


def test_unknown_paths_and_methods_are_problems_too(client: Client) -> None:
    cases = [
        ("/v1/nothing", "POST", 404), ("/page", "GET", 404), ("/v1/search/", "PUT", 405), ("/v1/search", "GET", 405),
        ("/v1/search", "DELETE", 405), ("/../../etc/passwd", "GET", 404), ("/v1/%00", "GET", 404),
        ("/health", "PATCH", 405), ("/%ff%fe", "GET", 404), ("/schema/x", "GET", 404),
    ]  # fmt: skip
    for path, method, expected in cases:
        status, problem = client.send(path, b"", method)
        assert (status, problem["status"]) == (expected, expected), path
        assert client.content_type == "application/problem+json"


def test_only_json_is_taken(client: Client) -> None:
    client.connection.request("POST", LIBRARY, b"owner_id=x", {"Content-Type": "application/x-www-form-urlencoded"})
    status, problem = client.receive()
    assert (status, problem["title"]) == (415, "Unsupported Media Type")


def test_nothing_of_a_refused_batch_is_filed(client: Client) -> None:
    body = {"inputs": ["one", "two"], "document_ids": ["1", "2"], "names": [None, 5], "thread": {"owner_id": "refused"}}
    assert refused(client, BATCH, body) == "names[1]"
    assert client.post(DOCUMENTS, {"owner_id": "refused", "document_ids": ["1", "2"]}) == {"documents": []}
