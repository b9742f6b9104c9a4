"""A mothership that does what a test scripts and remembers everything with the time at which it came.

Unscripted it behaves as one does: it accepts every registration, answers pings with pongs, and holds one session per
node. A test changes its attributes to make it refuse, stall, stay silent or hang up, and asks through `session.ask`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from thread_service.wire.v1 import thread_pb2

TIMEOUT = 10.0
Message = thread_pb2.ThreadSessionMessage
Refusal = tuple[grpc.StatusCode, str]


@dataclass(frozen=True)
class Call:
    """One unary call, or one opened session: when, from which connection, with what."""

    at: float
    peer: str
    metadata: dict[str, str]
    request: Any = None


@dataclass
class Stream:
    """One session, seen from the mothership. `received`: every message with its time, pings too."""

    call: Call
    mothership: Mothership
    received: list[tuple[float, Any]] = field(default_factory=list)
    ended_at: float | None = None
    _outgoing: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)

    @property
    def messages(self) -> list[Any]:
        return [message for _, message in self.received]

    @property
    def pings(self) -> list[float]:
        return [at for at, message in self.received if message.WhichOneof("payload") == "ping"]

    def answers(self, correlation_id: str) -> list[Any]:
        return [m for m in self.messages if m.correlation_id == correlation_id and m.WhichOneof("payload") != "ping"]

    def send(self, message: Any) -> None:
        """A message, or bytes that go out as they are."""
        self._outgoing.put_nowait(message if isinstance(message, bytes) else message.SerializeToString())

    def hang_up(self, code: grpc.StatusCode | None = None, details: str = "") -> None:
        """End the stream: without a status as a clean close."""
        self._outgoing.put_nowait((code, details))

    async def ask(self, correlation_id: str | None = None, **payload: Any) -> Any:
        """Send a request and wait for its answer."""
        correlation_id = str(uuid.uuid4()) if correlation_id is None else correlation_id
        self.send(Message(correlation_id=correlation_id, **payload))
        await self.mothership.until(lambda: bool(self.answers(correlation_id)))
        return self.answers(correlation_id)[0]


class Mothership:
    def __init__(self, timeout: float = TIMEOUT) -> None:
        self._timeout = timeout
        self.mothership_id = str(uuid.uuid4()).upper()
        self.registrations: list[Call] = []
        self.heartbeats: list[Call] = []
        self.availability: list[Call] = []
        self.streams: list[Stream] = []
        # Node ids by their addresses: of two nodes that register the same one, the later stays.
        self.registry: dict[tuple[str, int], str] = {}
        self.evicted: list[str] = []
        # The script.
        self.accepts = True
        self.refuses_register: Refusal | None = None
        self.refuses_session: Refusal | None = None
        self.refuses_availability: Refusal | None = None
        self.stalls_register = False
        self.withholds_headers = False
        self.sends_pongs = True
        self.reads = asyncio.Event()
        self.reads.set()
        self.port = 0
        self._changed = asyncio.Event()

    # ------------------------------------------------------------------------------------------------ the service

    async def register(self, request: Any, context: Any) -> Any:
        self.registrations.append(self._seen(_call(context, request)))
        if self.stalls_register:
            await asyncio.Event().wait()
        if self.refuses_register:
            await context.abort(*self.refuses_register)
        if self.accepts:
            before = self.registry.get(address := (request.host, request.grpc_port))
            self.evicted += [] if before in (None, request.thread_id) else [before]
            self.registry[address] = request.thread_id
        return thread_pb2.RegisterResponse(accepted=self.accepts, mothership_id=self.mothership_id)

    async def heartbeat(self, request: Any, context: Any) -> Any:
        self.heartbeats.append(self._seen(_call(context, request)))
        return thread_pb2.HeartbeatResponse(alive=True)

    async def update_availability(self, request: Any, context: Any) -> Any:
        self.availability.append(self._seen(_call(context, request)))
        if self.refuses_availability:
            await context.abort(*self.refuses_availability)
        return thread_pb2.AvailabilityUpdateResponse(acknowledged=True)

    async def hold(self, _: Any, context: Any) -> None:
        stream = Stream(_call(context), self)
        self.streams.append(self._seen(stream))
        try:
            await self._hold(stream, context)
        finally:
            stream.ended_at = time.monotonic()
            self._seen(stream)

    async def _hold(self, stream: Stream, context: Any) -> None:
        if self.refuses_session:
            await context.abort(*self.refuses_session)
        first = await self._read(stream, context)
        if first is None or first.WhichOneof("payload") != "ping" or not _is_uuid(first.thread_id):
            return
        if any(other.messages[0].thread_id == first.thread_id for other in self.live if other is not stream):
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, f"{first.thread_id} has a session")
        if self.withholds_headers:
            await asyncio.Event().wait()
        await context.send_initial_metadata(())
        self._pong(stream, first)
        reading = asyncio.create_task(self._read_on(stream, context))
        try:
            while isinstance(item := await stream._outgoing.get(), bytes):
                await context.write(item)
            if item[0] is not None:
                await context.abort(*item)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read_on(self, stream: Stream, context: Any) -> None:
        while (message := await self._read(stream, context)) is not None:
            self._pong(stream, message)
        stream.hang_up()

    async def _read(self, stream: Stream, context: Any) -> Any:
        await self.reads.wait()
        message = await context.read()
        if message is grpc.aio.EOF:
            return None
        stream.received.append((time.monotonic(), message))
        return self._seen(message)

    def _pong(self, stream: Stream, message: Any) -> None:
        if self.sends_pongs and message.WhichOneof("payload") == "ping":
            stream.send(Message(correlation_id=message.correlation_id, pong=thread_pb2.ThreadSessionPong()))

    # ------------------------------------------------------------------------------------------------ for tests

    @property
    def live(self) -> list[Stream]:
        return [stream for stream in self.streams if stream.ended_at is None and stream.received]

    async def session(self, node_id: str = "") -> Stream:
        """The newest session, or that of a node, once it is up."""
        await self.until(lambda: bool(self._live(node_id)))
        return self._live(node_id)[-1]

    def _live(self, node_id: str) -> list[Stream]:
        return [stream for stream in self.live if node_id in ("", stream.messages[0].thread_id)]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that comes with a call or a message."""
        async with asyncio.timeout(self._timeout):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def _seen(self, what: Any) -> Any:
        self._changed.set()
        return what


def _call(context: Any, request: Any = None) -> Call:
    return Call(time.monotonic(), context.peer(), dict(context.invocation_metadata()), request)


def _is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True


@contextlib.asynccontextmanager
async def listening(
    mothership: Mothership | None = None, *, port: int = 0, options: Sequence[tuple[str, Any]] = ()
) -> AsyncIterator[Mothership]:
    """A mothership on a port of loopback. At the end every connection is cut at once."""
    mothership = mothership or Mothership()
    server = grpc.aio.server(
        options=[
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", 100 * 2**20),
            ("grpc.max_send_message_length", -1),
            ("grpc.http2.min_ping_interval_without_data_ms", 0),
            ("grpc.http2.max_ping_strikes", 0),
            *options,
        ]
    )
    server.add_generic_rpc_handlers((_service(mothership),))
    mothership.port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield mothership
    finally:
        await server.stop(None)


def _service(mothership: Mothership) -> Any:
    """Answers of the session go out as bytes, so that a test can send what no message is."""

    def unary(method: Any, request: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(
            method,
            request_deserializer=request.FromString,
            response_serializer=lambda answer: answer.SerializeToString(),
        )

    handlers = {
        "Register": unary(mothership.register, thread_pb2.RegisterRequest),
        "Heartbeat": unary(mothership.heartbeat, thread_pb2.HeartbeatRequest),
        "UpdateAvailability": unary(mothership.update_availability, thread_pb2.AvailabilityUpdateRequest),
        "Session": grpc.stream_stream_rpc_method_handler(mothership.hold, request_deserializer=Message.FromString),
    }
    return grpc.method_handlers_generic_handler("thread.v1.ThreadRegistration", handlers)
