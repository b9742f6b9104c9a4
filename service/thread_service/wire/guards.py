"""Who may come in: with an API key set, whoever sends it as `Authorization: Bearer`."""

from __future__ import annotations

from typing import Any

from litestar.connection import ASGIConnection
from litestar.exceptions import NotAuthorizedException
from litestar.handlers import BaseRouteHandler
from litestar.types import Guard

from thread_service.wire.api_key import WANTED, is_granted

_OPEN = "open"
OPEN = {_OPEN: True}
"""Marks a route that needs no key: those by which an orchestrator sees whether the node lives."""


def api_key_guard(key: str) -> Guard:
    """A guard that runs before a body is read."""
    expected = key.encode()

    def guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        if handler.opt.get(_OPEN):
            return
        if not is_granted(connection.headers.get("authorization", ""), expected):
            raise NotAuthorizedException(WANTED, headers={"WWW-Authenticate": "Bearer"})

    return guard
