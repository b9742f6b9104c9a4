"""Integers by key, in memory: an int32 array that grows with the keys."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


class GrowingInts:
    """`missing` where nothing was set. Reads never fail: a key beyond the end, or below 0, is missing.

    One writer; readers may read at any time and see each key's old or new value.
    """

    def __init__(self, missing: int = -1) -> None:
        self._missing = missing
        self._values: NDArray[np.int32] = np.full(1024, missing, np.int32)

    def set(self, keys: ArrayLike, values: Any) -> None:
        wanted = np.asarray(keys, dtype=np.int64)
        if wanted.size == 0:
            return
        top = int(wanted.max())
        if top >= len(self._values):
            grown = np.full(max(top + 1, len(self._values) * 3 // 2), self._missing, np.int32)
            grown[: len(self._values)] = self._values
            self._values = grown
        self._values[wanted] = values

    def get(self, keys: ArrayLike) -> NDArray[np.int32]:
        """Values of the keys, int32 [n]."""
        wanted = np.atleast_1d(np.asarray(keys, dtype=np.int64))
        values = self._values
        inside = (wanted >= 0) & (wanted < len(values))
        if inside.all():
            return values[wanted]
        found = np.full(len(wanted), self._missing, np.int32)
        found[inside] = values[wanted[inside]]
        return found

    def one(self, key: int) -> int:
        values = self._values
        return int(values[key]) if 0 <= key < len(values) else self._missing
