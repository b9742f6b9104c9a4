"""The embedding model that serves now: one queue in front of it, until another model takes its place.

It is asked as an `EmbeddingQueue` is. What embeds something first and uses the vector later keeps hold of `current`
and compares: when that is another by then, the vector is of a model that has gone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from thread_service.batching.embed import EmbeddingQueue, QueueStats
from thread_service.errors import NotReady
from thread_service.models.embedder import Embedder, Role

T = TypeVar("T")


class ServingModel:
    """Owns the queue it is given."""

    def __init__(self, queue: EmbeddingQueue) -> None:
        self._queue = queue

    @property
    def current(self) -> EmbeddingQueue:
        return self._queue

    def replace(self, queue: EmbeddingQueue) -> EmbeddingQueue:
        """Let another serve from now on; the one before, which the caller closes."""
        before, self._queue = self._queue, queue
        return before

    async def with_one(self, work: Callable[[], Awaitable[T]]) -> T:
        """What `work` answers with one and the same model from its beginning to its end: it is done again when another
        took its place meanwhile."""
        while True:
            serving = self._queue
            try:
                answer = await work()
            except NotReady:
                if serving is self._queue:
                    raise
            else:
                if serving is self._queue:
                    return answer

    def start(self, on_ready: Callable[[], None] = lambda: None) -> None:
        self._queue.start(on_ready)

    def close(self) -> None:
        self._queue.close()

    def submit(self, texts: Sequence[str], role: Role, *, is_long: bool = False) -> Future[NDArray[np.float32]]:
        return self._queue.submit(texts, role, is_long=is_long)

    def query(self, text: str) -> Future[NDArray[np.float32]]:
        return self._queue.query(text)

    async def query_vector(self, text: str) -> NDArray[np.float32]:
        return await self._queue.query_vector(text)

    def stats(self) -> QueueStats:
        return self._queue.stats()

    @property
    def embedder(self) -> Embedder:
        return self._queue.embedder

    @property
    def is_ready(self) -> bool:
        return self._queue.is_ready

    def check_ready(self) -> None:
        self._queue.check_ready()
