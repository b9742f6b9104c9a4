"""Wiring and lifecycle of a node, readable top to bottom.

The order matters. First what can fail because of somebody else, a port in use or a directory in use, so that it fails
before a model is loaded. The store is opened and recovered before the first request is answered; the model is loaded
behind the open port, where `/health` shows how far it is. A mothership hears of the node when it can be reached. At the
end, the other way round: memberships are left, no new requests, those under way are finished, then the node is closed,
which finishes its writes. A store that stops writing ends the node too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import uvloop

from thread_kernels import create_engine
from thread_service import logs
from thread_service.batching.embed import EmbeddingQueue
from thread_service.errors import StoreFailed
from thread_service.models.choice import choose
from thread_service.models.extraction import choice as extraction_choice
from thread_service.node.node import Node
from thread_service.node.operations import EmbedderHealth
from thread_service.node.reembedding import another_model
from thread_service.settings import Settings
from thread_service.store import stamp
from thread_service.store.directory import DataDirectory
from thread_service.store.store import Store
from thread_service.wire.admission import Admission
from thread_service.wire.connections import Bounds, Connections
from thread_service.wire.control import commands, run_control
from thread_service.wire.control_protocol import socket_path
from thread_service.wire.grpc_server import ApiKeyInterceptor, GrpcServer, run_grpc
from thread_service.wire.http import create_app
from thread_service.wire.mothership.fleet import Fleet
from thread_service.wire.secret import Stack, StackInterceptor, load_stack
from thread_service.wire.server import listen, run_http

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Starting:
    """What a node that starts has to say for itself. `why`: the reason for this model. `extraction`: what finds
    entities."""

    url: str
    grpc_address: str
    host: str
    is_guarded: bool
    data_dir: Path
    node_id: str
    device: str
    model: str
    why: str
    extraction: str


class Screen(Protocol):
    """Where a start is shown."""

    def starting(self, node: Starting) -> None: ...
    async def follow(self, health: Callable[[], EmbedderHealth]) -> None: ...


def serve(settings: Settings, notices: Sequence[str], screen: Screen) -> None:
    """Run a node until SIGTERM or SIGINT.

    Raises `SettingsError`, `ListenError`, `EngineUnavailable` or a `ThreadError` when it cannot start, `StoreFailed`
    when it had to stop.
    """
    logs.configure(settings.log_level, settings.log_format)
    for notice in notices:
        _log.warning("%s", notice)
    secret = load_stack(os.environ)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, secret, screen))


async def _serve(settings: Settings, secret: Stack | None, screen: Screen) -> None:
    stop, failures = asyncio.Event(), list[StoreFailed]()
    loop = asyncio.get_running_loop()

    def fail(error: StoreFailed) -> None:
        failures.append(error)
        loop.call_soon_threadsafe(stop.set)

    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(listener) for listener in listen(settings.host, settings.port)]
        interceptors = [StackInterceptor(secret)] if secret else []
        interceptors += [ApiKeyInterceptor(settings.api_key)] if settings.api_key else []
        grpc_server = GrpcServer(settings.host, settings.grpc_port, interceptors=interceptors)
        node, *reasons = await asyncio.to_thread(_open, settings, fail)
        try:
            node.start()
            ports = sockets[0].getsockname()[1], grpc_server.port
            screen.starting(_starting(settings, secret, node, reasons, *ports))
            following = asyncio.create_task(screen.follow(node.embedder_health))
            fleet = Fleet(settings, secret, node, *ports)
            http = Admission(create_app(node, settings, stack=secret, availability=fleet.availability))
            connections = Connections(Bounds.with_room_for(settings.max_body_mb * 2**20))
            async with asyncio.TaskGroup() as serving:
                serving.create_task(run_grpc(grpc_server, node, stop))
                serving.create_task(run_http(http, sockets, stop, connections))
                serving.create_task(fleet.run(stop))
                serving.create_task(run_control(socket_path(node.directory), commands(node), stop))
                serving.create_task(_stop_indexing(node, stop))
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        finally:
            await asyncio.to_thread(node.close)
    if failures:
        raise failures[0]


async def _stop_indexing(node: Node, stop: asyncio.Event) -> None:
    """Requests that wait for the index would hold the front ends open to the end of their grace."""
    await stop.wait()
    node.stop()


def _open(settings: Settings, on_failure: Callable[[StoreFailed], None]) -> tuple[Node, str, str]:
    """The node, its store open and recovered, the reason for its model, and what finds entities."""
    engine = create_engine(
        settings.device, compress=settings.compress, pq_bits=settings.pq_bits, gpu_share=settings.gpu_memory
    )
    with contextlib.ExitStack() as on_error:
        directory = DataDirectory.open(settings.data_dir, settings.node_id or None)
        on_error.callback(directory.close)
        store = Store(directory, engine, on_failure=on_failure)
        on_error.callback(store.close)
        with store.read() as connection:
            stored = stamp.stored(connection)
        choice = choose(settings, stored, os.environ)
        extraction = extraction_choice.choose(settings, os.environ)
        if extraction.missing:
            _log.warning("%s; keywords are extracted instead", extraction.missing)
        node = Node(
            store,
            EmbeddingQueue(choice.embedder, **choice.queue),
            graph_mode=settings.graph_mode,
            lexical=settings.lexical,
            mention_linking=settings.mention_linking,
            pending_documents_max=settings.queue_documents,
            extractor=extraction.extractor,
            another_model=lambda wanted, begun: another_model(settings, wanted, begun, os.environ),
        )
        on_error.pop_all()
    return node, choice.why, extraction.about


def _starting(
    settings: Settings, secret: Stack | None, node: Node, reasons: Sequence[str], http_port: int, grpc_port: int
) -> Starting:
    return Starting(
        url=f"http://{_address(settings.host, http_port)}",
        grpc_address=_address(settings.host, grpc_port),
        host=settings.host,
        is_guarded=secret is not None or bool(settings.api_key),
        data_dir=settings.data_dir,
        node_id=node.node_id,
        device=node.engine_health().device,
        model=node.embedder_health().model,
        why=reasons[0],
        extraction=reasons[1],
    )


def _address(host: str, port: int) -> str:
    """What to type into a browser: a wildcard bind answers on loopback too."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
