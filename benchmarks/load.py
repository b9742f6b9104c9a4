"""Callers that keep a node busy from another process: over HTTP, over gRPC, and as a mothership over one session.

Each caller sends its next request when it has the answer to the last. Requests are encoded beforehand and answers are
not decoded, so that the callers leave the processor to the node.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
import numpy as np

from thread_service.wire.v1 import thread_pb2 as pb

Call = Callable[[Any], Awaitable[Any]]
"""Sends a request and returns when its answer is there."""

MOTHERSHIP_ID = "00000000-0000-4000-8000-000000000000"
_OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)


@dataclass(slots=True)
class Load:
    """What the callers saw."""

    seconds: float
    latencies: list[float] = field(repr=False)

    @property
    def requests_per_second(self) -> float:
        return len(self.latencies) / self.seconds

    def milliseconds(self, percent: float) -> float:
        return float(1e3 * np.percentile(self.latencies, percent))


async def load(callers: Sequence[Call], requests: Sequence[Any], count: int) -> Load:
    """`count` requests in all, as many at a time as there are callers."""
    numbers = iter(range(count))
    latencies: list[float] = []

    async def run(call: Call) -> None:
        for number in numbers:
            started = time.perf_counter()
            await call(requests[number % len(requests)])
            latencies.append(time.perf_counter() - started)

    started = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for call in callers:
            tasks.create_task(run(call))
    return Load(time.perf_counter() - started, latencies)


# ---------------------------------------------------------------------------------------------------- HTTP


def http_request(path: str, body: Any) -> bytes:
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: node\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


@asynccontextmanager
async def http_callers(port: int, count: int) -> AsyncIterator[list[Call]]:
    """Each with a connection of its own, kept alive."""
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
    try:
        yield [_http_call(*connection) for connection in connections]
    finally:
        for _, writer in connections:
            writer.close()


def _http_call(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Call:
    async def call(request: bytes) -> bytes:
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
        answer = await reader.readexactly(int(length or 0))
        if not head.startswith(b"http/1.1 200"):
            raise SystemExit(f"the node answered {head!r} {answer!r}")
        return answer

    return call


# ---------------------------------------------------------------------------------------------------- gRPC


@asynccontextmanager
async def grpc_callers(port: int, count: int) -> AsyncIterator[list[Call]]:
    """Each with a connection of its own."""
    async with contextlib.AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{port}", _OWN_CONNECTION))
            for _ in range(count)
        ]
        yield [channel.unary_unary("/thread.v1.ThreadQuery/Search") for channel in channels]


# ---------------------------------------------------------------------------------------------------- session


class Mothership:
    """Takes one node. `registered`: its ports, once its session is up."""

    def __init__(self) -> None:
        self.registered: asyncio.Future[pb.RegisterRequest] = asyncio.get_running_loop().create_future()
        self._registration: Any = None
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._waiting: dict[str, asyncio.Future[bytes]] = {}
        self._ids = itertools.count()

    async def ask(self, request: bytes) -> bytes:
        """`request`: a message without its correlation id."""
        correlation_id = str(next(self._ids))
        answer = self._waiting[correlation_id] = asyncio.get_running_loop().create_future()
        # Messages that follow one another in bytes are merged: the id needs no message to be coded again.
        self._outgoing.put_nowait(pb.ThreadSessionMessage(correlation_id=correlation_id).SerializeToString() + request)
        return await answer

    async def register(self, request: pb.RegisterRequest, _: Any) -> pb.RegisterResponse:
        self._registration = request
        return pb.RegisterResponse(accepted=True, mothership_id=MOTHERSHIP_ID)

    async def heartbeat(self, *_: Any) -> pb.HeartbeatResponse:
        return pb.HeartbeatResponse(alive=True)

    async def session(self, _: Any, context: Any) -> None:
        await context.send_initial_metadata(())
        reading = asyncio.create_task(self._read(context))
        try:
            while True:
                await context.write(await self._outgoing.get())
        finally:
            reading.cancel()

    async def _read(self, context: Any) -> None:
        while (data := await context.read()) is not grpc.aio.EOF:
            message = pb.ThreadSessionMessage.FromString(data)
            arm = message.WhichOneof("payload")
            if arm == "search_response":
                self._waiting.pop(message.correlation_id).set_result(data)
            elif arm == "ping" and not self.registered.done():
                self.registered.set_result(self._registration)


@asynccontextmanager
async def mothership() -> AsyncIterator[tuple[Mothership, int]]:
    """A mothership and its port."""
    taken = Mothership()
    server = grpc.aio.server(options=(("grpc.http2.min_ping_interval_without_data_ms", 0),))
    unary = grpc.unary_unary_rpc_method_handler
    handlers = {
        "Register": unary(taken.register, pb.RegisterRequest.FromString, pb.RegisterResponse.SerializeToString),
        "Heartbeat": unary(taken.heartbeat, pb.HeartbeatRequest.FromString, pb.HeartbeatResponse.SerializeToString),
        "Session": grpc.stream_stream_rpc_method_handler(taken.session),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("thread.v1.ThreadRegistration", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield taken, port
    finally:
        await server.stop(None)
