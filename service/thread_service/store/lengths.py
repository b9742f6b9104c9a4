"""How long every searchable partition is in the index of words: what BM25 weighs against the mean.

The index keeps these numbers too, but a row of a table for each: reading them there takes as long as all else in a
lookup together.
"""

from __future__ import annotations

import apsw
import numpy as np
from numpy.typing import ArrayLike, NDArray

from thread_service.store import sql
from thread_service.store.growing import GrowingInts

Ints = NDArray[np.int64]

LENGTH_MAX = np.iinfo(np.int16).max
"""Longer texts count as this long: they score next to nothing either way."""
ROWS_AT_ONCE = 65_536


class Lengths:
    """Tokens of each partition, its readers included, as FTS5 counts them. One writer, any number of readers."""

    def __init__(self) -> None:
        self._of = GrowingInts(missing=0, dtype=np.int16)
        self._total = 0
        self.count = 0
        """Partitions that have one."""

    @property
    def mean(self) -> float:
        return self._total / max(1, self.count)

    def get(self, partitions: ArrayLike) -> Ints:
        return self._of.get(partitions)

    def set(self, partitions: ArrayLike, lengths: ArrayLike) -> None:
        """Each partition once; 0 for one that is not in the index any more."""
        before, after = self._of.get(partitions), np.minimum(lengths, LENGTH_MAX)
        self._of.set(partitions, after)
        self._total += int(np.sum(after)) - int(before.sum())
        self.count += int(np.count_nonzero(after)) - int(np.count_nonzero(before))


def load(lengths: Lengths, connection: apsw.Connection) -> None:
    """Fill in what the index holds."""
    start = 0
    while True:
        last, keys, sizes = sql.row(
            connection,
            "SELECT max(id), group_concat(id), group_concat(hex(sz), '') FROM"
            " (SELECT id, sz FROM words_docsize WHERE id > ? ORDER BY id LIMIT ?)",
            (start, ROWS_AT_ONCE),
        )
        if last is None:
            return
        columns = _varints(np.frombuffer(bytes.fromhex(sizes), np.uint8)).reshape(-1, 2)
        lengths.set(np.fromstring(keys, np.int64, sep=","), columns.sum(axis=1))
        start = last


def _varints(data: NDArray[np.uint8]) -> Ints:
    """SQLite's variable-length integers, of up to eight bytes each: seven bits a byte, the last one below 128."""
    ends = np.flatnonzero(data < 128)
    starts = np.concatenate([[0], ends[:-1] + 1])
    values = (data & 127).astype(np.int64)
    found: Ints = values[starts]
    for at in range(1, int((ends - starts).max(initial=0)) + 1):
        longer = starts + at <= ends
        found[longer] = found[longer] << 7 | values[starts[longer] + at]
    return found
