"""What the node keeps in memory to answer a search: filled at start (`loading`), kept current after each commit.

Tables of vectors with their row sets, and the document sets; every set is named by a reader token. `publish` is
called on the writer's thread with what one committed write changed; searches run beside it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pyroaring import BitMap

from thread_kernels import Engine, Filter, RowSet
from thread_service.store.changes import Changes, ContentState, DocumentState, Purpose
from thread_service.store.graph_cache import GraphCache
from thread_service.store.growing import GrowingInts
from thread_service.store.lengths import Lengths
from thread_service.store.places import Places, packed
from thread_service.store.reader_sets import ReaderSets
from thread_service.store.segments import Segments
from thread_service.store.sharing import Sharing

Ints = NDArray[np.int64]

NEXT: Mapping[Purpose, Purpose] = {
    "next_model": "model",
    "next_relationship": "relationship",
    "next_predicate": "predicate",
}
"""Whose place the tables take that are made anew."""


class ResidentTable:
    """One table of the engine with what its rows mean: row ↔ subject, where it lies, and a row set per reader token."""

    def __init__(self, engine: Engine, segments: Segments, width: int) -> None:
        self._places = Places(segments, width)
        self.table = engine.table(width, self._places.read)
        self._row_of = GrowingInts()
        self._subject_of = GrowingInts()
        self._members = ReaderSets()
        self._sets: dict[str, RowSet] = {}
        self._nothing = self.table.row_set()

    def append(self, subjects: ArrayLike, rows: NDArray[np.float32], places: Ints) -> None:
        """New rows that nobody may read yet. A subject that had a row gets the new one instead."""
        keys = np.asarray(subjects, dtype=np.int64)
        self.remove(keys[self._row_of.get(keys) >= 0])
        first = self.table.row_count
        # Before the engine has them: it may read them back at any time.
        self._places.set(np.arange(first, first + len(keys)), places)
        added = self.table.append(rows)
        self._name(np.arange(added.start, added.stop), keys)

    def restore(self, data: bytes, count: int, rows: Ints, subjects: Ints, places: Ints) -> None:
        """Fill an empty table from saved codes of `count` rows, of which only `rows` are still there.

        DamagedCodes: the table is of no use any more.
        """
        self._places.set(rows, places)
        self.table.restore(data, count)
        self.table.remove(np.setdiff1d(np.arange(count), rows, assume_unique=True))
        self._name(rows, subjects)

    def _name(self, rows: Ints, subjects: Ints) -> None:
        self._subject_of.set(rows, subjects)
        self._row_of.set(subjects, rows)

    def move(self, subjects: ArrayLike, places: Ints) -> None:
        """The rows of the subjects lie elsewhere now; a subject without one is ignored."""
        rows = self._row_of.get(subjects)
        self._places.set(rows[rows >= 0], places[rows >= 0])

    def rows_at(self, subjects: Ints, places: Ints) -> Ints:
        """The row of each subject if it lies at this place, else -1."""
        rows = self._row_of.get(subjects)
        return np.where(self._places.get(rows) == places, rows, -1)

    def remove(self, subjects: ArrayLike) -> None:
        rows = self.rows_of(subjects)
        if len(rows):
            self.table.remove(rows)
            self._change(rows, "")
            self._row_of.set(subjects, -1)

    def set_readers(self, subjects: ArrayLike, stored: str) -> None:
        self._change(self.rows_of(subjects), stored)

    def _change(self, rows: Ints, stored: str) -> None:
        left, came = self._members.change(rows, stored)
        for token, members in left.items():
            self._sets[token].discard(_as_range(members))
        for token, members in came.items():
            if token not in self._sets:
                self._sets[token] = self.table.row_set()
            self._sets[token].add(_as_range(members))

    def rows_of(self, subjects: ArrayLike) -> Ints:
        """Rows of the subjects that have one, in their order."""
        rows = self._row_of.get(subjects)
        return rows[rows >= 0]

    def having_rows(self, subjects: Ints) -> tuple[Ints, Ints]:
        """Those of the subjects that have a row, and their rows."""
        rows = self._row_of.get(subjects)
        known = rows >= 0
        return subjects[known], rows[known]

    def subjects_of(self, rows: Ints) -> Ints:
        return self._subject_of.get(rows)

    def having(self, rows: Ints, token: str) -> Ints:
        """Those of the rows that carry a reader token."""
        members = self._sets.get(token, self._nothing)
        return np.array([row for row in rows.tolist() if row in members], dtype=np.int64)

    def filter(self, any_of: Iterable[str], media_type: str | None = None) -> Filter:
        """Rows with any of the tokens (and of the media type, a token too)."""
        chosen = Filter.any_of(*(self._sets.get(token, self._nothing) for token in any_of))
        return self._of_media(chosen, media_type)

    def filter_subjects(self, subjects: ArrayLike, media_type: str | None = None) -> Filter:
        """Rows of the subjects (of the media type, a token)."""
        rows = self.table.row_set()
        rows.add(_as_range(np.unique(self.rows_of(subjects))))
        return self._of_media(Filter.any_of(rows), media_type)

    def _of_media(self, chosen: Filter, media_type: str | None) -> Filter:
        return chosen if media_type is None else chosen & Filter.any_of(self._sets.get(media_type, self._nothing))


class Resident:
    """All resident tables, the document sets, and the cache of graph links."""

    def __init__(self, engine: Engine, segments: Segments) -> None:
        self.engine = engine
        self._segments = segments
        self.lock = threading.RLock()
        self.graph = GraphCache()
        self.words_version = 0
        """To be read before the transaction is opened whose lists of words may be remembered."""
        self._empty()

    def _empty(self) -> None:
        self.tables: dict[tuple[Purpose, int], ResidentTable] = {}
        self._document_members = ReaderSets()
        self._document_sets: dict[str, BitMap] = {}
        self._content_of_document = GrowingInts()
        self._sharing = Sharing()
        self._content_members = ReaderSets()
        self._partitions_of_token: Counter[str] = Counter()
        self.lengths = Lengths()
        self._content_of_partition = GrowingInts()
        self._first_partition = GrowingInts()
        self._partition_count = GrowingInts(missing=0)
        self.document_count = 0

    # ------------------------------------------------------------------------------------------ reading

    def table(self, purpose: Purpose, width: int) -> ResidentTable | None:
        with self.lock:  # after the switch of the model nobody may find a table of before
            return self.tables.get((purpose, width))

    def partition_tables(self, width: int, purposes: Iterable[Literal["model", "caller"]]) -> list[ResidentTable]:
        return [found for purpose in purposes if (found := self.table(purpose, width)) is not None]

    def documents(self, any_of: Iterable[str]) -> BitMap:
        """Keys of the documents with any of the reader tokens."""
        with self.lock:
            return BitMap.union(*(self._document_sets.get(token, BitMap()) for token in ("", *any_of)))

    def partitions_having(self, any_of: Iterable[str]) -> int:
        """How many partitions have any of the tokens, those with several counted as often."""
        return sum(self._partitions_of_token[token] for token in any_of)

    def are_readable(
        self, partition_keys: ArrayLike, any_of: Collection[str], media_type: str | None = None
    ) -> NDArray[np.bool_]:
        """Which partitions have any of the reader tokens (and are of the media type, a token): bool [n]."""
        return self._content_members.having(self.contents_of_partitions(partition_keys), any_of, media_type)

    def contents_of_documents(self, document_keys: ArrayLike) -> Ints:
        return self._content_of_document.get(document_keys)

    def documents_of_contents(self, content_keys: Ints) -> BitMap:
        """Every document of the contents, readable or not."""
        return self._sharing.of(content_keys)

    def documents_of_content(self, content_key: int) -> BitMap:
        return self._sharing.of_one(content_key)

    def contents_of_partitions(self, partition_keys: ArrayLike) -> Ints:
        return self._content_of_partition.get(partition_keys)

    def partitions_of_content(self, content_key: int) -> range:
        first = self._first_partition.one(content_key)
        return range(first, first + self._partition_count.one(content_key))

    def partitions_of_contents(self, content_keys: ArrayLike) -> Ints:
        return _spans(self._first_partition.get(content_keys), self._partition_count.get(content_keys))

    # ------------------------------------------------------------------------------------------ writing

    def publish(self, changes: Changes) -> None:
        with self.lock:
            if changes.cleared:
                self.close()
                self._empty()
                self.graph.clear()
            if changes.abandoned:
                self._drop_tables(NEXT)
            if changes.switched is not None:
                changes.switched()
                self._drop_tables(NEXT.values())
                self.tables = {(NEXT.get(purpose, purpose), width): t for (purpose, width), t in self.tables.items()}
            for new in changes.vectors:
                table = self.ensure_table(new.purpose, new.vectors.shape[1])
                table.append(new.subject_keys, new.vectors, packed(new.locations))
            for moved in changes.moved:
                if (found := self.table(moved.purpose, moved.width)) is not None:
                    found.move(moved.subject_keys, packed(moved.locations))
            if changes.contents or changes.lengths or changes.cleared:
                self.words_version += 1
            self.lengths.set([*changes.lengths], [*changes.lengths.values()])
            self._publish_contents(changes.contents)
            self._publish_documents(changes.documents)
            self._publish_edges("relationship", changes.relationships)
            self._publish_edges("predicate", changes.predicates)
            self.graph.publish(changes)

    def _drop_tables(self, purposes: Collection[Purpose]) -> None:
        for purpose, width in [key for key in self.tables if key[0] in purposes]:
            self.drop_table(purpose, width)

    def ensure_table(self, purpose: Purpose, width: int) -> ResidentTable:
        if (purpose, width) not in self.tables:
            self.tables[purpose, width] = ResidentTable(self.engine, self._segments, width)
        return self.tables[purpose, width]

    def drop_table(self, purpose: Purpose, width: int) -> None:
        """Give up a table: it could not be filled, or is not searched any more."""
        self.tables.pop((purpose, width)).table.close()

    def set_contents(self, readers: str, content_keys: ArrayLike, firsts: ArrayLike, counts: ArrayLike) -> None:
        """Contents with the same readers: their first partitions and how many follow each other from there."""
        lengths = np.asarray(counts, dtype=np.int64)
        partitions = _spans(np.asarray(firsts, dtype=np.int64), lengths)
        self._first_partition.set(content_keys, firsts)
        self._partition_count.set(content_keys, lengths)
        self._content_of_partition.set(partitions, np.repeat(np.asarray(content_keys), lengths))
        self._set_content_readers(content_keys, readers)
        for table in self._all_partition_tables():
            table.set_readers(partitions, readers)

    def _set_content_readers(self, content_keys: ArrayLike, readers: str) -> None:
        left, came = self._content_members.change(content_keys, readers)
        for token, members in left.items():
            self._partitions_of_token[token] -= int(self._partition_count.get(members).sum())
        for token, members in came.items():
            self._partitions_of_token[token] += int(self._partition_count.get(members).sum())

    def set_documents(self, readers: str, document_keys: ArrayLike, content_keys: ArrayLike) -> None:
        """Documents with the same readers and the content of each, -1 for one that is gone."""
        keys = np.atleast_1d(np.asarray(document_keys, dtype=np.int64))
        before = self._content_of_document.get(keys)
        self._content_of_document.set(keys, content_keys)
        after = self._content_of_document.get(keys)
        self._sharing.move(keys, before, after)
        self.document_count += int(np.count_nonzero(after >= 0)) - int(np.count_nonzero(before >= 0))
        left, came = self._document_members.change(keys, readers)
        for token, members in left.items():
            self._document_sets[token].difference_update(BitMap(members))
        for token, members in came.items():
            self._document_sets.setdefault(token, BitMap()).update(BitMap(members))

    def set_edges(self, purpose: Purpose, readers: str, keys: ArrayLike) -> None:
        """Relationships or predicates with the same readers."""
        for (kind, _), table in self.tables.items():
            if kind in (purpose, f"next_{purpose}"):
                table.set_readers(keys, readers)

    def close(self) -> None:
        """End the tables' work in the background."""
        for resident in self.tables.values():
            resident.table.close()

    def _all_partition_tables(self) -> list[ResidentTable]:
        return [table for (purpose, _), table in self.tables.items() if purpose in ("model", "caller", "next_model")]

    def _drop_content(self, content_key: int) -> None:
        partitions = self.partitions_of_content(content_key)
        for table in self._all_partition_tables():
            table.remove(partitions)
        self._set_content_readers([content_key], "")
        self.lengths.set(partitions, np.zeros(len(partitions), np.int64))
        self._content_of_partition.set(partitions, -1)
        self._partition_count.set(content_key, 0)

    def _publish_contents(self, contents: Mapping[int, ContentState | None]) -> None:
        by_readers: dict[str, list[tuple[int, int, int]]] = {}
        for content_key, content in contents.items():
            if content is None:
                self._drop_content(content_key)
            else:
                place = (content_key, content.first_partition, content.partition_count)
                by_readers.setdefault(content.readers, []).append(place)
        for readers, places in by_readers.items():
            self.set_contents(readers, *zip(*places, strict=True))

    def _publish_documents(self, documents: Mapping[int, DocumentState | None]) -> None:
        by_readers: dict[str, list[tuple[int, int]]] = {}
        for document_key, document in documents.items():
            readers, content_key = ("", -1) if document is None else (document.readers, document.content_key)
            by_readers.setdefault(readers, []).append((document_key, content_key))
        for readers, places in by_readers.items():
            self.set_documents(readers, *zip(*places, strict=True))

    def _publish_edges(self, purpose: Purpose, edges: Mapping[int, str | None]) -> None:
        gone = [key for key, readers in edges.items() if readers is None]
        for (kind, _), table in self.tables.items():
            if kind in (purpose, f"next_{purpose}"):
                table.remove(gone)
        by_readers: dict[str, list[int]] = {}
        for key, readers in edges.items():
            if readers is not None:
                by_readers.setdefault(readers, []).append(key)
        for readers, keys in by_readers.items():
            self.set_edges(purpose, readers, keys)


def _as_range(rows: Ints) -> Ints | range:
    """Rows that follow each other as a range, with which an engine is done at once."""
    if len(rows) > 1 and rows[-1] - rows[0] == len(rows) - 1 and bool((np.diff(rows) == 1).all()):
        return range(int(rows[0]), int(rows[-1]) + 1)
    return rows


def _spans(firsts: Ints, counts: Ints) -> Ints:
    """The numbers of all ranges `first` … `+ count`, one range after the other."""
    ends = np.cumsum(counts)
    return np.repeat(firsts - (ends - counts), counts) + np.arange(int(ends[-1]) if len(ends) else 0)
