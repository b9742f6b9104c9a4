"""What one search sees: a read transaction, who may be found, and rows measured against the query.

`scans` says what to ask the tables, `measure_found` measures what the answers hold; whoever asks can ask for more in
the same batch. `Ranked` is what every kind of search hands on to be shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import apsw
import numpy as np
from numpy.typing import ArrayLike, NDArray
from pyroaring import BitMap

from thread_service.batching.scan import Scan
from thread_service.node.operations import MediaType
from thread_service.search.evidence import Strengths
from thread_service.store import audience, lookup
from thread_service.store.graph_cache import Links
from thread_service.store.resident import Resident, ResidentTable

Keys = NDArray[np.int64]
Floats = NDArray[np.float64]
Vector = NDArray[np.float32]

JOINING_DOCUMENTS = 256
JOINING_ROWS = 1_024


@dataclass(frozen=True, slots=True)
class Rows:
    """Partition and content keys, block distance and cosine, all [n]."""

    partitions: Keys = field(default_factory=lambda: np.empty(0, np.int64))
    contents: Keys = field(default_factory=lambda: np.empty(0, np.int64))
    distances: Floats = field(default_factory=lambda: np.empty(0))
    cosines: Floats = field(default_factory=lambda: np.empty(0))

    @classmethod
    def join(cls, *parts: Rows) -> Rows:
        return cls(
            np.concatenate([part.partitions for part in parts]),
            np.concatenate([part.contents for part in parts]),
            np.concatenate([part.distances for part in parts]),
            np.concatenate([part.cosines for part in parts]),
        )

    def at(self, positions: Keys) -> Rows:
        return Rows(
            self.partitions[positions], self.contents[positions], self.distances[positions], self.cosines[positions]
        )


@dataclass(frozen=True, slots=True)
class Ranked:
    """`rows` with their `distances` as shown, and `positions`, best first.

    `documents` may be shown. `direct`: contents that match the query themselves. `matched` and `edges` are for the
    trace, `strengths` for the order of a passage's entities.
    """

    rows: Rows
    distances: Floats
    positions: Keys
    documents: BitMap
    direct: frozenset[int]
    matched: Sequence[int] = ()
    edges: Sequence[lookup.EdgeEnds] = ()
    strengths: Strengths = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class View:
    """`readers`: the tokens of what may be found; `eligible`: the documents that have any of them."""

    connection: apsw.Connection
    resident: Resident
    links: Links
    owner_key: int | None
    readers: tuple[str, ...]
    eligible: BitMap
    media_type: MediaType | None
    vector: Vector
    tables: Sequence[ResidentTable]

    def scans(self, k: int, within: BitMap | None = None) -> list[Scan]:
        """For the `k` best rows of each table that may be found, or of the documents `within`, if given."""
        media = media_token(self.media_type)
        with self.resident.lock:
            if within is None:
                filters = [table.filter(self.readers, media) for table in self.tables]
            else:
                partitions = self.resident.partitions_of_contents(self.contents_of(within))
                filters = [table.filter_subjects(partitions, media) for table in self.tables]
        return [Scan(table.table, self.vector, k, chosen) for table, chosen in zip(self.tables, filters, strict=True)]

    def measure_found(self, found: Sequence[NDArray[np.int64]], beside: Iterable[int] = ()) -> Rows:
        """The rows that came back from the scan of each table and the partitions `beside` them, measured."""
        subjects = [table.subjects_of(rows) for table, rows in zip(self.tables, found, strict=True)]
        partitions = np.concatenate([np.empty(0, np.int64), *subjects])
        return self.measure(np.concatenate([partitions, _but(beside, partitions)]))

    def measure(self, partitions: Keys) -> Rows:
        """Exact distances of the partitions that have a row of the query's width."""
        measured: list[Rows] = []
        for table in self.tables:
            subjects, rows = table.having_rows(partitions)
            result = table.table.rescore(self.vector, rows)
            measured.append(
                Rows(
                    subjects,
                    self.resident.contents_of_partitions(subjects),
                    result.distances.astype(np.float64),
                    result.cosines.astype(np.float64),
                )
            )
        return measured[0] if len(measured) == 1 else Rows.join(Rows(), *measured)

    def joining(self, known: Rows, documents: Sequence[int]) -> Keys:
        """Partitions of the documents, in their order, that join the rows that are known."""
        contents = list(dict.fromkeys(self.resident.contents_of_documents(documents).tolist()))
        joined = self.resident.partitions_of_contents(contents)[:JOINING_ROWS]
        if self.media_type is not None:
            joined = np.concatenate([np.empty(0, np.int64), *(self._of_media(table, joined) for table in self.tables)])
        return _but(joined.tolist(), known.partitions)

    def contents_of(self, documents: BitMap) -> Keys:
        """Their contents, each once."""
        return np.unique(self.resident.contents_of_documents(np.array(documents.to_array(), dtype=np.int64)))

    def _of_media(self, table: ResidentTable, partitions: ArrayLike) -> Keys:
        assert self.media_type is not None
        return table.subjects_of(table.having(table.rows_of(partitions), audience.media(self.media_type)))


def _but(partitions: Iterable[int], known: Keys) -> Keys:
    """Each partition once, those that are known left out. (A set of a few hundred is faster than sorting arrays.)"""
    return np.array(list(set(partitions).difference(known.tolist())), dtype=np.int64)


def media_token(media_type: MediaType | None) -> str | None:
    return None if media_type is None else audience.media(media_type)


def word_shares(partitions: Keys, words: Mapping[int, float]) -> Floats:
    """Of the best BM25 of the query: [n], 0 to 1."""
    found = np.array([words.get(key, 0.0) for key in partitions.tolist()])
    return found / max(words.values(), default=1.0)
