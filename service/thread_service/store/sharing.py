"""Which documents have a content: nearly always one, so the one is kept in an array and the rest in sets.

Two owners who file the same text share its content; so do two documents of one owner.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from thread_service.store.growing import GrowingInts

Ints = NDArray[np.int64]

_NONE, _SEVERAL = -1, -2


class Sharing:
    """Content → documents. One writer; readers may read at any time and see each content as it was or as it is."""

    def __init__(self) -> None:
        self._only: GrowingInts = GrowingInts(missing=_NONE)
        self._several: dict[int, BitMap] = {}

    def move(self, documents: Ints, before: Ints, after: Ints) -> None:
        """Documents int64 [n], each once, left the contents `before` for `after`; -1 is no content."""
        moved = before != after
        documents, before, after = documents[moved], before[moved], after[moved]
        for document, content in zip(documents[before >= 0].tolist(), before[before >= 0].tolist(), strict=True):
            self._set(content, self.of_one(content) - BitMap((document,)))
        documents, after = documents[after >= 0], after[after >= 0]
        # Very many come at once when a store is opened, and hardly one of them shares its content.
        contents, first, counts = np.unique(after, return_index=True, return_counts=True)
        alone = (counts == 1) & (self._only.get(contents) == _NONE)
        self._only.set(contents[alone], documents[first[alone]])
        others = np.isin(after, contents[~alone])
        for document, content in zip(documents[others].tolist(), after[others].tolist(), strict=True):
            self._set(content, self.of_one(content) | BitMap((document,)))

    def of(self, contents: Ints) -> BitMap:
        """The documents of all the contents."""
        only = self._only.get(contents)
        found = BitMap(only[only >= 0].astype(np.uint32))
        for content in contents[only == _SEVERAL].tolist():
            found |= self._several.get(content, BitMap())
        return found

    def of_one(self, content: int) -> BitMap:
        only = self._only.one(content)
        if only == _SEVERAL:
            return self._several.get(content, BitMap())
        return BitMap() if only == _NONE else BitMap((only,))

    def _set(self, content: int, documents: BitMap) -> None:
        """Sets are replaced, never changed: somebody may be reading one."""
        if len(documents) > 1:
            self._several[content] = documents
            self._only.set(content, _SEVERAL)
        else:
            self._only.set(content, documents[0] if documents else _NONE)
            self._several.pop(content, None)
