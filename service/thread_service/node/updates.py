"""Changing what is filed without filing it again: access, labels, groups. Only an owner changes what is its own."""

from __future__ import annotations

import apsw

from thread_service.node.operations import UpdateDocumentRequest, UpdateGroupRequest
from thread_service.node.work import Work
from thread_service.store import documents, registry
from thread_service.store.changes import Changes
from thread_service.store.store import Store


class Updates:
    def __init__(self, store: Store, work: Work) -> None:
        self._store = store
        self._work = work

    async def update_group(self, request: UpdateGroupRequest) -> bool:
        """Whether anything was applied, once that is durable. False for a group the owner does not have."""
        return await self._work.commit(
            self._store, lambda connection, changes: _update_group(connection, request, changes)
        )

    async def update_document(self, request: UpdateDocumentRequest) -> bool:
        """Whether anything was applied, once that is durable. False for a document the owner does not have."""
        return await self._work.commit(
            self._store, lambda connection, changes: _update_document(connection, request, changes)
        )


def _update_group(connection: apsw.Connection, request: UpdateGroupRequest, changes: Changes) -> bool:
    owner_key = registry.owner_key(connection, request.owner_id)
    group = None if owner_key is None else registry.group(connection, owner_key, request.group_id)
    if group is None:
        return False
    if request.access is not None:
        registry.set_group_access(connection, group.group_key, request.access)
        documents.set_group_access(connection, group.group_key, request.access, changes)
    if request.label:
        registry.set_group_label(connection, group.group_key, request.label)
    if request.metadata is not None:
        registry.set_group_metadata(connection, group.group_key, request.metadata.description, request.metadata.tags)
    return request.access is not None or bool(request.label) or request.metadata is not None


def _update_document(connection: apsw.Connection, request: UpdateDocumentRequest, changes: Changes) -> bool:
    owner_key = registry.owner_key(connection, request.owner_id)
    document = None if owner_key is None else documents.find(connection, owner_key, request.document_id)
    if owner_key is None or document is None:
        return False
    group = registry.group(connection, owner_key, request.group_id) if request.group_id else None
    if request.access is not None:
        documents.set_access(connection, [document.document_key], request.access, changes)
    if group is not None:
        documents.move_to_group(connection, document.document_key, group.group_key)
        documents.touch(connection, document.document_key, changes)
    return request.access is not None or group is not None
