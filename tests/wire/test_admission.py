"""The bound on operations in hand, over real connections: who is refused, what it costs them, and who never is."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from fake_node import FakeNode

from thread_service import observe
from thread_service.node import operations
from thread_service.settings import Settings
from thread_service.wire.admission import REQUESTS_MAX, Admission
from thread_service.wire.http import create_app
from thread_service.wire.server import listen, run_http

TIMEOUT = 60
SEARCH = json.dumps({"query": "q", "thread": {"owner_id": "ada"}}).encode()


class HeldNode(FakeNode):
    """Answers searches when it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = asyncio.Event()

    async def search(self, request: operations.SearchRequest) -> operations.SearchAnswer:
        self.asked.append(request)
        await self.let_go.wait()
        return self.found


class Caller:
    """One connection, kept alive."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def head(self, path: str, length: int, method: str = "POST") -> None:
        fields = f"host: a\r\ncontent-type: application/json\r\ncontent-length: {length}"
        self.writer.write(f"{method} {path} HTTP/1.1\r\n{fields}\r\n\r\n".encode())

    def send(self, path: str = "/v1/search", body: bytes = SEARCH, method: str = "POST") -> None:
        self.head(path, len(body), method)
        self.writer.write(body)

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
        return int(head.split()[1]), fields, await self.reader.readexactly(int(fields["content-length"]))

    async def status(self) -> int:
        return (await self.answer())[0]


class Server:
    def __init__(self, node: HeldNode, port: int) -> None:
        self.node = node
        self._port = port
        self._callers: list[Caller] = []

    async def caller(self) -> Caller:
        self._callers.append(Caller(*await asyncio.open_connection("127.0.0.1", self._port)))
        return self._callers[-1]

    async def searching(self, count: int) -> list[Caller]:
        """So many callers whose searches are in hand."""
        before = len(self.node.asked)
        callers = [await self.caller() for _ in range(count)]
        for each in callers:
            each.send()
        await until(lambda: len(self.node.asked) == before + count)
        return callers

    def close(self) -> None:
        for each in self._callers:
            each.writer.transport.abort()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def serving(**bound: int) -> AsyncIterator[Server]:
    node, stop = HeldNode(), asyncio.Event()
    [listener] = listen("127.0.0.1", 0)
    running = asyncio.create_task(run_http(Admission(create_app(node, Settings()), **bound), [listener], stop))
    server = Server(node, listener.getsockname()[1])
    try:
        yield server
    finally:
        node.let_go.set()
        server.close()
        stop.set()
        await running


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), TIMEOUT))


def in_hand() -> float:
    return observe.REGISTRY.get_sample_value("thread_http_requests_in_hand") or 0


def refused_searches() -> float:
    labels = {"route": "/v1/search", "status": "429"}
    return observe.REGISTRY.get_sample_value("thread_http_requests_total", labels) or 0


def test_one_more_than_the_bound_is_refused_and_the_node_can_still_be_looked_at() -> None:
    async def scenario() -> None:
        before = refused_searches()
        async with serving() as server:
            held = await server.searching(REQUESTS_MAX)
            assert in_hand() == REQUESTS_MAX

            beyond = await server.caller()
            for _ in range(2):  # on one connection, which is kept
                beyond.send()
                status, fields, body = await beyond.answer()
                assert (status, fields["retry-after"]) == (429, "1")
                assert fields["content-type"] == "application/problem+json"
                problem = json.loads(body)
                assert (problem["status"], problem["type"]) == (429, "/problems/busy")
                assert f"{REQUESTS_MAX} requests" in problem["detail"]
            assert refused_searches() == before + 2
            assert len(server.node.asked) == REQUESTS_MAX

            for path in ("/health", "/livez", "/readyz", "/metrics", "/", "/schema/openapi.json"):
                beyond.send(path, b"", "GET")
                assert await beyond.status() == 200, path
            beyond.send("/health")
            assert await beyond.status() == 200

            server.node.let_go.set()
            assert {await each.status() for each in held} == {200}
            beyond.send()
            assert await beyond.status() == 200
            assert in_hand() == 0

    run(scenario)


def test_a_refusal_does_not_wait_for_the_body_which_is_skipped_when_it_comes() -> None:
    body = b" " * 5_000_000 + SEARCH

    async def scenario() -> None:
        async with serving(requests_max=1) as server:
            await server.searching(1)
            caller = await server.caller()
            caller.head("/v1/search", len(body))
            assert await caller.status() == 429
            server.node.let_go.set()
            caller.writer.write(body)
            caller.send()
            assert await caller.status() == 200
            assert len(server.node.asked) == 2  # what was refused is not done later

    run(scenario)


def test_who_still_sends_is_not_in_hand_and_is_refused_when_others_came_before() -> None:
    async def scenario() -> None:
        async with serving(requests_max=1) as server:
            slow = [await server.caller() for _ in range(3)]
            for each in slow:
                each.head("/v1/search", len(SEARCH))
                each.writer.write(SEARCH[:5])
            [first] = await server.searching(1)
            slow[0].writer.write(SEARCH[5:])
            status, fields, _ = await slow[0].answer()
            assert (status, fields["retry-after"]) == (429, "1")
            server.node.let_go.set()
            assert await first.status() == 200
            for each in slow[1:]:
                each.writer.write(SEARCH[5:])
                assert await each.status() == 200
            assert in_hand() == 0

    run(scenario)


def test_a_caller_who_leaves_is_not_in_hand_for_ever() -> None:
    async def scenario() -> None:
        async with serving(requests_max=2) as server:
            [gone] = await server.searching(1)
            sending = await server.caller()
            sending.head("/v1/search", len(SEARCH))
            for each in (gone, sending):
                each.writer.transport.abort()
            server.node.let_go.set()
            await until(lambda: in_hand() == 0)
            for each in await server.searching(2):
                assert await each.status() == 200

    run(scenario)
