"""Where blocking work of the operations runs: a few threads beside the event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import apsw

from thread_service.errors import Busy, NotReady
from thread_service.store.changes import Changes
from thread_service.store.store import Store

T = TypeVar("T")

UNFINISHED_MAX = 4_096
"""Pieces of work that run or wait for a thread; more are refused."""


class Work:
    def __init__(self, *, unfinished_max: int = UNFINISHED_MAX) -> None:
        self._threads = ThreadPoolExecutor(min(32, 2 * (os.cpu_count() or 1) + 4), thread_name_prefix="operation")
        self._unfinished_max = unfinished_max
        self._unfinished = 0
        self.begun = 0
        """How many pieces of work were ever begun."""
        self._counting = threading.Lock()
        self._is_closed = False

    @property
    def is_busy(self) -> bool:
        """Whether any work runs, or waits for a thread."""
        return self._unfinished > 0

    def start(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Begin `work` on a thread; await the future for its result.

        Busy: too much waits. NotReady: closed. In both cases nothing was begun.
        """
        with self._counting:
            if self._is_closed:
                raise NotReady("the node is shutting down")
            if self._unfinished >= self._unfinished_max:
                raise Busy(f"{self._unfinished} operations already wait", retry_after_seconds=1)
            self._unfinished += 1
            self.begun += 1
        job = self._threads.submit(work)
        job.add_done_callback(self._finished)
        return asyncio.wrap_future(job)

    async def run(self, work: Callable[[], T]) -> T:
        return await self.start(work)

    async def commit(self, store: Store, work: Callable[[apsw.Connection, Changes], T], *, is_large: bool = False) -> T:
        """Run `work` in a transaction; returns once it is durable.

        A caller who leaves does not undo it: what was sent to the writer is written.
        """
        return await asyncio.shield(asyncio.wrap_future(store.write(work, is_large=is_large)))

    def _finished(self, job: Future[T]) -> None:
        with self._counting:
            self._unfinished -= 1

    def close(self) -> None:
        """End when what was begun is done; what comes later gets NotReady."""
        with self._counting:
            self._is_closed = True
        self._threads.shutdown()
