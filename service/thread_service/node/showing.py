"""Showing what was found: rows become passages, with the entities they are about.

The store is looked at once more here, in the transaction whose rows are shown: what may no longer be read is not shown.
Everything is fetched for a handful of rows at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import apsw
from pyroaring import BitMap

from thread_service.node.operations import TAGS_BESIDE_MAX, EntityRef, GroupRef, Passage
from thread_service.store import group_tags, lookup, registry
from thread_service.store.graph_cache import Link, Links, Standing
from thread_service.text.ids import partition_id
from thread_service.text.tokens import tokens

ENTITIES_SHOWN = 8
ENTITIES_LOOKED_UP = ENTITIES_SHOWN + 2
"""Of a document's entities, best first: some may not be readable."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row in the order in which it is to be shown; `distance` as it is shown."""

    partition_key: int
    content_key: int
    distance: float


class ShownRow(NamedTuple):
    """A row with what is known of it; `entities`: their keys, best first, still to be named."""

    row: Row
    document: lookup.ShownDocument
    text: lookup.PassageText
    group: GroupRef | None
    entities: list[int]


@dataclass(frozen=True, slots=True)
class Shown:
    """The rows that are shown, in their order."""

    rows: list[ShownRow] = field(default_factory=list)

    def content_keys(self) -> set[int]:
        return {shown.row.content_key for shown in self.rows}

    def entity_keys(self) -> set[int]:
        return {key for shown in self.rows for key in shown.entities}

    def named(self, names: Mapping[int, lookup.EntityName]) -> tuple[Passage, ...]:
        """The passages with their entities, those that have a name the caller may read."""
        references = {key: reference(name) for key, name in names.items()}
        return tuple(
            Passage(
                partition_id=partition_id(document.document_id, text.ordinal),
                document_id=document.document_id,
                owner_id=document.owner_id,
                name=document.name,
                text=text.text,
                media_type=text.media_type,
                distance=row.distance,
                entities=tuple([references[key] for key in entities if key in references][:ENTITIES_SHOWN]),
                group=group,
            )
            for row, document, text, group, entities in self.rows
        )


class Showing:
    """Shows rows to one caller. `strengths`: how strongly the query activated each entity."""

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
        self._groups: dict[int, GroupRef] = {}

    def show(self, rows: Iterator[Row], count: int) -> Shown:
        """The first `count` rows that may be shown."""
        shown = Shown()
        while len(shown.rows) < count and (chunk := list(islice(rows, count))):
            self._show(chunk, count, shown)
        return shown

    def _show(self, chunk: Sequence[Row], count: int, shown: Shown) -> None:
        contents = dict.fromkeys(row.content_key for row in chunk)
        documents = lookup.shown_documents(self._connection, contents, self._owner_key, self._eligible)
        texts = lookup.passages(self._connection, [row.partition_key for row in chunk])
        keys = [document.document_key for document in documents.values()]
        groups = lookup.shown_groups(self._connection, keys, self._owner_key)
        links = self._links.entities_of(keys)
        frequencies = self._links.documents_of(link.entity_key for each in links.values() for link in each)
        for row in chunk:
            document, text = documents.get(row.content_key), texts.get(row.partition_key)
            if document is None or text is None or len(shown.rows) == count:
                continue
            group = groups.get(document.document_key)
            best = self._best(links[document.document_key], text, frequencies)
            shown.rows.append(ShownRow(row, document, text, None if group is None else self._group(group), best))

    def _group(self, group: registry.Group) -> GroupRef:
        if group.group_key not in self._groups:
            tags = group_tags.shown(self._connection, group, self._owner_key, TAGS_BESIDE_MAX)
            self._groups[group.group_key] = GroupRef(group.group_id, group.label, group.description, tags)
        return self._groups[group.group_key]

    def _best(self, links: Iterable[Link], text: lookup.PassageText, frequencies: Mapping[int, BitMap]) -> list[int]:
        """Names before keywords, most evident first, then asserted before mentioned, rarer before commoner. Of a
        document in several parts only what this part names, if it names any."""
        candidates = list(links)
        if text.partition_count > 1:
            keys = lookup.name_keys(self._connection, [link.entity_key for link in candidates])
            words = f" {' '.join(tokens(text.text))} "
            candidates = [link for link in candidates if f" {keys.get(link.entity_key, '')} " in words] or candidates
        strength = self._strengths.get
        ranked = [
            (standing == Standing.KEYWORD, -strength(key, 0.0), -standing, len(frequencies[key]), key)
            for key, standing in candidates
        ]
        ranked.sort()
        return [key for *_, key in ranked[:ENTITIES_LOOKED_UP]]


def reference(entity: lookup.EntityName) -> EntityRef:
    return EntityRef(entity.entity_id, entity.spelling, entity.kind)
