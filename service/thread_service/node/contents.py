"""Reading documents back: by id, or an owner's whole corpus page by page."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import TypeVar

import apsw
import msgspec
import numpy as np

from thread_service.node.operations import (
    ANSWER_BYTES_MAX,
    PAGE_BYTES_MAX,
    WHOLE_PAGE_BYTES_MAX,
    DocumentContent,
    DocumentsAnswer,
    DocumentsRequest,
    ExportAnswer,
    ExportRequest,
    PartitionContent,
)
from thread_service.node.work import Work
from thread_service.store import documents as store_documents
from thread_service.store import lookup, registry, sql, vectors
from thread_service.store.store import Store
from thread_service.text.ids import partition_id

T = TypeVar("T")

SNAPSHOTS_MAX = 10


class Contents:
    def __init__(self, store: Store, work: Work) -> None:
        self._store = store
        self._work = work

    async def documents(self, request: DocumentsRequest) -> DocumentsAnswer:
        return await self._work.run(lambda: _on_a_newer_snapshot(lambda: self._documents(request)))

    async def export(self, request: ExportRequest) -> ExportAnswer:
        return await self._work.run(lambda: _on_a_newer_snapshot(lambda: self._export(request)))

    def _documents(self, request: DocumentsRequest) -> DocumentsAnswer:
        with self._store.read() as connection:
            owner_key = registry.owner_key(connection, request.owner_id)
            found = (
                self._document(connection, owner_key, document_id, request.include_embeddings)
                for document_id in request.document_ids
            )
            readable = (document for document in found if document is not None)
            return DocumentsAnswer(*_page(readable, len(request.document_ids), ANSWER_BYTES_MAX))

    def _export(self, request: ExportRequest) -> ExportAnswer:
        with self._store.read() as connection:
            owner_key = registry.owner_key(connection, request.owner_id)
            if owner_key is None:
                return ExportAnswer(())
            ids = store_documents.ids_after(connection, owner_key, request.after_id, request.prefix, request.group_ids)
            found = (
                self._document(connection, owner_key, document_id, request.include_embeddings) for document_id in ids
            )
            present = (document for document in found if document is not None)
            return ExportAnswer(
                *_page(present, request.limit or None, PAGE_BYTES_MAX if request.limit else WHOLE_PAGE_BYTES_MAX)
            )

    def _document(
        self, connection: apsw.Connection, owner_key: int | None, document_id: str, include_embeddings: bool
    ) -> DocumentContent | None:
        """The caller's own document of this id, else the oldest available one."""
        statement = (
            "SELECT document_key, name, owner_id, created_at, content_key, media_type, metadata, urls"
            " FROM documents JOIN owners USING (owner_key) JOIN contents USING (content_key)"
            " WHERE document_id = ?1 AND (owner_key = ?2 OR access = 'available')"
            " ORDER BY owner_key IS NOT ?2, document_key LIMIT 1"
        )
        for row in sql.rows(connection, statement, (document_id, owner_key)):
            document_key, name, owner_id, created_at, content_key, media_type, metadata, urls = row
            group = lookup.shown_groups(connection, [document_key], owner_key).get(document_key)
            texts = sql.rows(
                connection,
                "SELECT partition_key, text FROM partitions WHERE content_key = ? ORDER BY ordinal",
                (content_key,),
            )
            partitions: tuple[PartitionContent, ...] = ()
            if include_embeddings:
                own_urls = [None] * len(texts) if urls is None else msgspec.json.decode(urls, type=list[str | None])
                brought = self._brought(connection, [partition_key for partition_key, _ in texts])
                partitions = tuple(
                    PartitionContent(
                        partition_id(document_id, ordinal),
                        own_urls[ordinal] or self._url(document_id),
                        brought.get(partition_key, np.empty(0, np.float32)),
                    )
                    for ordinal, (partition_key, _) in enumerate(texts)
                )
            return DocumentContent(
                document_id=document_id,
                name=name,
                owner_id=owner_id,
                group_id="" if group is None else group.group_id,
                group_label="" if group is None else group.label,
                created_at=created_at,
                texts=tuple(text for _, text in texts),
                media_type=media_type,
                metadata=metadata,
                partitions=partitions,
            )
        return None

    def _brought(
        self, connection: apsw.Connection, partition_keys: list[int]
    ) -> dict[int, np.ndarray[tuple[int], np.dtype[np.float32]]]:
        """Vectors the caller brought, bit for bit: from the segments, or from the journal while still pending."""
        located = vectors.locate(connection, "caller", partition_keys)
        found = {key: self._store.segments.read_checked([location])[0] for key, location in located.items()}
        for key, blob in sql.rows(
            connection,
            "SELECT partition_key, vector FROM brought_vectors WHERE partition_key IN (SELECT value FROM json_each(?))",
            (sql.array(partition_keys),),
        ):
            found[key] = np.frombuffer(blob, "<f4").astype(np.float32)
        return found

    def _url(self, document_id: str) -> str:
        return store_documents.url(self._store.path, document_id)


def _page(
    found: Iterable[DocumentContent], count_max: int | None, bytes_max: int
) -> tuple[tuple[DocumentContent, ...], bool]:
    """The first documents, as many as may be and fit, at least one; and whether there are more."""
    page: list[DocumentContent] = []
    size = 0
    for document in found:
        size += _message_bytes(document)
        if len(page) == count_max or (page and size > bytes_max):
            return tuple(page), True
        page.append(document)
    return tuple(page), False


def _message_bytes(document: DocumentContent) -> int:
    """No less than what the document takes in a message."""
    words = (document.document_id, document.name or "", document.owner_id, document.group_id, document.group_label)
    size = 100 + len(document.metadata) + sum(len(text.encode()) for text in words)
    size += sum(6 + len(text.encode()) for text in document.texts)
    return size + sum(
        24 + len(partition.partition_id.encode()) + len(partition.url.encode()) + partition.embedding.nbytes
        for partition in document.partitions
    )


def _on_a_newer_snapshot(read: Callable[[], T]) -> T:
    """A snapshot may point into segments that were deleted since it was taken (KeyError); a newer one does not.

    Compaction may delete the next one while that is read.
    """
    for _ in range(SNAPSHOTS_MAX - 1):
        with contextlib.suppress(KeyError):
            return read()
    return read()
