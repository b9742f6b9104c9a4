"""What a node can be asked, and what it answers: the vocabulary every front end translates to and from.

The front ends (HTTP, gRPC, a mothership session) build these requests and render these answers; none does the work.
Requests are already well-formed (types, known words, Unicode scalar values); the operations check what needs the store.
Owner ids are trimmed and lower-cased with `owner_id` before they get here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

MediaType = Literal["text", "image", "code"]
Access = Literal["available", "restricted"]
GraphMode = Literal["boost", "narrow", "off"]
Scope = Literal["personal", "global"]

TOP_K_DEFAULT = 10
TOP_K_MAX = 1_000
ANSWER_BYTES_MAX = 64 * 2**20
"""Documents in one answer, as messages count them; one document alone may be larger."""
PAGE_BYTES_MAX = 4_000_000
"""A page of a caller who pages: what a gRPC client takes by default, less the frame around it."""
WHOLE_PAGE_BYTES_MAX = 32 * 2**20
"""A page of a caller who asked for everything at once."""
TAGS_MAX = 1_000
"""Of the tags that documents add to a group, those a library shows, in alphabetical order."""
TAGS_BESIDE_MAX = 32
"""The same where a group is named beside something else, such as a passage."""
COMPONENT_MAX = 1e15
"""The largest component of a vector: squared distances stay finite in float32 up to it, whatever the width."""


def owner_id(text: str) -> str:
    """Owner ids are compared trimmed and lower-cased, on every path."""
    return text.strip().lower()


def is_usable(vector: NDArray[np.float32]) -> bool:
    """Whether distances to this vector can be computed."""
    return bool(np.isfinite(vector).all() and (np.abs(vector) <= COMPONENT_MAX).all())


# ---------------------------------------------------------------------------------------------------- filing


@dataclass(frozen=True, slots=True)
class EntityIn:
    name: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class RelationshipIn:
    """`subject` and `object` are entity names; one that the same document does not list becomes a `concept`."""

    subject: str
    predicate: str
    object: str


@dataclass(frozen=True, slots=True)
class PartitionIn:
    """What a caller brings for one text: a ready vector (float32 [width]) or none, an address of its own or none."""

    embedding: NDArray[np.float32] | None = None
    url: str | None = None


@dataclass(frozen=True, slots=True)
class DocumentIn:
    """One document. `texts` are its partitions, as they will be stored.

    `document_id` empty: the content id of `texts`. `entities` None: the node finds keywords (and, later, extracts);
    an empty tuple says that there are none. `partitions` is empty or holds one entry per text. `group_tags`: what it
    adds to the tags of its groups.
    """

    texts: tuple[str, ...]
    document_id: str = ""
    name: str | None = None
    metadata: bytes = b""
    media_type: MediaType = "text"
    entities: tuple[EntityIn, ...] | None = None
    relationships: tuple[RelationshipIn, ...] = ()
    partitions: tuple[PartitionIn, ...] = ()
    group_tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupIn:
    """`access`, `description` and `tags` None: not said, so nothing changes."""

    group_id: str
    label: str = ""
    access: Access | None = None
    description: str | None = None
    tags: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class FileRequest:
    """File `documents` for `owner_id` (empty: the node's own owner), into `group` if one is given.

    `gate`: the HTTP path's dedup gate. An id the owner already holds with the same content is left as it is (and linked
    to the group) instead of replaced. `wait`: answer when every document is searchable, not only durable.
    `remove_ids`: documents of the owner that are removed in the same transaction, after the others were filed.
    """

    owner_id: str
    documents: tuple[DocumentIn, ...]
    group: GroupIn | None = None
    gate: bool = False
    wait: bool = False
    remove_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Filed:
    """`outcomes` in request order; `tokens` counted by the embedder's tokenizer over what needs embedding.

    `reasons`: why those that are `failed` are, by their place in `outcomes`. `removed`: how many of the ids that were
    to be removed the owner had.
    """

    document_ids: tuple[str, ...]
    outcomes: tuple[Literal["new", "replaced", "linked", "skipped", "failed"], ...]
    tokens: int
    removed: int = 0
    reasons: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RemoveRequest:
    """`document_ids` empty: every document and group of the owner."""

    owner_id: str
    document_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cleared:
    documents: int
    entities: int


# ---------------------------------------------------------------------------------------------------- searching


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """A query as text, or as a ready vector (float32, [width]), which wins.

    `scope` global: everything the owner may read. Else `aggregate`: the owner's documents. Else `group_ids`: readable
    documents of those groups and nothing outside them. Else the owner's documents. `graph_mode` None: the node's own.
    `entities_are_predicates`: where the graph narrows, the entities are also looked for among the predicates.
    """

    owner_id: str
    query: str = ""
    query_embedding: NDArray[np.float32] | None = None
    entities: tuple[str, ...] = ()
    entities_are_predicates: bool = False
    scope: Scope = "personal"
    group_ids: tuple[str, ...] = ()
    aggregate: bool = False
    media_type: MediaType | None = None
    top_k: int = 0
    expand: bool = True
    graph_mode: GraphMode | None = None
    lexical: bool | None = None


@dataclass(frozen=True, slots=True)
class EntityRef:
    entity_id: str
    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class GroupRef:
    group_id: str
    label: str
    description: str | None
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Passage:
    """One result. `distance`: lower is better. `entities`: what the passage is about, most evident first, at most 8."""

    partition_id: str
    document_id: str
    owner_id: str
    name: str | None
    text: str
    media_type: MediaType
    distance: float
    entities: tuple[EntityRef, ...]
    group: GroupRef | None


@dataclass(frozen=True, slots=True)
class RelationshipRef:
    """An edge that carried evidence, by the names of its ends."""

    relationship_id: str
    subject: str
    predicate: str
    object: str
    weight: int


@dataclass(frozen=True, slots=True)
class Trace:
    """`expanded_documents`: returned documents with no direct match of their own."""

    entities: tuple[EntityRef, ...] = ()
    relationships: tuple[RelationshipRef, ...] = ()
    expanded_documents: int = 0


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    passages: tuple[Passage, ...]
    trace: Trace


# ---------------------------------------------------------------------------------------------------- graph


@dataclass(frozen=True, slots=True)
class GraphRequest:
    """Browse when `entity` and `query` are both empty. `kinds` None: any kind; empty: none. `hops` 0..3."""

    owner_id: str
    entity: str = ""
    query: str = ""
    kinds: tuple[str, ...] | None = None
    hops: int = 1
    limit: int = 20
    include_documents: bool = True


@dataclass(frozen=True, slots=True)
class GraphEntity:
    entity_id: str
    name: str
    kind: str
    score: float
    mention_count: int
    document_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GraphRelationship:
    relationship_id: str
    subject_id: str
    predicate: str
    object_id: str
    weight: int
    document_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GraphDocument:
    document_id: str
    name: str | None
    owner_id: str


@dataclass(frozen=True, slots=True)
class GraphAnswer:
    """Everything through documents the caller may read; the counts too, over the caller's whole graph."""

    entities: tuple[GraphEntity, ...] = ()
    relationships: tuple[GraphRelationship, ...] = ()
    documents: tuple[GraphDocument, ...] = ()
    entity_count: int = 0
    relationship_count: int = 0


# ---------------------------------------------------------------------------------------------------- library


@dataclass(frozen=True, slots=True)
class LibraryRequest:
    """`document_ids`: only the groups that hold any of them, unpaged. `limit` 0: all. `after_id`: exclusive.
    A page ends early, with `has_more`, when it grows too large, but never inside a group id.

    `include_documents` False: the groups without their documents.
    """

    owner_id: str
    include_available: bool = False
    limit: int = 0
    after_id: str = ""
    document_ids: tuple[str, ...] = ()
    include_documents: bool = True


@dataclass(frozen=True, slots=True)
class LibraryDocument:
    """`created_at` in Unix seconds."""

    document_id: str
    url: str
    owner_id: str
    name: str | None
    created_at: int


@dataclass(frozen=True, slots=True)
class LibraryGroup:
    group_id: str
    label: str
    owner_id: str
    access: Access
    description: str | None
    tags: tuple[str, ...]
    documents: tuple[LibraryDocument, ...]


@dataclass(frozen=True, slots=True)
class LibraryAnswer:
    groups: tuple[LibraryGroup, ...]
    has_more: bool = False


@dataclass(frozen=True, slots=True)
class DocumentsRequest:
    owner_id: str
    document_ids: tuple[str, ...]
    include_embeddings: bool = False


@dataclass(frozen=True, slots=True)
class PartitionContent:
    """`embedding`: the caller's own vector, bit for bit; empty when the node embedded the text."""

    partition_id: str
    url: str
    embedding: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))


@dataclass(frozen=True, slots=True)
class DocumentContent:
    document_id: str
    name: str | None
    owner_id: str
    group_id: str
    group_label: str
    created_at: int
    texts: tuple[str, ...]
    media_type: MediaType
    metadata: bytes
    partitions: tuple[PartitionContent, ...] = ()


@dataclass(frozen=True, slots=True)
class DocumentsAnswer:
    """In request order; unknown and unreadable ids are left out. `is_cut`: so is what exceeds `ANSWER_BYTES_MAX`."""

    documents: tuple[DocumentContent, ...]
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """The owner's documents whose ids start with `prefix` and come after `after_id`.

    `group_ids` empty: filed in any group or in none. `limit` 0: all.
    """

    owner_id: str
    group_ids: tuple[str, ...] = ()
    prefix: str = ""
    after_id: str = ""
    limit: int = 0
    include_embeddings: bool = False


@dataclass(frozen=True, slots=True)
class ExportAnswer:
    """Ascending by id in the order of code points. `has_more` only beside at least one document."""

    documents: tuple[DocumentContent, ...]
    has_more: bool = False


# ---------------------------------------------------------------------------------------------------- updating


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """Replaces what the group had."""

    description: str | None
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UpdateGroupRequest:
    """`access` goes to the group's documents too. `access` None, `label` empty, `metadata` None: no change."""

    owner_id: str
    group_id: str
    access: Access | None = None
    label: str = ""
    metadata: GroupMetadata | None = None


@dataclass(frozen=True, slots=True)
class UpdateDocumentRequest:
    """`group_id`: one of the owner's groups, which takes the place of the document's primary group. Empty: no move."""

    owner_id: str
    document_id: str
    access: Access | None = None
    group_id: str = ""


@dataclass(frozen=True, slots=True)
class Updated:
    """`applied`: something was. `reason`: what was asked for and not done, and why; None when all was done."""

    applied: bool
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Stats:
    """The whole node's counts. Documents are counted by distinct id and content, owners when they hold documents."""

    documents: int
    groups: int
    owners: int
    available_documents: int


# ---------------------------------------------------------------------------------------------------- health


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """`error`: why vectors are searched on the CPU though `device` is another."""

    device: Literal["cpu", "cuda"]
    error: str | None


@dataclass(frozen=True, slots=True)
class EmbedderHealth:
    """`index`: whether the stored index was written by this model. `indexed_with`: the other one, on a mismatch."""

    model: str
    vector_space: str
    phase: Literal["idle", "downloading", "loading", "ready", "failed"]
    revision: str | None = None
    fraction: float | None = None
    error: str | None = None
    index: Literal["matches", "mismatch", "unstamped"] | None = None
    indexed_with: str | None = None
