"""From the JSON bodies to the requests of the node. Pure functions; nothing here waits or stores.

Types, words and counts are already checked when a body gets here. What JSON types cannot say is checked here, and
refused as `InvalidRequest` with the field as the caller wrote it.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from thread_service.errors import InvalidRequest, TooLarge
from thread_service.node import operations
from thread_service.text.chunker import chunk
from thread_service.text.keywords import keywords
from thread_service.wire import limits, schemas

T = TypeVar("T")

# What RFC 3986 leaves out of every URL; other letters than ASCII's are let in, as browsers do.
_URL = re.compile(r"""[^\s\0-\x20\x7f<>"{}|\\^`]+""")


# ---------------------------------------------------------------------------------------------------- pieces


def bounded_id(text: str, field: str) -> str:
    if len(text.encode()) > limits.ID_BYTES_MAX:
        raise InvalidRequest.field(field, f"is longer than {limits.ID_BYTES_MAX:,} bytes of UTF-8")
    return text


def owner(text: str, field: str) -> str:
    return operations.owner_id(bounded_id(text, field))


def named_owner(text: str, field: str) -> str:
    """Of a request that is about nothing but the owner's own: for nobody there would be nothing to do."""
    if not (named := owner(text, field)):
        raise InvalidRequest.field(field, 'is blank; say whose documents, such as "me"')
    return named


def _at(items: Sequence[T | None] | None, index: int) -> T | None:
    """The entry of a parallel list that may be absent or shorter than `inputs`."""
    return items[index] if items is not None and index < len(items) else None


def _vector(numbers: list[float], field: str) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        vector = np.array(array("d", numbers)).astype(np.float32)
    if not np.isfinite(vector).all():
        raise InvalidRequest.field(field, "holds a number that is too large for a 32-bit float")
    return vector


# ---------------------------------------------------------------------------------------------------- filing


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch ready to be filed. `positions[k]` is the input that document `k` of the request came from."""

    request: operations.FileRequest
    positions: tuple[int, ...]
    ids: tuple[str, ...]


def own_owner(node_id: str) -> str:
    """The owner of what is deposited without one: the node itself."""
    return operations.owner_id(f"{node_id}-thread")


def batch(body: schemas.BatchRequest, node_id: str, chunk_chars: int) -> Batch:
    """What to file. An input without any text is left out: it is not an error for the others.

    Documents named by the content of their texts go through the dedup gate; a caller's own ids replace.
    """
    _check_parallel(body)
    ids = tuple(
        bounded_id(_at(body.document_ids, index) or "", f"document_ids[{index}]") for index in range(len(body.inputs))
    )
    documents = ((index, _document(body, index, document_id, chunk_chars)) for index, document_id in enumerate(ids))
    filed = {index: document for index, document in documents if document is not None}
    request = operations.FileRequest(
        owner_id=owner(body.thread.owner_id, "thread.owner_id") or own_owner(node_id),
        documents=tuple(filed.values()),
        group=_group_in(body.thread.group),
        gate=not any(ids),
        wait=bool(body.wait),
        remove_ids=() if body.update is None else (bounded_id(body.update.document_id, "update.document_id"),),
    )
    return Batch(request, tuple(filed), ids)


def _check_parallel(body: schemas.BatchRequest) -> None:
    """Lists beside `inputs` may be shorter; what a longer one says would be said of nothing.

    Only the lists that the original node does not know: its callers may send longer ones of the others.
    """
    count = len(body.inputs)
    for name in ("document_ids", "partitions"):
        given = getattr(body, name)
        if given is not None and len(given) > count:
            raise InvalidRequest.field(
                name, f"holds {len(given):,} entries beside {count:,} of inputs; give one for each"
            )


def _document(
    body: schemas.BatchRequest, index: int, document_id: str, chunk_chars: int
) -> operations.DocumentIn | None:
    given = body.inputs[index]
    texts = [given] if isinstance(given, str) else given
    partitions = _partitions(_at(body.partitions, index) or [], len(texts), index)
    if partitions:
        if body.sanitize:
            raise InvalidRequest.field(f"partitions[{index}]", "cannot describe texts that `sanitize` cuts anew")
        # An empty text is one only when the caller brings its vector.
        kept = [k for k, text in enumerate(texts) if text or partitions[k].embedding is not None]
        texts, partitions = [texts[k] for k in kept], [partitions[k] for k in kept]
    else:
        texts = [text for text in texts if text]
        if body.sanitize:
            texts = chunk(texts, chunk_chars)
    if not texts:
        return None
    entities = _entities(body, index)
    return operations.DocumentIn(
        texts=tuple(texts),
        document_id=document_id,
        name=_at(body.names, index) or None,
        metadata=_at(body.metadata, index) or b"",
        media_type=body.media_type or "text",
        entities=entities,
        relationships=tuple(
            operations.RelationshipIn(item.subject, item.predicate, item.object)
            for item in _at(body.relationships, index) or ()
        ),
        partitions=tuple(partitions),
        group_tags=() if body.thread.group is None else _group_tags(entities, texts),
    )


def _group_tags(entities: Sequence[operations.EntityIn] | None, texts: Sequence[str]) -> tuple[str, ...]:
    """The names of a document's entities, or its keywords when nobody named any."""
    if entities is None:
        return tuple(keywords(texts))
    return tuple(dict.fromkeys(entity.name.strip() for entity in entities))


def _entities(body: schemas.BatchRequest, index: int) -> tuple[operations.EntityIn, ...] | None:
    """Entities given, even none, hide tags; tags are concepts; without either the node looks for itself."""
    entities, tags = _at(body.entities, index), _at(body.tags, index)
    if entities is not None:
        return tuple(operations.EntityIn(item.name, item.kind or "") for item in entities if item.name.strip())
    return tuple(operations.EntityIn(tag, "concept") for tag in tags or () if tag.strip()) or None


def _partitions(given: list[schemas.PartitionIn], texts: int, index: int) -> list[operations.PartitionIn]:
    field = f"partitions[{index}]"
    partitions = [
        operations.PartitionIn(
            _vector(item.embedding, f"{field}[{position}].embedding") if item.embedding else None,
            partition_url(item.url or ""),
        )
        for position, item in enumerate(given)
    ]
    check_partitions(partitions, texts, field)
    return partitions


def partition_url(text: str) -> str | None:
    """The address as it was given; None for what is no URL, such as words with spaces between."""
    return text if _URL.fullmatch(text) else None


def check_partitions(partitions: Sequence[operations.PartitionIn], texts: int, field: str) -> None:
    """None, or one for each text; vectors of one document have one width, a multiple of 16, and usable numbers."""
    if partitions and len(partitions) != texts:
        raise InvalidRequest.field(field, f"holds {len(partitions)} entries for {texts} texts; give one for each")
    width = 0
    for position, partition in enumerate(partitions):
        if partition.embedding is None:
            continue
        size = partition.embedding.size
        if size % limits.WIDTH_DIVISOR:
            raise InvalidRequest.field(
                f"{field}[{position}].embedding",
                f"has {size} dimensions; give a multiple of {limits.WIDTH_DIVISOR}",
            )
        if width not in (0, size):
            raise InvalidRequest.field(
                f"{field}[{position}].embedding",
                f"has {size} dimensions beside {width} in the same document; give one width",
            )
        width = size
        if not operations.is_usable(partition.embedding):
            raise InvalidRequest.field(
                f"{field}[{position}].embedding",
                f"holds NaN, infinity or a number beyond {operations.COMPONENT_MAX:g}",
            )


def _group_in(group: schemas.GroupIn | str | None) -> operations.GroupIn | None:
    if group is None:
        return None
    group_id = _group_id(group, "thread.group")
    if isinstance(group, str):
        return operations.GroupIn(group_id)
    metadata = group.metadata or schemas.GroupMetadataIn()
    return operations.GroupIn(
        group_id,
        label=group.label or "",
        access=group.access if group.access in ("available", "restricted") else None,
        description=metadata.description,
        tags=None if metadata.tags is None else tuple(metadata.tags),
    )


def _group_id(group: schemas.GroupIn | str, field: str) -> str:
    return bounded_id(group, field) if isinstance(group, str) else bounded_id(group.id, f"{field}.id")


def remove_request(body: schemas.RemoveRequest) -> operations.RemoveRequest:
    """A request for everything must say so: an empty list is more often a mistake than a wish."""
    if body.all and body.document_ids:
        raise InvalidRequest.field("all", "cannot stand beside document_ids; send one of the two")
    if not body.all and not body.document_ids:
        raise InvalidRequest.field(
            "document_ids", 'names no document; to remove everything the owner has, send "all": true'
        )
    return operations.RemoveRequest(named_owner(body.owner_id, "owner_id"), _ids(body.document_ids or []))


def _ids(given: list[str]) -> tuple[str, ...]:
    return tuple(bounded_id(text, f"document_ids[{index}]") for index, text in enumerate(given))


def whole(answer: operations.DocumentsAnswer) -> operations.DocumentsAnswer:
    """The answer, unless it was cut: a caller must not take what is missing for unknown."""
    if answer.is_cut:
        mib = operations.ANSWER_BYTES_MAX // 2**20
        raise TooLarge(f"the documents together are larger than {mib} MiB; ask for fewer at a time")
    return answer


def confirmed(body: schemas.ClearRequest) -> None:
    if body.confirm is not True:
        raise InvalidRequest.field("confirm", 'clearing removes everything on this node; send "confirm": true')


# ---------------------------------------------------------------------------------------------------- searching


def search_request(body: schemas.SearchRequest) -> operations.SearchRequest:
    thread, query = body.thread, body.query or ""
    if not query.strip() and not body.query_embedding:
        raise InvalidRequest.field("query", "is missing or blank; say what to search for")
    group_ids = [_group_id(group, f"thread.groups[{index}]") for index, group in enumerate(thread.groups or [])]
    if not group_ids and thread.group is not None:
        group_ids = [_group_id(thread.group, "thread.group")]
    return operations.SearchRequest(
        owner_id=owner(thread.owner_id, "thread.owner_id"),
        query=query,
        query_embedding=_vector(body.query_embedding, "query_embedding") if body.query_embedding else None,
        entities=tuple(thread.entities or thread.tags or ()),
        scope=thread.scope or "personal",
        group_ids=tuple(group_ids),
        aggregate=bool(thread.aggregate),
        media_type=thread.media_type or None,
        top_k=thread.top_k or 0,
        expand=body.expand is not False,
        graph_mode=thread.graph_mode,
        lexical=thread.lexical,
    )


# ---------------------------------------------------------------------------------------------------- graph


def graph_request(body: schemas.GraphRequest) -> operations.GraphRequest:
    limit = body.limit if body.limit is not None and body.limit > 0 else limits.GRAPH_LIMIT_DEFAULT
    return operations.GraphRequest(
        owner_id=owner(body.thread.owner_id, "thread.owner_id"),
        entity=body.entity or "",
        query=body.query or "",
        kinds=None if body.kinds is None else tuple(body.kinds),
        hops=limits.HOPS_DEFAULT if body.hops is None else min(max(body.hops, 0), limits.HOPS_MAX),
        limit=min(limit, limits.GRAPH_LIMIT_MAX),
        include_documents=body.include_documents is not False,
    )


# ---------------------------------------------------------------------------------------------------- library


def library_request(body: schemas.LibraryRequest) -> operations.LibraryRequest:
    return operations.LibraryRequest(
        owner(body.owner_id, "owner_id"),
        include_available=bool(body.include_available),
        limit=max(body.limit or 0, 0),
        after_id=bounded_id(body.after_id or "", "after_id"),
    )


def library_document_request(body: schemas.LibraryDocumentRequest) -> operations.LibraryRequest:
    return operations.LibraryRequest(
        owner(body.owner_id or "", "owner_id"), document_ids=(bounded_id(body.document_id, "document_id"),)
    )


def documents_request(body: schemas.DocumentsRequest) -> operations.DocumentsRequest:
    return operations.DocumentsRequest(
        owner(body.owner_id, "owner_id"), _ids(body.document_ids), include_embeddings=bool(body.include_embeddings)
    )


def export_request(body: schemas.ExportRequest) -> operations.ExportRequest:
    return operations.ExportRequest(
        named_owner(body.owner_id, "owner_id"),
        group_ids=tuple(bounded_id(text, f"group_ids[{index}]") for index, text in enumerate(body.group_ids or [])),
        prefix=bounded_id(body.document_id_prefix or "", "document_id_prefix"),
        after_id=bounded_id(body.after_id or "", "after_id"),
        limit=max(body.limit or 0, 0),
        include_embeddings=bool(body.include_embeddings),
    )


# ---------------------------------------------------------------------------------------------------- updating


def update_group_request(body: schemas.UpdateGroupRequest) -> operations.UpdateGroupRequest:
    metadata = operations.GroupMetadata(body.group_description or None, tuple(body.tags or ()))
    return operations.UpdateGroupRequest(
        named_owner(body.owner_id, "owner_id"),
        bounded_id(body.group_id, "group_id"),
        access=body.access or None,
        label=body.label or "",
        metadata=metadata if body.update_metadata else None,
    )


def update_document_request(body: schemas.UpdateDocumentRequest) -> operations.UpdateDocumentRequest:
    return operations.UpdateDocumentRequest(
        named_owner(body.owner_id, "owner_id"),
        bounded_id(body.document_id, "document_id"),
        access=body.access or None,
        group_id=bounded_id(body.group_id or "", "group_id"),
    )
