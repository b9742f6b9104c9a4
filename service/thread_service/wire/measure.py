"""Counts and times requests by route. A route is its path as declared, so that no caller can add time series."""

from __future__ import annotations

import time
from typing import Any

from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from thread_service import observe


async def count_answer(message: Message, scope: Scope) -> None:
    """A `before_send` hook, because answers to unknown paths never reach a middleware."""
    if message["type"] == "http.response.start":
        observe.HTTP_REQUESTS.labels(_route(scope), str(message["status"])).inc()


class MeasureLatency(ASGIMiddleware):
    scopes = (ScopeType.HTTP,)

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        started = time.perf_counter()

        async def timed_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                observe.HTTP_SECONDS.labels(_route(scope)).observe(time.perf_counter() - started)
            await send(message)

        await next_app(scope, receive, timed_send)


def _route(scope: Any) -> str:
    return str(scope.get("path_template", "unmatched"))
