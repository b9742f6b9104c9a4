"""The check of vectors that a fast start puts off: every row is compared with its CRC, slowly, in the background.

Damage that is met while nobody has asked for the row is damage found while there is still a good backup.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

import apsw
from pyroaring import BitMap

from thread_service.errors import StoreFailed
from thread_service.store import sql
from thread_service.store.segments import Location, Segments

FIRST_REST_SECONDS = 5.0
"""What has just started has more urgent things to do."""
ROWS_AT_ONCE = 256
IDLE_SHARE = 4
"""How long it rests after each piece of work, in times of how long that took."""

log = logging.getLogger(__name__)


class Scrub:
    """One pass over the vectors up to `last_vector_key`, without those in `checked`.

    `on_damage` gets the StoreFailed that names segment and row; the pass ends there.
    """

    def __init__(
        self,
        read: Callable[[], AbstractContextManager[apsw.Connection]],
        segments: Segments,
        *,
        checked: BitMap,
        last_vector_key: int,
        on_damage: Callable[[StoreFailed], None],
    ) -> None:
        self._read = read
        self._segments = segments
        self._checked = checked
        self._last = last_vector_key
        self._on_damage = on_damage
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scrub", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        after = 0
        self._closing.wait(FIRST_REST_SECONDS)
        try:
            while after < self._last and not self._closing.is_set():
                started = time.monotonic()
                last, by_width = self._after(after)
                if self._is_sound(by_width.values()):
                    after = last
                self._closing.wait(IDLE_SHARE * (time.monotonic() - started))
        except Exception:
            log.exception("the check of stored vectors ended early; it begins anew at the next start")

    def _after(self, after: int) -> tuple[int, dict[int, list[Location]]]:
        """The next rows: the last key of them, and where those that are to be checked lie, by width."""
        with self._read() as connection:
            found = sql.rows(
                connection,
                "SELECT vector_key, width, segment, slot, crc FROM vectors WHERE vector_key > ? AND vector_key <= ?"
                " ORDER BY vector_key LIMIT ?",
                (after, self._last, ROWS_AT_ONCE),
            )
        by_width: dict[int, list[Location]] = {}
        for vector_key, width, *location in found:
            if vector_key not in self._checked:
                by_width.setdefault(width, []).append(Location(*location))
        return found[-1][0] if found else self._last, by_width

    def _is_sound(self, pieces: Iterable[list[Location]]) -> bool:
        """False when a segment was removed meanwhile: its rows lie elsewhere now, or nowhere."""
        try:
            for locations in pieces:
                self._segments.read_checked(locations)
        except KeyError:
            return False
        except StoreFailed as error:
            self._on_damage(error)
            self._closing.set()
        return True
