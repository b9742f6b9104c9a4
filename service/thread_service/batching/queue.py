"""Texts that wait to be embedded: queries before documents, these in turn with long ones, equal texts once, bounded.

Only the data structure; `embed.EmbeddingQueue` guards it with its lock and runs the thread. A submission (`Job`) is
spread over `Entry`s, one per distinct text; an entry may serve several jobs. A text over a batch's size is cut into
pieces that are entries of their own, so that nothing makes a query wait for longer than one batch; its vector is the
average of theirs, weighted by size.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from thread_service.errors import Busy
from thread_service.models.embedder import Role
from thread_service.models.windows import cut_text

QUERY_WAITING_SECONDS_MAX = 5.0
"""How long the next query may have waited for the model; while one waits longer, new ones are refused. The vector of a
query whose caller has gone helps nobody."""
_RETRY_AFTER_FULL_SECONDS = 5

Lane = Literal["query", "document", "long"]
"""Where a text waits: long documents beside the others, which overtake them."""


_LANES: dict[Role, tuple[Lane, ...]] = {"query": ("query",), "document": ("document", "long")}


class Job:
    """One submission: `future` gets [n, width] when the last of its `missing` pieces, of `pieces`, is there."""

    def __init__(self, texts: int) -> None:
        self.future: Future[NDArray[np.float32]] = Future()
        self.texts = texts
        self.pieces = self.missing = 0
        self.since = time.monotonic()
        self.cut_rows: set[int] = set()
        self._rows: NDArray[np.float32] | None = None
        self._adding = threading.Lock()
        self._answered = threading.Lock()

    def add(self, row: int, weight: float, vector: NDArray[np.float32]) -> None:
        """Take in one piece's vector, and resolve the future with the last one. From any thread."""
        with self._adding:
            if self._rows is None:
                self._rows = np.zeros((self.texts, len(vector)), np.float32)
            self._rows[row] += vector * np.float32(weight)
            self.missing -= 1
            if self.missing:
                return
            for cut in self.cut_rows:
                length = np.linalg.norm(self._rows[cut])
                self._rows[cut] = self._rows[cut] / length if length > 0 else len(vector) ** -0.5
        if self._claim():
            self.future.set_result(self._rows)

    def fail(self, error: Exception) -> None:
        if self._claim():
            self.future.set_exception(error)

    def _claim(self) -> bool:
        """Whether to answer the future: once, though several threads may want to."""
        return self._answered.acquire(blocking=False) and self.future.set_running_or_notify_cancel()


class Entry:
    """One distinct text of one lane, and whom its vector is for: (job, row, weight)."""

    def __init__(self, text: str, lane: Lane) -> None:
        self.text = text
        self.lane = lane
        self.bytes = len(text.encode("utf-8", "surrogatepass"))
        self.waiters: list[tuple[Job, int, float]] = []
        self.alone = False
        self.since = time.monotonic()

    @property
    def role(self) -> Role:
        return "query" if self.lane == "query" else "document"

    @property
    def wanted(self) -> bool:
        return any(not job.future.done() for job, _, _ in self.waiters)


class TextQueue:
    """Not thread-safe. Bounds: `max_waiting` entries of each lane; batches of `batch_texts` texts and `batch_bytes`
    UTF-8 bytes (about four to a token of English, three of Chinese).
    """

    def __init__(self, *, max_waiting: int, batch_texts: int, batch_bytes: int) -> None:
        self.max_waiting = max_waiting
        self.batch_texts = batch_texts
        self.batch_bytes = batch_bytes
        self.shared = 0
        self._waiting: dict[Lane, deque[Entry]] = {"query": deque(), "document": deque(), "long": deque()}
        self._is_turn_of_long = False
        self._entries: dict[tuple[Lane, str], Entry] = {}

    def waiting(self, role: Role) -> int:
        return sum(len(self._waiting[lane]) for lane in _LANES[role])

    def add(self, texts: Sequence[str], lane: Lane) -> Job:
        """Put every text in, or none. Raises Busy when full; only an empty lane takes more than `max_waiting`."""
        pieces = [cut_text(text, self.batch_bytes) for text in texts]
        queue = self._waiting[lane]
        new = {piece for text in pieces for piece in text if (lane, piece) not in self._entries}
        if new and queue and len(queue) + len(new) > self.max_waiting:
            raise Busy(f"{len(queue)} texts already wait to be embedded", retry_after_seconds=_RETRY_AFTER_FULL_SECONDS)
        waited = time.monotonic() - queue[0].since if lane == "query" and new and queue else 0.0
        if waited > QUERY_WAITING_SECONDS_MAX:
            raise Busy(f"queries wait {waited:.0f} seconds for the model", retry_after_seconds=math.ceil(waited))
        job = Job(len(texts))
        job.pieces = job.missing = sum(map(len, pieces))
        job.cut_rows = {row for row, text in enumerate(pieces) if len(text) > 1}
        self.shared += job.missing - len(new)
        # Texts of a like length waste least in a batch; who gave a job waits for all of it anyway.
        for row, text in sorted(enumerate(pieces), key=lambda each: -len(texts[each[0]])):
            for piece in text:
                entry = self._entries.get((lane, piece))
                if entry is None:
                    entry = self._entries[lane, piece] = Entry(piece, lane)
                    queue.append(entry)
                entry.waiters.append((job, row, len(piece) / len(texts[row]) if len(text) > 1 else 1.0))
        return job

    def take(self, roles: Sequence[Role] = ("query", "document")) -> list[Entry]:
        """The next batch, all of one lane, or nothing; earlier `roles` come first. Its entries stay open to equal
        texts until `finish`.
        """
        for role in roles:
            lanes = _LANES[role]
            for lane in reversed(lanes) if self._is_turn_of_long else lanes:
                if batch := self._take(self._waiting[lane]):
                    if role == "document":
                        self._is_turn_of_long = lane == "document"
                    return batch
        return []

    def _take(self, queue: deque[Entry]) -> list[Entry]:
        batch: list[Entry] = []
        size = 0
        while queue:
            entry = queue[0]
            if not entry.wanted:
                del self._entries[entry.lane, queue.popleft().text]
                continue
            if batch and not self._fits(batch, size, entry):
                break
            batch.append(queue.popleft())
            size += entry.bytes
        return batch

    def put_back(self, batch: Sequence[Entry]) -> None:
        """After a failure: the same entries next, each in a batch of its own."""
        for entry in reversed(batch):
            entry.alone = True
            self._waiting[entry.lane].appendleft(entry)

    def finish(self, batch: Sequence[Entry]) -> None:
        """Close the entries: an equal text that comes from now on is embedded anew."""
        for entry in batch:
            del self._entries[entry.lane, entry.text]

    def drain(self) -> list[Job]:
        """Empty the queue; the jobs that were waiting or under way."""
        jobs = {job: None for entry in self._entries.values() for job, _, _ in entry.waiters}
        self._entries.clear()
        for queue in self._waiting.values():
            queue.clear()
        return list(jobs)

    def _fits(self, batch: Sequence[Entry], size: int, entry: Entry) -> bool:
        together = not batch[0].alone and not entry.alone
        return together and len(batch) < self.batch_texts and size + entry.bytes <= self.batch_bytes
