"""Wiring and lifecycle of a node, readable top to bottom.

The order matters. First what can fail because of somebody else, a port in use or a directory in use, so that it fails
before a model is loaded. The store is opened and recovered before the first request is answered; the model is loaded
behind the open port, where `/health` shows how far it is. At the end, the other way round: no new requests, those under
way are finished, then the node is closed, which finishes its writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import uvloop

from thread_service import observe
from thread_service.node.operations import EmbedderHealth
from thread_service.settings import Settings
from thread_service.wire.http import create_app
from thread_service.wire.server import listen, run_http

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Starting:
    """What a node that starts has to say for itself. `why`: the reason for this device and model."""

    url: str
    host: str
    has_api_key: bool
    data_dir: Path
    node_id: str
    device: str
    model: str
    why: str


class Screen(Protocol):
    """Where a start is shown."""

    def starting(self, node: Starting) -> None: ...
    async def follow(self, health: Callable[[], EmbedderHealth]) -> None: ...


def serve(settings: Settings, notices: Sequence[str], screen: Screen) -> None:
    """Run a node until SIGTERM or SIGINT. Raises `ListenError` or a `ThreadError` when it cannot start."""
    observe.configure_logging(settings.log_level)
    for notice in notices:
        _log.warning("%s", notice)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, screen))


async def _serve(settings: Settings, screen: Screen) -> None:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(listener) for listener in listen(settings.host, settings.port)]
        node = await open_node(settings)
        try:
            screen.starting(_starting(settings, node, sockets[0].getsockname()[1]))
            following = asyncio.create_task(screen.follow(node.embedder_health))
            await run_http(create_app(node, settings), sockets)
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        finally:
            await node.close()


def _starting(settings: Settings, node: OpenNode, port: int) -> Starting:
    return Starting(
        url=_url(settings.host, port),
        host=settings.host,
        has_api_key=bool(settings.api_key),
        data_dir=settings.data_dir,
        node_id=node.node_id,
        device=node.device,
        model=node.embedder_health().model,
        why=node.model_reason,
    )


def _url(host: str, port: int) -> str:
    """The address to type into a browser: a wildcard bind answers on loopback too."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
