"""Every refusal is a problem document that names the field at fault."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from fake_node import FakeNode
from litestar.testing import TestClient

from thread_service import errors
from thread_service.settings import Settings
from thread_service.wire.http import create_app

Client = TestClient[Any]
ADA = {"owner_id": "ada"}


def refused(answer: Any, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["status"] == status
    assert body["type"].startswith("/problems/")
    assert body["title"]
    assert body["detail"]
    return body


def batch(**more: Any) -> dict[str, Any]:
    return {"inputs": ["a"], "thread": ADA, **more}


def ready(*widths: int) -> list[dict[str, Any]]:
    return [{"embedding": [1.0] * width} for width in widths]


BATCH = [
    ({"thread": ADA}, "inputs"),
    ({"inputs": "a", "thread": ADA}, "inputs"),
    ({"inputs": ["a", 3], "thread": ADA}, "inputs[1]"),
    ({"inputs": ["a", "b", [3]], "thread": ADA}, "inputs[2][0]"),
    ({"inputs": ["a"] * 10_001, "thread": ADA}, "inputs"),
    ({"inputs": [["a"] * 10_001], "thread": ADA}, "inputs[0]"),
    ({"inputs": ["a"]}, "thread"),
    ({"inputs": ["a"], "thread": {}}, "thread.owner_id"),
    ({"inputs": ["a"], "thread": {"owner_id": 7}}, "thread.owner_id"),
    ({"inputs": ["a"], "thread": {"owner_id": "é" * 513}}, "thread.owner_id"),
    ({"inputs": ["a"], "thread": {**ADA, "group": {"label": "no id"}}}, "thread.group.id"),
    ({"inputs": ["a"], "thread": {**ADA, "group": {"id": ""}}}, "thread.group.id"),
    ({"inputs": ["a"], "thread": {**ADA, "group": {"id": "g", "access": "public"}}}, "thread.group.access"),
    ({"inputs": ["a"], "thread": {**ADA, "scope": "all"}}, "thread.scope"),
    (batch(media_type="video"), "media_type"),
    (batch(media_type=""), "media_type"),
    (batch(sanitize="yes"), "sanitize"),
    (batch(names=["n" * 4_097]), "names[0]"),
    (batch(metadata=["not base64!"]), "metadata[0]"),
    (batch(document_ids=["é" * 513]), "document_ids[0]"),
    (batch(tags=[["ok", 1]]), "tags[0][1]"),
    (batch(entities=[[{"kind": "person"}]]), "entities[0][0].name"),
    (batch(entities=[[{"name": "x"}] * 1_001]), "entities[0]"),
    (batch(relationships=[[{"subject": "a", "predicate": "b"}]]), "relationships[0][0].object"),
    (batch(partitions=[ready(16, 16)]), "partitions[0]"),
    (batch(partitions=[ready(17)]), "partitions[0][0].embedding"),
    (batch(partitions=[[{"embedding": [1e39] * 16}]]), "partitions[0][0].embedding"),
    (batch(partitions=[[{"embedding": ["1"]}]]), "partitions[0][0].embedding[0]"),
    (batch(partitions=[ready(16)], sanitize=True), "partitions[0]"),
    (batch(update={"operation": "publish", "document_id": "d"}), "update.operation"),
    (batch(update={"operation": "remove"}), "update.document_id"),
    ({"inputs": [["a", "b"]], "thread": ADA, "partitions": [ready(16, 32)]}, "partitions[0][1].embedding"),
]
OTHERS = [
    ("/v1/search", {"thread": ADA}, "query"),
    ("/v1/search", {"query": " \n", "thread": ADA}, "query"),
    ("/v1/search", {"query": "q" * 100_001, "thread": ADA}, "query"),
    ("/v1/search", {"query": "q"}, "thread"),
    ("/v1/search", {"query": "q", "thread": {**ADA, "media_type": "video"}}, "thread.media_type"),
    ("/v1/search", {"query": "q", "thread": {**ADA, "scope": "x" * 10_000}}, "thread.scope"),
    ("/v1/search", {"query": "q", "thread": {**ADA, "scope": " - at `$.inputs`"}}, "thread.scope"),
    ("/v1/search", {"query": "q", "thread": {**ADA, "graph_mode": "gate"}}, "thread.graph_mode"),
    ("/v1/search", {"query": "q", "thread": {**ADA, "lexical": 1}}, "thread.lexical"),
    ("/v1/search", {"query": "q", "thread": {**ADA, "top_k": "5"}}, "thread.top_k"),
    ("/v1/search", {"query": "q", "thread": {**ADA, "top_k": 2**31}}, "thread.top_k"),
    ("/v1/search", {"query": "q", "thread": {**ADA, "top_k": True}}, "thread.top_k"),
    ("/v1/search", {"query": "q", "thread": {**ADA, "groups": ["g", ""]}}, "thread.groups[1]"),
    ("/v1/search", {"query": "q", "thread": {**ADA, "groups": [{"id": 5}]}}, "thread.groups[0].id"),
    ("/v1/search", {"query_embedding": [1e39], "thread": ADA}, "query_embedding"),
    ("/v1/search", {"query_embedding": [1.0] * 16_385, "thread": ADA}, "query_embedding"),
    ("/v1/graph", {"thread": ADA, "kinds": "person"}, "kinds"),
    ("/v1/graph", {"thread": ADA, "hops": 1.5}, "hops"),
    ("/v1/library", {}, "owner_id"),
    ("/v1/library", {"owner_id": "a", "include_available": "true"}, "include_available"),
    ("/v1/documents", {"owner_id": "a"}, "document_ids"),
    ("/v1/documents", {"owner_id": "a", "document_ids": ["d", None]}, "document_ids[1]"),
    ("/v1/remove", {"owner_id": "a"}, "document_ids"),
    ("/v1/remove", {"owner_id": "a", "document_ids": []}, "document_ids"),
    ("/v1/remove", {"owner_id": "a", "document_ids": ["d"], "all": True}, "all"),
    ("/v1/clear", {}, "confirm"),
    ("/v1/clear", {"confirm": False}, "confirm"),
    ("/v1/clear", {"confirm": "true"}, "confirm"),
    ("/v1/clear", [], "body"),
]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [*(("/v1/batch/embeddings", body, field) for body, field in BATCH), *OTHERS],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_field_is_named_and_nothing_is_asked(
    client: Client, node: FakeNode, path: str, body: Any, field: str
) -> None:
    problem = refused(client.post(path, json=body), 400)
    assert [error["field"] for error in problem["errors"]] == [field]
    assert len(problem["detail"]) <= 400
    assert node.asked == []


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/search", {"query": "q", "owner_id": "ada"}, 'is required; send "thread": {"owner_id": "me"}'),
        ("/v1/search", {"query": "q", "thread": {}}, 'is required; send "owner_id": "me"'),
        ("/v1/search", {"query": "q", "thread": "ada"}, 'must be an object, not a text; send one such as {"owner_id"'),
        ("/v1/search", {"query": "q", "thread": {**ADA, "group": 7}}, "must be a text or an object, not a number"),
        ("/v1/search", {"query": "q", "thread": {**ADA, "group": ""}}, "must be a text of at least 1 character"),
        ("/v1/search", {"query": "q", "thread": {**ADA, "top_k": 1.5}}, "must be a whole number, not a fraction"),
        ("/v1/search", {"query": "q", "thread": {**ADA, "top_k": 2**31}}, "a whole number of at most 2,147,483,647"),
        ("/v1/batch/embeddings", {"inputs": [None], "thread": ADA}, "must be a text or a list, not null"),
        ("/v1/batch/embeddings", {"inputs": "a", "thread": ADA}, 'a list, not a text; send one such as ["a text'),
        ("/v1/batch/embeddings", batch(metadata=["not base64!"]), 'must be base64; send one such as "AAH/"'),
        ("/v1/batch/embeddings", batch(metadata=[7]), "must be a text that is base64, not a number"),
        ("/v1/batch/embeddings", batch(entities=[["Ada"]]), 'an object, not a text; send one such as {"name": "Ada'),
        ("/v1/batch/embeddings", batch(wait="yes"), "must be true or false, not a text"),
        ("/v1/batch/embeddings", batch(names=["n" * 4_097]), "must be a text of at most 4,096 characters"),
    ],
)
def test_what_has_another_type_is_told_in_plain_words_with_what_to_send(
    client: Client, path: str, body: Any, message: str
) -> None:
    [error] = refused(client.post(path, json=body), 400)["errors"]
    assert message in error["message"]


@pytest.mark.parametrize(
    "surplus", [{"document_ids": ["x", "y"]}, {"partitions": [[], []]}], ids=lambda surplus: next(iter(surplus))
)
def test_a_list_longer_than_the_inputs_it_runs_beside_is_refused(
    client: Client, node: FakeNode, surplus: dict[str, Any]
) -> None:
    [error] = refused(client.post("/v1/batch/embeddings", json=batch(**surplus)), 400)["errors"]
    assert error == {"field": next(iter(surplus)), "message": "holds 2 entries beside 1 of inputs; give one for each"}
    assert node.asked == []


def test_a_longer_list_of_what_the_original_knows_is_read_as_far_as_there_are_inputs(client: Client) -> None:
    longer = {
        "names": ["a", "b"],
        "metadata": [None] * 2,
        "tags": [[]] * 2,
        "entities": [[]] * 2,
        "relationships": [[]] * 2,
    }
    answer = client.post("/v1/batch/embeddings", json=batch(**longer))
    assert (answer.status_code, len(answer.json()["documents"])) == (200, 1)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/remove", {"document_ids": ["d"]}),
        ("/v1/remove", {"all": True}),
        ("/v1/export", {}),
        ("/v1/group/update", {"group_id": "g", "label": "G"}),
        ("/v1/document/update", {"document_id": "d", "access": "available"}),
    ],
)
def test_nobody_has_nothing_to_remove_export_or_change(
    client: Client, node: FakeNode, path: str, body: dict[str, Any]
) -> None:
    [error] = refused(client.post(path, json={"owner_id": " \t", **body}), 400)["errors"]
    assert error["field"] == "owner_id"
    assert "is blank; say whose" in error["message"]
    assert node.asked == []


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        (rb'{"query": "\ud800", "thread": {"owner_id": "a"}}', "query"),
        (rb'{"query": "q", "thread": {"owner_id": "a", "tags": ["x", "\udc00y"]}}', "thread.tags[1]"),
        (rb'{"query": "q", "thread": {"owner_id": "a"}, "\ud800": 1}', r".\ud800".removeprefix(".")),
        (b'{"query": "\xff", "thread": {"owner_id": "a"}}', "query"),
        (b'{"query": "\xed\xa0\x80", "thread": {"owner_id": "a"}}', "query"),
        (b'{"query_embedding": [1, NaN], "thread": {"owner_id": "a"}}', "query_embedding[1]"),
        (b'{"query_embedding": [-Infinity], "thread": {"owner_id": "a"}}', "query_embedding[0]"),
        (b'{"query_embedding": [1e400], "thread": {"owner_id": "a"}}', "query_embedding[0]"),
        (b'{"query": "q", "thread": {"owner_id": "a"}, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "body"),
        (b'{"query": "q", "thread": ' + b'{"group":' * 100_000, "body"),
        (b'{"query": "q"', "body"),
        (b"\xef\xbb\xbf{}", "body"),
        (b"null", "body"),
        (b"", "body"),
    ],
)
def test_what_is_no_json_text_is_refused(client: Client, node: FakeNode, raw: bytes, field: str) -> None:
    problem = refused(client.post("/v1/search", content=raw, headers={"content-type": "application/json"}), 400)
    assert [error["field"] for error in problem["errors"]] == [field]
    assert node.asked == []


def test_nul_and_emoji_are_text(client: Client, node: FakeNode) -> None:
    assert client.post("/v1/search", json={"query": "\0 🌊", "thread": ADA}).status_code == 200
    assert node.asked[0].query == "\0 🌊"


def test_unknown_paths_methods_and_content_types_are_problems(client: Client) -> None:
    assert refused(client.get("/nowhere"), 404)["type"] == "/problems/not-found"
    refused(client.get("/schema/nowhere"), 404)
    wrong_method = client.get("/v1/search")
    refused(wrong_method, 405)
    assert "POST" in wrong_method.headers["allow"]
    assert wrong_method.json()["detail"] == "GET is not served at /v1/search; use POST"
    assert refused(client.post("/v1/graph/policy", json={}), 405)["detail"].endswith("; use GET or PUT")
    refused(client.post("/v1/search", content=b"a=b", headers={"content-type": "text/plain"}), 415)


def test_a_body_over_the_limit_is_refused_by_size(node: FakeNode) -> None:
    with TestClient(create_app(node, Settings(max_body_mb=1))) as client:
        problem = refused(client.post("/v1/search", json={"query": "q" * 2**20, "thread": ADA}), 413)
    assert problem["type"] == "/problems/too-large"
    assert "1,048,576 bytes" in problem["detail"]


@pytest.mark.parametrize(
    ("error", "status", "slug"),
    [
        (errors.InvalidRequest.field("thread.group", "why"), 400, "invalid-request"),
        (errors.IndexMismatch("other model"), 409, "index-mismatch"),
        (errors.Busy("full", retry_after_seconds=3), 429, "busy"),
        (errors.NotReady("loading", retry_after_seconds=3), 503, "not-ready"),
        (errors.ModelFailed("no such folder", retry_after_seconds=3), 503, "model-failed"),
        (errors.StorageFull("full", retry_after_seconds=3), 507, "storage-full"),
    ],
)
def test_the_nodes_errors_keep_their_status_and_say_when_to_try_again(
    client: Client, node: FakeNode, error: errors.ThreadError, status: int, slug: str
) -> None:
    node.fails_with = error
    answer = client.post("/v1/batch/embeddings", json=batch())
    problem = refused(answer, status)
    assert (problem["type"], problem["detail"]) == (f"/problems/{slug}", str(error))
    assert answer.headers.get("retry-after") == (str(error.retry_after_seconds) if error.retry_after_seconds else None)


def test_a_failed_store_names_no_file_to_a_caller(
    client: Client, node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    node.fails_with = errors.StoreFailed("/var/lib/thread.db: broken")
    answer = client.post("/v1/search", json={"query": "q", "thread": ADA})
    assert refused(answer, 500)["type"] == "/problems/store-failed"
    assert "thread.db" not in answer.text
    assert "/var/lib/thread.db: broken" in caplog.text


def test_a_node_that_stops_while_somebody_waits_logs_a_line_without_a_traceback(
    client: Client, node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    node.fails_with = errors.NotReady("The node is stopping; the deposit is kept.")
    problem = refused(client.post("/v1/batch/embeddings", json=batch(wait=True)), 503)
    assert problem["detail"] == "The node is stopping; the deposit is kept."
    [record] = [record for record in caplog.records if "stopping" in record.getMessage()]
    assert (record.levelno, record.exc_info) == (logging.WARNING, None)


def test_an_unforeseen_error_is_logged_and_not_shown(
    client: Client, node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    node.fails_with = RuntimeError("secret path /var/lib/x")
    with caplog.at_level(logging.ERROR):
        answer = client.post("/v1/search", json={"query": "q", "thread": ADA})
    refused(answer, 500)
    assert "secret" not in answer.text
    assert "secret path" in caplog.text


def test_an_api_key_guards_everything_but_health() -> None:
    with TestClient(create_app(FakeNode(), Settings(api_key="k3y"))) as client:
        for path in ("/health", "/livez", "/readyz"):
            assert client.get(path).status_code == 200
        for path in ("/metrics", "/schema"):
            assert refused(client.get(path), 401)["type"] == "/problems/unauthorized"
        for header in ("", "k3y", "Basic k3y", "Bearer k3", "Bearer k3yy", "Bearer é"):
            answer = client.post("/v1/clear", json={"confirm": True}, headers={"authorization": header.encode()})
            refused(answer, 401)
            assert answer.headers["www-authenticate"] == "Bearer"
        good = {"authorization": "bearer k3y"}
        assert client.post("/v1/clear", json={"confirm": True}, headers=good).status_code == 200


def test_browsers_of_any_origin_may_ask(client: Client) -> None:
    origin = {"origin": "https://app.example"}
    asked = {
        **origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type",
    }
    preflight = client.options("/v1/search", headers=asked)
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] == "*"
    assert {"authorization", "content-type"} <= set(preflight.headers["access-control-allow-headers"].split(", "))
    answer = client.post("/v1/search", json={}, headers=origin)
    assert answer.status_code == 400
    assert answer.headers["access-control-allow-origin"] == "*"
