"""Who writes the cache of codes: one thread that looks now and then whether enough has changed, and the close."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import NamedTuple

import apsw
import numpy as np

from thread_kernels import TableStats
from thread_service.errors import StoreFailed
from thread_service.store.changes import Purpose
from thread_service.store.code_cache import CachedCodes, CodeCache
from thread_service.store.resident import Resident, ResidentTable
from thread_service.store.stored_rows import StoredRows, by_table, snapshot

LOOK_SECONDS = 30.0
GROWTH = 1.25
"""How many times the rows of the last cache must be coded for a new one while serving; a new codebook always is one."""

Key = tuple[Purpose, int]

log = logging.getLogger(__name__)


class _Standing(NamedTuple):
    """A table at one moment. `row_count` only grows and `live_count` falls by removals alone: when both are as they
    were, nothing came and nothing went."""

    row_count: int
    live_count: int
    stats: TableStats


class CodeKeeper:
    """`read`: a snapshot of the database. `restored`: tables whose codes are those of the cache."""

    def __init__(
        self,
        cache: CodeCache,
        resident: Resident,
        read: Callable[[], AbstractContextManager[apsw.Connection]],
        restored: Collection[Key],
    ) -> None:
        self._cache = cache
        self._resident = resident
        self._read = read
        self._using = threading.Lock()
        coded = self._coded()
        self._kept: dict[Key, _Standing | None] = {
            key: coded.get(key) if key in restored else None for key in cache.tables()
        }
        """The tables of the cache as they were when it was written; None: it holds what is of no use any more."""
        self._complaint = ""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="code-cache", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def look(self) -> None:
        """Write the cache if enough has changed since it was written."""
        self._write_if(_has_grown)

    def renew(self) -> None:
        """Write the cache if anything has changed, so that it holds nothing of what was removed."""
        self._write_if(_has_changed)

    def drop(self) -> None:
        """Delete the cache: what it was made of has been deleted."""
        with self._using:
            self._cache.clear()
            self._kept = {}

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(LOOK_SECONDS):
            self.look()

    def _tables(self) -> dict[Key, ResidentTable]:
        with self._resident.lock:
            return dict(self._resident.tables)

    def _coded(self) -> dict[Key, _Standing]:
        # The counts before the codes: rows that come or go in between make the next cache, they are never missed.
        found = {
            key: _Standing(resident.table.row_count, resident.table.live_count, resident.table.stats())
            for key, resident in self._tables().items()
        }
        return {key: standing for key, standing in found.items() if standing.stats.coded_rows}

    def _write_if(self, differs: Callable[[_Standing, _Standing], bool]) -> None:
        """The cache is a convenience: whatever prevents it is told, and prevents nothing else."""
        with self._using:
            try:
                coded = self._coded()
                pairs = [(coded.get(key), self._kept.get(key)) for key in {*coded, *self._kept}]
                if any(now is None or kept is None or differs(now, kept) for now, kept in pairs):
                    self._write(coded)
            except (OSError, StoreFailed) as error:
                if str(error) != self._complaint:
                    log.warning("the cache of codes cannot be written: %s", error)
                self._complaint = str(error)
            except Exception:
                log.exception("the cache of codes was not written")

    def _write(self, coded: dict[Key, _Standing]) -> None:
        with self._read() as connection:
            rows = snapshot(connection, self._cache.rows())
        stored, tables = by_table(rows), self._tables()
        codes = (_codes(key, tables[key], stored[key]) for key in coded if key in tables and key in stored)
        self._cache.write(rows, (each for each in codes if each is not None))
        self._kept, self._complaint = {**coded}, ""


def _codes(key: Key, resident: ResidentTable, stored: StoredRows) -> CachedCodes | None:
    """The codes of a table with what the database knows their rows by."""
    saved = resident.table.save()
    if saved is None:
        return None
    rows = resident.rows_at(stored.subject_keys, stored.places)
    known = rows >= 0
    length = 1 + max(rows.max(initial=-1), saved.rows.max(initial=-1))
    vector_keys = np.zeros(length, np.int64)
    vector_keys[rows[known]] = stored.vector_keys[known]
    crcs = np.zeros(length, np.uint32)
    crcs[rows[known]] = stored.crcs[known]
    return CachedCodes(*key, vector_keys[saved.rows], crcs[saved.rows], saved.data)


def _has_grown(now: _Standing, kept: _Standing) -> bool:
    return _codebook(now.stats) != _codebook(kept.stats) or now.stats.coded_rows >= GROWTH * kept.stats.coded_rows


def _has_changed(now: _Standing, kept: _Standing) -> bool:
    return (
        _codebook(now.stats) != _codebook(kept.stats)
        or now.stats.coded_rows != kept.stats.coded_rows
        or (now.row_count, now.live_count) != (kept.row_count, kept.live_count)
    )


def _codebook(stats: TableStats) -> tuple[float, float]:
    return stats.trained_rows, stats.training_seconds
