"""Administration of the graph: names, kinds and edges changed after filing, and the policy of extraction.

An owner changes what its own documents say and nothing else: an entity that only others' documents assert does not
exist here, and what others assert of a shared one stays. Each change is one committed transaction over what is indexed;
a deposit that is still waiting to be indexed, and every later one, says again what it says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import apsw

from thread_service.node.extracting import Extracting
from thread_service.node.extraction import found_in
from thread_service.node.indexing import Indexer
from thread_service.node.work import Work
from thread_service.store import co_mention, documents, extractions, graph, graph_edits, pending, policies, registry
from thread_service.store.changes import Changes
from thread_service.store.extractions import Unextracted
from thread_service.store.graph_edits import Owned
from thread_service.store.store import Store
from thread_service.text.ids import normalise_kind
from thread_service.text.policy import Policy

T = TypeVar("T")


class _Found(NamedTuple):
    document: documents.Document
    keywords: list[str]


class GraphAdmin:
    """Owner ids are normalised. Errors: StorageFull; `re_extract`: NotReady and IndexMismatch too."""

    def __init__(self, store: Store, indexer: Indexer, extracting: Extracting, work: Work) -> None:
        self._store = store
        self._indexer = indexer
        self._extracting = extracting
        self._work = work

    # ------------------------------------------------------------------------------------------ entities and edges

    async def rename_entity(self, owner_id: str, entity_id: str, name: str) -> str | None:
        """The id the entity has now, that of another if the name is one's already; None without such an entity.

        A blank name changes nothing.
        """

        def work(connection: apsw.Connection, owner_key: int, changes: Changes) -> str | None:
            entity = graph_edits.find(connection, owner_key, entity_id)
            if entity is None or not name.strip():
                return None if entity is None else entity.entity_id
            return graph_edits.move(connection, owner_key, entity, entity.kind, name.strip(), changes)

        return await self._edit(owner_id, work)

    async def set_entity_kind(self, owner_id: str, entity_id: str, kind: str) -> str | None:
        """As `rename_entity`. A blank kind is `concept`, as in a deposit."""

        def work(connection: apsw.Connection, owner_key: int, changes: Changes) -> str | None:
            entity = graph_edits.find(connection, owner_key, entity_id)
            if entity is None:
                return None
            return graph_edits.move(connection, owner_key, entity, normalise_kind(kind), None, changes)

        return await self._edit(owner_id, work)

    async def merge_entities(self, owner_id: str, from_id: str, into_id: str) -> str | None:
        """`into_id`; None when there is no such entity. Without the other one there is nothing to do."""

        def work(connection: apsw.Connection, owner_key: int, changes: Changes) -> str | None:
            entity = graph_edits.find(connection, owner_key, from_id)
            into = graph_edits.find(connection, owner_key, into_id)
            if into is None or entity is None or entity == into:
                return None if into is None else into.entity_id
            return graph_edits.move(connection, owner_key, entity, into.kind, into.spelling, changes)

        return await self._edit(owner_id, work)

    async def delete_entity(self, owner_id: str, entity_id: str) -> None:
        """Together with its edges. Nothing happens without such an entity."""

        def work(connection: apsw.Connection, owner_key: int, changes: Changes) -> Owned | None:
            entity = graph_edits.find(connection, owner_key, entity_id)
            if entity is not None:
                graph_edits.delete(connection, owner_key, entity, changes)
            return entity

        await self._edit(owner_id, work)

    async def delete_relationship(self, owner_id: str, relationship_id: str) -> None:
        """The edge alone. Nothing happens without such an edge."""

        def work(connection: apsw.Connection, owner_key: int, changes: Changes) -> None:
            graph_edits.delete_edge(connection, owner_key, relationship_id, changes)

        await self._edit(owner_id, work)

    async def _edit(self, owner_id: str, work: Callable[[apsw.Connection, int, Changes], T | None]) -> T | None:
        def edit(connection: apsw.Connection, changes: Changes) -> T | None:
            owner_key = registry.owner_key(connection, owner_id)
            return None if owner_key is None else work(connection, owner_key, changes)

        edited = await self._work.commit(self._store, edit)
        self._indexer.nudge()
        return edited

    # ------------------------------------------------------------------------------------------ extraction

    async def re_extract(self, owner_id: str, document_id: str) -> int:
        """Look into the document's texts again, in the light of the policy, and let what is found take the place of
        what was found before; what the document was given stays.

        How many entities were found. 0, and nothing changed, when there is none, or no such searchable document. A
        document that waits to be indexed is waited for. NotReady, where the instruct model cannot be asked: the
        document is read when it can.
        """
        place = await self._work.run(lambda: self._place(owner_id, document_id))
        if place is not None:
            await self._indexer.settled([place])
        found = await self._work.run(lambda: self._find(owner_id, document_id))
        if found is not None and self._extracting.has_model:
            return await self._extracting.read(Unextracted(found.document.document_key, found.document.content_key))
        if found is None or not found.keywords:
            return 0

        def work(connection: apsw.Connection, owner_key: int, changes: Changes) -> bool:
            current = documents.find(connection, owner_key, document_id)
            if current is None or current.content_key != found.document.content_key:
                return False  # removed or replaced meanwhile, and a new deposit is looked into anyway
            graph.retract_found(connection, current.document_key, changes)
            said = graph.contribution([], [], found.keywords)
            graph.contribute(connection, current.document_key, said, changes)
            co_mention.add(connection, current.document_key, policies.read(connection), changes)
            return True

        return len(found.keywords) if await self._edit(owner_id, work) else 0

    def _place(self, owner_id: str, document_id: str) -> int | None:
        with self._store.read() as connection:
            document = _document(connection, owner_id, document_id)
            return None if document is None else pending.place(connection, document.document_key)

    def _find(self, owner_id: str, document_id: str) -> _Found | None:
        with self._store.read() as connection:
            document = _document(connection, owner_id, document_id)
            if document is None:
                return None
            texts = extractions.texts(connection, document.content_key)
            policy = policies.read(connection)
        return _Found(document, found_in(texts, policy))

    # ------------------------------------------------------------------------------------------ policy

    async def policy(self) -> Policy:
        return await self._work.run(self._policy)

    def _policy(self) -> Policy:
        with self._store.read() as connection:
            return policies.read(connection)

    async def set_policy(self, policy: Policy) -> None:
        """For what is indexed from now on."""
        await self._work.commit(self._store, lambda connection, _: policies.write(connection, policy))


def _document(connection: apsw.Connection, owner_id: str, document_id: str) -> documents.Document | None:
    owner_key = registry.owner_key(connection, owner_id)
    return None if owner_key is None else documents.find(connection, owner_key, document_id)
