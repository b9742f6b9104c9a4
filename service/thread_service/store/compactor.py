"""When to compact: a thread that looks whether enough was removed or became free, and whoever asks for it."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from thread_service.errors import Busy, NotReady, StorageFull, StoreFailed
from thread_service.store import compaction
from thread_service.store.compaction import Compacted, Progress
from thread_service.store.disk import Disk

REST_SECONDS = 30.0
"""How long after a removal it looks: removals come in series. Free pages are given back when they have been the same
for so long."""

NO_ROOM_REST_SECONDS = 3_600.0
"""How long it leaves free pages alone that could not be given back."""

log = logging.getLogger(__name__)


class Compactor:
    """Compacts `disk`, once at a time."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._compacting = threading.Lock()
        # At the start it looks too: a crash may have come before.
        self._nudged = threading.Event()
        self._nudged.set()
        self._free_pages = 0
        """As they were at the last look: while filing goes on they come and go."""
        self._rebuilt_after = -math.inf
        """No rebuilding for the sake of free pages before; after one for which there was no room there is a rest."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="compaction", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def nudge(self) -> None:
        """Something was removed, or much of the database is free."""
        self._nudged.set()

    def compact(self, progress: Progress) -> Compacted:
        """Let everything go that was removed until now, however little it is. Blocking.

        Errors as `compaction.compact`; NotReady when the node stops meanwhile.
        """
        if not self._compacting.acquire(blocking=False):
            progress("waiting for the compaction that is under way")
            self._compacting.acquire()
        try:
            return compaction.compact(self._disk, every=True, progress=progress, go_on=self._go_on)
        finally:
            self._compacting.release()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No segment is emptied while this is held; a compaction under way is waited for."""
        with self._compacting:
            yield

    def stop(self) -> None:
        """End the compaction that is under way, with its next step, and begin no other."""
        self._closing.set()
        self._nudged.set()

    def close(self) -> None:
        self.stop()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        complaint = ""
        while True:
            self._nudged.wait()
            if self._closing.wait(REST_SECONDS):
                return
            self._nudged.clear()
            try:
                self._look()
            except NotReady:
                return
            except (Busy, StorageFull) as error:
                if str(error) != complaint:
                    log.warning("compaction waits: %s", error)
                complaint = str(error)
                self.nudge()
            except StoreFailed as error:
                log.error("compaction ended: %s", error)
                return
            except Exception:
                log.exception("a compaction failed; it is tried again after the next removal")

    def _look(self) -> None:
        with self._compacting:
            with self._disk.read() as connection:
                is_due, free_pages = compaction.is_due(connection), compaction.free_pages(connection)
            if is_due:
                done = compaction.compact(self._disk, every=False, progress=log.debug, go_on=self._go_on)
            elif not free_pages or time.monotonic() < self._rebuilt_after:
                return
            elif free_pages != self._free_pages:
                self._free_pages = free_pages
                self.nudge()
                return
            else:
                done = compaction.give_back_free_pages(self._disk)
                if done.left:
                    self._rebuilt_after = time.monotonic() + NO_ROOM_REST_SECONDS
        log.info(
            "compacted: removed rows: %d, emptied segments: %d, disk: %.1f MB before, %.1f MB now",
            done.rows, done.segments, done.bytes_before / 1e6, done.bytes_after / 1e6,
        )  # fmt: skip
        if done.left:
            log.warning("%s", done.left)

    def _go_on(self) -> None:
        if self._closing.is_set():
            raise NotReady("The node is stopping; the compaction ended early and nothing was lost.")
