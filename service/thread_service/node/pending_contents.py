"""Contents on their way to be searchable: read from the store, given vectors, appended to the segments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import apsw
import numpy as np
from numpy.typing import NDArray

from thread_service.store import sql
from thread_service.store.pending import PendingDocument
from thread_service.store.segments import Location, Segments

Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Partition:
    partition_key: int
    text: str
    brought: Vectors | None


@dataclass(slots=True)
class Content:
    """Content on its way to `ready`: its partitions, and after embedding one vector (or None) for each."""

    content_key: int
    partitions: list[Partition]
    vectors: list[Vectors | None]
    failure: str | None = None

    def missing(self) -> list[int]:
        """Partitions whose vector is still to be made; there is none for a blank text."""
        return [
            index
            for index, partition in enumerate(self.partitions)
            if self.vectors[index] is None and partition.text.strip()
        ]


def load(connection: apsw.Connection, documents: Sequence[PendingDocument]) -> list[Content]:
    """What the documents point to that is pending, each once."""
    keys = dict.fromkeys(document.content_key for document in documents if document.state == "pending")
    found: list[Content] = []
    for content_key in keys:
        partitions = [
            Partition(key, text, None if brought is None else np.frombuffer(brought, "<f4").astype(np.float32))
            for key, text, brought in sql.rows(
                connection,
                "SELECT partition_key, text, vector FROM partitions LEFT JOIN brought_vectors USING (partition_key)"
                " WHERE content_key = ? ORDER BY ordinal",
                (content_key,),
            )
        ]
        found.append(Content(content_key, partitions, [partition.brought for partition in partitions]))
    return found


def fill_in(found: Iterable[Content], embedded: Vectors) -> None:
    """`embedded`: a row for each missing vector, in order."""
    missing = [(content, index) for content in found for index in content.missing()]
    for (content, index), vector in zip(missing, embedded, strict=True):
        content.vectors[index] = vector


def row(vector: Vectors | None) -> Vectors:
    assert vector is not None
    return vector


def append(segments: Segments, content: Content) -> dict[int, Location]:
    """Write the vectors of one content behind the open segments; partition index → location."""
    if content.failure is not None:
        return {}
    located: dict[int, Location] = {}
    by_width: dict[int, list[int]] = {}
    for index, vector in enumerate(content.vectors):
        if vector is not None:
            by_width.setdefault(len(vector), []).append(index)
    for indices in by_width.values():
        rows = np.stack([row(content.vectors[index]) for index in indices])
        located.update(zip(indices, segments.append(rows), strict=True))
    return located
