"""What a record must be to be filed. A refusal names the field of the record and says what to do.

Types, and the words a field may hold, are the decoder's business; here is what a deposit would have been refused for.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from thread_service.errors import InvalidRequest
from thread_service.node import filing
from thread_service.node.filing import DOCUMENT_ID_BYTES_MAX
from thread_service.node.moving.records import Document, Group, Owner, Policy
from thread_service.node.operations import DocumentIn, PartitionIn, owner_id
from thread_service.store import graph
from thread_service.store.pending import SaidGraph

Vectors = list[NDArray[np.float32] | None]
"""Of the texts of a document, float32 [width]; None for those that the model embeds."""

_FIELDS = {"inputs[0]": "texts", "document_ids[0]": "id"}
"""What a record calls a field of a deposit."""


def check(record: Owner | Group | Policy) -> None:
    """InvalidRequest: it could not have come about."""
    if isinstance(record, Owner):
        _check_id("id", owner_id(record.id))
    elif isinstance(record, Group):
        _check_id("owner", owner_id(record.owner))
        _check_id("id", record.id)
    else:
        _check_policy(record)


def checked(record: Document) -> Vectors:
    """Its vectors, one entry for each text. InvalidRequest: it could not have been filed."""
    _check_id("owner", owner_id(record.owner))
    _check_id("id", record.id)
    for index, group in enumerate(record.groups):
        _check_id(f"groups[{index}]", group)
    vectors: Vectors = [None] * len(record.texts)
    if record.vectors is not None:
        if any(data is not None and len(data) % 4 for data in record.vectors):
            raise InvalidRequest.field("vectors", "are no float32 numbers; give four bytes for each, or leave them out")
        vectors = [None if data is None else np.frombuffer(data, "<f4").astype(np.float32) for data in record.vectors]
    if record.urls is not None and len(record.urls) != len(record.texts):
        raise InvalidRequest.field("urls", "has another number of entries than texts; give one for each, or null")
    if not set(record.group_tags) <= set(record.groups) >= {record.primary_group} - {None}:
        raise InvalidRequest.field("groups", "lacks a group that is named beside it; add it, or name it nowhere")
    _check_deposit(record, vectors)
    said = said_graph(record)
    if said.kept is not None:
        graph.kept_contribution(said.kept)
    return vectors


def said_graph(record: Document) -> SaidGraph:
    if record.waiting is not None:
        return record.waiting
    return SaidGraph(None, []) if record.graph is None else SaidGraph([], [], record.graph)


def _check_deposit(record: Document, vectors: Vectors) -> None:
    partitions = () if record.vectors is None else tuple(PartitionIn(vector) for vector in vectors)
    try:
        filing.check(0, DocumentIn(tuple(record.texts), record.id, partitions=partitions))
    except InvalidRequest as error:
        [refused] = error.fields
        raise InvalidRequest.field(_FIELDS.get(refused.field, "vectors"), refused.message) from None


def _check_id(field: str, id: str) -> None:
    if not id:
        raise InvalidRequest.field(field, "is empty; give it an id")
    if len(id.encode()) > DOCUMENT_ID_BYTES_MAX:
        raise InvalidRequest.field(field, f"is longer than {DOCUMENT_ID_BYTES_MAX:,} bytes of UTF-8; use a shorter id")


def _check_policy(record: Policy) -> None:
    for index, kind in enumerate(record.kinds):
        if not kind.name.strip():
            raise InvalidRequest.field(f"kinds[{index}].name", "is blank; name the kind")
    for alias, predicate in record.predicate_aliases.items():
        if not alias.strip() or not predicate.strip():
            raise InvalidRequest.field("predicate_aliases", f"{alias[:80]!a} or what it stands for is blank; give both")
    if record.co_mention is not None and not record.co_mention.predicate.strip():
        raise InvalidRequest.field("co_mention.predicate", "is blank; say how the edges are to be called")
