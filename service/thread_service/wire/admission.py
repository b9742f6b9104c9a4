"""The bound on operations over HTTP that are in hand at one time, kept before their bodies are read or decoded.

Above what a node can do, what it has taken must be answered before its caller has gone, and what it has not taken must
cost it next to nothing: the threads that answer share the interpreter with the event loop that refuses. gRPC has a
bound of its own (`grpc_server`). What only looks at the node (health, metrics, the page) is never refused.
"""

from __future__ import annotations

from typing import Any

from litestar import Litestar
from litestar.types import HTTPResponseBodyEvent, HTTPResponseStartEvent, HTTPScope, Receive, Send

from thread_service import observe
from thread_service.errors import Busy
from thread_service.wire import problems

REQUESTS_MAX = 128
"""Operations in hand: their bodies are there, their answers are not. More are refused with 429. Twice as many as the
benchmarks have callers; the more there are, the longer is the way to a refusal, which wants the interpreter as well."""

_RETRY_AFTER_SECONDS = 1


class Admission:
    """`app`, with a bound on what it has in hand. It is outside of everything else that the application does.

    A refused caller may keep the connection: the rest of the body is skipped while it comes, for as long as a
    connection may take for a head (`connections`).
    """

    def __init__(self, app: Litestar, *, requests_max: int = REQUESTS_MAX) -> None:
        self._app = app
        self._requests_max = requests_max
        self._in_hand = 0
        self._operations = {route.path for route in app.routes if route.path.startswith("/v1/")}
        refusal = problems.of_error(_busy(requests_max))
        fields = {**refusal.headers, "content-type": problems.MEDIA_TYPE, "content-length": str(len(refusal.content))}
        self._head: HTTPResponseStartEvent = {
            "type": "http.response.start",
            "status": Busy.http_status,
            "headers": [(name.lower().encode(), value.encode()) for name, value in fields.items()],
        }
        self._body: HTTPResponseBodyEvent = {
            "type": "http.response.body",
            "body": refusal.content,
            "more_body": False,
        }

    async def __call__(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        """Of HTTP alone: the server offers nothing else."""
        if scope["method"] != "POST" or scope["path"] not in self._operations:
            await self._app(scope, receive, send)
        elif self._in_hand >= self._requests_max:
            observe.HTTP_REQUESTS.labels(scope["path"], str(Busy.http_status)).inc()
            await send(self._head)
            await send(self._body)
        else:
            self._count(1)
            try:
                await self._app(scope, self._counted(receive), send)
            finally:
                self._count(-1)

    def _counted(self, receive: Receive) -> Receive:
        """Who still sends is not in hand, or a few slow bodies would keep everybody out."""

        async def counted() -> Any:
            self._count(-1)
            try:
                message = await receive()
            finally:
                self._count(1)
            if self._in_hand > self._requests_max:
                raise _busy(self._requests_max)
            return message

        return counted

    def _count(self, change: int) -> None:
        self._in_hand += change
        observe.HTTP_IN_HAND.inc(change)


def _busy(requests: int) -> Busy:
    return Busy(f"{requests} requests are in hand already; send it later", retry_after_seconds=_RETRY_AFTER_SECONDS)
