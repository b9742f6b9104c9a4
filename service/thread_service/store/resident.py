"""What the node keeps in memory to answer a search, rebuilt from the store at start and kept current after each commit.

Tables of vectors with their row sets, and the document sets; every set is named by a reader token. `publish` is
called on the writer's thread with what one committed write changed; searches run beside it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Literal

import apsw
import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from thread_kernels import Engine, Filter, RowSet, Table
from thread_service.store import sql, vectors
from thread_service.store.audience import join, of_document
from thread_service.store.changes import Changes, ContentState, DocumentState, NewVectors, Purpose
from thread_service.store.graph_cache import GraphCache
from thread_service.store.growing import GrowingInts
from thread_service.store.segments import Segments

Ints = NDArray[np.int64]


class ReaderSets:
    """Which readers each member has, kept as one set per reader token.

    The token strings of all members are few and shared, so a member costs four bytes here.
    """

    def __init__(self) -> None:
        self._spellings: list[tuple[str, ...]] = [()]
        self._numbers: dict[str, int] = {"": 0}
        self._of: GrowingInts = GrowingInts(missing=0)

    def change(self, members: Iterable[int], stored: str) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
        """Give all `members` the readers `stored`; (token → members that left, token → members that came)."""
        number = self._numbers.get(stored)
        if number is None:
            number = self._numbers[stored] = len(self._spellings)
            self._spellings.append(tuple(stored.split()))
        new = self._spellings[number]
        left: dict[str, list[int]] = {}
        came: dict[str, list[int]] = {}
        keys = list(members)
        for member, old_number in zip(keys, self._of.get(keys).tolist(), strict=True):
            old = self._spellings[old_number]
            for token in old:
                if token not in new:
                    left.setdefault(token, []).append(member)
            for token in new:
                if token not in old:
                    came.setdefault(token, []).append(member)
        self._of.set(keys, number)
        return left, came


class ResidentTable:
    """One table of the engine with what its rows mean: row ↔ subject, and a row set per reader token."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._row_of = GrowingInts()
        self._subject_of = GrowingInts()
        self._members = ReaderSets()
        self._sets: dict[str, RowSet] = {}
        self._nothing = table.row_set()

    def append(self, subjects: Sequence[int], rows: NDArray[np.float32]) -> None:
        """New rows that nobody may read yet. A subject that had a row gets the new one instead."""
        old = self._row_of.get(subjects)
        if (old >= 0).any():
            self.remove([subject for subject, row in zip(subjects, old.tolist(), strict=True) if row >= 0])
        added = self.table.append(rows)
        numbers = np.arange(added.start, added.stop)
        self._subject_of.set(numbers, np.asarray(subjects))
        self._row_of.set(subjects, numbers)

    def remove(self, subjects: Sequence[int]) -> None:
        rows = self.rows_of(subjects)
        if len(rows):
            self.table.remove(rows)
            self._change(rows.tolist(), "")
            self._row_of.set(subjects, -1)

    def set_readers(self, subjects: Sequence[int], stored: str) -> None:
        self._change(self.rows_of(subjects).tolist(), stored)

    def _change(self, rows: list[int], stored: str) -> None:
        left, came = self._members.change(rows, stored)
        for token, members in left.items():
            self._sets[token].discard(members)
        for token, members in came.items():
            if token not in self._sets:
                self._sets[token] = self.table.row_set()
            self._sets[token].add(members)

    def rows_of(self, subjects: Sequence[int] | Ints) -> Ints:
        """Rows of the subjects that have one, in their order."""
        rows = self._row_of.get(subjects).astype(np.int64)
        return rows[rows >= 0]

    def subjects_of(self, rows: Ints) -> Ints:
        return self._subject_of.get(rows).astype(np.int64)

    def having(self, rows: Ints, token: str) -> Ints:
        """Those of the rows that carry a reader token."""
        members = self._sets.get(token, self._nothing)
        return np.array([row for row in rows.tolist() if row in members], dtype=np.int64)

    def filter(self, any_of: Iterable[str], media_type: str | None = None) -> Filter:
        """Rows with any of the tokens (and of the media type, a token too)."""
        chosen = Filter.any_of(*(self._sets.get(token, self._nothing) for token in any_of))
        return chosen if media_type is None else chosen & Filter.any_of(self._sets.get(media_type, self._nothing))


class Resident:
    """All resident tables, the document sets, and the cache of graph links."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.lock = threading.RLock()
        self.graph = GraphCache()
        self.words_version = 0
        """To be read before the transaction whose word scores may be remembered is opened."""
        self._empty()

    def _empty(self) -> None:
        self.tables: dict[tuple[Purpose, int], ResidentTable] = {}
        self._document_members = ReaderSets()
        self._document_sets: dict[str, BitMap] = {}
        self._content_of_document = GrowingInts()
        self._content_of_partition = GrowingInts()
        self._first_partition = GrowingInts()
        self._partition_count = GrowingInts(missing=0)
        self.document_count = 0

    # ------------------------------------------------------------------------------------------ reading

    def table(self, purpose: Purpose, width: int) -> ResidentTable | None:
        return self.tables.get((purpose, width))

    def partition_tables(self, width: int, purposes: Iterable[Literal["model", "caller"]]) -> list[ResidentTable]:
        return [found for purpose in purposes if (found := self.table(purpose, width)) is not None]

    def documents(self, any_of: Iterable[str]) -> BitMap:
        """Keys of the documents with any of the reader tokens."""
        with self.lock:
            return BitMap.union(*(self._document_sets.get(token, BitMap()) for token in ("", *any_of)))

    def readable_share(self, any_of: Iterable[str]) -> float:
        """How much of all documents has one of the reader tokens."""
        return len(self.documents(any_of)) / self.document_count if self.document_count else 0.0

    def contents_of_documents(self, document_keys: Sequence[int] | Ints) -> Ints:
        return self._content_of_document.get(document_keys).astype(np.int64)

    def contents_of_partitions(self, partition_keys: Sequence[int] | Ints) -> Ints:
        return self._content_of_partition.get(partition_keys).astype(np.int64)

    def partitions_of_content(self, content_key: int) -> range:
        first = self._first_partition.one(content_key)
        return range(first, first + self._partition_count.one(content_key))

    # ------------------------------------------------------------------------------------------ writing

    def load(self, connection: apsw.Connection, segments: Segments) -> None:
        """Fill an empty memory from one snapshot of the store."""
        with self.lock:
            changes = Changes()
            for loaded in vectors.load(connection, segments):
                self._append(NewVectors(loaded.purpose, loaded.subject_keys, loaded.vectors))
            for content_key, stored, first, count in sql.rows(
                connection,
                "SELECT content_key, readers, min(partition_key), count(*) FROM contents JOIN partitions"
                " USING (content_key) GROUP BY content_key",
            ):
                changes.contents[content_key] = ContentState(stored, first, count)
            for document_key, content_key, stored in _document_readers(connection):
                changes.documents[document_key] = DocumentState(stored, content_key)
            changes.relationships = dict(sql.rows(connection, "SELECT relationship_key, readers FROM relationships"))
            changes.predicates = dict(sql.rows(connection, "SELECT predicate_key, readers FROM predicates"))
            self.publish(changes)

    def publish(self, changes: Changes) -> None:
        with self.lock:
            if changes.cleared:
                self.close()
                self._empty()
                self.graph.clear()
            if changes.contents or changes.cleared:
                self.words_version += 1
            for new in changes.vectors:
                self._append(new)
            for content_key, content in changes.contents.items():
                self._publish_content(content_key, content)
            for document_key, document in changes.documents.items():
                self._publish_document(document_key, document)
            for purpose, edges in (("relationship", changes.relationships), ("predicate", changes.predicates)):
                for (kind, _), resident in self.tables.items():
                    if kind == purpose:
                        _publish_edges(resident, edges)
            self.graph.invalidate(changes.entities, changes.linked_documents)

    def close(self) -> None:
        """End the tables' work in the background."""
        for resident in self.tables.values():
            resident.table.close()

    def _append(self, new: NewVectors) -> None:
        key = (new.purpose, new.vectors.shape[1])
        if key not in self.tables:
            self.tables[key] = ResidentTable(self._engine.table(new.vectors.shape[1]))
        self.tables[key].append(new.subject_keys, new.vectors)

    def _publish_content(self, content_key: int, content: ContentState | None) -> None:
        tables = [table for (purpose, _), table in self.tables.items() if purpose in ("model", "caller")]
        if content is None:
            partitions = self.partitions_of_content(content_key)
            for table in tables:
                table.remove(partitions)
            self._content_of_partition.set(partitions, -1)
            self._partition_count.set(content_key, 0)
            return
        partitions = range(content.first_partition, content.first_partition + content.partition_count)
        self._first_partition.set(content_key, content.first_partition)
        self._partition_count.set(content_key, content.partition_count)
        self._content_of_partition.set(partitions, content_key)
        for table in tables:
            table.set_readers(partitions, content.readers)

    def _publish_document(self, document_key: int, document: DocumentState | None) -> None:
        known = self._content_of_document.one(document_key) >= 0
        self.document_count += (document is not None) - known
        left, came = self._document_members.change([document_key], "" if document is None else document.readers)
        for token, members in left.items():
            self._document_sets[token].difference_update(BitMap(members))
        for token, members in came.items():
            self._document_sets.setdefault(token, BitMap()).update(members)
        self._content_of_document.set(document_key, -1 if document is None else document.content_key)


def _publish_edges(resident: ResidentTable, edges: dict[int, str | None]) -> None:
    gone = [key for key, stored in edges.items() if stored is None]
    if gone:
        resident.remove(gone)
    by_readers: dict[str, list[int]] = {}
    for key, stored in edges.items():
        if stored is not None:
            by_readers.setdefault(stored, []).append(key)
    for stored, keys in by_readers.items():
        resident.set_readers(keys, stored)


def _document_readers(connection: apsw.Connection) -> Iterable[tuple[int, int, str]]:
    """(document_key, content_key, readers) of every document; the readers as `audience` says them."""
    statement = """
        SELECT document_key, content_key, owner_key, access, group_concat(group_key, ' ')
        FROM documents LEFT JOIN document_groups USING (document_key) GROUP BY document_key
    """
    for document_key, content_key, owner_key, access, groups in sql.rows(connection, statement):
        tokens = of_document(owner_key, access, [int(key) for key in groups.split()] if groups else ())
        yield document_key, content_key, join(tokens)
