"""What `service.py` measures, each in a process of its own: a node, its front ends alone, the bare frameworks.

All of them join the mothership whose port they are given, and by that tell it their own ports.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc.aio
import uvloop
from harness import MODEL
from litestar import Litestar, Request, get, post
from service_data import Source

from thread_kernels import create_engine
from thread_service.batching.embed import EmbeddingQueue
from thread_service.models.choice import LOCAL_QUEUES
from thread_service.models.local import local_embedder
from thread_service.node.node import Node
from thread_service.node.operations import EmbedderHealth, EngineHealth, SearchAnswer, SearchRequest
from thread_service.settings import Settings
from thread_service.store.directory import DataDirectory
from thread_service.store.store import Store
from thread_service.wire.grpc_server import GrpcServer
from thread_service.wire.http import create_app
from thread_service.wire.mothership.fleet import Fleet
from thread_service.wire.mothership.peer import Peer
from thread_service.wire.mothership.timings import Timings
from thread_service.wire.server import listen, run_http
from thread_service.wire.v1 import thread_pb2 as pb
from thread_service.wire.v1.thread_pb2_grpc import ThreadRegistrationStub

NODE_ID = "00000000-0000-4000-8000-000000000001"
STOP_SECONDS = 40

Served = Callable[[int], Coroutine[Any, Any, None]]
"""Serves for ever, and joins the mothership of this port."""

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """On the event loop that the node uses."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def run_apart(work: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
    """In a process that is gone afterwards."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_run, work, *arguments).result()


def _run(work: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
    return run(work(*arguments))


# ---------------------------------------------------------------------------------------------------- a node


@asynccontextmanager
async def opened_node(folder: Path, options: dict[str, Any]) -> AsyncIterator[Node]:
    """In this process, with its model ready."""
    store = Store(DataDirectory.open(folder), create_engine("cpu"))
    queue = EmbeddingQueue(local_embedder(MODEL, models_dir=folder), **LOCAL_QUEUES["cpu"])
    node = Node(store, queue, **options)
    node.start()
    try:
        while not queue.is_ready:
            if queue.embedder.status.phase == "failed":
                raise SystemExit(str(queue.embedder.status))
            await asyncio.sleep(0.05)
        yield node
    finally:
        node.close()


@contextmanager
def started_node(folder: Path, options: dict[str, Any], mothership_port: int) -> Iterator[int]:
    """As it is run by `thread`: its process id."""
    flags = {
        "--port": 0,
        "--grpc-port": 0,
        "--data-dir": folder,
        "--embedding-model": MODEL,
        "--log-level": "warning",
        "--graph-mode": options["graph_mode"],
        "--lexical": "on" if options["lexical"] else "off",
        "--mothership-host": "127.0.0.1",
        "--mothership-grpc-port": mothership_port,
    }
    command = [sys.executable, "-m", "thread_service.cli", *(str(part) for flag in flags.items() for part in flag)]
    own = {name: value for name, value in os.environ.items() if not name.startswith(("THREAD_", "AMBIENT_", "RAO_"))}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=own, cwd=folder) as process:
        try:
            yield process.pid
        finally:
            process.terminate()
            process.wait(STOP_SECONDS)


@contextmanager
def started(serve: Served, mothership_port: int) -> Iterator[int]:
    """`serve` in a process of its own: its process id."""
    process = multiprocessing.get_context("spawn").Process(target=_run, args=(serve, mothership_port), daemon=True)
    process.start()
    try:
        assert process.pid is not None
        yield process.pid
    finally:
        process.kill()
        process.join()


# ---------------------------------------------------------------------------------------------------- front ends


class ReadyAnswer:
    """A node that finds the same every time, at no cost."""

    node_id = NODE_ID
    ready = True

    def __init__(self) -> None:
        self._answer = Source().answer()

    def embedder_health(self) -> EmbedderHealth:
        return EmbedderHealth("none", "", "ready")

    def engine_health(self) -> EngineHealth:
        return EngineHealth("cpu", None)

    async def search(self, _: SearchRequest) -> SearchAnswer:
        return self._answer

    async def queue_is_full(self) -> bool:
        return False


async def serve_front_ends(mothership_port: int) -> None:
    node: Any = ReadyAnswer()
    settings = Settings(
        mothership_host="127.0.0.1", mothership_grpc_port=mothership_port, data_dir=Path(tempfile.gettempdir())
    )
    sockets = listen("127.0.0.1", 0)
    server = GrpcServer("127.0.0.1", 0)
    await server.start(node)
    stop = asyncio.Event()
    fleet = Fleet(settings, None, node, sockets[0].getsockname()[1], server.port)
    await asyncio.gather(run_http(create_app(node, settings), sockets, stop), fleet.run(stop))


# ---------------------------------------------------------------------------------------------------- frameworks


async def serve_frameworks(mothership_port: int) -> None:
    """Takes the requests that a node takes, and answers nothing."""

    @post("/v1/search", status_code=200)
    async def take(request: Request[Any, Any, Any]) -> None:
        await request.body()

    @get("/health")
    async def health() -> dict[str, dict[str, str]]:
        return {"embedder": {"phase": "ready"}}

    async def take_call(_: bytes, __: Any) -> bytes:
        return b""

    sockets = listen("127.0.0.1", 0)
    server = grpc.aio.server()
    handlers = {"Search": grpc.unary_unary_rpc_method_handler(take_call)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("thread.v1.ThreadQuery", handlers),))
    grpc_port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await asyncio.gather(
        run_http(Litestar([take, health], logging_config=None), sockets, asyncio.Event()),
        _hold_session(mothership_port, sockets[0].getsockname()[1], grpc_port),
    )


async def _hold_session(mothership_port: int, http_port: int, grpc_port: int) -> None:
    async with Peer.mothership("127.0.0.1", mothership_port).session_channel(Timings()) as channel:
        registration = pb.RegisterRequest(thread_id=NODE_ID, host="127.0.0.1", http_port=http_port, grpc_port=grpc_port)
        await ThreadRegistrationStub(channel).Register(registration, wait_for_ready=True)
        call = channel.stream_stream("/thread.v1.ThreadRegistration/Session")()
        await call.write(pb.ThreadSessionMessage(ping=pb.ThreadSessionPing()).SerializeToString())
        while (data := await call.read()) is not grpc.aio.EOF:
            request = pb.ThreadSessionMessage.FromString(data)
            answer = pb.ThreadSessionMessage(correlation_id=request.correlation_id)
            answer.search_response.SetInParent()
            await call.write(answer.SerializeToString())
