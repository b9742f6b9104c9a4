"""What a connection to the HTTP server may hold, and all of them together: slow or silent callers cost others nothing.

Of too many connections the one that has gone longest without a request in hand makes room for the newest. A head must
come whole and in time, a body must keep coming, an answer must keep being read, and bodies in memory have one bound
for all. gRPC has bounds of its own (`grpc_server`).
"""

from __future__ import annotations

import asyncio
import logging
import resource
from dataclasses import dataclass
from typing import Any, NoReturn

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from thread_service.errors import Busy, InvalidRequest, ThreadError, TooLarge
from thread_service.wire import problems

_log = logging.getLogger(__name__)

_LINE_BYTES = len(": \r\n")


class HeadTooLarge(TooLarge):
    http_status = 431


@dataclass(frozen=True, slots=True)
class Bounds:
    """`sweep_seconds`: how often times are looked at. A caller is given up after up to that much more than is said."""

    connections: int = 4_096
    head_bytes: int = 65_536
    """The path, the headers and the trailers of one request."""
    head_seconds: float = 30
    """From the connection, or the last answer, to the end of a request's head."""
    progress_bytes: int = 16_384
    progress_seconds: float = 30
    """A body comes, and an answer is read, by so many bytes in this time, or to its end."""
    bodies_bytes: int = 2**30
    """Bodies in memory, of all requests that have no answer yet."""
    sweep_seconds: float = 2

    @classmethod
    def with_room_for(cls, body_bytes: int) -> Bounds:
        """The defaults, but so that the largest body an application takes fits."""
        return cls(bodies_bytes=max(cls().bodies_bytes, body_bytes))


def within_descriptors(bounds: Bounds) -> int:
    """How many connections there may be: half of the file descriptors at most, as the store needs some too.

    The process may have as many descriptors as its hard limit allows.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return bounds.connections if most == resource.RLIM_INFINITY else min(bounds.connections, most // 2)


class Connections:
    """The connections of one server. `protocol` is what uvicorn makes one of for each."""

    def __init__(self, bounds: Bounds | None = None) -> None:
        self.bounds = bounds or Bounds()
        self.connections_max = within_descriptors(self.bounds)
        self.open: set[Connection] = set()
        # Without a request in hand; who has waited longest is first.
        self.waiting: dict[Connection, None] = {}
        self.body_bytes = 0

    def protocol(self, **given: Any) -> Connection:
        return Connection(self, **given)

    def admit(self, new: Connection) -> bool:
        """Whether there is room for one more; somebody who waits may have to make it."""
        if len(self.open) >= self.connections_max:
            idle = next(iter(self.waiting), None)
            if idle is None:
                return False
            idle.give_up("others need the room")
        self.open.add(new)
        self.waiting[new] = None
        return True

    async def sweep(self) -> None:
        """Look at the times of all connections, again and again, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.bounds.sweep_seconds)
            now = loop.time()
            for connection in list(self.open):
                connection.look(now)


class Connection(HttpToolsProtocol):
    """uvicorn's connection, with bounds."""

    def __init__(self, among: Connections, **given: Any) -> None:
        super().__init__(**given)
        self._among = among
        self._bounds = among.bounds
        self._waits_since = self.loop.time()
        self._head_bytes = 0
        self._is_parsed = False
        self._unparsed_bytes = 0
        self._received_bytes = 0
        self._body_bytes = 0
        self._stopped_by: ThreadError | None = None
        # What is looked at, when it had come how far.
        self._mark: tuple[str, float, int] = ("", 0, 0)

    # ------------------------------------------------------------------------------------------------ its life

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not self._among.admit(self):
            self._refuse(Busy("every connection this node takes is at work; try again later", retry_after_seconds=1))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forget()

    def give_up(self, why: str) -> None:
        _log.debug("a connection is closed: %s", why)
        self._forget()
        self.transport.abort()

    def _forget(self) -> None:
        self._among.open.discard(self)
        self._among.waiting.pop(self, None)
        self._release()

    def _release(self) -> None:
        self._among.body_bytes -= self._body_bytes
        self._body_bytes = 0

    def look(self, now: float) -> None:
        """Close the connection when its caller is too slow."""
        unread = self.transport.get_write_buffer_size()
        if unread:
            self._waits_since = now
            what, so_far = "the answer is not read", -unread
        elif self in self._among.waiting:
            if now - self._waits_since > self._bounds.head_seconds:
                self.give_up("no request came")
            return
        elif self.cycle is not None and self.cycle.more_body and not self.flow.read_paused:
            what, so_far = "the body does not come", self._received_bytes
        else:
            self._mark = ("", 0, 0)
            return
        known, since, before = self._mark
        if known != what or so_far - before >= self._bounds.progress_bytes:
            self._mark = (what, now, so_far)
        elif now - since > self._bounds.progress_seconds:
            self.give_up(what)

    # ------------------------------------------------------------------------------------------------ what comes

    def data_received(self, data: bytes) -> None:
        self._received_bytes += len(data)
        self._is_parsed = False
        super().data_received(data)
        # The parser keeps a header to itself until it is whole.
        self._unparsed_bytes = 0 if self._is_parsed else self._unparsed_bytes + len(data)
        if self._unparsed_bytes > self._bounds.head_bytes and not self.transport.is_closing():
            self._refuse(self._head_too_large())

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value) + _LINE_BYTES)
        super().on_header(name, value)

    def _count_head(self, size: int) -> None:
        self._is_parsed = True
        self._head_bytes += size
        if self._head_bytes > self._bounds.head_bytes:
            self._stop(self._head_too_large())

    def on_headers_complete(self) -> None:
        self._is_parsed = True
        super().on_headers_complete()
        self._among.waiting.pop(self, None)

    def on_body(self, body: bytes) -> None:
        self._is_parsed = True
        if not self.cycle.response_complete:
            if self._among.body_bytes + len(body) > self._bounds.bodies_bytes:
                self._stop(Busy("the node is taking in as much as it can hold; send it later", retry_after_seconds=1))
            self._among.body_bytes += len(body)
            self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_parsed = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._release()
        super().on_response_complete()
        if not self.pipeline and self in self._among.open:
            self._waits_since = self.loop.time()
            self._among.waiting[self] = None

    # ------------------------------------------------------------------------------------------------ refusals

    def _stop(self, error: ThreadError) -> NoReturn:
        """From within a callback of the parser, which then has nothing more to say."""
        self._stopped_by = error
        raise error

    def _head_too_large(self) -> HeadTooLarge:
        return HeadTooLarge(f"the request's head is larger than {self._bounds.head_bytes:,} bytes; send less of it")

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._stopped_by or InvalidRequest("this is no request of HTTP/1.1"))

    def _refuse(self, error: ThreadError) -> None:
        """Answer with a problem document, unless an answer is on its way already, and close."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.give_up(str(error))
                return
        answer = problems.of_error(error)
        fields = {
            **answer.headers,
            "content-type": problems.MEDIA_TYPE,
            "content-length": str(len(answer.content)),
            "connection": "close",
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self.transport.write(STATUS_LINE[error.http_status] + head.encode() + b"\r\n" + answer.content)
        self.transport.close()
