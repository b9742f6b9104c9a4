"""Integers by key, in memory: an array that grows with the keys."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

_FIRST = 1024


class GrowingInts:
    """`missing` where nothing was set. Reads never fail: a key beyond the end, or below 0, is missing.

    One writer; readers may read at any time and see each key's old or new value.
    """

    def __init__(self, missing: int = -1, dtype: DTypeLike = np.int32) -> None:
        self._missing = missing
        # Less `missing`, so that what was never set is 0: room ahead is pages nobody has touched, which take no memory.
        self._values: NDArray[np.signedinteger[Any]] = np.zeros(_FIRST, dtype)

    def set(self, keys: ArrayLike, values: Any) -> None:
        wanted = np.asarray(keys, dtype=np.int64)
        if wanted.size == 0:
            return
        top = int(wanted.max())
        if top >= len(self._values):
            grown = np.zeros(max(top + 1, len(self._values) * 9 // 8), self._values.dtype)
            grown[: len(self._values)] = self._values
            self._values = grown
        self._values[wanted] = np.asarray(values, dtype=np.int64) - self._missing

    def get(self, keys: ArrayLike) -> NDArray[np.int64]:
        """Values of the keys, int64 [n]."""
        wanted = np.asarray(keys, dtype=np.int64).reshape(-1)
        values = self._values
        # As an unsigned number a key below 0 is beyond the end.
        if not wanted.size or wanted.view(np.uint64).max() < len(values):
            found: NDArray[np.int64] = values.take(wanted) + np.int64(self._missing)
            return found
        inside = (wanted >= 0) & (wanted < len(values))
        found = np.full(len(wanted), self._missing, np.int64)
        found[inside] += values[wanted[inside]]
        return found

    def one(self, key: int) -> int:
        values = self._values
        return int(values[key]) + self._missing if 0 <= key < len(values) else self._missing
