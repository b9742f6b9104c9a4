"""One session: a stream on which the mothership asks and the node answers.

Requests are answered at the same time, each as it is done, and none in silence. One task reads, one writes; while as
many requests are in hand as may be, nothing more is read, so that a peer who floods meets HTTP/2 flow control.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, NoReturn, Protocol

import grpc.aio
from google.protobuf.message import DecodeError

from thread_service import observe
from thread_service.wire.mothership.in_flight import InFlight
from thread_service.wire.mothership.peer import Peer, status
from thread_service.wire.mothership.timings import Timings
from thread_service.wire.v1.thread_pb2 import ThreadSessionMessage, ThreadSessionPing

_log = logging.getLogger(__name__)

_METHOD = "/thread.v1.ThreadRegistration/Session"
REQUESTS_MAX = 256
REQUEST_BYTES_MAX = 256 * 2**20


class Dispatch(Protocol):
    """Answers any message of a session with a message to send back, or None for what wants no answer.

    It raises nothing, and its answers fit into a message.
    """

    async def answer(self, message: ThreadSessionMessage) -> ThreadSessionMessage | None: ...


class Session:
    """`run` once. Messages cross the channel as bytes, so that each is measured where it is coded anyway."""

    def __init__(self, channel: grpc.aio.Channel, peer: Peer, node_id: str, dispatch: Dispatch, timings: Timings):
        self._call: Any = channel.stream_stream(_METHOD)(metadata=peer.metadata)
        self._peer = peer
        self._dispatch = dispatch
        self._timings = timings
        self._ping_message = ThreadSessionMessage(thread_id=node_id, ping=ThreadSessionPing()).SerializeToString()
        self._outgoing: asyncio.Queue[tuple[bytes, asyncio.Future[None] | None]] = asyncio.Queue()
        self._in_flight = InFlight(REQUESTS_MAX, REQUEST_BYTES_MAX)
        self._answering: set[asyncio.Task[None]] = set()
        self._alive_at = asyncio.get_running_loop().time()

    async def run(self) -> str:
        """Returns when the stream has ended, with the reason. Requests still in hand are given up then: their answers
        have nowhere to go, and what they had filed is filed."""
        parts: list[Coroutine[Any, Any, str]] = [self._end(), self._read(), self._write(), self._ping(), self._watch()]
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            # The status says more than how the others met the end.
            return await self._end() if self._call.done() else next(iter(done)).result()
        finally:
            self._call.cancel()
            for task in (*tasks, *self._answering):
                task.cancel()
            await asyncio.gather(*tasks, *self._answering, return_exceptions=True)

    async def _end(self) -> str:
        return status(await self._call.code(), await self._call.details())

    # ------------------------------------------------------------------------------------------------ in

    async def _read(self) -> str:
        while True:
            await self._in_flight.room()
            data = await self._call.read()
            if data is grpc.aio.EOF:
                return await self._end()
            self._is_alive()
            self._receive(data)

    def _receive(self, data: bytes) -> None:
        try:
            message = ThreadSessionMessage.FromString(data)
        except DecodeError:
            _log.warning("the %s sent %d bytes that are no message; ignored", self._peer.name, len(data))
            return
        arm = message.WhichOneof("payload")
        if arm == "pong":
            return
        if arm is None:
            _log.warning("the %s sent a message without a payload this version knows; ignored", self._peer.name)
            return
        observe.SESSION_REQUESTS.labels(self._peer.name, arm).inc()
        self._in_flight.enter(len(data))
        task = asyncio.create_task(self._answer(message, len(data)))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, message: ThreadSessionMessage, size: int) -> None:
        try:
            answer = await self._dispatch.answer(message)
            if answer is None:
                return
            data = answer.SerializeToString()
            self._in_flight.grow(len(data))
            size += len(data)
            written = asyncio.get_running_loop().create_future()
            self._outgoing.put_nowait((data, written))
            await written
        except Exception:
            _log.exception("a request of the %s was not answered", self._peer.name)
        finally:
            self._in_flight.leave(size)

    # ------------------------------------------------------------------------------------------------ out

    async def _write(self) -> NoReturn:
        await self._call.write(self._ping_message)
        while True:
            data, written = await self._outgoing.get()
            await self._call.write(data)
            self._is_alive()
            if written is not None and not written.done():
                written.set_result(None)

    async def _ping(self) -> NoReturn:
        await self._call.initial_metadata()
        self._is_alive()
        while True:
            await asyncio.sleep(self._timings.ping)
            self._outgoing.put_nowait((self._ping_message, None))

    async def _watch(self) -> str:
        loop = asyncio.get_running_loop()
        while True:
            left = self._alive_at + self._timings.watchdog - loop.time()
            if left <= 0:
                break
            await asyncio.sleep(left)
        return f"nothing came and nothing went for {self._timings.watchdog:g} s"

    def _is_alive(self) -> None:
        self._alive_at = asyncio.get_running_loop().time()
