"""What is filed: groups and documents, their contents, and taking them away again."""

from __future__ import annotations

from collections.abc import Iterable

import apsw
import msgspec
import numpy as np

from thread_service.node.operations import (
    Cleared,
    DocumentContent,
    DocumentsAnswer,
    DocumentsRequest,
    LibraryAnswer,
    LibraryDocument,
    LibraryGroup,
    LibraryRequest,
    PartitionContent,
    RemoveRequest,
)
from thread_service.node.work import Work
from thread_service.store import documents, registry, sql, vectors
from thread_service.store.changes import Changes
from thread_service.store.store import Store
from thread_service.text.ids import partition_id


class Library:
    def __init__(self, store: Store, work: Work) -> None:
        self._store = store
        self._work = work

    async def library(self, request: LibraryRequest) -> LibraryAnswer:
        return await self._work.run(lambda: self._library(request))

    async def documents(self, request: DocumentsRequest) -> DocumentsAnswer:
        return await self._work.run(lambda: self._documents(request))

    async def remove(self, request: RemoveRequest) -> int:
        """How many documents were really removed, once that is durable. No ids: all of the owner's, and its groups."""
        return await self._work.commit(self._store, lambda connection, changes: _remove(connection, request, changes))

    async def clear(self) -> Cleared:
        return await self._work.run(lambda: self._store.clear(_count))

    # ------------------------------------------------------------------------------------------ groups

    def _library(self, request: LibraryRequest) -> LibraryAnswer:
        with self._store.read() as connection:
            owner_key = registry.owner_key(connection, request.owner_id)
            if request.document_ids:
                keys = _groups_holding(connection, owner_key, request.document_ids)
                return LibraryAnswer(tuple(self._group(connection, key, owner_key, request) for key in keys))
            ids = _group_ids(connection, owner_key, request)
            page = ids if request.limit <= 0 else ids[: request.limit]
            # All readable groups of one id are on one page: the cursor is the id.
            groups = tuple(
                self._group(connection, group.group_key, owner_key, request)
                for group_id in page
                for group in registry.groups_by_id(connection, group_id)
                if group.owner_key == owner_key or (request.include_available and group.access == "available")
            )
            return LibraryAnswer(groups, has_more=len(page) < len(ids))

    def _group(
        self, connection: apsw.Connection, group_key: int, owner_key: int | None, request: LibraryRequest
    ) -> LibraryGroup:
        group = registry.group_by_key(connection, group_key)
        documents: tuple[LibraryDocument, ...] = ()
        if request.include_documents:
            statement = (
                "SELECT document_id, owner_id, name, created_at FROM document_groups"
                " JOIN documents USING (document_key) JOIN owners USING (owner_key)"
                " WHERE group_key = ? AND (owner_key = ? OR access = 'available') ORDER BY document_id"
            )
            documents = tuple(
                LibraryDocument(document_id, self._url(document_id), owner_id, name, created_at)
                for document_id, owner_id, name, created_at in sql.rows(connection, statement, (group_key, owner_key))
            )
        return LibraryGroup(
            group_id=group.group_id,
            label=group.label,
            owner_id=registry.owner_id(connection, group.owner_key),
            access="available" if group.access == "available" else "restricted",
            description=group.description,
            tags=group.tags,
            documents=documents,
        )

    # ------------------------------------------------------------------------------------------ contents

    def _documents(self, request: DocumentsRequest) -> DocumentsAnswer:
        with self._store.read() as connection:
            owner_key = registry.owner_key(connection, request.owner_id)
            found = (
                self._document(connection, owner_key, document_id, request.include_embeddings)
                for document_id in request.document_ids
            )
            return DocumentsAnswer(tuple(document for document in found if document is not None))

    def _document(
        self, connection: apsw.Connection, owner_key: int | None, document_id: str, include_embeddings: bool
    ) -> DocumentContent | None:
        """The caller's own document of this id, else the oldest available one."""
        statement = (
            "SELECT name, owner_id, primary_group, created_at, content_key, media_type, metadata, urls"
            " FROM documents JOIN owners USING (owner_key) JOIN contents USING (content_key)"
            " WHERE document_id = ?1 AND (owner_key = ?2 OR access = 'available')"
            " ORDER BY owner_key IS NOT ?2, document_key LIMIT 1"
        )
        for row in sql.rows(connection, statement, (document_id, owner_key)):
            name, owner_id, group_key, created_at, content_key, media_type, metadata, urls = row
            group = None if group_key is None else registry.group_by_key(connection, group_key)
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
            "SELECT partition_key, vector FROM partitions WHERE vector IS NOT NULL"
            " AND partition_key IN (SELECT value FROM json_each(?))",
            (msgspec.json.encode(partition_keys).decode(),),
        ):
            found[key] = np.frombuffer(blob, "<f4").astype(np.float32)
        return found

    def _url(self, document_id: str) -> str:
        return documents.url(self._store.path, document_id)


def _remove(connection: apsw.Connection, request: RemoveRequest, changes: Changes) -> int:
    owner_key = registry.owner_key(connection, request.owner_id)
    if owner_key is None:
        return 0
    if request.document_ids:
        found = [documents.find(connection, owner_key, key) for key in dict.fromkeys(request.document_ids)]
        removed = [document for document in found if document is not None]
    else:
        removed = documents.owned(connection, owner_key)
    for document in removed:
        documents.remove(connection, document, changes)
    if not request.document_ids:
        registry.remove_groups(connection, owner_key)
    return len(removed)


def _group_ids(connection: apsw.Connection, owner_key: int | None, request: LibraryRequest) -> list[str]:
    """Readable group ids after the cursor, ascending; one more than the page holds tells that there are more."""
    statement = (
        "SELECT DISTINCT group_id FROM groups WHERE group_id > ?1 AND (owner_key = ?2 OR (?3 AND access = 'available'))"
        " ORDER BY group_id LIMIT ?4"
    )
    limit = -1 if request.limit <= 0 else request.limit + 1
    rows = sql.rows(connection, statement, (request.after_id, owner_key, request.include_available, limit))
    return [group_id for (group_id,) in rows]


def _groups_holding(connection: apsw.Connection, owner_key: int | None, document_ids: Iterable[str]) -> list[int]:
    """Readable groups that hold a readable document of any of the ids, in order of group id."""
    statement = (
        "SELECT DISTINCT group_key, group_id FROM documents d JOIN document_groups USING (document_key)"
        " JOIN groups g USING (group_key) WHERE document_id IN (SELECT value FROM json_each(?1))"
        " AND (d.owner_key = ?2 OR d.access = 'available') AND (g.owner_key = ?2 OR g.access = 'available')"
        " ORDER BY group_id, group_key"
    )
    return [key for key, _ in sql.rows(connection, statement, (sql.array(document_ids), owner_key))]


def _count(connection: apsw.Connection) -> Cleared:
    distinct = "SELECT count(*) FROM (SELECT DISTINCT document_id, content_key FROM documents)"
    return Cleared(
        documents=int(sql.value(connection, distinct)),
        entities=int(sql.value(connection, "SELECT count(*) FROM entities")),
    )
