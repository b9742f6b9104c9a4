"""Where blocking work of the operations runs: a few threads beside the event loop."""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

import apsw

from thread_service.errors import Busy, NotReady
from thread_service.store.changes import Changes
from thread_service.store.store import Store

T = TypeVar("T")

DEVICE_THREADS = 128
"""Where searches wait for a device, each on a thread of its own: as many can leave in one launch."""
UNFINISHED_MAX = 4_096
"""Pieces of work that run or wait for a thread; more are refused."""
WAITING_SECONDS_MAX = 5.0
"""How long the next piece may have waited for a thread; while one waits longer, new ones are refused. Above capacity a
queue is as long as its bound: an answer that comes when its caller has gone helps nobody, a quick refusal does."""


class Work:
    """`threads`: pieces that run at the same time; by default a few more than there are processors."""

    def __init__(
        self,
        *,
        threads: int | None = None,
        unfinished_max: int = UNFINISHED_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        threads = threads or min(32, 2 * (os.cpu_count() or 1) + 4)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="operation")
        self._unfinished_max = unfinished_max
        self._unfinished = 0
        self._clock = clock
        self._waiting: dict[int, float] = {}
        """When each piece came that has no thread yet, oldest first."""
        self.begun = 0
        """How many pieces of work were ever begun."""
        self._counting = threading.Lock()
        self._is_closed = False

    @property
    def is_busy(self) -> bool:
        """Whether any work runs, or waits for a thread."""
        return self._unfinished > 0

    def begin(self, work: Callable[[], T], *, refusable: bool = True) -> Future[T]:
        """Begin `work` on a thread. `refusable`: not where it ends what was begun before, which a refusal would waste,
        nor where the node itself asks how it stands. From any thread.

        Busy: too much waits, or for too long. NotReady: closed. In both cases nothing was begun.
        """
        with self._counting:
            if self._is_closed:
                raise NotReady("the node is shutting down")
            if self._unfinished >= self._unfinished_max:
                raise Busy(f"{self._unfinished} operations already wait", retry_after_seconds=1)
            waited = self._clock() - next(iter(self._waiting.values()), math.inf)
            if waited > WAITING_SECONDS_MAX and refusable:
                raise Busy(
                    f"operations wait {waited:.0f} seconds for their turn", retry_after_seconds=math.ceil(waited)
                )
            self._unfinished += 1
            self.begun += 1
            number = self.begun
            self._waiting[number] = self._clock()

            def begin() -> T:
                self._has_begun(number)
                return work()

            job = self._threads.submit(begin)
        job.add_done_callback(lambda job: self._finished(number))
        return job

    def start(self, work: Callable[[], T], *, refusable: bool = True) -> asyncio.Future[T]:
        """As `begin`; await the future for its result."""
        return asyncio.wrap_future(self.begin(work, refusable=refusable))

    async def run(self, work: Callable[[], T], *, refusable: bool = True) -> T:
        return await self.start(work, refusable=refusable)

    def start_after(self, awaited: Sequence[Future[Any]], work: Callable[[], T]) -> asyncio.Future[T]:
        """Begin `work`, which is not refused, when all that is `awaited`, something at least, has been done: whatever
        ends last begins it, without the event loop between. Fails at once when one of them does.
        """
        following = _Following(self, len(awaited), work)
        for each in awaited:
            each.add_done_callback(following.one_has_ended)
        return asyncio.wrap_future(following.answer)

    async def commit(self, store: Store, work: Callable[[apsw.Connection, Changes], T], *, is_large: bool = False) -> T:
        """Run `work` in a transaction; returns once it is durable.

        A caller who leaves does not undo it: what was sent to the writer is written.
        """
        return await asyncio.shield(asyncio.wrap_future(store.write(work, is_large=is_large)))

    def _has_begun(self, number: int) -> None:
        with self._counting:
            del self._waiting[number]

    def _finished(self, number: int) -> None:
        with self._counting:
            self._unfinished -= 1
            self._waiting.pop(number, None)  # still there when its caller left before it had a thread

    def close(self) -> None:
        """End when what was begun is done; what comes later gets NotReady."""
        with self._counting:
            self._is_closed = True
        self._threads.shutdown()


class _Following(Generic[T]):
    """Work that begins when other things have ended."""

    def __init__(self, work: Work, count: int, piece: Callable[[], T]) -> None:
        self.answer: Future[T] = Future()
        self._work = work
        self._piece: Callable[[], T] | None = piece
        self._left = count
        self._is_decided = False
        """All have ended, or one has failed."""
        self._counting = threading.Lock()

    def one_has_ended(self, ended: Future[Any]) -> None:
        error = CancelledError() if ended.cancelled() else ended.exception()
        with self._counting:
            self._left -= 1
            if self._is_decided or (error is None and self._left):
                return
            self._is_decided = True
        try:
            if error is not None:
                raise error
            self._work.begin(self._run, refusable=False)
        except BaseException as failure:
            if self.answer.set_running_or_notify_cancel():
                self.answer.set_exception(failure)

    def _run(self) -> None:
        # Let go of it: it holds what it waited for, which holds this, and with it the answer.
        piece, self._piece = self._piece, None
        assert piece is not None
        if self.answer.set_running_or_notify_cancel():
            try:
                self.answer.set_result(piece())
            except BaseException as failure:
                self.answer.set_exception(failure)
