"""Filling an empty memory from one snapshot of the store: codes from the cache, what it lacks from the segments."""

from __future__ import annotations

import ctypes
import logging
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import apsw
import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from thread_kernels import DamagedCodes
from thread_service.store import lengths
from thread_service.store.audience import join, of_document
from thread_service.store.changes import Purpose
from thread_service.store.code_cache import CachedCodes, CodeCache
from thread_service.store.resident import Resident
from thread_service.store.segments import Segments
from thread_service.store.stored_rows import StoredRows, by_table, snapshot

BYTES_AT_ONCE = 32 << 20
"""Vectors read from the segments at a time."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Loaded:
    """What a start found. `checked`: keys of the vectors that were read and compared with their CRCs."""

    checked: BitMap = field(default_factory=BitMap)
    last_vector_key: int = 0
    restored: set[tuple[Purpose, int]] = field(default_factory=set)
    """Tables whose cache had no row too many."""
    restored_rows: dict[tuple[Purpose, int], int] = field(default_factory=dict)
    """Rows of each table whose codes came from the cache."""


def load(resident: Resident, connection: apsw.Connection, segments: Segments, cache: CodeCache | None = None) -> Loaded:
    """StoreFailed names the segment and row of a damaged vector; those that only have a code are not read."""
    with resident.lock:
        loaded = _load_tables(resident, connection, segments, cache)
        _load_readers(resident, connection)
        lengths.load(resident.lengths, connection)
    connection.pragma("shrink_memory")
    return loaded


def _load_tables(
    resident: Resident, connection: apsw.Connection, segments: Segments, cache: CodeCache | None
) -> Loaded:
    loaded = Loaded()
    known = None if cache is None else cache.rows()
    for (purpose, width), rows in by_table(snapshot(connection, known)).items():
        loaded.last_vector_key = max(loaded.last_vector_key, int(rows.vector_keys[-1]))
        cached = None if cache is None else cache.read(purpose, width)
        left = rows if cached is None else _restore(resident, rows, cached, loaded)
        cached = None
        _append(resident, purpose, width, left, segments)
        loaded.checked |= BitMap(left.vector_keys)
    return loaded


def give_memory_back() -> None:
    """What was read in passing leaves holes in the heap that the C library keeps: half as much again as what stays."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, others need it less
    if trim is not None:
        trim(0)


def _restore(resident: Resident, rows: StoredRows, cached: CachedCodes, loaded: Loaded) -> StoredRows:
    """Take up the codes of rows the store still has; the rows without."""
    at = np.searchsorted(rows.vector_keys, cached.vector_keys).clip(max=len(rows) - 1)
    known = (rows.vector_keys[at] == cached.vector_keys) & (rows.crcs[at] == cached.crcs)
    at = at[known]
    if not len(at):
        log.warning(
            "the cached codes of table %s, width %d, are of other vectors; they are made anew",
            cached.purpose,
            cached.width,
        )
        return rows
    table = resident.ensure_table(cached.purpose, cached.width)
    # Room that FAISS reserves and does not use is memory only where it lies in holes that were written to before.
    give_memory_back()
    try:
        table.restore(cached.data, len(known), np.flatnonzero(known), rows.subject_keys[at], rows.places[at])
    except Exception as error:
        # Whatever it is, codes that were saved never keep a node from starting.
        log.warning(
            "the cached codes of table %s, width %d: %s; they are made anew",
            cached.purpose,
            cached.width,
            error,
            exc_info=not isinstance(error, DamagedCodes),
        )
        resident.drop_table(cached.purpose, cached.width)
        return rows
    loaded.restored_rows[cached.purpose, cached.width] = len(at)
    if known.all():
        loaded.restored.add((cached.purpose, cached.width))
    left = np.ones(len(rows), np.bool_)
    left[at] = False
    return rows[left]


def _append(resident: Resident, purpose: Purpose, width: int, rows: StoredRows, segments: Segments) -> None:
    table = resident.ensure_table(purpose, width)
    step = max(1, BYTES_AT_ONCE // (4 * width))
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        table.append(some.subject_keys, segments.read_checked(some.locations()), some.places)


def _load_readers(resident: Resident, connection: apsw.Connection) -> None:
    contents = connection.execute(
        "SELECT readers, content_key, partition_key,"
        "  (SELECT max(ordinal) + 1 FROM partitions others WHERE others.content_key = contents.content_key)"
        " FROM contents CROSS JOIN partitions USING (content_key) WHERE ordinal = 0"
    )
    for (readers,), (keys, firsts, counts) in _grouped(contents, 3):
        resident.set_contents(readers, keys, firsts, counts)
    documents = connection.execute(
        "SELECT owner_key, access, (SELECT group_concat(group_key, ' ') FROM document_groups"
        "  WHERE document_groups.document_key = documents.document_key), document_key, content_key FROM documents"
    )
    for (owner_key, access, groups), (keys, content_keys) in _grouped(documents, 2):
        tokens = of_document(owner_key, access, [int(key) for key in groups.split()] if groups else ())
        resident.set_documents(join(tokens), keys, content_keys)
    edges: tuple[Purpose, ...] = ("relationship", "predicate")
    for purpose in edges:
        found = connection.execute(f"SELECT readers, {purpose}_key FROM {purpose}s")
        for (readers,), (keys,) in _grouped(found, 1):
            resident.set_edges(purpose, readers, keys)


def _grouped(rows: Iterable[tuple[Any, ...]], width: int) -> Iterator[tuple[tuple[Any, ...], NDArray[np.int64]]]:
    """Rows that agree in all but their last `width` columns: what they agree in, and the others as int64 [width, n]."""
    found: defaultdict[tuple[Any, ...], array[int]] = defaultdict(lambda: array("q"))
    for row in rows:
        found[row[:-width]].extend(row[-width:])
    for shared, cells in found.items():
        yield shared, np.frombuffer(cells, np.int64).reshape(-1, width).T
