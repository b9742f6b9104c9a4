"""What a node answers, as frozen values. A field that the node left out is None or empty; unknown ones are ignored.

Distances and scores have no unit. Times are ISO 8601 in UTC.
"""

from __future__ import annotations

from typing import Literal

import msgspec

# ------------------------------------------------------------------------------------------------------ filing

Outcome = Literal["new", "replaced", "linked", "skipped", "failed"]


class FiledDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`skipped`: filed without ids, and the owner had these texts already: nothing changed, and the name, entities and
    facts that came along were not taken. `linked`: the same, but it is in the group now.

    `failed`: no search will find it, and `reason` says why; then `id` may be None.
    """

    id: str | None = None
    outcome: Outcome
    reason: str | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    total_tokens: int = 0


class Filed(msgspec.Struct, frozen=True, kw_only=True):
    """`documents` runs parallel to what was sent. `success`: none of them failed."""

    documents: tuple[FiledDocument, ...]
    success: bool
    model: str = ""
    usage: Usage = Usage()


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """How many documents were really removed, by this very request: 0 when an earlier try of it had done so."""

    removed_count: int


# ------------------------------------------------------------------------------------------------------ searching


class Entity(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    kind: str


class GroupOfPassage(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    label: str = ""
    description: str | None = None
    tags: tuple[str, ...] = ()


class Passage(msgspec.Struct, frozen=True, kw_only=True):
    """A text, and where it is from. `distance`: lower is better. `entities`: what it is about, most telling first."""

    text: str = ""
    document_id: str
    partition_id: str
    distance: float
    owner_id: str
    name: str | None = None
    media_type: str = "text"
    entities: tuple[Entity, ...] = ()
    group: GroupOfPassage | None = None


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """A relationship with its two ends by name. `weight`: how many documents say so."""

    subject: str
    predicate: str
    object: str
    weight: int = 1


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Best first. `entities`, `facts`: what of the knowledge graph led to them."""

    passages: tuple[Passage, ...]
    entities: tuple[Entity, ...] = ()
    facts: tuple[Fact, ...] = ()


class TraceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The graph's part in a search, as the node writes it."""

    entities: tuple[Entity, ...] = ()
    relationships: tuple[Fact, ...] = ()


class SearchAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A search as the node writes it: texts here, where they are from there."""

    texts: tuple[str, ...]
    references: tuple[Passage, ...]
    graph: TraceAnswer = TraceAnswer()

    def found(self) -> Found:
        passages = tuple(
            msgspec.structs.replace(reference, text=text)
            for text, reference in zip(self.texts, self.references, strict=True)
        )
        return Found(passages=passages, entities=self.graph.entities, facts=self.graph.relationships)


# ------------------------------------------------------------------------------------------------------ graph


class GraphEntity(msgspec.Struct, frozen=True, kw_only=True):
    """`score`: how well it fits what was asked, 0 for a neighbour. `mention_count`: how often documents assert it."""

    id: str
    name: str
    kind: str
    score: float = 0.0
    mention_count: int = 0
    document_ids: tuple[str, ...] = ()


class Relationship(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    subject_id: str
    predicate: str
    object_id: str
    weight: int = 1
    document_ids: tuple[str, ...] = ()


class GraphDocument(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str | None = None
    owner_id: str = ""


class GraphStats(msgspec.Struct, frozen=True, kw_only=True):
    """Of everything in the graph that the owner may read."""

    entity_count: int
    relationship_count: int


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    entities: tuple[GraphEntity, ...]
    relationships: tuple[Relationship, ...]
    documents: tuple[GraphDocument, ...]
    stats: GraphStats

    def facts(self) -> tuple[Fact, ...]:
        """The relationships with their ends by name."""
        names = {entity.id: entity.name for entity in self.entities}
        return tuple(
            Fact(
                subject=names[edge.subject_id],
                predicate=edge.predicate,
                object=names[edge.object_id],
                weight=edge.weight,
            )
            for edge in self.relationships
            if edge.subject_id in names and edge.object_id in names
        )


# ------------------------------------------------------------------------------------------------------ library


class GroupMetadata(msgspec.Struct, frozen=True, kw_only=True):
    description: str | None = None
    tags: tuple[str, ...] = ()


class LibraryDocument(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    owner_id: str
    name: str | None = None
    created_at: str = ""


class LibraryGroup(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    label: str
    owner_id: str
    access: str
    metadata: GroupMetadata = GroupMetadata()
    documents: tuple[LibraryDocument, ...] = ()


class Library(msgspec.Struct, frozen=True, kw_only=True):
    """A page of groups. `has_more`: ask again with `after_id` of the last one."""

    groups: tuple[LibraryGroup, ...]
    has_more: bool = False


class StoredDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`group_id`, `group_label` and `metadata` are empty when there is none."""

    id: str
    owner_id: str
    texts: tuple[str, ...]
    name: str | None = None
    group_id: str = ""
    group_label: str = ""
    created_at: str = ""
    media_type: str = "text"
    metadata: bytes = b""


class Documents(msgspec.Struct, frozen=True, kw_only=True):
    """`has_more`, of an export: ask again with `after_id` of the last one."""

    documents: tuple[StoredDocument, ...]
    has_more: bool = False


# ------------------------------------------------------------------------------------------------------ health


class Embedder(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`phase`: `ready`, or what it is about instead. `fraction`: of a download, 0 to 1."""

    model: str
    phase: str
    vector_space: str = ""
    fraction: float | None = None
    error: str | None = None


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    device: str = "cpu"
    error: str | None = None


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """A node always answers this, also while it cannot search yet: see `embedder.phase`."""

    timestamp: str
    embedder: Embedder
    engine: Engine = Engine()
