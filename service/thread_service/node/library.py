"""What is filed: groups and their documents, how many there are, and taking them away again."""

from __future__ import annotations

from collections.abc import Iterable

import apsw

from thread_service.node.operations import (
    PAGE_BYTES_MAX,
    TAGS_BESIDE_MAX,
    TAGS_MAX,
    WHOLE_PAGE_BYTES_MAX,
    Cleared,
    LibraryAnswer,
    LibraryDocument,
    LibraryGroup,
    LibraryRequest,
    RemoveRequest,
    Stats,
)
from thread_service.node.work import Work
from thread_service.store import documents, group_tags, registry, sql
from thread_service.store.changes import Changes
from thread_service.store.store import Store


class Library:
    def __init__(self, store: Store, work: Work) -> None:
        self._store = store
        self._work = work

    async def library(self, request: LibraryRequest) -> LibraryAnswer:
        return await self._work.run(lambda: self._library(request))

    async def remove(self, request: RemoveRequest) -> int:
        """How many documents were really removed, once that is durable. No ids: all of the owner's, and its groups."""
        return await self._work.commit(
            self._store, lambda connection, changes: _remove(connection, request, changes), is_large=True
        )

    async def stats(self) -> Stats:
        return await self._work.run(self._stats)

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
            bytes_max = PAGE_BYTES_MAX if request.limit > 0 else WHOLE_PAGE_BYTES_MAX
            groups: list[LibraryGroup] = []
            size = 0
            for group_id in page:
                # All readable groups of one id are on one page: the cursor is the id.
                readable = [
                    self._group(connection, group.group_key, owner_key, request)
                    for group in registry.groups_by_id(connection, group_id)
                    if group.owner_key == owner_key or (request.include_available and group.access == "available")
                ]
                size += sum(map(_message_bytes, readable))
                if groups and size > bytes_max:
                    return LibraryAnswer(tuple(groups), has_more=True)
                groups += readable
            return LibraryAnswer(tuple(groups), has_more=len(page) < len(ids))

    def _group(
        self, connection: apsw.Connection, group_key: int, owner_key: int | None, request: LibraryRequest
    ) -> LibraryGroup:
        group = registry.group_by_key(connection, group_key)
        tags_max = TAGS_MAX if request.include_documents else TAGS_BESIDE_MAX
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
            tags=group_tags.shown(connection, group, owner_key, tags_max),
            documents=documents,
        )

    def _stats(self) -> Stats:
        with self._store.read() as connection:
            filed, available, owners = documents.counts(connection)
            return Stats(
                documents=filed,
                groups=registry.group_count(connection),
                owners=owners,
                available_documents=available,
            )

    def _url(self, document_id: str) -> str:
        return documents.url(self._store.path, document_id)


def _message_bytes(group: LibraryGroup) -> int:
    """No less than what the group takes in a message."""
    words = (group.group_id, group.label, group.owner_id, group.description or "", *group.tags)
    return sum(6 + len(text.encode()) for text in words) + sum(
        50 + sum(len(text.encode()) for text in (item.document_id, item.url, item.owner_id, item.name or ""))
        for item in group.documents
    )


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
    return Cleared(
        documents=documents.counts(connection)[0],
        entities=int(sql.value(connection, "SELECT count(*) FROM entities")),
    )
