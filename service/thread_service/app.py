"""Wiring and lifecycle of a node, readable top to bottom.

The order matters. First what can fail because of somebody else, a port in use or a directory in use, so that it fails
before a model is loaded. The store is opened and recovered before the first request is answered; the model is loaded
behind the open port, where `/health` shows how far it is. At the end, the other way round: no new requests, those under
way are finished, then the node is closed, which finishes its writes. A store that stops writing ends the node too.
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

from thread_kernels import create_engine
from thread_service import observe
from thread_service.batching.embed import EmbeddingQueue
from thread_service.errors import StoreFailed
from thread_service.models.local import local_embedder
from thread_service.node.node import Node
from thread_service.node.operations import EmbedderHealth
from thread_service.settings import Settings
from thread_service.store import stamp
from thread_service.store.directory import DataDirectory
from thread_service.store.store import Store
from thread_service.wire.http import create_app
from thread_service.wire.server import listen, run_http

_log = logging.getLogger(__name__)

_DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"

CPU_BATCH_BYTES = 4_096
"""Text in one call to a model on the CPU: a query waits about a quarter of a second behind documents."""


@dataclass(frozen=True, slots=True)
class Starting:
    """What a node that starts has to say for itself. `why`: the reason for this model."""

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
    """Run a node until SIGTERM or SIGINT.

    Raises `ListenError`, `EngineUnavailable` or a `ThreadError` when it cannot start, `StoreFailed` when it had to
    stop.
    """
    observe.configure_logging(settings.log_level)
    for notice in notices:
        _log.warning("%s", notice)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, screen))


async def _serve(settings: Settings, screen: Screen) -> None:
    stop, failures = asyncio.Event(), list[StoreFailed]()
    loop = asyncio.get_running_loop()

    def fail(error: StoreFailed) -> None:
        failures.append(error)
        loop.call_soon_threadsafe(stop.set)

    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(listener) for listener in listen(settings.host, settings.port)]
        node, why = await asyncio.to_thread(_open, settings, fail)
        try:
            node.start()
            screen.starting(_starting(settings, node, why, port=sockets[0].getsockname()[1]))
            following = asyncio.create_task(screen.follow(node.embedder_health))
            await run_http(create_app(node, settings), sockets, stop)
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        finally:
            await asyncio.to_thread(node.close)
    if failures:
        raise failures[0]


def _open(settings: Settings, on_failure: Callable[[StoreFailed], None]) -> tuple[Node, str]:
    """The node, its store open and recovered, and the reason for its model."""
    engine = create_engine(settings.device)
    with contextlib.ExitStack() as on_error:
        directory = DataDirectory.open(settings.data_dir, settings.node_id or None)
        on_error.callback(directory.close)
        store = Store(directory, engine, on_failure=on_failure)
        on_error.callback(store.close)
        model, why = _choose_model(settings, store)
        node = Node(
            store,
            EmbeddingQueue(local_embedder(model, models_dir=settings.models_dir), batch_bytes=CPU_BATCH_BYTES),
            graph_mode=settings.graph_mode,
            lexical=settings.lexical,
            mention_linking=settings.mention_linking,
            pending_documents_max=settings.queue_documents,
        )
        on_error.pop_all()
    return node, why


def _choose_model(settings: Settings, store: Store) -> tuple[str, str]:
    """The model and the reason: a filled index keeps the one that wrote it unless another is asked for."""
    if settings.embedding_model:
        return settings.embedding_model, "asked for by --embedding-model"
    with store.read() as connection:
        stored = stamp.stored_model(connection)
    if stored is not None:
        return stored, "it wrote the index"
    return _DEFAULT_MODEL, "the default without CUDA"


def _starting(settings: Settings, node: Node, why: str, *, port: int) -> Starting:
    return Starting(
        url=_url(settings.host, port),
        host=settings.host,
        has_api_key=bool(settings.api_key),
        data_dir=settings.data_dir,
        node_id=node.node_id,
        device="cpu" if settings.device == "auto" else settings.device,
        model=node.embedder_health().model,
        why=why,
    )


def _url(host: str, port: int) -> str:
    """The address to type into a browser: a wildcard bind answers on loopback too."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
