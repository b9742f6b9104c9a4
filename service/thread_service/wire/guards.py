"""Who may come in: with an API key set, whoever sends it as `Authorization: Bearer`."""

from __future__ import annotations

import hmac
from typing import Any

from litestar.connection import ASGIConnection
from litestar.exceptions import NotAuthorizedException
from litestar.handlers import BaseRouteHandler
from litestar.types import Guard

_OPEN = "open"
OPEN = {_OPEN: True}
"""Marks a route that needs no key: those by which an orchestrator sees whether the node lives."""


def api_key_guard(key: str) -> Guard:
    """A guard that runs before a body is read. The key is compared in constant time."""
    expected = key.encode()

    def guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        if handler.opt.get(_OPEN):
            return
        scheme, _, given = connection.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), expected):
            raise NotAuthorizedException(
                "this node wants its API key as `Authorization: Bearer KEY`", headers={"WWW-Authenticate": "Bearer"}
            )

    return guard
