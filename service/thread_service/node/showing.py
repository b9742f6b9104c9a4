"""Showing what was found: rows become passages, with the entities they are about.

The store is looked at once more here, in the transaction whose rows are shown: what may no longer be read is not shown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import apsw
from pyroaring import BitMap

from thread_service.node.operations import EntityRef, GroupRef, Passage
from thread_service.store import lookup, registry
from thread_service.store.graph_cache import Links
from thread_service.text.ids import partition_id
from thread_service.text.tokens import tokens

ENTITIES_SHOWN = 8


class Showing:
    """The passages of one answer. `strengths`: how strongly the query activated each entity."""

    def __init__(
        self,
        connection: apsw.Connection,
        links: Links,
        owner_key: int | None,
        eligible: BitMap,
        strengths: Mapping[int, float],
    ) -> None:
        self._connection = connection
        self._links = links
        self._owner_key = owner_key
        self._eligible = eligible
        self._strengths = strengths
        self._documents: dict[int, lookup.ShownDocument | None] = {}
        self._groups: dict[int, GroupRef] = {}
        self._about: list[tuple[int, bool]] = []

    def show(self, partition_key: int, content_key: int, distance: float) -> Passage | None:
        """The passage, its entities still to be named."""
        if content_key not in self._documents:
            self._documents[content_key] = lookup.shown_document(
                self._connection, content_key, self._owner_key, self._eligible
            )
        document = self._documents[content_key]
        found = lookup.passage(self._connection, partition_key)
        if document is None or found is None:
            return None
        ordinal, text, media_type, partition_count = found
        self._about.append((document.document_key, partition_count > 1))
        return Passage(
            partition_id=partition_id(document.document_id, ordinal),
            document_id=document.document_id,
            owner_id=document.owner_id,
            name=document.name,
            text=text,
            media_type=media_type,
            distance=distance,
            entities=(),
            group=None if document.group_key is None else self._group(document.group_key),
        )

    def named(self, passages: Sequence[Passage]) -> list[Passage]:
        """The passages with the entities they are about: names before keywords, most evident first, then asserted
        before mentioned, rarer before commoner."""
        listed = self._links.entities_of(key for key, _ in self._about)
        keys = {link.entity_key for links in listed.values() for link in links}
        names = lookup.entity_names(self._connection, keys, self._owner_key)
        frequencies = {key: len(documents) for key, documents in self._links.documents_of(names).items()}
        named: list[Passage] = []
        for passage, (document_key, is_one_of_many) in zip(passages, self._about, strict=True):
            links = [link for link in listed[document_key] if link.entity_key in names]
            if is_one_of_many:
                words = f" {' '.join(tokens(passage.text))} "
                links = [link for link in links if f" {names[link.entity_key].name_key} " in words] or links
            links.sort(
                key=lambda link: (
                    link.standing == 0,
                    -self._strengths.get(link.entity_key, 0.0),
                    -link.standing,
                    frequencies[link.entity_key],
                    link.entity_key,
                )
            )
            references = tuple(reference(names[link.entity_key]) for link in links[:ENTITIES_SHOWN])
            named.append(dataclasses.replace(passage, entities=references))
        return named

    def _group(self, group_key: int) -> GroupRef:
        if group_key not in self._groups:
            group = registry.group_by_key(self._connection, group_key)
            self._groups[group_key] = GroupRef(group.group_id, group.label, group.description, group.tags)
        return self._groups[group_key]


def reference(entity: lookup.EntityName) -> EntityRef:
    return EntityRef(entity.entity_id, entity.spelling, entity.kind)
