"""What the client makes of a node that is busy, loading, gone, or no node at all."""

from __future__ import annotations

import asyncio
import email.utils
import random
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from misbehaving import DROP, Answer, misbehaving, ok, problem

from thread_client import (
    AsyncClient,
    Busy,
    Client,
    IndexMismatch,
    NodeError,
    NodeFailed,
    NotANode,
    NotFound,
    NotReady,
    Retries,
    StorageFull,
    TooLarge,
    Unreachable,
)
from thread_client.errors import retry_after_seconds
from thread_client.retries import Tries

FILED = ok({"documents": [{"id": "x", "outcome": "new"}], "success": True})
NOTHING = ok({"texts": [], "references": []})


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses, which are noted and not made."""
    made: list[float] = []

    async def asleep(seconds: float) -> None:
        made.append(seconds)

    # The client's own view of the modules: other threads of this process pause as ever.
    monkeypatch.setattr("thread_client.client.time", SimpleNamespace(**{**vars(time), "sleep": made.append}))
    monkeypatch.setattr("thread_client.client.asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": asleep}))
    return made


@pytest.mark.parametrize("awaited", [False, True])
def test_busy_loading_and_dropped_are_tried_again_as_asked_for(pauses: list[float], awaited: bool) -> None:
    trouble = (problem(429, "full", retry_after="5"), problem(503, "loading", retry_after="3"), DROP, FILED)
    with misbehaving(*trouble) as server:
        if awaited:

            async def use() -> Any:
                async with AsyncClient(server.url, owner_id="me") as client:
                    return await client.remember("text")

            filed = asyncio.run(use())
        else:
            with Client(server.url, owner_id="me") as client:
                filed = client.remember("text")
    assert filed.outcome == "new"
    assert pauses[:2] == [5.0, 3.0]
    assert 0 <= pauses[2] <= 1.0
    assert len(server.requests) == 4
    assert all(request == server.requests[0] for request in server.requests)


def test_trying_ends_with_what_the_node_said_last(pauses: list[float]) -> None:
    with (
        misbehaving(problem(429, "10,000 documents wait", retry_after="1")) as server,
        Client(server.url, owner_id="me", retries=Retries(attempts=3)) as client,
        pytest.raises(Busy, match="10,000 documents wait") as refused,
    ):
        client.search("x")
    assert refused.value.retry_after_seconds == 1.0
    assert len(server.requests) == 3
    assert pauses == [1.0, 1.0]


def test_a_pause_longer_than_all_of_them_may_be_is_not_begun(pauses: list[float]) -> None:
    with (
        misbehaving(problem(503, "back tomorrow", retry_after="86400")) as server,
        Client(server.url, owner_id="me") as client,
        pytest.raises(NotReady) as refused,
    ):
        client.search("x")
    assert (pauses, len(server.requests), refused.value.retry_after_seconds) == ([], 1, 86400.0)


def test_a_model_that_failed_for_good_is_not_waited_for_but_a_proxy_is(pauses: list[float]) -> None:
    with (
        misbehaving(problem(503, "the model failed: no such file")) as server,
        Client(server.url, owner_id="me") as client,
        pytest.raises(NotReady, match="no such file"),
    ):
        client.search("x")
    assert (pauses, len(server.requests)) == ([], 1)
    # The node itself goes on trying.
    failed = problem(503, "the model failed: no such folder", retry_after="8", type="/problems/model-failed")
    with (
        misbehaving(problem(503, "loading", retry_after="2"), failed) as server,
        Client(server.url, owner_id="me") as client,
        pytest.raises(NotReady, match="no such folder") as refused,
    ):
        client.search("x")
    assert (pauses, len(server.requests), refused.value.retry_after_seconds) == ([2.0], 2, 8.0)
    pauses.clear()
    with (
        misbehaving(Answer(503, b"<html>upstream"), NOTHING) as server,
        Client(server.url, owner_id="me") as client,
    ):
        assert client.search("x").passages == ()
    assert len(pauses) == 1


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (problem(404, "there is nothing at /v1/x"), NotFound),
        (problem(409, "written by another model"), IndexMismatch),
        (problem(413, "too large", errors=[{"field": "body", "message": "send less"}]), TooLarge),
        (problem(500, "the node failed to answer"), NodeFailed),
        (problem(507, "the disk is full"), StorageFull),
        (Answer(502, b"<html>"), NodeFailed),
        (Answer(404, b"<html>\xff" + b"x" * 100_000), NotANode),
        (Answer(301, b"", ("Location: http://example.org/",)), NotANode),
        (Answer(200, b"<html>"), NotANode),
        (Answer(200, b'{"texts": ["a"], "references": []}'), NotANode),
        (Answer(200, b"\xff\xfe"), NotANode),
    ],
)
def test_what_will_not_pass_is_raised_at_once(pauses: list[float], answer: Answer, kind: type[NodeError]) -> None:
    with (
        misbehaving(answer) as server,
        Client(server.url, owner_id="me") as client,
        pytest.raises(kind) as raised,
    ):
        client.search("x")
    assert type(raised.value) is kind
    assert raised.value.status == answer.status
    assert (pauses, len(server.requests)) == ([], 1)
    assert len(str(raised.value)) < 400


def test_a_node_that_is_gone_is_said_after_trying(pauses: list[float]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with Client(url, owner_id="me") as client, pytest.raises(Unreachable, match="is a node running there"):
        client.search("x")
    assert len(pauses) == 5


def test_a_port_that_speaks_grpc_is_not_asked_again_and_the_other_one_is_named(pauses: list[float]) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with (
            Client(f"http://127.0.0.1:{port}", owner_id="me") as client,
            pytest.raises(NotANode, match=r"gRPC port, give its HTTP port, which is 8081"),
        ):
            client.search("x")
    finally:
        server.stop(None).wait()
    assert pauses == []


def test_an_answer_that_takes_too_long_is_not_asked_for_twice(pauses: list[float]) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        Client(f"http://127.0.0.1:{silent.getsockname()[1]}", owner_id="me", timeout_seconds=0.05) as client,
        pytest.raises(Unreachable, match="timeout_seconds"),
    ):
        client.search("x")
    assert pauses == []


def test_pauses_double_up_to_a_bound_and_their_sum_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    tries = Tries(Retries(attempts=100, seconds=40.0))
    dropped = Unreachable("dropped", may_pass=True)
    made = [tries.pause_after(dropped) for _ in range(9)]
    assert made == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0]
    with pytest.raises(Unreachable):
        tries.pause_after(dropped)


def test_retry_after_is_seconds_or_a_date() -> None:
    assert retry_after_seconds(" 12 ") == 12.0
    in_a_minute = email.utils.formatdate(time.time() + 60, usegmt=True)
    assert 55 < (retry_after_seconds(in_a_minute) or 0) <= 60
    assert retry_after_seconds("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    for nonsense in ("", "soon", "-1", "1e9", "٣"):
        assert retry_after_seconds(nonsense) is None


def test_the_key_goes_with_every_request() -> None:
    with misbehaving(NOTHING) as server, Client(server.url, owner_id="me", api_key="secret") as client:
        client.search("x")
    assert b"authorization: bearer secret" in server.heads[0].lower()
