"""The JSON bodies of the HTTP interface. Unknown keys are ignored; `null` counts as absent in requests.

Requests check types, words and sizes while they are decoded, so that a wrong value is refused with the path of its
field. Answers leave absent values out instead of writing `null`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from thread_service.wire import limits

MediaType = Literal["text", "image", "code"]

Id = Annotated[str, Meta(max_length=limits.ID_BYTES_MAX)]
GroupId = Annotated[str, Meta(min_length=1, max_length=limits.ID_BYTES_MAX)]
Name = Annotated[str, Meta(max_length=limits.NAME_CHARS_MAX)]
Description = Annotated[str, Meta(max_length=limits.DESCRIPTION_CHARS_MAX)]
Url = Annotated[str, Meta(max_length=limits.URL_CHARS_MAX)]
Query = Annotated[str, Meta(max_length=limits.QUERY_CHARS_MAX)]
Count = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Names = Annotated[list[Name], Meta(max_length=limits.ENTITIES_MAX)]
Ids = Annotated[list[Id], Meta(max_length=limits.INPUTS_MAX)]
Texts = Annotated[list[str], Meta(max_length=limits.PARTITIONS_MAX)]
Vector = Annotated[list[float], Meta(max_length=limits.WIDTH_MAX)]


# ---------------------------------------------------------------------------------------------------- thread


class GroupMetadataIn(Struct):
    description: Description | None = None
    tags: Names | None = None


class GroupIn(Struct):
    """A group, in the form the library answers it too. Only `id`, `label`, `access` and `metadata` are used."""

    id: GroupId
    label: Name | None = None
    access: Literal["available", "restricted", "unknown", ""] | None = None
    metadata: GroupMetadataIn | None = None


class Thread(Struct):
    """Who is asking, and within what. `groups` and `group` take groups or their ids.

    `top_k`: passages wanted, at most 1,000; absent, 0 or less: 10. `entities`, else `tags`: documents linked to these
    come first. `scope`: `global` also searches what other owners made available. `graph_mode` and `lexical`: of this
    search, in place of the node's settings.
    """

    owner_id: Id
    group: GroupIn | GroupId | None = None
    groups: Annotated[list[GroupIn | GroupId], Meta(max_length=limits.GROUPS_MAX)] | None = None
    entities: Names | None = None
    tags: Names | None = None
    aggregate: bool | None = None
    scope: Literal["personal", "global"] | None = None
    request_id: Name | None = None
    media_type: Literal["text", "image", "code", ""] | None = None
    top_k: Count | None = None
    graph_mode: Literal["boost", "narrow", "off"] | None = None
    lexical: bool | None = None


# ---------------------------------------------------------------------------------------------------- filing


class EntityIn(Struct):
    name: Name
    kind: Name | None = None


class RelationshipIn(Struct):
    subject: Name
    predicate: Name
    object: Name


class PartitionIn(Struct):
    embedding: Vector | None = None
    url: Url | None = None


class BatchUpdate(Struct):
    """What happens to another of the owner's documents once the inputs are filed, in the same transaction."""

    operation: Literal["remove"]
    document_id: Id


EACH = Meta(max_length=limits.INPUTS_MAX)
"""Of a list with an entry for each document."""
Inputs = Annotated[list[str | Texts], EACH]
Entities = Annotated[list[EntityIn], Meta(max_length=limits.ENTITIES_MAX)]
Relationships = Annotated[list[RelationshipIn], Meta(max_length=limits.RELATIONSHIPS_MAX)]
Partitions = Annotated[list[PartitionIn], Meta(max_length=limits.PARTITIONS_MAX)]


class BatchRequest(Struct):
    """One document for each element of `inputs`. The other lists run parallel to it and may be shorter.

    `document_ids`: where a request names any, what stands under an id is replaced; where it names none, a document goes
    by the SHA-256 of its texts, and one that the owner has filed already is left as it is. `sanitize`: cut texts longer
    than `--chunk-chars` (1,200 characters) into passages, at paragraphs and sentences; without, each text is one
    passage with one vector, however long. `wait`: answer when the documents can be searched, instead of when they are
    on the disk. `metadata`: base64. `tags`: entities of kind `concept`, for documents without `entities`; with neither,
    the node looks for entities itself.
    """

    inputs: Inputs
    thread: Thread
    sanitize: bool | None = None
    wait: bool | None = None
    media_type: MediaType | None = None
    document_ids: Annotated[list[Id | None], EACH] | None = None
    names: Annotated[list[Name | None], EACH] | None = None
    metadata: Annotated[list[bytes | None], EACH] | None = None
    tags: Annotated[list[Names | None], EACH] | None = None
    entities: Annotated[list[Entities | None], EACH] | None = None
    relationships: Annotated[list[Relationships | None], EACH] | None = None
    partitions: Annotated[list[Partitions | None], EACH] | None = None
    update: BatchUpdate | None = None


class Usage(Struct):
    prompt_tokens: int
    total_tokens: int


class FiledDocument(Struct, kw_only=True):
    """`id` is absent when an input without an id of its own failed. `reason`: why it is `failed`.

    `replaced`: there was something under this id, and now there is this. `skipped`: sent without ids, and the owner has
    these texts already; nothing changed, and the name, entities and relationships that came along were not taken.
    `linked`: the same, but it is in the request's group now. `failed`: no search will find it.
    """

    id: str | UnsetType = UNSET
    outcome: Literal["new", "replaced", "linked", "skipped", "failed"]
    reason: str | UnsetType = UNSET


class GroupMetadata(Struct, kw_only=True):
    description: str | UnsetType = UNSET
    tags: list[str]


class LibraryDocument(Struct, kw_only=True):
    id: str
    url: str
    owner_id: str
    name: str | UnsetType = UNSET
    created_at: str


class Group(Struct, kw_only=True):
    id: str
    label: str
    owner_id: str
    access: Literal["available", "restricted"]
    total_earnings: float = 0.0
    metadata: GroupMetadata
    documents: list[LibraryDocument]


class User(Struct):
    """`groups` are listed without their documents."""

    groups: list[Group]


class BatchAnswer(Struct, kw_only=True):
    """`success`: every input was filed or is already there. `documents` runs parallel to `inputs`.

    `removed_count`: of what `update` asked for.
    """

    object: Literal["list"] = "list"
    model: str
    usage: Usage
    success: bool
    user: User
    documents: list[FiledDocument]
    removed_count: int | UnsetType = UNSET


class RemoveRequest(Struct):
    """`document_ids`, or `all`: true to remove every document and group of the owner."""

    owner_id: Id
    document_ids: Ids | None = None
    all: bool | None = None


class RemoveAnswer(Struct):
    success: bool
    removed_count: int


class ClearRequest(Struct):
    confirm: bool | None = None


class ClearAnswer(Struct):
    """What the node held before."""

    cleared: bool
    documents: int
    entities: int


# ---------------------------------------------------------------------------------------------------- searching


class SearchRequest(Struct):
    """A query as text, or as a ready vector, which wins."""

    thread: Thread
    query: Query | None = None
    query_embedding: Vector | None = None
    expand: bool | None = None


class Entity(Struct):
    id: str
    name: str
    kind: str


class GroupReference(Struct, kw_only=True):
    id: str
    label: str
    description: str | UnsetType = UNSET
    tags: list[str]


class Reference(Struct, kw_only=True):
    """Where a text comes from. `distance`: lower is better."""

    document_id: str
    partition_id: str
    distance: float
    owner_id: str
    thread_id: str
    name: str | UnsetType = UNSET
    media_type: MediaType
    entities: list[Entity]
    group: GroupReference | UnsetType = UNSET


class Edge(Struct):
    subject: str
    predicate: str
    object: str
    weight: int


class SearchGraph(Struct):
    entities: list[Entity]
    relationships: list[Edge]
    expanded_documents: int


class SearchAnswer(Struct, kw_only=True):
    """`references` runs parallel to `texts`. `graph` is absent when the graph took no part, except from a search
    of code."""

    object: Literal["list"] = "list"
    texts: list[str]
    references: list[Reference]
    graph: SearchGraph | UnsetType = UNSET


# ---------------------------------------------------------------------------------------------------- graph


class GraphRequest(Struct):
    """Without `entity` and `query`: the entities mentioned most."""

    thread: Thread
    entity: Query | None = None
    query: Query | None = None
    kinds: Names | None = None
    hops: Count | None = None
    limit: Count | None = None
    include_documents: bool | None = None


class GraphEntity(Struct):
    id: str
    name: str
    kind: str
    score: float
    mention_count: int
    document_ids: list[str]


class GraphRelationship(Struct):
    id: str
    subject_id: str
    predicate: str
    object_id: str
    weight: int
    document_ids: list[str]


class GraphDocument(Struct, kw_only=True):
    id: str
    name: str | UnsetType = UNSET
    owner_id: str


class GraphStats(Struct):
    entity_count: int
    relationship_count: int


class GraphAnswer(Struct, kw_only=True):
    object: Literal["graph"] = "graph"
    entities: list[GraphEntity]
    relationships: list[GraphRelationship]
    documents: list[GraphDocument]
    stats: GraphStats


# ---------------------------------------------------------------------------------------------------- library


class LibraryRequest(Struct):
    """The owner's groups, ascending by id (and others' available ones): at most `limit` ids, after `after_id`.

    Documents in no group are in no library: the export lists every document.
    """

    owner_id: Id
    include_available: bool | None = None
    after_id: Id | None = None
    limit: Count | None = None


class LibraryDocumentRequest(Struct):
    """The groups that hold a document: available ones, and with `owner_id` that owner's own."""

    document_id: Id
    owner_id: Id | None = None


class LibraryAnswer(Struct):
    """`has_more`: ask again with the last id as `after_id`."""

    groups: list[Group]
    has_more: bool


class DocumentsRequest(Struct):
    owner_id: Id
    document_ids: Ids
    include_embeddings: bool | None = None


class Partition(Struct):
    """`embedding`: the caller's own vector; empty when the node embedded the text."""

    id: str
    url: str
    embedding: list[float]


class DocumentContent(Struct, kw_only=True):
    """`group_id`, `group_label` and `metadata` (base64) are empty when there is none."""

    id: str
    name: str | UnsetType = UNSET
    owner_id: str
    group_id: str
    group_label: str
    created_at: str
    texts: list[str]
    media_type: MediaType
    metadata: bytes
    partitions: list[Partition] | UnsetType = UNSET


class DocumentsAnswer(Struct):
    """In request order; unknown and unreadable ids are left out."""

    documents: list[DocumentContent]


class ExportRequest(Struct):
    """The owner's documents, ascending by id: all, or those filed in `group_ids`; at most `limit`, after `after_id`."""

    owner_id: Id
    group_ids: Annotated[list[Id], Meta(max_length=limits.GROUPS_MAX)] | None = None
    document_id_prefix: Id | None = None
    after_id: Id | None = None
    limit: Count | None = None
    include_embeddings: bool | None = None


class ExportAnswer(Struct):
    """`has_more`: ask again with the last id as `after_id`. A page may be shorter than `limit`."""

    documents: list[DocumentContent]
    has_more: bool


class StatsAnswer(Struct):
    """The whole node's counts."""

    document_count: int
    group_count: int
    owner_count: int
    available_document_count: int


# ---------------------------------------------------------------------------------------------------- updating


class UpdateGroupRequest(Struct):
    """`access` goes to the group's documents too. `update_metadata` replaces the description and the tags."""

    owner_id: Id
    group_id: Id
    access: Literal["available", "restricted", ""] | None = None
    label: Name | None = None
    group_description: Description | None = None
    tags: Names | None = None
    update_metadata: bool | None = None


class UpdateGroupAnswer(Struct):
    """`success`: something was applied. `reason`: what was asked for and not done, and why."""

    success: bool
    group_id: str
    reason: str | UnsetType = UNSET


class UpdateDocumentRequest(Struct):
    """`group_id`: one of the owner's groups, which takes the place of the document's primary group."""

    owner_id: Id
    document_id: Id
    access: Literal["available", "restricted", ""] | None = None
    group_id: Id | None = None


class UpdateDocumentAnswer(Struct):
    """`success`: something was applied. `reason`: what was asked for and not done, and why."""

    success: bool
    document_id: str
    reason: str | UnsetType = UNSET


# ---------------------------------------------------------------------------------------------------- health


class Embedder(Struct, rename="camel", kw_only=True):
    """`progress` and `fraction` are the same number, 0 to 1, while the model is downloaded."""

    model: str
    revision: str | UnsetType = UNSET
    vector_space: str
    phase: Literal["idle", "downloading", "loading", "ready", "failed"]
    progress: float | UnsetType = UNSET
    fraction: float | UnsetType = UNSET
    error: str | UnsetType = UNSET
    index: Literal["matches", "mismatch", "unstamped"] | UnsetType = UNSET
    indexed_with: str | UnsetType = UNSET


class Engine(Struct, kw_only=True):
    """`error`: why vectors are searched on the CPU, exactly and slower, though `device` is another."""

    device: Literal["cpu", "cuda"]
    error: str | UnsetType = UNSET


class HealthAnswer(Struct, kw_only=True):
    status: Literal["ok"] = "ok"
    timestamp: str
    stack: Literal["open", "proof"]
    proof: str | UnsetType = UNSET
    app: str | UnsetType = UNSET
    contract: int | UnsetType = UNSET
    embedder: Embedder
    engine: Engine


class AvailabilityRequest(Struct):
    accepting_storage: bool


class AvailabilityAnswer(Struct):
    accepted: bool = True


class Probe(Struct):
    status: Literal["ok"] = "ok"


# ---------------------------------------------------------------------------------------------------- problems


class ProblemField(Struct):
    field: str
    message: str


class Problem(Struct):
    """An error answer (RFC 9457, `application/problem+json`). `errors` names the fields of the request at fault."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[ProblemField] | UnsetType = UNSET
