"""A membership run by a test: the client under test, with answers the test decides, at short intervals."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from mothership import TIMEOUT

from thread_service.wire.mothership.advertised import Advertised
from thread_service.wire.mothership.client import MothershipClient
from thread_service.wire.mothership.peer import Peer
from thread_service.wire.mothership.timings import Timings
from thread_service.wire.v1 import thread_pb2 as pb

NODE_ID = "1B4E28BA-2FA1-11D2-883F-0016D3CCA427"
ADVERTISED = Advertised("127.0.0.1", 19090, 18081)
FAST = Timings(reconnect=0.05, register_deadline=5, ping=0.05, heartbeat=0.05, watchdog=5, storage_poll=0.02)


class Answers:
    """Answers a search with one result that repeats its text, cut, and with `tail` behind it.

    What a test holds back waits until it is let go.
    """

    def __init__(self) -> None:
        self.asked: list[pb.ThreadSessionMessage] = []
        self.held: dict[str, asyncio.Event] = {}
        self.tail = ""

    def hold(self, query_text: str) -> asyncio.Event:
        return self.held.setdefault(query_text, asyncio.Event())

    async def answer(self, message: pb.ThreadSessionMessage) -> pb.ThreadSessionMessage | None:
        self.asked.append(message)
        if not message.HasField("search_request"):
            return None
        text = message.search_request.query_text
        if text in self.held:
            await self.held[text].wait()
        if text == "fail":
            raise RuntimeError("a fault of the node")
        results = [pb.ThreadPartitionResult(text=text[:100] + self.tail)]
        response = pb.ThreadSearchResponse(results=results)
        return pb.ThreadSessionMessage(correlation_id=message.correlation_id, search_response=response)


@contextlib.asynccontextmanager
async def member(
    port: int, answers: Any = None, *, timings: Timings = FAST, peer: Peer | None = None, **more: Any
) -> AsyncIterator[MothershipClient]:
    client = MothershipClient(
        peer or Peer.mothership("127.0.0.1", port),
        more.pop("node_id", NODE_ID),
        more.pop("advertised", ADVERTISED),
        answers or Answers(),
        timings=timings,
        **more,
    )
    async with running(client):
        yield client


@contextlib.asynccontextmanager
async def running(client: MothershipClient) -> AsyncIterator[None]:
    task = asyncio.create_task(client.run())
    try:
        yield
        assert not task.done(), "the membership ended by itself"
    finally:
        task.cancel()
        async with asyncio.timeout(TIMEOUT):
            await asyncio.gather(task, return_exceptions=True)
