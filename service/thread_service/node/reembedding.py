"""Another embedding model takes the place of the one that wrote the index, while the index goes on to serve.

    the next model is loaded → what is stored is embedded with it, batch by batch, and recorded beside the rest
    → what came meanwhile, until nothing is missing → one transaction: it takes the place of the rest

Everything that was recorded is kept over a crash, and the same command goes on from there (`store.reembedding`). In a
node the next model answers from the transaction on; on a directory at rest the next start finds it in the stamp.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from thread_service.batching.embed import EmbeddingQueue
from thread_service.batching.serving import ServingModel
from thread_service.errors import Busy, InvalidRequest, NotReady, ThreadError
from thread_service.models.choice import choose
from thread_service.models.embedder import EmbeddingFailed, ModelUnavailable, Stamp
from thread_service.node.work import Work
from thread_service.settings import Settings, SettingsError
from thread_service.store import reembedding, sql, stamp
from thread_service.store.disk import Disk
from thread_service.store.reembedding import Subject
from thread_service.store.segments import Segments
from thread_service.store.store import Store
from thread_service.store.verification import Progress

TEXTS_A_BATCH = 256
CHARACTERS_A_BATCH = 256 << 10
RETRY_SECONDS = 2.0
"""How soon a model that is away is asked again."""
LOAD_LOOK_SECONDS = 0.1
REFUSED_SHOWN = 20

Vectors = NDArray[np.float32]
Rest = Callable[[float], None]
"""Waits so many seconds; raises when the work is to end."""

WHICH = ("embedder", "embedding_model", "embedding_url", "embedding_dim")
"""The settings that say which model."""


def another_model(
    settings: Settings, wanted: Mapping[str, Any], begun: Stamp | None, environment: Mapping[str, str]
) -> EmbeddingQueue | None:
    """The model that `wanted` (of the settings `WHICH`) names, else the one that `begun` is of; None for neither.

    Raises InvalidRequest, ModelUnavailable.
    """
    chosen = {name: wanted.get(name) for name in WHICH if wanted.get(name)}
    if not chosen and begun is None:
        return None
    unsaid: dict[str, Any] = {"embedder": "", "embedding_model": "", "embedding_url": "", "embedding_dim": None}
    try:
        choice = choose(dataclasses.replace(settings, **(unsaid | chosen)), None if chosen else begun, environment)
    except SettingsError as error:
        raise InvalidRequest(str(error)) from error
    return EmbeddingQueue(choice.embedder, **choice.queue)


class Reembedding:
    """Of a node. `another`: `another_model` with all but `wanted` and `begun`."""

    def __init__(
        self,
        store: Store,
        serving: ServingModel,
        work: Work,
        another: Callable[[Mapping[str, Any], Stamp | None], EmbeddingQueue | None],
        *,
        switched: Callable[[], None],
    ) -> None:
        self._store = store
        self._serving = serving
        self._work = work
        self._another = another
        self._switched = switched
        self._running = threading.Lock()
        self._closing = threading.Event()
        self._next: EmbeddingQueue | None = None

    async def run(self, wanted: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
        """See `reembed`. Without a wish: the model that runs, where it is not the one that wrote the index, else the
        one that was begun with. Busy: it is under way already."""
        return await self._work.run(lambda: self._run(wanted, progress))

    def stop(self) -> None:
        """Begin with nothing more; what is recorded is kept."""
        self._closing.set()
        if (queue := self._next) is not None:
            queue.close()

    def _run(self, wanted: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
        if not self._running.acquire(blocking=False):
            raise Busy("everything is being embedded anew already; wait for that, or stop the node to end it")
        try:
            queue = self._queue(wanted)
            is_serving = queue is self._serving.current
            if not is_serving:
                self._next = queue
                queue.start()
            try:
                return reembed(self._store, queue, progress, self._rest, lambda: self._serve(queue))
            finally:
                self._next = None
                if not is_serving and queue is not self._serving.current:
                    queue.close()
        finally:
            self._running.release()

    def _queue(self, wanted: Mapping[str, Any]) -> EmbeddingQueue:
        self._rest(0)
        running = self._serving.embedder.stamp
        with self._store.read() as connection:
            written, begun = stamp.stored(connection), stamp.stored(connection, next=True)
        if not any(wanted.get(name) for name in WHICH) and running is not None and not _is_same(running, written):
            return self._serving.current
        queue = self._another(wanted, begun)
        if queue is None:
            self._serving.check_ready()
            raise InvalidRequest("the index is of the model that runs; name another one with --embedding-model")
        return queue

    def _serve(self, queue: EmbeddingQueue) -> None:
        if queue is not self._serving.current:
            # Not here: its last call may take long, and everything waits for the store.
            threading.Thread(target=self._serving.replace(queue).close, name="embedding-end", daemon=True).start()
        self._switched()

    def _rest(self, seconds: float) -> None:
        if self._closing.wait(seconds):
            raise NotReady("the node is stopping; what was embedded is kept: run `thread reembed` again")


def reembed(
    disk: Disk, queue: EmbeddingQueue, progress: Progress, rest: Rest, switched: Callable[[], None]
) -> dict[str, Any]:
    """Embed everything with the model of a queue that was started, and let that take the place of what there is.
    Blocking; searches and deposits go on beside it.

    `switched` is called in the moment of that. What comes of it: `space` and `model` of the index now, `was`, the space
    before; `texts`, `relationships` and `predicates` that were embedded anew, `resumed` of them by an earlier attempt;
    `without`, relationships that the model refused; `kept`, vectors that callers brought; `seconds`, 0 where the index
    is of that model already: then an earlier attempt with another is forgotten.

    ModelUnavailable: it cannot be loaded. ThreadError: it refuses texts, which the sentence names the documents of;
    nothing was switched.
    """
    started = time.monotonic()
    target = _loaded(queue, progress, rest)
    with disk.read() as connection:
        written = stamp.stored(connection)
        kept = sql.value(connection, "SELECT count(*) FROM vectors WHERE purpose = 'caller'")
    was = None if written is None else written.space
    about = {"space": target.space, "model": target.model, "was": was, "kept": kept}
    if _is_same(target, written):
        disk.write(lambda connection, changes: reembedding.abandon(connection, changes)).result()
        return {**about, "texts": 0, "relationships": 0, "predicates": 0, "resumed": 0, "without": 0, "seconds": 0.0}
    run = _Run(disk, queue, target, progress, rest)
    resumed = run.begin()
    run.embed_all()
    done = run.switch(switched)
    seconds = round(time.monotonic() - started, 1)
    return {**about, **done._asdict(), "resumed": resumed, "without": len(run.refused), "seconds": seconds}


class _Run:
    """From the beginning to the switch. `refused`: what the model gives no vector for."""

    def __init__(self, disk: Disk, queue: EmbeddingQueue, target: Stamp, progress: Progress, rest: Rest) -> None:
        self._disk = disk
        self._queue = queue
        self._target = target
        self._progress = progress
        self._rest = rest
        self._from_key = 0
        self._done = self._total = 0
        self.refused: set[Subject] = set()

    def begin(self) -> int:
        """How much was embedded by an earlier attempt."""
        self._disk.write(lambda connection, changes: reembedding.begin(connection, self._target, changes)).result()
        with self._disk.read() as connection:
            self._total = sum(reembedding.counts(connection))
            self._done = sum(reembedding.counts(connection, next=True))
        self._report()
        return self._done

    def embed_all(self) -> None:
        """One pass over everything, and others over what came meanwhile, until that is a batch."""
        while True:
            with self._disk.read() as connection:
                newest = reembedding.newest(connection)
                _, more = self._missing(self._from_key)
            self._pass()
            self._from_key = newest
            if not more:
                break
        texts = [subject.key for subject in self.refused if subject.purpose == "model"]
        if texts:
            raise ThreadError(
                f"{self._target.space} refuses {len(texts)} texts of the documents {self._named(texts)}: nothing was"
                " switched, the rest is kept; remove these documents, or name another model, and run it again"
            )

    def switch(self, switched: Callable[[], None]) -> reembedding.Counts:
        """While nobody can add to it: embed the last batch, and switch."""
        with self._disk.appending() as segments:
            while subjects := self._missing(self._from_key)[0]:
                self._commit(segments, subjects, self._vectors(subjects, self._submit(subjects)))
            with self._disk.read() as connection:
                counts = reembedding.counts(connection, next=True)
            self._progress("switching to what was embedded")
            self._disk.write(
                lambda connection, changes: reembedding.switch(connection, self._target, changes, switched),
                is_large=True,
            ).result()
        self._disk.release_removed()
        return counts

    def _pass(self) -> None:
        """The next batch is embedded while the one before is committed."""
        key: int = self._from_key
        in_hand: tuple[list[Subject], Future[Vectors]] | None = None
        while True:
            subjects, key = self._missing(key)
            begun = (subjects, self._submit(subjects)) if subjects else None
            if in_hand is not None:
                vectors = self._vectors(*in_hand)
                with self._disk.appending() as segments:
                    self._commit(segments, in_hand[0], vectors)
                self._report()
            in_hand = begun
            if in_hand is None:
                return
            if not key:
                with self._disk.read() as connection:
                    key = reembedding.newest(connection)

    def _missing(self, from_key: int) -> tuple[list[Subject], int]:
        self._rest(0)
        with self._disk.read() as connection:
            return reembedding.missing(connection, from_key, TEXTS_A_BATCH, CHARACTERS_A_BATCH, frozenset(self.refused))

    def _submit(self, subjects: list[Subject]) -> Future[Vectors]:
        while True:
            try:
                return self._queue.submit([subject.text for subject in subjects], "document")
            except (NotReady, Busy) as error:
                self._wait(error)

    def _vectors(self, subjects: list[Subject], embedding: Future[Vectors]) -> Vectors:
        """One for each that is not refused; those that are leave the list."""
        while True:
            try:
                return embedding.result()
            except (NotReady, Busy) as error:
                self._wait(error)
                embedding = self._submit(subjects)
            except EmbeddingFailed:
                return self._one_by_one(subjects)

    def _one_by_one(self, subjects: list[Subject]) -> Vectors:
        if len(subjects) == 1:
            self.refused.add(subjects.pop())
            return np.empty((0, self._target.width), np.float32)
        found: list[Vectors] = []
        for subject in [*subjects]:
            alone = [subject]
            found.append(self._vectors(alone, self._submit(alone)))
            if not alone:
                subjects.remove(subject)
        return np.concatenate(found)

    def _commit(self, segments: Segments, subjects: list[Subject], vectors: Vectors) -> None:
        if not subjects:
            return
        locations = segments.append(vectors)
        segments.sync()
        self._disk.write(
            lambda connection, changes: reembedding.record(
                connection, self._target, subjects, vectors, locations, changes
            ),
            is_large=True,
        ).result()
        self._done += len(subjects)

    def _wait(self, error: ThreadError) -> None:
        self._progress(f"waiting: {error}")
        self._rest(error.retry_after_seconds or RETRY_SECONDS)

    def _report(self) -> None:
        total = max(self._total, self._done)
        self._progress(f"embedding anew: {self._done} of {total}", self._done / total if total else 1.0)

    def _named(self, partition_keys: list[int]) -> str:
        with self._disk.read() as connection:
            found = sql.column(
                connection,
                "SELECT DISTINCT document_id FROM documents JOIN partitions USING (content_key)"
                " WHERE partition_key IN (SELECT value FROM json_each(?)) ORDER BY document_id",
                (sql.array(partition_keys),),
            )
        more = f" and {len(found) - REFUSED_SHOWN} more" if len(found) > REFUSED_SHOWN else ""
        return ", ".join(repr(name) for name in found[:REFUSED_SHOWN]) + more


def _loaded(queue: EmbeddingQueue, progress: Progress, rest: Rest) -> Stamp:
    """Wait for the model. ModelUnavailable: it failed."""
    said: tuple[Literal["idle", "downloading", "loading", "ready", "failed"], float | None] = ("idle", None)
    while not queue.is_ready:
        status = queue.embedder.status
        if status.phase == "failed":
            raise ModelUnavailable(status.error or str(status))
        if said != (status.phase, status.fraction):
            said = (status.phase, status.fraction)
            progress(str(status), status.fraction)
        rest(LOAD_LOOK_SECONDS)
    found = queue.embedder.stamp
    assert found is not None
    return found


def _is_same(one: Stamp, other: Stamp | None) -> bool:
    """Whether vectors of both can be compared: one space, and one revision of the model."""
    return other is not None and (one.space, one.revision) == (other.space, other.revision)
