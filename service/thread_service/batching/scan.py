"""Scans of the tables of vectors, in batches: who asks while a scan runs is part of the next one.

    run → waiting requests → the leader: one engine call for each table and kind → everybody's answers

At most one thread is inside a scan: the leader. Who finds nobody scanning leads at once, on the thread that asked; who
finds a leader waits, and is answered by a later batch or called to lead it. So a device sees one owner at a time, and
the CPU engine's own threads are not started by several searches against each other. A lone caller pays for a few
objects and two free locks, 10 µs. A thread of the queue's own served as many at once, but a lone caller would pay for
two changes of thread beside: 20 µs on an idle machine, and up to two turns at the interpreter, of 5 ms each, while
other threads compute.

A leader serves one batch, which its own request is part of, so nobody works long for others. Callers who left are
skipped. A call that fails for several is tried for each alone, so that what is at fault fails its own caller only.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from thread_kernels import Filter, Hits, Table
from thread_service.errors import Busy, NotReady

Rows = NDArray[np.int64]

BATCH_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Upper bounds, in queries, by which the sizes of batches are counted; the last count is of larger ones."""

_RETRY_AFTER_FULL_SECONDS = 1

_Kind = Literal["candidates", "search"]
_Found = Rows | Hits


@dataclass(frozen=True, slots=True)
class Scan:
    """One query of one table: `vector` is float32 [width]."""

    table: Table
    vector: NDArray[np.float32]
    k: int
    filter: Filter | None = None


class Caller:
    """Somebody who wants an answer while the `with` block lasts. Whoever has left is not scanned for."""

    def __init__(self) -> None:
        self.has_left = False

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        self.has_left = True


@dataclass(frozen=True, slots=True)
class ScanStats:
    """What waits now, and totals since the start. A batch is one call of the engine."""

    waiting: int
    refused: int
    """Requests for which there was no room."""
    abandoned: int
    """Requests whose caller left before they were scanned."""
    queries: int
    batch_sizes: tuple[int, ...]
    """Batches by `BATCH_BOUNDS`, with those beyond the last bound at the end."""
    wait_seconds: float
    """Spent by all requests until their batch began."""
    scan_seconds: float
    """Spent in the engine."""


class ScanQueue:
    """The one way to the scans of the engine's tables. `max_waiting` bounds the requests that wait."""

    def __init__(self, *, max_waiting: int = 1024) -> None:
        self._max_waiting = max_waiting
        self._lock = threading.Lock()
        self._waiting: list[_Request] = []
        self._is_led = False
        self._is_closed = False
        self._refused = self._abandoned = 0
        # Changed by the leader alone.
        self._queries = 0
        self._batch_sizes = [0] * (len(BATCH_BOUNDS) + 1)
        self._wait_seconds = self._scan_seconds = 0.0

    def run(
        self, *, candidates: Sequence[Scan] = (), searches: Sequence[Scan] = (), caller: Caller | None = None
    ) -> tuple[list[Rows], list[Hits]]:
        """`Table.candidates` and `Table.search` of each scan, all in one batch. Blocking.

        Raises Busy when too many wait, NotReady after `close`, CancelledError when the caller has left, and the
        engine's own error of the first of the scans that it refuses (a ValueError).
        """
        request = _Request(candidates, searches, caller)
        if not request.missing:
            return [], []
        with self._lock:
            if self._is_closed:
                raise _closed()
            if len(self._waiting) >= self._max_waiting:
                self._refused += 1
                raise Busy(f"{len(self._waiting)} searches already wait", retry_after_seconds=_RETRY_AFTER_FULL_SECONDS)
            self._waiting.append(request)
            if not self._is_led:
                self._is_led = request.leads = True
        if not request.leads:
            request.gate.acquire()
        if request.leads:
            self._lead()
        return request.answer()

    def close(self) -> None:
        """Answer whoever waits; the batch in hand is finished. Idempotent."""
        with self._lock:
            self._is_closed = True
            refused = [request for request in self._waiting if not request.leads]
            self._waiting = [request for request in self._waiting if request.leads]
        for request in refused:
            request.end(_closed())

    def stats(self) -> ScanStats:
        with self._lock:
            return ScanStats(
                waiting=len(self._waiting),
                refused=self._refused,
                abandoned=self._abandoned,
                queries=self._queries,
                batch_sizes=tuple(self._batch_sizes),
                wait_seconds=self._wait_seconds,
                scan_seconds=self._scan_seconds,
            )

    # ------------------------------------------------------------------------------------------ the leader

    def _lead(self) -> None:
        """Serve everyone who waits, once; then call the next leader if somebody waits again."""
        with self._lock:
            batch, self._waiting = self._waiting, []
        try:
            self._serve([request for request in batch if not self._let_go(request)])
        finally:
            with self._lock:
                while self._waiting and self._let_go(self._waiting[0]):
                    del self._waiting[0]
                self._is_led = bool(self._waiting)
                if self._is_led:
                    self._waiting[0].leads = True
                    self._waiting[0].gate.release()

    def _let_go(self, request: _Request) -> bool:
        """Whether the caller has left; then nobody needs more than to know it."""
        if request.caller is None or not request.caller.has_left:
            return False
        self._abandoned += 1
        request.end(CancelledError())
        return True

    def _serve(self, batch: Sequence[_Request]) -> None:
        now = time.perf_counter()
        calls: dict[tuple[Table, _Kind], list[_Part]] = {}
        for request in batch:
            self._wait_seconds += now - request.since
            for part in request.parts:
                calls.setdefault((part.scan.table, part.kind), []).append(part)
        try:
            for parts in calls.values():
                self._call(parts)
        except BaseException as error:
            # Nothing a scan does: this thread is being ended. Nobody may wait for it.
            for request in batch:
                if request.missing:
                    request.end(error)
            raise

    def _call(self, parts: Sequence[_Part]) -> None:
        """Ask the engine once for scans of one table and one kind, and answer their requests."""
        scans = [part.scan for part in parts]
        table, kind = scans[0].table, parts[0].kind
        self._queries += len(scans)
        self._batch_sizes[bisect_left(BATCH_BOUNDS, len(scans))] += 1
        started = time.perf_counter()
        found: Sequence[_Found] = ()
        failure: Exception | None = None
        try:
            vectors = np.array([scan.vector for scan in scans])
            ask = table.candidates if kind == "candidates" else table.search
            found = ask(vectors, [scan.k for scan in scans], [scan.filter for scan in scans])
        except Exception as error:
            failure = error
        self._scan_seconds += time.perf_counter() - started
        if failure is None:
            for part, result in zip(parts, found, strict=True):
                part.request.take(part, result)
        elif len(parts) > 1:
            for part in parts:
                self._call([part])
        else:
            parts[0].request.fail(failure)


class _Part(NamedTuple):
    """One scan of a request, and where its result goes."""

    request: _Request
    scan: Scan
    kind: _Kind
    place: int


class _Request:
    """The scans of one caller, who waits at the `gate` unless it leads."""

    __slots__ = ("_error", "_hits", "_rows", "caller", "gate", "leads", "missing", "parts", "since")

    def __init__(self, candidates: Sequence[Scan], searches: Sequence[Scan], caller: Caller | None) -> None:
        self.caller = caller
        self.parts = [_Part(self, scan, "candidates", place) for place, scan in enumerate(candidates)]
        self.parts += [_Part(self, scan, "search", place) for place, scan in enumerate(searches)]
        self.missing = len(self.parts)
        self.since = time.perf_counter()
        self.leads = False
        self.gate = threading.Lock()
        self.gate.acquire()
        self._rows: dict[int, Rows] = {}
        self._hits: dict[int, Hits] = {}
        self._error: BaseException | None = None

    def take(self, part: _Part, result: _Found) -> None:
        if isinstance(result, Hits):
            self._hits[part.place] = result
        else:
            self._rows[part.place] = result
        self._count_down(1)

    def fail(self, error: BaseException) -> None:
        """One scan has failed."""
        self._error = self._error or error
        self._count_down(1)

    def end(self, error: BaseException) -> None:
        """Whatever is missing will not come."""
        self._error = self._error or error
        self._count_down(self.missing)

    def answer(self) -> tuple[list[Rows], list[Hits]]:
        if self._error is not None:
            raise self._error
        rows, hits = self._rows, self._hits
        return [rows[place] for place in range(len(rows))], [hits[place] for place in range(len(hits))]

    def _count_down(self, parts: int) -> None:
        self.missing -= parts
        if not self.missing and not self.leads:
            self.gate.release()


def _closed() -> NotReady:
    return NotReady("the node is shutting down")
