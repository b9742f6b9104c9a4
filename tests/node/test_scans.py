"""Searches at once share the scans of the tables, and who has left is not scanned for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from in_process import TIMEOUT, InProcess, document, happens, opened, unit

from thread_service.errors import NotReady
from thread_service.node.operations import SearchAnswer, SearchRequest

VECTOR = unit(1, width=32)


class HeldTable:
    """Notes how many queries each scan serves. While not `open`, a scan waits."""

    def __init__(self, node: InProcess) -> None:
        [resident] = node.store.resident.partition_tables(32, ("caller",))
        self.scans: list[int] = []
        self.open = threading.Event()
        self._scan = resident.table.candidates
        resident.table.candidates = self._candidates  # type: ignore[method-assign]

    def _candidates(self, queries: Any, *more: Any) -> Any:
        self.scans.append(len(queries))
        assert self.open.wait(TIMEOUT)
        return self._scan(queries, *more)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[InProcess]:
    with opened(tmp_path / "data") as node:
        node.file("ann", document("hers", id="hers", vectors=[VECTOR]))
        node.file("ben", document("his", id="his", vectors=[VECTOR]))
        yield node


@pytest.fixture
def table(node: InProcess) -> Iterator[HeldTable]:
    table = HeldTable(node)
    yield table
    table.open.set()


def search(node: InProcess, owner: str) -> asyncio.Task[SearchAnswer]:
    return asyncio.create_task(node.node.search(SearchRequest(owner, query_embedding=VECTOR)))


async def sample(node: InProcess, name: str) -> float:
    [value] = [each.value for family in await node.node.metrics() for each in family.samples if each.name == name]
    return value


async def becomes(node: InProcess, name: str, value: float) -> None:
    async with asyncio.timeout(TIMEOUT):
        while await sample(node, name) != value:  # noqa: ASYNC110 - what is waited for happens on other threads
            await asyncio.sleep(0.002)


def test_searches_that_wait_are_one_scan_and_each_sees_its_own(node: InProcess, table: HeldTable) -> None:
    async def everything() -> list[SearchAnswer]:
        first = search(node, "ann")
        await happens(lambda: table.scans == [1])
        others = [search(node, owner) for owner in ("ben", "ann")]
        await becomes(node, "thread_scan_waiting_requests", 2)
        table.open.set()
        return await asyncio.gather(first, *others)

    answers = node.run(everything())
    assert table.scans == [1, 2]
    assert [[passage.document_id for passage in each.passages] for each in answers] == [["hers"], ["his"], ["hers"]]


def test_nothing_is_scanned_for_a_caller_who_left(node: InProcess, table: HeldTable) -> None:
    async def everything() -> None:
        first = search(node, "ann")
        await happens(lambda: table.scans == [1])
        gone, stays = search(node, "ben"), search(node, "ben")
        await becomes(node, "thread_scan_waiting_requests", 2)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        table.open.set()
        await asyncio.gather(first, stays)
        await becomes(node, "thread_scan_abandoned_total", 1)

    node.run(everything())
    assert table.scans == [1, 1]


def test_closing_answers_who_waits_for_a_scan(node: InProcess, table: HeldTable) -> None:
    async def everything() -> None:
        first = search(node, "ann")
        await happens(lambda: table.scans == [1])
        waiting = search(node, "ben")
        await becomes(node, "thread_scan_waiting_requests", 1)
        closing = asyncio.create_task(asyncio.to_thread(node.node.close))
        with pytest.raises(NotReady):
            await waiting
        table.open.set()
        assert [passage.document_id for passage in (await first).passages] == ["hers"]
        await closing

    node.run(everything())
