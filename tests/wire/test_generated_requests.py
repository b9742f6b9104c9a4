"""Requests of every kind, made up by the thousand: each is answered or refused, and the node is none the worse.

`GENERATED_REQUESTS=20000 pytest tests/wire/test_generated_requests.py` sends so many by each way.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from generated import bodies_of, encodings_of
from grpc_caller import Caller, serving
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from in_process import InProcess, document, opened
from litestar.testing import TestClient
from msgspec import inspect as types
from rpcs import NODE_RPCS

from thread_service.settings import Settings
from thread_service.wire.dispatch import Dispatch
from thread_service.wire.http import create_app
from thread_service.wire.v1 import thread_pb2 as pb

REQUESTS = int(os.environ.get("GENERATED_REQUESTS", "100"))
REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
MANY = settings(
    max_examples=REQUESTS,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
)
pytestmark = pytest.mark.timeout(180 + REQUESTS)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    path: Path = tmp_path_factory.mktemp("generated")
    with opened(path) as node:
        yield node
        node.settle()
        report = node.run(node.node.verify(full=True, progress=lambda *_: None))
        assert report["clean"], report["damage"]


@pytest.fixture
def unharmed(node: InProcess, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing was logged as a fault of the node's own, and it still files and finds."""
    with caplog.at_level(logging.ERROR):
        yield
    faults = [record for record in caplog.records if record.levelno >= logging.ERROR or record.exc_info]
    assert faults == []
    node.file("somebody", document("the heron stands", id="after"))
    assert [passage.text for passage in node.search("somebody", "heron").passages] == ["the heron stands"]
    node.remove("somebody")


@pytest.fixture(scope="module")
def client(node: InProcess) -> Iterator[TestClient[Any]]:
    with TestClient(create_app(node.node, Settings()), raise_server_exceptions=False) as test_client:
        yield test_client


def routes(client: TestClient[Any]) -> list[tuple[str, str, Any]]:
    """(method, path, type of the body) of every request that has one."""
    found = []
    for route in client.app.routes:
        for method, handler in getattr(route, "route_handler_map", {}).items():
            handler = handler[0] if isinstance(handler, tuple) else handler
            if getattr(handler, "parsed_data_field", None) is not None:
                found.append((method, route.path, types.type_info(handler.parsed_data_field.annotation)))
    return found


@pytest.mark.usefixtures("unharmed")
def test_http_bodies_are_answered_or_refused(client: TestClient[Any]) -> None:
    known = routes(client)
    assert len(known) >= 18
    asked = st.sampled_from(known).flatmap(lambda route: st.tuples(st.just(route[:2]), bodies_of(route[2])))

    @MANY
    @given(asked)
    def check(request: tuple[tuple[str, str], bytes]) -> None:
        (method, path), body = request
        answer = client.request(method, path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code in (200, 400, 404), (path, answer.text)
        told = json.loads(answer.content, parse_constant=pytest.fail)
        if answer.status_code != 200:
            assert answer.headers["content-type"] == "application/problem+json"
            assert told["status"] == answer.status_code
            assert answer.status_code != 400 or told["errors"][0]["field"], told
        assert "Traceback" not in answer.text

    check()


@pytest.fixture(scope="module")
def caller(node: InProcess) -> Iterator[Caller]:
    with serving(node.node) as caller:
        yield caller


@pytest.mark.usefixtures("unharmed")
def test_grpc_messages_are_answered_or_refused(caller: Caller) -> None:
    def one(rpc: str) -> st.SearchStrategy[tuple[str, bytes]]:
        return st.tuples(st.just(rpc), encodings_of(NODE_RPCS[rpc]))

    @MANY
    @given(st.sampled_from(sorted(NODE_RPCS)).flatmap(one))
    def check(request: tuple[str, bytes]) -> None:
        rpc, data = request
        try:
            caller.call(rpc, data)
        except grpc.aio.AioRpcError as error:
            assert error.code() in REFUSALS, (rpc, error)  # noqa: PT017 - most are answered
            assert error.details(), rpc  # noqa: PT017

    check()


@pytest.mark.usefixtures("unharmed")
def test_requests_of_a_session_are_answered_in_their_kind(node: InProcess) -> None:
    dispatch = Dispatch(node.node)
    payload = pb.ThreadSessionMessage.DESCRIPTOR.oneofs_by_name["payload"].fields
    arms = {field.name: field for field in payload}

    def one(arm: str) -> st.SearchStrategy[tuple[str, str, bytes]]:
        return st.tuples(st.just(arm), st.text(max_size=5), encodings_of(arms[arm].message_type.name))

    @MANY
    @given(st.sampled_from(sorted(arms)).flatmap(one))
    def check(request: tuple[str, str, bytes]) -> None:
        arm, correlation_id, data = request
        message = pb.ThreadSessionMessage(correlation_id=correlation_id)
        inner = getattr(message, arm)
        try:
            inner.MergeFromString(data)
        except Exception:  # what is no message never becomes one
            return
        inner.SetInParent()
        answer = node.run(dispatch.answer(message))
        if not arm.endswith("_request"):
            assert answer is None
            return
        assert answer is not None
        assert answer.correlation_id == correlation_id
        assert answer.WhichOneof("payload") == f"{arm.removesuffix('_request')}_response"

    check()
