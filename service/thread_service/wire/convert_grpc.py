"""Between the messages of `thread.proto` and the requests and answers of the node. Pure functions.

Protobuf bounds nothing but the whole message and knows no absent value: zero and empty mean "not said", numbers out of
range are clamped, and what no answer could be right for is refused as `InvalidRequest` with the field as the message
names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from thread_service.errors import InvalidRequest
from thread_service.node import operations
from thread_service.wire import limits
from thread_service.wire.convert import bounded_id, check_partitions, own_owner, owner, partition_url
from thread_service.wire.v1 import thread_pb2 as pb

_MEDIA_TYPES: dict[str, operations.MediaType] = {"text": "text", "image": "image", "code": "code"}
_ACCESSES: dict[str, operations.Access] = {"available": "available", "restricted": "restricted"}


# ---------------------------------------------------------------------------------------------------- pieces


def _bounded(text: str, chars: int, field: str) -> str:
    if len(text) > chars:
        raise InvalidRequest.field(field, f"is longer than {chars:,} characters")
    return text


def _counted(items: Sequence[object], most: int, field: str) -> None:
    if len(items) > most:
        raise InvalidRequest.field(field, f"holds {len(items):,} entries; at most {most:,} are taken")


def _names(given: Sequence[str], field: str) -> tuple[str, ...]:
    _counted(given, limits.ENTITIES_MAX, field)
    return tuple(_bounded(text, limits.NAME_CHARS_MAX, f"{field}[{index}]") for index, text in enumerate(given))


def _ids(given: Sequence[str], most: int, field: str) -> tuple[str, ...]:
    """Empty ids name nothing and are passed over."""
    _counted(given, most, field)
    return tuple(bounded_id(text, f"{field}[{index}]") for index, text in enumerate(given) if text)


def _vector(numbers: Sequence[float], field: str) -> NDArray[np.float32] | None:
    if not numbers:
        return None
    _counted(numbers, limits.WIDTH_MAX, field)
    return np.array(numbers, np.float32)


def _optional_media_type(text: str) -> operations.MediaType | None:
    return _MEDIA_TYPES.get(text, "text") if text else None


# ---------------------------------------------------------------------------------------------------- filing


def file_request(message: pb.ThreadIndexRequest, node_id: str) -> operations.FileRequest:
    """Items without texts are left out. A caller's own id replaces; an empty one becomes the id of the content."""
    _counted(message.items, limits.INPUTS_MAX, "items")
    group_id = bounded_id(message.group_id, "group_id")
    label = _bounded(message.group_label, limits.NAME_CHARS_MAX, "group_label")
    return operations.FileRequest(
        owner_id=owner(message.owner_id, "owner_id") or own_owner(node_id),
        documents=tuple(_document(item, f"items[{index}]") for index, item in enumerate(message.items) if item.texts),
        group=operations.GroupIn(group_id, label=label) if group_id else None,
    )


def _document(item: pb.ThreadIndexItem, field: str) -> operations.DocumentIn:
    _counted(item.texts, limits.PARTITIONS_MAX, f"{field}.texts")
    partitions = _partitions(item.partitions, f"{field}.partitions")
    check_partitions(partitions, len(item.texts), f"{field}.partitions")
    return operations.DocumentIn(
        texts=tuple(item.texts),
        document_id=bounded_id(item.document_id, f"{field}.document_id"),
        name=_bounded(item.name, limits.NAME_CHARS_MAX, f"{field}.name") or None,
        metadata=item.metadata,
        media_type=_MEDIA_TYPES.get(item.media_type, "text"),
        entities=_entities(item, field),
        relationships=_relationships(item.relationships, f"{field}.relationships"),
        partitions=partitions,
    )


def _entities(item: pb.ThreadIndexItem, field: str) -> tuple[operations.EntityIn, ...] | None:
    """Entities hide tags; tags are concepts; without either the node looks for itself."""
    if item.entities:
        _counted(item.entities, limits.ENTITIES_MAX, f"{field}.entities")
        return tuple(
            operations.EntityIn(
                _bounded(entity.name, limits.NAME_CHARS_MAX, f"{field}.entities[{position}].name"),
                _bounded(entity.kind, limits.NAME_CHARS_MAX, f"{field}.entities[{position}].kind"),
            )
            for position, entity in enumerate(item.entities)
            if entity.name.strip()
        )
    tags = _names(item.tags, f"{field}.tags")
    return tuple(operations.EntityIn(tag, "concept") for tag in tags if tag.strip()) or None


def _relationships(given: Sequence[pb.ThreadGraphRelationIn], field: str) -> tuple[operations.RelationshipIn, ...]:
    _counted(given, limits.RELATIONSHIPS_MAX, field)
    return tuple(
        operations.RelationshipIn(
            _bounded(edge.subject, limits.NAME_CHARS_MAX, f"{field}[{position}].subject"),
            _bounded(edge.predicate, limits.NAME_CHARS_MAX, f"{field}[{position}].predicate"),
            _bounded(edge.object, limits.NAME_CHARS_MAX, f"{field}[{position}].object"),
        )
        for position, edge in enumerate(given)
    )


def _partitions(given: Sequence[pb.ThreadPartitionInput], field: str) -> tuple[operations.PartitionIn, ...]:
    _counted(given, limits.PARTITIONS_MAX, field)
    return tuple(
        operations.PartitionIn(
            _vector(item.embedding, f"{field}[{position}].embedding"),
            partition_url(_bounded(item.url, limits.URL_CHARS_MAX, f"{field}[{position}].url")),
        )
        for position, item in enumerate(given)
    )


def index_response(filed: operations.Filed) -> pb.ThreadIndexResponse:
    return pb.ThreadIndexResponse(success=True, indexed_count=len(filed.document_ids), full_cids=filed.document_ids)


def remove_request(message: pb.ThreadRemoveRequest) -> operations.RemoveRequest:
    _counted(message.document_ids, limits.INPUTS_MAX, "document_ids")
    return operations.RemoveRequest(
        owner(message.owner_id, "owner_id"),
        # An empty id is kept: a list of empty ids is not the empty list, which stands for everything.
        tuple(bounded_id(text, f"document_ids[{index}]") for index, text in enumerate(message.document_ids)),
    )


# ---------------------------------------------------------------------------------------------------- searching


def search_request(message: pb.ThreadSearchRequest) -> operations.SearchRequest | None:
    """None when there is nothing to search for."""
    vector = _vector(message.query_embedding, "query_embedding")
    if vector is None and not message.query_text.strip():
        return None
    return operations.SearchRequest(
        owner_id=owner(message.owner_id, "owner_id"),
        query=_bounded(message.query_text, limits.QUERY_CHARS_MAX, "query_text"),
        query_embedding=vector,
        entities=_names(message.entities, "entities"),
        entities_are_predicates=True,
        scope="global" if message.scope == "global" else "personal",
        group_ids=_ids(message.group_ids, limits.GROUPS_MAX, "group_ids"),
        aggregate=message.aggregate,
        media_type=_optional_media_type(message.media_type),
        top_k=max(message.top_k, 0),
    )


def search_response(
    answer: operations.SearchAnswer, node_id: str, media_type: operations.MediaType | None
) -> pb.ThreadSearchResponse:
    """Ascending by score, the best that fit in one message. No trace when the graph took no part and no media type
    was applied."""
    response = pb.ThreadSearchResponse()
    add = response.results.add
    for passage in sorted(answer.passages, key=attrgetter("distance")):
        add(
            thread_id=node_id,
            partition_id=passage.partition_id,
            document_id=passage.document_id,
            owner_id=passage.owner_id,
            text=passage.text,
            score=passage.distance,
        )
    while len(response.results) > 1 and response.ByteSize() > operations.ANSWER_BYTES_MAX:
        del response.results[len(response.results) // 2 :]
    if answer.trace != operations.Trace() or media_type is not None:
        response.trace.CopyFrom(_trace(answer.trace, media_type))
    return response


def _trace(trace: operations.Trace, media_type: operations.MediaType | None) -> pb.ThreadGraphTrace:
    return pb.ThreadGraphTrace(
        matched_entity_ids=[entity.entity_id for entity in trace.entities],
        matched_entity_names=[entity.name for entity in trace.entities],
        expansion_edge_ids=[edge.relationship_id for edge in trace.relationships],
        expanded_document_count=trace.expanded_documents,
        media_type=media_type or "",
    )


# ---------------------------------------------------------------------------------------------------- graph


def graph_request(message: pb.ThreadGraphQueryRequest) -> operations.GraphRequest:
    limit = message.limit if message.limit > 0 else limits.GRAPH_LIMIT_DEFAULT
    return operations.GraphRequest(
        owner_id=owner(message.owner_id, "owner_id"),
        entity=_bounded(message.entity, limits.QUERY_CHARS_MAX, "entity"),
        query=_bounded(message.query, limits.QUERY_CHARS_MAX, "query"),
        kinds=_names(message.kinds, "kinds") or None,
        hops=min(max(message.hops, 0), limits.HOPS_MAX),
        limit=min(limit, limits.GRAPH_LIMIT_MAX),
        include_documents=message.include_documents,
    )


def graph_response(answer: operations.GraphAnswer) -> pb.ThreadGraphQueryResponse:
    return pb.ThreadGraphQueryResponse(
        entities=[
            pb.ThreadGraphEntity(
                id=entity.entity_id,
                name=entity.name,
                kind=entity.kind,
                score=entity.score,
                mention_count=entity.mention_count,
                document_ids=entity.document_ids,
            )
            for entity in answer.entities
        ],
        relationships=[
            pb.ThreadGraphRelationship(
                id=edge.relationship_id,
                subject_id=edge.subject_id,
                predicate=edge.predicate,
                object_id=edge.object_id,
                weight=edge.weight,
                document_ids=edge.document_ids,
            )
            for edge in answer.relationships
        ],
        documents=[
            pb.ThreadGraphDocument(id=document.document_id, name=document.name or "", owner_id=document.owner_id)
            for document in answer.documents
        ],
        stats=pb.ThreadGraphStats(entity_count=answer.entity_count, relationship_count=answer.relationship_count),
    )


# ---------------------------------------------------------------------------------------------------- library


def library_request(message: pb.ThreadLibraryRequest) -> operations.LibraryRequest:
    return operations.LibraryRequest(
        owner_id=owner(message.owner_id, "owner_id"),
        include_available=message.include_available,
        limit=max(message.limit, 0),
        after_id=bounded_id(message.after_id, "after_id"),
        document_ids=_ids(message.document_ids, limits.INPUTS_MAX, "document_ids"),
    )


def library_response(answer: operations.LibraryAnswer) -> pb.ThreadLibraryResponse:
    return pb.ThreadLibraryResponse(
        groups=[
            pb.ThreadGroup(
                id=group.group_id,
                label=group.label,
                owner_id=group.owner_id,
                access=group.access,
                group_description=group.description or "",
                tags=group.tags,
                documents=[
                    pb.ThreadDocument(
                        id=document.document_id,
                        url=document.url,
                        owner_id=document.owner_id,
                        name=document.name or "",
                        created_at=document.created_at,
                    )
                    for document in group.documents
                ],
            )
            for group in answer.groups
        ],
        has_more=answer.has_more,
    )


def documents_request(message: pb.ThreadDocumentsRequest) -> operations.DocumentsRequest:
    return operations.DocumentsRequest(
        owner_id=owner(message.owner_id, "owner_id"),
        document_ids=_ids(message.document_ids, limits.INPUTS_MAX, "document_ids"),
        include_embeddings=message.include_embeddings,
    )


def documents_response(answer: operations.DocumentsAnswer) -> pb.ThreadDocumentsResponse:
    return pb.ThreadDocumentsResponse(documents=_contents(answer.documents))


def export_request(message: pb.ThreadExportCorpusRequest) -> operations.ExportRequest:
    return operations.ExportRequest(
        owner_id=owner(message.owner_id, "owner_id"),
        group_ids=_ids(message.group_ids, limits.GROUPS_MAX, "group_ids"),
        prefix=bounded_id(message.document_id_prefix, "document_id_prefix"),
        after_id=bounded_id(message.after_id, "after_id"),
        limit=max(message.limit, 0),
        include_embeddings=message.include_embeddings,
    )


def export_response(answer: operations.ExportAnswer) -> pb.ThreadExportCorpusResponse:
    return pb.ThreadExportCorpusResponse(documents=_contents(answer.documents), has_more=answer.has_more)


def _contents(documents: Iterable[operations.DocumentContent]) -> list[pb.ThreadDocumentContent]:
    return [
        pb.ThreadDocumentContent(
            id=document.document_id,
            name=document.name or "",
            owner_id=document.owner_id,
            group_id=document.group_id,
            group_label=document.group_label,
            created_at=document.created_at,
            texts=document.texts,
            media_type=document.media_type,
            metadata=document.metadata,
            partitions=[
                pb.ThreadPartitionOutput(id=item.partition_id, url=item.url, embedding=item.embedding.tolist())
                for item in document.partitions
            ],
        )
        for document in documents
    ]


# ---------------------------------------------------------------------------------------------------- updating


def update_group_request(message: pb.ThreadUpdateGroupRequest) -> operations.UpdateGroupRequest:
    """Words for access that are none change nothing."""
    metadata = None
    if message.update_metadata:
        description = _bounded(message.group_description, limits.DESCRIPTION_CHARS_MAX, "group_description")
        metadata = operations.GroupMetadata(description or None, _names(message.tags, "tags"))
    return operations.UpdateGroupRequest(
        owner_id=owner(message.owner_id, "owner_id"),
        group_id=bounded_id(message.group_id, "group_id"),
        access=_ACCESSES.get(message.access),
        label=_bounded(message.label, limits.NAME_CHARS_MAX, "label"),
        metadata=metadata,
    )


def update_document_request(message: pb.ThreadUpdateDocumentRequest) -> operations.UpdateDocumentRequest:
    return operations.UpdateDocumentRequest(
        owner_id=owner(message.owner_id, "owner_id"),
        document_id=bounded_id(message.document_id, "document_id"),
        access=_ACCESSES.get(message.access),
        group_id=bounded_id(message.group_id, "group_id"),
    )


def stats_response(stats: operations.Stats) -> pb.ThreadStatsResponse:
    return pb.ThreadStatsResponse(
        document_count=stats.documents,
        group_count=stats.groups,
        owner_count=stats.owners,
        available_document_count=stats.available_documents,
    )
