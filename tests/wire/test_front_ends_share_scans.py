"""Searches by HTTP, gRPC and a session that wait behind a busy engine are one call of it, whoever asked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import pytest
from grpc_caller import protocol
from in_process import TIMEOUT, InProcess, document, happens, opened, unit
from member import member
from mothership import listening

from thread_kernels.engine_cpu import CpuEngine
from thread_service.settings import Settings
from thread_service.wire.dispatch import Dispatch
from thread_service.wire.grpc_server import GrpcServer
from thread_service.wire.http import create_app
from thread_service.wire.v1 import thread_pb2 as pb

WIDTH = 32
OWNERS = 9
BY_HTTP, BY_GRPC, BY_SESSION = 32, 32, 8


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcess]:
    """As where the engine is a device: searches wait for it, and none for a thread."""
    monkeypatch.setattr(CpuEngine, "name", "cuda")
    with opened(tmp_path / "data") as node:
        for number in range(OWNERS):
            node.file(owner(number), document("text", id=f"of {owner(number)}", vectors=[vector(number)]))
        yield node


def owner(number: int) -> str:
    return f"owner-{number % OWNERS}"


def vector(number: int) -> Any:
    return unit(1, number % OWNERS, width=WIDTH)


class HeldEngine:
    """The table with the vectors. `calls` has the number of queries of each; while not `open`, a call waits."""

    def __init__(self, node: InProcess) -> None:
        [resident] = node.store.resident.partition_tables(WIDTH, ("caller",))
        self.calls: list[int] = []
        self.open = threading.Event()
        self._scan = resident.table.candidates
        resident.table.candidates = self._candidates  # type: ignore[method-assign]

    def _candidates(self, queries: Any, *more: Any) -> Any:
        self.calls.append(len(queries))
        assert self.open.wait(TIMEOUT)
        return self._scan(queries, *more)


def test_they_are_one_launch_and_each_gets_its_own_answer(node: InProcess) -> None:
    engine = HeldEngine(node)

    async def by_http(client: httpx.AsyncClient, number: int) -> list[str]:
        asked = {"query_embedding": vector(number).tolist(), "thread": {"owner_id": owner(number), "top_k": 1 + number}}
        answer = await client.post("/v1/search", json={"query": "", **asked})
        assert answer.status_code == 200, answer.text
        return [each["document_id"] for each in answer.json()["references"]]

    async def by_grpc(channel: Any, number: int) -> list[str]:
        asked = {"query_embedding": vector(number).tolist(), "owner_id": owner(number), "top_k": 1 + number}
        answer = await protocol.call(channel, "ThreadQuery/Search", asked)
        return [each.document_id for each in answer.results]

    async def by_session(stream: Any, number: int) -> list[str]:
        asked = pb.ThreadSearchRequest(query_embedding=vector(number), owner_id=owner(number), top_k=1 + number)
        answer = await stream.ask(search_request=asked)
        return [each.document_id for each in answer.search_response.results]

    async def scenario() -> list[Any]:
        server = GrpcServer("127.0.0.1", 0)
        await server.start(node.node)
        app = create_app(node.node, Settings())
        async with (
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://node") as client,
            grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
            listening() as mothership,
            member(mothership.port, Dispatch(node.node)),
        ):
            stream = await mothership.session()
            first = asyncio.create_task(by_http(client, 0))
            await happens(lambda: engine.calls == [1])
            others = [asyncio.create_task(by_http(client, number)) for number in range(BY_HTTP)]
            others += [asyncio.create_task(by_grpc(channel, number)) for number in range(BY_GRPC)]
            others += [asyncio.create_task(by_session(stream, number)) for number in range(BY_SESSION)]
            await happens(lambda: node.node._scans.stats().waiting == len(others))
            engine.open.set()
            answers = await asyncio.gather(first, *others, return_exceptions=True)
        await server.stop(0)
        return answers

    answers = node.run(scenario())
    assert engine.calls == [1, BY_HTTP + BY_GRPC + BY_SESSION]
    asked = [0, *range(BY_HTTP), *range(BY_GRPC), *range(BY_SESSION)]
    assert answers == [[f"of {owner(number)}"] for number in asked]
