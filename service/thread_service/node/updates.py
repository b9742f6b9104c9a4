"""Changing what is filed without filing it again: access, labels, groups. Only an owner changes what is its own."""

from __future__ import annotations

import apsw

from thread_service.node.operations import Updated, UpdateDocumentRequest, UpdateGroupRequest
from thread_service.node.work import Work
from thread_service.store import documents, group_tags, registry
from thread_service.store.changes import Changes
from thread_service.store.store import Store


class Updates:
    def __init__(self, store: Store, work: Work) -> None:
        self._store = store
        self._work = work

    async def update_group(self, request: UpdateGroupRequest) -> Updated:
        """What was applied, once that is durable. Nothing of a group the owner does not have."""
        return await self._work.commit(
            self._store, lambda connection, changes: _update_group(connection, request, changes)
        )

    async def update_document(self, request: UpdateDocumentRequest) -> Updated:
        """What was applied, once that is durable. Nothing of a document the owner does not have."""
        return await self._work.commit(
            self._store, lambda connection, changes: _update_document(connection, request, changes)
        )


def _update_group(connection: apsw.Connection, request: UpdateGroupRequest, changes: Changes) -> Updated:
    owner_key = registry.owner_key(connection, request.owner_id)
    group = None if owner_key is None else registry.group(connection, owner_key, request.group_id)
    if group is None:
        return Updated(False, "the owner has no group of this id")
    if request.access is not None:
        registry.set_group_access(connection, group.group_key, request.access)
        documents.set_group_access(connection, group.group_key, request.access, changes)
    if request.label:
        registry.set_group_label(connection, group.group_key, request.label)
    if request.metadata is not None:
        registry.set_group_metadata(connection, group.group_key, request.metadata.description, request.metadata.tags)
        group_tags.forget(connection, group.group_key)
    if request.access is None and not request.label and request.metadata is None:
        return Updated(False, "nothing is to be changed: give access, a label, or update_metadata")
    return Updated(True)


def _update_document(connection: apsw.Connection, request: UpdateDocumentRequest, changes: Changes) -> Updated:
    owner_key = registry.owner_key(connection, request.owner_id)
    document = None if owner_key is None else documents.find(connection, owner_key, request.document_id)
    if owner_key is None or document is None:
        return Updated(False, "the owner has no document of this id")
    group = registry.group(connection, owner_key, request.group_id) if request.group_id else None
    if request.access is not None:
        documents.set_access(connection, [document.document_key], request.access, changes)
    if group is not None:
        documents.move_to_group(connection, document.document_key, group.group_key)
        documents.touch(connection, document.document_key, changes)
    if request.group_id and group is None:
        return Updated(request.access is not None, "group_id: the owner has no group of this id")
    if request.access is None and group is None:
        return Updated(False, "nothing is to be changed: give access or a group_id")
    return Updated(True)
