"""All rows of `vectors` as columns, read fast: a start, and every cache, wants millions of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

import apsw
import numpy as np
from numpy.typing import NDArray

from thread_service.store import sql
from thread_service.store.changes import Purpose
from thread_service.store.places import PACKED, unpacked
from thread_service.store.segments import Location

Ints = NDArray[np.int64]

COLUMNS = 5
CHUNK = 1 << 14
"""Vector keys that are compared at once with what was known of them."""

_PURPOSES: tuple[Purpose, ...] = get_args(Purpose)
_NUMBERED = " ".join(f"WHEN '{purpose}' THEN {number}" for number, purpose in enumerate(_PURPOSES))
_TABLE = f"width * {len(_PURPOSES)} + CASE purpose {_NUMBERED} END"


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows of one table as columns, int64 [n] each, ascending by `vector_keys`."""

    vector_keys: Ints
    subject_keys: Ints
    places: Ints
    crcs: Ints

    def __len__(self) -> int:
        return len(self.vector_keys)

    def __getitem__(self, which: slice | NDArray[np.bool_] | Ints) -> StoredRows:
        return StoredRows(self.vector_keys[which], self.subject_keys[which], self.places[which], self.crcs[which])

    def locations(self) -> list[Location]:
        segments, slots = unpacked(self.places)
        return [*map(Location, segments.tolist(), slots.tolist(), self.crcs.tolist())]


def snapshot(connection: apsw.Connection, known: Ints | None = None) -> Ints:
    """Every row, int64 [5, n] by ascending vector key: a number for its table, vector key, subject key, place, CRC.

    `known`: an earlier snapshot, of this database or of any other. Where it agrees with the database its rows are
    taken, which is several times faster than reading them: a row never changes but for its place and its table, and no
    key comes back, so the number of rows and a weighted sum of their columns tell whether anything is different.
    """
    if known is None:
        return _read(connection, 0, np.iinfo(np.int64).max)
    return np.concatenate([np.empty((COLUMNS, 0), np.int64), *_chunks(connection, known)], axis=1)


def by_table(rows: Ints) -> dict[tuple[Purpose, int], StoredRows]:
    """The rows of a snapshot, by purpose and width."""
    found: dict[tuple[Purpose, int], StoredRows] = {}
    tables = rows[0]
    numbers = np.unique(tables) if (tables != tables[:1]).any() else tables[:1]
    for number in numbers.tolist():
        width, purpose = divmod(number, len(_PURPOSES))
        here = rows[1:] if len(numbers) == 1 else rows[1:, tables == number]
        found[_PURPOSES[purpose], width] = StoredRows(*here)
    return found


def _chunks(connection: apsw.Connection, known: Ints) -> Iterator[Ints]:
    start = 0
    next_key = "SELECT min(vector_key) FROM vectors WHERE vector_key >= ?"
    while (first := sql.value(connection, next_key, (start,))) is not None:
        start = first - first % CHUNK
        here = slice(*np.searchsorted(known[1], (start, start + CHUNK)).tolist())
        if _sums(connection, start, start + CHUNK) == _sums_of(known[:, here]):
            yield known[:, here]
        else:
            yield _read(connection, start, start + CHUNK)
        start += CHUNK


def _read(connection: apsw.Connection, start: int, stop: int) -> Ints:
    statement = (
        f"SELECT {_TABLE}, vector_key, subject_key, {PACKED}, crc FROM vectors"
        f" WHERE vector_key >= {start} AND vector_key < {stop} ORDER BY vector_key"
    )
    return sql.integers(connection, statement, COLUMNS)


# Sums stay below 2^63 for subject keys below 2^31, which is what the memory holds.
_FACTORS = {f"({_TABLE})": 65_537, "subject_key": 7_919, "segment": 1_000_003, "slot": 31, "crc": 1}
_WEIGHTS = 16


def _sums(connection: apsw.Connection, start: int, stop: int) -> tuple[int, ...]:
    mixed = " + ".join(f"{name} * {factor}" for name, factor in _FACTORS.items())
    statement = (
        f"SELECT count(*), sum(({mixed}) * (vector_key % {_WEIGHTS} + 1)) FROM vectors"
        " WHERE vector_key >= ? AND vector_key < ?"
    )
    found: tuple[int, ...] = sql.row(connection, statement, (start, stop))
    return found


def _sums_of(rows: Ints) -> tuple[int, ...]:
    tables, keys, subjects, places, crcs = rows
    columns = (tables, subjects, *unpacked(places), crcs)
    mixed = sum(column * factor for column, factor in zip(columns, _FACTORS.values(), strict=True))
    return len(keys), int(mixed @ (keys % _WEIGHTS + 1))
