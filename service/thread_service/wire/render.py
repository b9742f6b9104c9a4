"""From the answers of the node to the JSON bodies. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypeVar

from msgspec import UNSET, UnsetType

from thread_service.node import operations
from thread_service.wire import schemas
from thread_service.wire.convert import Batch
from thread_service.wire.secret import HEALTH_CONTRACT, Stack

T = TypeVar("T")


# ---------------------------------------------------------------------------------------------------- pieces


def _optional(value: T | None) -> T | UnsetType:
    return UNSET if value is None else value


def timestamp(seconds: int) -> str:
    """Unix seconds as ISO 8601 in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# ---------------------------------------------------------------------------------------------------- filing


_NO_TEXT = "it is empty or blank; nothing was filed"


def batch_answer(
    sent: Batch, filed: operations.Filed, library: operations.LibraryAnswer, model: str
) -> schemas.BatchAnswer:
    documents = [
        schemas.FiledDocument(id=document_id or UNSET, outcome="failed", reason=_NO_TEXT) for document_id in sent.ids
    ]
    outcomes = zip(sent.positions, filed.document_ids, filed.outcomes, strict=True)
    for place, (position, document_id, outcome) in enumerate(outcomes):
        reason = _optional(filed.reasons.get(place))
        documents[position] = schemas.FiledDocument(id=document_id, outcome=outcome, reason=reason)
    return schemas.BatchAnswer(
        model=model,
        usage=schemas.Usage(prompt_tokens=filed.tokens, total_tokens=filed.tokens),
        success=all(document.outcome != "failed" for document in documents),
        user=schemas.User(groups=[_group(group, with_documents=False) for group in library.groups]),
        documents=documents,
        removed_count=filed.removed if sent.request.remove_ids else UNSET,
    )


# ---------------------------------------------------------------------------------------------------- searching


def search_answer(
    answer: operations.SearchAnswer, node_id: str, media_type: operations.MediaType | None
) -> schemas.SearchAnswer:
    trace = answer.trace
    graph = schemas.SearchGraph(
        entities=_entity_refs(trace.entities),
        relationships=[
            schemas.Edge(subject=edge.subject, predicate=edge.predicate, object=edge.object, weight=edge.weight)
            for edge in trace.relationships
        ],
        expanded_documents=trace.expanded_documents,
    )
    return schemas.SearchAnswer(
        texts=[passage.text for passage in answer.passages],
        references=[_reference(passage, node_id) for passage in answer.passages],
        graph=UNSET if trace == operations.Trace() and media_type != "code" else graph,
    )


def _reference(passage: operations.Passage, node_id: str) -> schemas.Reference:
    group = passage.group
    return schemas.Reference(
        document_id=passage.document_id,
        partition_id=passage.partition_id,
        distance=passage.distance,
        owner_id=passage.owner_id,
        thread_id=node_id,
        name=_optional(passage.name),
        media_type=passage.media_type,
        entities=_entity_refs(passage.entities),
        group=UNSET
        if group is None
        else schemas.GroupReference(
            id=group.group_id, label=group.label, description=_optional(group.description), tags=list(group.tags)
        ),
    )


def _entity_refs(entities: Sequence[operations.EntityRef]) -> list[schemas.Entity]:
    return [schemas.Entity(id=entity.entity_id, name=entity.name, kind=entity.kind) for entity in entities]


# ---------------------------------------------------------------------------------------------------- graph


def graph_answer(answer: operations.GraphAnswer) -> schemas.GraphAnswer:
    return schemas.GraphAnswer(
        entities=[
            schemas.GraphEntity(
                id=entity.entity_id,
                name=entity.name,
                kind=entity.kind,
                score=entity.score,
                mention_count=entity.mention_count,
                document_ids=list(entity.document_ids),
            )
            for entity in answer.entities
        ],
        relationships=[
            schemas.GraphRelationship(
                id=edge.relationship_id,
                subject_id=edge.subject_id,
                predicate=edge.predicate,
                object_id=edge.object_id,
                weight=edge.weight,
                document_ids=list(edge.document_ids),
            )
            for edge in answer.relationships
        ],
        documents=[
            schemas.GraphDocument(id=document.document_id, name=_optional(document.name), owner_id=document.owner_id)
            for document in answer.documents
        ],
        stats=schemas.GraphStats(entity_count=answer.entity_count, relationship_count=answer.relationship_count),
    )


# ---------------------------------------------------------------------------------------------------- library


def library_answer(answer: operations.LibraryAnswer) -> schemas.LibraryAnswer:
    groups = [_group(group, with_documents=True) for group in answer.groups]
    return schemas.LibraryAnswer(groups=groups, has_more=answer.has_more)


def _group(group: operations.LibraryGroup, *, with_documents: bool) -> schemas.Group:
    return schemas.Group(
        id=group.group_id,
        label=group.label,
        owner_id=group.owner_id,
        access=group.access,
        metadata=schemas.GroupMetadata(description=_optional(group.description), tags=list(group.tags)),
        documents=[
            schemas.LibraryDocument(
                id=document.document_id,
                url=document.url,
                owner_id=document.owner_id,
                name=_optional(document.name),
                created_at=timestamp(document.created_at),
            )
            for document in group.documents
        ]
        if with_documents
        else [],
    )


def documents_answer(answer: operations.DocumentsAnswer, *, with_partitions: bool) -> schemas.DocumentsAnswer:
    return schemas.DocumentsAnswer(documents=_contents(answer.documents, with_partitions=with_partitions))


def export_answer(answer: operations.ExportAnswer, *, with_partitions: bool) -> schemas.ExportAnswer:
    return schemas.ExportAnswer(_contents(answer.documents, with_partitions=with_partitions), answer.has_more)


def _contents(
    documents: Sequence[operations.DocumentContent], *, with_partitions: bool
) -> list[schemas.DocumentContent]:
    return [
        schemas.DocumentContent(
            id=document.document_id,
            name=_optional(document.name),
            owner_id=document.owner_id,
            group_id=document.group_id,
            group_label=document.group_label,
            created_at=timestamp(document.created_at),
            texts=list(document.texts),
            media_type=document.media_type,
            metadata=document.metadata,
            partitions=[
                schemas.Partition(id=item.partition_id, url=item.url, embedding=item.embedding.tolist())
                for item in document.partitions
            ]
            if with_partitions
            else UNSET,
        )
        for document in documents
    ]


def group_updated(updated: operations.Updated, group_id: str) -> schemas.UpdateGroupAnswer:
    return schemas.UpdateGroupAnswer(updated.applied, group_id, _optional(updated.reason))


def document_updated(updated: operations.Updated, document_id: str) -> schemas.UpdateDocumentAnswer:
    return schemas.UpdateDocumentAnswer(updated.applied, document_id, _optional(updated.reason))


def stats_answer(stats: operations.Stats) -> schemas.StatsAnswer:
    return schemas.StatsAnswer(
        document_count=stats.documents,
        group_count=stats.groups,
        owner_count=stats.owners,
        available_document_count=stats.available_documents,
    )


# ---------------------------------------------------------------------------------------------------- health


def health_answer(
    health: operations.EmbedderHealth,
    engine: operations.EngineHealth,
    now_seconds: int,
    stack: Stack | None,
    nonce: str,
) -> schemas.HealthAnswer:
    """A node with a stack secret proves by `nonce` that it knows it."""
    return schemas.HealthAnswer(
        timestamp=timestamp(now_seconds),
        stack="proof" if stack else "open",
        proof=_optional(stack.proof(nonce) if stack else None),
        app=(stack.app or UNSET) if stack else UNSET,
        contract=HEALTH_CONTRACT if stack else UNSET,
        embedder=schemas.Embedder(
            model=health.model,
            revision=_optional(health.revision),
            vector_space=health.vector_space,
            phase=health.phase,
            progress=_optional(health.fraction),
            fraction=_optional(health.fraction),
            error=_optional(health.error),
            index=_optional(health.index),
            indexed_with=_optional(health.indexed_with),
        ),
        engine=schemas.Engine(device=engine.device, error=_optional(engine.error)),
    )
