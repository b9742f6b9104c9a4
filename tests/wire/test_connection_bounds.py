"""The bounds on connections, at small numbers: who is let go, who is refused, and that what was held is given back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from thread_service.wire.connections import Bounds, Connections, within_descriptors
from thread_service.wire.server import listen, run_http

TIMEOUT = 30
KB = 2**10
GET = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
FAST: dict[str, Any] = {"sweep_seconds": 0.02}
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Server:
    """Takes in each body and answers with its length, or with `answer_bytes`; `/held` waits until it is let go."""

    def __init__(self, connections: Connections, port: int) -> None:
        self.connections = connections
        self.port = port
        self.let_go = asyncio.Event()
        self.taken: list[str] = []
        self.answer_bytes = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.taken.append(scope["path"])
        size, more = 0, True
        while more:
            message = await receive()
            more = message.get("more_body", False)
            size += len(message.get("body", b""))
        if scope["path"] == "/held":
            await self.let_go.wait()
        body = b"x" * self.answer_bytes or str(size).encode()
        fields = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": fields})
        await send({"type": "http.response.body", "body": body})

    async def connect(self, said: bytes = b"") -> Streams:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=KB)
        self._writers.append(writer)
        writer.write(said)
        await writer.drain()
        return reader, writer

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIMEOUT):
            while not condition():  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.005)

    def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


@contextlib.asynccontextmanager
async def serving(**bounds: Any) -> AsyncIterator[Server]:
    connections = Connections(Bounds(**{**FAST, **bounds}))
    [listener] = listen("127.0.0.1", 0)
    server = Server(connections, listener.getsockname()[1])
    stop = asyncio.Event()
    running = asyncio.create_task(run_http(server, [listener], stop, connections))
    try:
        yield server
        server.close()
        server.let_go.set()
        await server.until(lambda: not connections.open)
        assert (connections.body_bytes, connections.waiting) == (0, {})
    finally:
        server.close()
        server.let_go.set()
        stop.set()
        await asyncio.wait_for(running, TIMEOUT)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), TIMEOUT))


async def status(reader: asyncio.StreamReader) -> int:
    """Of the next answer, which is read whole."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    body = await reader.readexactly(length)
    code = int(head.split()[1])
    assert code == 200 or json.loads(body)["status"] == code
    return code


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        while await reader.read(2**20):
            pass
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize("said", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nhost: a\r\n", GET + b"GET /"])
def test_a_head_that_does_not_come_ends_the_connection(said: bytes) -> None:
    async def scenario() -> None:
        async with serving(head_seconds=0.1) as server:
            reader, _ = await server.connect(said)
            assert await is_closed(reader)
            other, _ = await server.connect(GET)
            assert await status(other) == 200

    run(scenario)


def test_a_body_that_stops_ends_the_connection_and_one_that_comes_slowly_does_not() -> None:
    head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n"

    async def scenario() -> None:
        async with serving(progress_bytes=10, progress_seconds=0.3) as server:
            stopped, _ = await server.connect(head + b"x" * 40)
            slow, writer = await server.connect(head)
            for _ in range(10):
                writer.write(b"x" * 10)
                await writer.drain()
                await asyncio.sleep(0.06)  # it is the pace that is tested
            assert await status(slow) == 200
            assert await is_closed(stopped)

    run(scenario)


def test_an_answer_that_nobody_reads_ends_the_connection() -> None:
    async def scenario() -> None:
        async with serving(progress_seconds=0.1) as server:
            server.answer_bytes = 32 * 2**20
            await server.connect(GET)
            await server.until(lambda: server.taken == ["/"])
            await server.until(lambda: not server.connections.open)

    run(scenario)


def test_an_answer_that_is_read_slowly_is_read_to_its_end() -> None:
    async def scenario() -> None:
        async with serving(head_seconds=0.1, progress_bytes=1, progress_seconds=0.4) as server:
            server.answer_bytes = 32 * 2**20
            reader, _ = await server.connect(GET)
            await reader.readuntil(b"\r\n\r\n")
            left = server.answer_bytes
            while left:
                left -= len(await reader.read(min(left, 2**20)))
                await asyncio.sleep(0.002)  # it is the pace that is tested

    run(scenario)


def test_a_request_that_takes_long_is_waited_for() -> None:
    async def scenario() -> None:
        async with serving(head_seconds=0.05, progress_seconds=0.05) as server:
            reader, _ = await server.connect(GET.replace(b"/ ", b"/held "))
            await server.until(lambda: server.taken == ["/held"])
            idle, _ = await server.connect()
            assert await is_closed(idle)  # as long as that took
            server.let_go.set()
            assert await status(reader) == 200

    run(scenario)


def test_of_too_many_connections_the_one_that_waits_longest_makes_room() -> None:
    async def scenario() -> None:
        async with serving(connections=3) as server:
            busy, _ = await server.connect(GET.replace(b"/ ", b"/held "))
            await server.until(lambda: server.taken == ["/held"])
            oldest, _ = await server.connect(b"GET")
            await server.until(lambda: len(server.connections.open) == 2)
            _, younger = await server.connect(GET)
            await server.until(lambda: len(server.taken) == 2)
            newest, _ = await server.connect(GET)
            assert await status(newest) == 200
            assert await is_closed(oldest)
            younger.write(GET)
            await server.until(lambda: len(server.taken) == 4)
            server.let_go.set()
            assert await status(busy) == 200

    run(scenario)


def test_when_all_have_a_request_in_hand_one_more_is_refused() -> None:
    async def scenario() -> None:
        async with serving(connections=2) as server:
            held = [await server.connect(GET.replace(b"/ ", b"/held ")) for _ in range(2)]
            await server.until(lambda: len(server.taken) == 2)
            reader, _ = await server.connect()
            assert await status(reader) == 429
            assert await is_closed(reader)
            server.let_go.set()
            assert [await status(reader) for reader, _ in held] == [200, 200]

    run(scenario)


def test_bodies_in_memory_have_one_bound_for_all() -> None:
    def body(length: int, sent: int) -> bytes:
        return b"POST /held HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % length + b"x" * sent

    async def scenario() -> None:
        async with serving(bodies_bytes=100 * KB) as server:
            first, writer = await server.connect(body(90 * KB, 60 * KB))
            await server.until(lambda: server.connections.body_bytes == 60 * KB)
            beyond, _ = await server.connect(body(50 * KB, 50 * KB))
            assert await status(beyond) == 429
            within, _ = await server.connect(body(10 * KB, 10 * KB))
            await server.until(lambda: server.connections.body_bytes == 70 * KB)
            writer.write(b"x" * 30 * KB)
            await server.until(lambda: server.connections.body_bytes == 100 * KB)
            server.let_go.set()
            assert [await status(reader) for reader in (first, within)] == [200, 200]
            await server.until(lambda: server.connections.body_bytes == 0)

    run(scenario)


def test_there_are_no_more_connections_than_half_of_the_descriptors() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert within_descriptors(Bounds(connections=2)) == 2
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == most
    if most != resource.RLIM_INFINITY:
        assert within_descriptors(Bounds(connections=10**9)) == most // 2
