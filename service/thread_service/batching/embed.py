"""The threads that own the embedding model: one loads it, then they embed whatever waits, queries first.

    submit → TextQueue → owner thread: take a batch → embedder.embed → the futures of all jobs in it

A big job is embedded batch by batch, so a query waits for one batch at most, and long documents take turns with the
others; where there are several threads, as on a CPU or in front of a hosted model, one is kept free of documents and a
query waits for none. Batches are what gathered while the last one ran. A caller who cancelled is skipped. If a batch of
several jobs fails, its texts are tried one by one, so that the text at fault fails its own job only.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from thread_service.batching.queue import Entry, Job, TextQueue
from thread_service.errors import Busy, ModelFailed, NotReady, ThreadError
from thread_service.logs import event
from thread_service.models.embedder import Embedder, EmbeddingFailed, Role

log = logging.getLogger(__name__)

_CACHED_QUERIES = 256
_RETRY_AFTER_SECONDS = {"idle": 5, "downloading": 10, "loading": 2}
_CLOSE_TIMEOUT_SECONDS = 5.0
PROGRESS_SECONDS = 10.0
"""How long documents are embedded before the log says how far that is, and how often it does."""


@dataclass(frozen=True, slots=True)
class QueueStats:
    """What waits now, and totals since the start. `texts / batches` is the mean batch."""

    waiting_queries: int
    waiting_documents: int
    batches: int
    texts: int
    failed_batches: int
    shared_texts: int
    wait_seconds: float
    query_cache_hits: int
    query_cache_misses: int


class EmbeddingQueue:
    """Queue, batches and query cache in front of one embedder, whose `load`, `embed` and `close` it alone calls.

    `slots`: calls of `embed` at the same time; of several, one is for queries only. `max_waiting_texts` bounds each
    role. `batch_texts` and `batch_bytes` bound one call to the embedder, and so how long a query may wait behind
    documents. `retry_seconds` are the pauses between attempts to load, the last repeated.
    """

    def __init__(
        self,
        embedder: Embedder,
        *,
        max_waiting_texts: int = 8192,
        batch_texts: int = 256,
        batch_bytes: int = 16_384,
        slots: int = 1,
        retry_seconds: Sequence[float] = (5, 10, 20, 40, 60),
    ) -> None:
        self._embedder = embedder
        self._retry_seconds = retry_seconds
        self._queue = TextQueue(max_waiting=max_waiting_texts, batch_texts=batch_texts, batch_bytes=batch_bytes)
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=work, name="embedding", daemon=True)
            for work in (self._load_and_run, *[self._run] * (slots - 1))
        ]
        self._document_slots = max(1, slots - 1)
        self._document_batches = 0
        self._closing = False
        self._next_attempt = 0.0
        self._told_at = -math.inf
        self._on_ready: Callable[[], None] = lambda: None
        self._cache: OrderedDict[tuple[str, bytes], NDArray[np.float32]] = OrderedDict()
        self._batches = self._texts = self._failed_batches = self._hits = self._misses = 0
        self._wait_seconds = 0.0

    def start(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Begin to load the model on an owner thread, and to embed once it is there; before that, call `on_ready`."""
        self._on_ready = on_ready
        self._threads[0].start()

    def close(self) -> None:
        """Fail whoever waits, stop a download or a pause between attempts at once, and give up the model."""
        with self._changed:
            self._closing = True
            jobs = self._queue.drain()
            self._changed.notify_all()
        _fail(jobs, _closed())
        self._embedder.close()
        deadline = time.monotonic() + _CLOSE_TIMEOUT_SECONDS
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))

    def submit(self, texts: Sequence[str], role: Role, *, is_long: bool = False) -> Future[NDArray[np.float32]]:
        """[n, width] unit vectors, in the order of `texts`. Never blocks on the model. `is_long`: texts of a document
        that takes long, which others overtake.

        Raises NotReady (with how far loading has come) and Busy, both before anything is taken. The future fails with
        EmbeddingFailed, NotReady after `close`, or the error of a remote model.
        """
        self.check_ready()
        with self._changed:
            if self._closing:
                raise _closed()
            job = self._queue.add(texts, "long" if is_long else role)
            self._changed.notify()  # one thread: others that woke for nothing would delay a query
        if not texts:
            width = self._embedder.stamp.width if self._embedder.stamp else 0
            job.future.set_result(np.zeros((0, width), np.float32))
        return job.future

    def query(self, text: str) -> Future[NDArray[np.float32]]:
        """[1, width], read-only, of one query: from the cache, from an equal query under way, or from the model.

        Raises and fails as `submit`.
        """
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        stamp = self._embedder.stamp
        key = (stamp.space if stamp else "", digest)
        with self._changed:
            known = self._cache.get(key)
            if known is not None:
                self._cache.move_to_end(key)
                self._hits += 1
                ready: Future[NDArray[np.float32]] = Future()
                ready.set_result(known)
                return ready
            self._misses += 1
        asked = self.submit([text], "query")
        asked.add_done_callback(partial(self._remember, key))
        return asked

    async def query_vector(self, text: str) -> NDArray[np.float32]:
        """[width] of `query`."""
        vector: NDArray[np.float32] = (await asyncio.wrap_future(self.query(text)))[0]
        return vector

    def _remember(self, key: tuple[str, bytes], answered: Future[NDArray[np.float32]]) -> None:
        if answered.cancelled() or answered.exception() is not None:
            return
        vectors = answered.result()
        vectors.flags.writeable = False
        with self._changed:
            self._cache[key] = vectors
            if len(self._cache) > _CACHED_QUERIES:
                self._cache.popitem(last=False)

    def stats(self) -> QueueStats:
        with self._changed:
            return QueueStats(
                waiting_queries=self._queue.waiting("query"),
                waiting_documents=self._queue.waiting("document"),
                batches=self._batches,
                texts=self._texts,
                failed_batches=self._failed_batches,
                shared_texts=self._queue.shared,
                wait_seconds=self._wait_seconds,
                query_cache_hits=self._hits,
                query_cache_misses=self._misses,
            )

    @property
    def embedder(self) -> Embedder:
        """The model behind the queue; only its `model`, `stamp`, `status` and `count_tokens` may be asked."""
        return self._embedder

    @property
    def is_ready(self) -> bool:
        return self._embedder.status.phase == "ready"

    def check_ready(self) -> None:
        """Raise NotReady, with how far loading has come, unless the model is ready; ModelFailed when it could not be
        loaded."""
        status = self._embedder.status
        if status.phase == "ready":
            return
        pause = self._next_attempt - time.monotonic()
        after = _RETRY_AFTER_SECONDS.get(status.phase) or max(1, math.ceil(pause))
        kind = ModelFailed if status.phase == "failed" else NotReady
        raise kind(str(status), retry_after_seconds=after)

    def _load_and_run(self) -> None:
        try:
            if self._load():
                self._on_ready()
                with self._changed:
                    for thread in self._threads[1:] if not self._closing else ():
                        thread.start()
        finally:
            # Also after a fault: nobody may be left waiting.
            self._run()

    def _run(self) -> None:
        try:
            while batch := self._next_batch():
                self._embed(batch)
                self._leave_slot(batch)
        finally:
            # Also when this thread dies of a fault of its own: nobody may wait for it, and nobody new may begin to.
            with self._changed:
                self._closing = True
                jobs = self._queue.drain()
                self._changed.notify_all()
            _fail(jobs, _closed())

    def _load(self) -> bool:
        """Whether the model is ready: attempts end with success or `close`."""
        attempt = 0
        while True:
            try:
                self._embedder.load()
                return True
            except Exception as error:
                pause = self._retry_seconds[min(attempt, len(self._retry_seconds) - 1)]
                attempt += 1
                with self._changed:
                    if self._closing:
                        return False
                    log.warning("embedding model not loaded, trying again in %g s: %s", pause, error)
                    self._next_attempt = time.monotonic() + pause
                    if self._changed.wait_for(lambda: self._closing, pause):
                        return False

    def _next_batch(self) -> list[Entry]:
        """Waits for work; empty once the queue is closed."""
        with self._changed:
            while not self._closing:
                has_room = self._document_batches < self._document_slots
                if batch := self._queue.take(("query", "document") if has_room else ("query",)):
                    self._document_batches += batch[0].role == "document"
                    has_room = self._document_batches < self._document_slots
                    if self._queue.waiting("query") or (has_room and self._queue.waiting("document")):
                        self._changed.notify()
                    now = time.monotonic()
                    self._wait_seconds += sum(now - entry.since for entry in batch)
                    return batch
                self._changed.wait()
            return []

    def _leave_slot(self, batch: Sequence[Entry]) -> None:
        with self._changed:
            self._document_batches -= batch[0].role == "document"
            self._changed.notify_all()

    def _embed(self, batch: Sequence[Entry]) -> None:
        texts = [entry.text for entry in batch]
        try:
            vectors = _checked(self._embedder.embed(texts, batch[0].role), self._embedder, len(texts))
        except Exception as error:
            self._fail_batch(batch, error)
            return
        if self._finish(batch):
            for entry, vector in zip(batch, vectors, strict=True):
                for job, row, weight in entry.waiters:
                    job.add(row, weight, vector)
            if batch[0].role == "document":
                self._tell_progress(batch)

    def _tell_progress(self, batch: Sequence[Entry]) -> None:
        """Let the log know of what takes long, one line for everything that does."""
        now = time.monotonic()
        under_way = [job for entry in batch for job, _, _ in entry.waiters if not job.future.done()]
        if not under_way:
            return
        job = min(under_way, key=lambda job: job.since)
        with self._changed:
            if now - max(job.since, self._told_at) < PROGRESS_SECONDS:
                return
            self._told_at = now
        done = job.pieces - job.missing
        event(log, "embedding", texts=job.texts, pieces=job.pieces, done=done, seconds=now - job.since)

    def _finish(self, batch: Sequence[Entry]) -> bool:
        """Close the batch's entries to further waiters; False if `close` has answered everyone already."""
        with self._changed:
            self._batches += 1
            self._texts += len(batch)
            if not self._closing:
                self._queue.finish(batch)
            return not self._closing

    def _fail_batch(self, batch: Sequence[Entry], error: Exception) -> None:
        with self._changed:
            self._failed_batches += 1
            if self._closing:
                return
            jobs = list({job: None for entry in batch for job, _, _ in entry.waiters})
            # A model that is away is no text's fault: trying one by one would only wait as often.
            if len(batch) > 1 and len(jobs) > 1 and not isinstance(error, NotReady | Busy):
                self._queue.put_back(batch)
                return
            self._queue.finish(batch)
        log.warning("embedding failed for %d texts: %s", len(batch), error)
        _fail(jobs, error if isinstance(error, ThreadError) else EmbeddingFailed(f"{type(error).__name__}: {error}"))


def _checked(vectors: NDArray[np.float32], embedder: Embedder, texts: int) -> NDArray[np.float32]:
    """`vectors` as float32, if there is one of the right width for each text and every number is finite."""
    width = embedder.stamp.width if embedder.stamp else 0
    if vectors.shape != (texts, width):
        raise EmbeddingFailed(f"{embedder.model} gave vectors of shape {vectors.shape}, not {(texts, width)}")
    if not np.isfinite(vectors).all():
        raise EmbeddingFailed(f"{embedder.model} gave a vector that is not finite")
    return vectors.astype(np.float32, copy=False)


def _fail(jobs: Sequence[Job], error: Exception) -> None:
    for job in jobs:
        job.fail(error)


def _closed() -> NotReady:
    return NotReady("the node is shutting down")
