"""A function inside SQLite that says how often words stand in the body of a row of their index.

`word_counts(words, n)`, where the first n phrases of the search are looked for in `body`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from weakref import WeakSet

import apsw
import numpy as np
from numpy.typing import NDArray

WORD_COUNTS = "word_counts"
_COUNT_MAX = 65_535
_known: WeakSet[apsw.Connection] = WeakSet()


def ensure(connection: apsw.Connection) -> None:
    """Make the function known to a connection: once, as FTS5 keeps what it was given before."""
    if connection not in _known:
        connection.register_fts5_function(WORD_COUNTS, _word_counts)
        _known.add(connection)


def counted(results: Sequence[bytes], phrases: int) -> NDArray[np.int64]:
    """What the function gave for each row: int64 [rows, phrases]."""
    return np.frombuffer(b"".join(results), np.uint16).reshape(-1, phrases).astype(np.int64)


def _word_counts(api: apsw.FTS5ExtensionApi, *arguments: apsw.SQLiteValue) -> bytes:
    (phrases,) = arguments
    assert isinstance(phrases, int)
    counts = [min(_COUNT_MAX, len(api.phrase_column_offsets(phrase, 0))) for phrase in range(phrases)]
    return array("H", counts).tobytes()
