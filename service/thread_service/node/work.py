"""Where blocking work of the operations runs: a few threads beside the event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import apsw

from thread_service.store.changes import Changes
from thread_service.store.store import Store

T = TypeVar("T")


class Work:
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(min(32, 2 * (os.cpu_count() or 1) + 4), thread_name_prefix="operation")

    def start(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Begin `work` on a thread; await the future for its result."""
        return asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def run(self, work: Callable[[], T]) -> T:
        return await self.start(work)

    async def commit(self, store: Store, work: Callable[[apsw.Connection, Changes], T]) -> T:
        """Run `work` in a transaction; returns once it is durable.

        A caller who leaves does not undo it: what was sent to the writer is written.
        """
        return await asyncio.shield(asyncio.wrap_future(store.write(work)))

    def close(self) -> None:
        self._threads.shutdown()
