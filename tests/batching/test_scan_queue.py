"""The scan queue: batches, order, bounds and failures, against tables that answer only when the test lets them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from thread_kernels import Hits, create_engine
from thread_service.batching.scan import BATCH_BOUNDS, Caller, Scan, ScanQueue
from thread_service.errors import Busy, NotReady

TIMEOUT = 10
Rows = NDArray[np.int64]


class ScriptedTable:
    """Answers row 100 v + k to a query of components v. While not `open`, every call announces itself and waits.

    A query in `poison` fails the call it is part of.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int], list[int], list[Any]]] = []
        self.threads: list[int] = []
        self.poison: dict[int, BaseException] = {}
        self.entered: queue.Queue[list[int]] = queue.Queue()
        self.open = threading.Event()
        self.open.set()

    def candidates(self, queries: NDArray[np.float32], k: Sequence[int], filters: Sequence[Any]) -> list[Rows]:
        return self._answer("candidates", queries, k, filters)

    def search(self, queries: NDArray[np.float32], k: Sequence[int], filters: Sequence[Any]) -> list[Hits]:
        return [Hits(rows, np.zeros(1, np.float32)) for rows in self._answer("search", queries, k, filters)]

    def _answer(self, kind: str, queries: NDArray[np.float32], k: Sequence[int], filters: Sequence[Any]) -> list[Rows]:
        asked = [int(query[0]) for query in queries]
        self.calls.append((kind, asked, list(k), list(filters)))
        self.threads.append(threading.get_ident())
        if not self.open.is_set():
            self.entered.put(asked)
            assert self.open.wait(TIMEOUT)
        for query in asked:
            if query in self.poison:
                raise self.poison[query]
        return [np.array([100 * query + each]) for query, each in zip(asked, k, strict=True)]


class Callers:
    """Threads that ask; each request is known to wait before `ask` returns."""

    def __init__(self, scans: ScanQueue) -> None:
        self.scans = scans
        self._threads = ThreadPoolExecutor(64)

    def ask(self, *candidates: Scan, **more: Any) -> Future[Any]:
        waiting = self.scans.stats().waiting
        asked = self._threads.submit(lambda: self.scans.run(candidates=candidates, **more))
        until(lambda: self.scans.stats().waiting > waiting or asked.done())
        return asked

    @contextmanager
    def held(self, table: ScriptedTable) -> Iterator[None]:
        """Inside, query 0 is being scanned; what is asked gathers. It runs on leaving."""
        table.open.clear()
        first = self._threads.submit(lambda: self.scans.run(candidates=[scan(table, 0)]))
        assert table.entered.get(timeout=TIMEOUT) == [0]
        try:
            yield
        finally:
            table.open.set()
        assert rows(first) == [1]

    def close(self) -> None:
        self._threads.shutdown()


@pytest.fixture
def table() -> ScriptedTable:
    return ScriptedTable()


@pytest.fixture
def scans() -> ScanQueue:
    return ScanQueue(max_waiting=4)


@pytest.fixture
def callers(scans: ScanQueue) -> Iterator[Callers]:
    callers = Callers(scans)
    yield callers
    scans.close()
    callers.close()


def until(condition: Callable[[], bool]) -> None:
    waiter = threading.Event()
    for _ in range(TIMEOUT * 1000):
        if condition():
            return
        waiter.wait(0.001)
    raise AssertionError("what was waited for did not happen")


def scan(table: Any, query: int, k: int = 1, filter: Any = None) -> Scan:
    return Scan(table, np.full(2, query, np.float32), k, filter)


def rows(asked: Future[Any]) -> list[int]:
    found, hits = asked.result(TIMEOUT)
    assert hits == []
    return [int(each[0]) for each in found]


def test_a_lone_caller_scans_on_its_own_thread(scans: ScanQueue, table: ScriptedTable) -> None:
    [found], [hits] = scans.run(candidates=[scan(table, 3, k=7)], searches=[scan(table, 4, k=8)])
    assert (found.tolist(), hits.rows.tolist()) == ([307], [408])
    assert table.threads == [threading.get_ident()] * 2
    assert scans.run() == ([], [])


def test_who_asks_during_a_scan_is_served_by_one_call_with_a_k_and_a_filter_each(
    callers: Callers, table: ScriptedTable
) -> None:
    chosen = object()
    with callers.held(table):
        asked = [callers.ask(scan(table, number, k=number, filter=chosen)) for number in (1, 2)]
        asked.append(callers.ask(scan(table, 3, k=3)))
    assert [rows(each) for each in asked] == [[101], [202], [303]]
    assert table.calls[1:] == [("candidates", [1, 2, 3], [1, 2, 3], [chosen, chosen, None])]


def test_a_batch_asks_each_table_once_for_each_kind_and_answers_in_the_order_asked(
    callers: Callers, table: ScriptedTable
) -> None:
    other = ScriptedTable()
    with callers.held(table):
        one = callers.ask(scan(other, 1), scan(table, 2), searches=[scan(other, 3), scan(other, 4)])
        two = callers.ask(searches=[scan(other, 5), scan(table, 6)])
    found, hits = one.result(TIMEOUT)
    assert [each.tolist() for each in found] == [[101], [201]]
    assert [each.rows.tolist() for each in hits] == [[301], [401]]
    assert [each.rows.tolist() for each in two.result(TIMEOUT)[1]] == [[501], [601]]
    assert [call[:2] for call in table.calls[1:]] == [("candidates", [2]), ("search", [6])]
    assert [call[:2] for call in other.calls] == [("candidates", [1]), ("search", [3, 4, 5])]


def test_one_thread_at_a_time_is_in_the_engine(scans: ScanQueue, table: ScriptedTable) -> None:
    inside, most = 0, 0

    class Counting(ScriptedTable):
        def candidates(self, *asked: Any) -> list[Rows]:
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            found = super().candidates(*asked)
            inside -= 1
            return found

    tables = Counting(), Counting()
    scans = ScanQueue()
    with ThreadPoolExecutor(16) as threads:
        asked = [threads.submit(lambda k=k: scans.run(candidates=[scan(tables[k % 2], k)])) for k in range(2_000)]
    assert [rows(each) for each in asked] == [[100 * k + 1] for k in range(2_000)]
    assert most == 1
    stats = scans.stats()
    assert (stats.queries, stats.waiting) == (2_000, 0)
    assert sum(stats.batch_sizes) == sum(len(each.calls) for each in tables)
    assert stats.scan_seconds > 0


def test_the_first_who_waits_leads_the_next_batch(callers: Callers, table: ScriptedTable) -> None:
    with callers.held(table):
        one, two = callers.ask(scan(table, 1)), callers.ask(scan(table, 2))
    rows(one)
    rows(two)
    assert len(set(table.threads)) == 2


def test_a_full_queue_refuses_and_says_when_to_come_back(
    callers: Callers, scans: ScanQueue, table: ScriptedTable
) -> None:
    with callers.held(table):
        asked = [callers.ask(scan(table, number)) for number in range(1, 5)]
        with pytest.raises(Busy, match="4 searches already wait") as caught:
            scans.run(candidates=[scan(table, 9)])
        assert caught.value.retry_after_seconds is not None
        assert (scans.stats().waiting, scans.stats().refused) == (4, 1)
    assert [rows(each) for each in asked] == [[101], [201], [301], [401]]
    assert 9 not in [query for call in table.calls for query in call[1]]


def test_nobody_scans_for_a_caller_who_left(callers: Callers, scans: ScanQueue, table: ScriptedTable) -> None:
    with Caller() as stays:
        with callers.held(table), Caller() as leaves:
            gone = [callers.ask(scan(table, 1), caller=leaves)]
            kept = callers.ask(scan(table, 2), caller=stays)
            gone.append(callers.ask(scan(table, 3), caller=leaves))
        assert rows(kept) == [201]
    for each in gone:
        with pytest.raises(CancelledError):
            each.result(TIMEOUT)
    assert [call[1] for call in table.calls] == [[0], [2]]
    assert scans.stats().abandoned == 2


def test_when_all_who_wait_have_left_the_next_caller_is_served(
    callers: Callers, scans: ScanQueue, table: ScriptedTable
) -> None:
    with callers.held(table), Caller() as caller:
        gone = callers.ask(scan(table, 1), caller=caller)
    with pytest.raises(CancelledError):
        gone.result(TIMEOUT)
    assert rows(callers.ask(scan(table, 2))) == [201]


def test_a_query_at_fault_fails_its_own_caller_only(callers: Callers, table: ScriptedTable) -> None:
    table.poison[2] = ValueError("query 2 holds NaN")
    with callers.held(table):
        before = callers.ask(scan(table, 1))
        bad = callers.ask(scan(table, 2), scan(table, 4))
        after = callers.ask(scan(table, 3))
    with pytest.raises(ValueError, match="query 2 holds NaN"):
        bad.result(TIMEOUT)
    assert (rows(before), rows(after)) == ([101], [301])
    assert rows(callers.ask(scan(table, 5))) == [501]


def test_a_query_of_another_width_fails_its_own_caller_only(callers: Callers, table: ScriptedTable) -> None:
    real = create_engine("cpu").table(2)
    real.append(np.eye(2, dtype=np.float32))
    with callers.held(table):
        good = callers.ask(scan(real, 1))
        wide = callers.ask(Scan(real, np.ones(3, np.float32), 1))
        unordered = callers.ask(scan(real, 1, k=-1))
    assert set(good.result(TIMEOUT)[0][0].tolist()) <= {0, 1}
    for bad in (wide, unordered):
        with pytest.raises(ValueError):  # noqa: PT011 - the engine's words are its own
            bad.result(TIMEOUT)
    real.close()


def test_close_answers_who_waits_and_finishes_the_batch_in_hand(
    callers: Callers, scans: ScanQueue, table: ScriptedTable
) -> None:
    with callers.held(table):
        waiting = callers.ask(scan(table, 1))
        scans.close()
        with pytest.raises(NotReady, match="shutting down"):
            waiting.result(TIMEOUT)
    with pytest.raises(NotReady):
        scans.run(candidates=[scan(table, 2)])
    scans.close()
    assert [call[1] for call in table.calls] == [[0]]


def test_a_leader_that_is_ended_leaves_nobody_waiting(callers: Callers, table: ScriptedTable) -> None:
    other = ScriptedTable()
    table.poison[1] = SystemExit()
    with callers.held(table):
        leader = callers.ask(scan(table, 1))
        follower = callers.ask(scan(other, 2))
    for each in (leader, follower):
        with pytest.raises(SystemExit):
            each.result(TIMEOUT)
    assert rows(callers.ask(scan(other, 3))) == [301]


def test_batches_are_counted_by_size(callers: Callers, scans: ScanQueue, table: ScriptedTable) -> None:
    with callers.held(table):
        asked = [callers.ask(scan(table, 1), scan(table, 2), scan(table, 3)) for _ in range(2)]
    for each in asked:
        assert rows(each) == [101, 201, 301]
    many = [scan(table, 1)] * 200
    scans.run(candidates=many)
    stats = scans.stats()
    counted = {bound: count for bound, count in zip((*BATCH_BOUNDS, None), stats.batch_sizes, strict=True) if count}
    assert counted == {1: 1, 8: 1, None: 1}
    assert stats.queries == 1 + 6 + 200
    assert stats.wait_seconds > 0
