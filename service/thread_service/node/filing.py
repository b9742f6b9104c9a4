"""Filing: an accepted deposit is durable before the answer; everything slow happens afterwards, in `indexing`.

One committed transaction holds the texts, what the caller said about the graph, and a mark that the document is
pending.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import apsw

from thread_service import observe
from thread_service.batching.serving import ServingModel
from thread_service.errors import Busy, InvalidRequest
from thread_service.logs import Stopwatch, event
from thread_service.node.indexing import Indexer
from thread_service.node.operations import COMPONENT_MAX, DocumentIn, Filed, FileRequest, is_usable
from thread_service.node.work import Work
from thread_service.store import contents, documents, group_tags, pending, registry, stamp
from thread_service.store.changes import Changes
from thread_service.store.store import Store
from thread_service.text.ids import content_digest, content_id

log = logging.getLogger(__name__)

DOCUMENT_ID_BYTES_MAX = 1_024
CALLER_WIDTH_MULTIPLE = 16
CALLER_WIDTH_MAX = 16_384
COUNTED_CHARACTERS_MAX = 65_536
"""Tokens of a longer text are counted in this much of it."""

_BLANK = "all of its text is blank; it is kept, and no search finds it"
_UNUSABLE = "the node could not index it, and its log says why; it is kept, and tried again when it is filed again"

Outcome = Literal["new", "replaced", "linked", "skipped", "failed"]


class Filing:
    def __init__(
        self, store: Store, embedding: ServingModel, indexer: Indexer, work: Work, *, pending_documents_max: int
    ) -> None:
        self._store = store
        self._embedding = embedding
        self._indexer = indexer
        self._work = work
        self._pending_documents_max = pending_documents_max

    async def file(self, request: FileRequest) -> Filed:
        """Errors: InvalidRequest, NotReady (the model is needed and loading), IndexMismatch, Busy, StorageFull."""
        for index, document in enumerate(request.documents):
            check(index, document)
        watch = Stopwatch()
        accepted = await self._work.commit(
            self._store, lambda connection, changes: self._accept(connection, request, changes)
        )
        watch.lap("committed")
        observe.time_phases("deposit", watch.total, watch.phases)
        self._indexer.nudge()
        _log_deposit(request, accepted, watch)
        tokens = await self._work.run(lambda: self._count_tokens(accepted.texts_to_embed), refusable=False)
        outcomes = tuple(accepted.outcomes)
        if request.wait:
            await self._indexer.settled(accepted.sequences)
            failed = await self._work.run(lambda: self._failed(accepted), refusable=False)
            outcomes = tuple(
                "failed" if document_id in failed else outcome
                for document_id, outcome in zip(accepted.document_ids, outcomes, strict=True)
            )
        reasons = {
            place: _BLANK if _is_blank(request.documents[place]) else _UNUSABLE
            for place, outcome in enumerate(outcomes)
            if outcome == "failed"
        }
        return Filed(tuple(accepted.document_ids), outcomes, tokens, accepted.removed, reasons)

    def _count_tokens(self, texts: Sequence[str]) -> int:
        """Long texts by their beginning, in proportion: the answer waits for this, and the deposit is done already."""
        if not texts:
            return 0
        beginnings = [text[:COUNTED_CHARACTERS_MAX] for text in texts]
        counted = self._embedding.embedder.count_tokens(beginnings)
        return round(counted * sum(map(len, texts)) / sum(map(len, beginnings)))

    def _failed(self, accepted: _Accepted) -> set[str]:
        with self._store.read() as connection:
            return documents.failed(connection, accepted.owner_key, accepted.document_ids)

    async def queue_is_full(self) -> bool:
        return await self._work.run(self._queue_is_full, refusable=False)

    def _queue_is_full(self) -> bool:
        with self._store.read() as connection:
            return pending.count(connection, self._pending_documents_max) >= self._pending_documents_max

    def _accept(self, connection: apsw.Connection, request: FileRequest, changes: Changes) -> _Accepted:
        room = self._pending_documents_max - pending.count(connection, self._pending_documents_max)
        if len(request.documents) > room:
            raise Busy(
                f"There is room for {room} more documents in the queue and the request has {len(request.documents)};"
                " nothing of it was taken. Send it again later, or in smaller parts.",
                retry_after_seconds=5,
            )
        owner_key = registry.ensure_owner(connection, request.owner_id or f"{self._store.node_id.lower()}-thread")
        group = self._group(connection, owner_key, request, changes)
        accepted = _Accepted(owner_key)
        for document in request.documents:
            self._accept_one(connection, owner_key, group, document, request.gate, accepted, changes)
        for document_id in dict.fromkeys(request.remove_ids):
            if (gone := documents.find(connection, owner_key, document_id)) is not None:
                documents.remove(connection, gone, changes)
                accepted.removed += 1
        return accepted

    def _group(
        self, connection: apsw.Connection, owner_key: int, request: FileRequest, changes: Changes
    ) -> registry.Group | None:
        if request.group is None or not request.documents:
            return None
        group, access_said = registry.ensure_group(
            connection,
            owner_key,
            request.group.group_id,
            label=request.group.label,
            access=request.group.access,
            description=request.group.description,
            tags=request.group.tags,
        )
        if access_said:
            documents.set_group_access(connection, group.group_key, group.access, changes)
        return group

    def _accept_one(
        self,
        connection: apsw.Connection,
        owner_key: int,
        group: registry.Group | None,
        document: DocumentIn,
        gate: bool,
        accepted: _Accepted,
        changes: Changes,
    ) -> None:
        document_id = document.document_id or content_id(document.texts)
        existing = documents.find(connection, owner_key, document_id)
        content_key, state = self._content(connection, owner_key, document, accepted)
        if existing is not None and gate and state != "failed" and existing.content_key == content_key:
            outcome = self._link(connection, existing.document_key, group, document.group_tags, changes)
            if _is_blank(document):
                outcome = "failed"
            accepted.add(document_id, outcome, pending.place(connection, existing.document_key))
            return
        if state == "failed":
            contents.retry(connection, content_key)
        said = documents.Said(content_key, document.name, document.metadata, _urls(document), int(time.time()))
        if existing is None:
            document_key = documents.create(connection, owner_key, document_id, said)
        else:
            document_key = existing.document_key
            documents.replace(connection, existing, said, changes)
        if group is not None:
            documents.add_to_group(connection, document_key, group.group_key)
            documents.set_access(connection, [document_key], group.access, changes)
        group_tags.replace(connection, document_key, document.group_tags)
        documents.touch(connection, document_key, changes)
        sequence = pending.enqueue(connection, document_key, _said_graph(document))
        outcome = "new" if existing is None else "replaced"
        # What will become of it is known already, and is not kept from a caller who does not wait.
        accepted.add(document_id, "failed" if _is_blank(document) else outcome, sequence)

    def _link(
        self,
        connection: apsw.Connection,
        document_key: int,
        group: registry.Group | None,
        tags: Sequence[str],
        changes: Changes,
    ) -> Outcome:
        """An id the owner already holds: at most it joins the group."""
        if group is None or group.group_key in contents.group_keys(connection, document_key):
            return "skipped"
        documents.add_to_group(connection, document_key, group.group_key)
        group_tags.add(connection, document_key, group.group_key, tags)
        documents.set_access(connection, [document_key], group.access, changes)
        return "linked"

    def _content(
        self, connection: apsw.Connection, owner_key: int, document: DocumentIn, accepted: _Accepted
    ) -> tuple[int, contents.State]:
        """Find or store the content; a new one that the model must embed needs the model to be ready.

        What only others have filed counts as new: neither the tokens nor a refusal tell the owner that it is here.
        """
        vectors = [partition.embedding for partition in document.partitions] or [None] * len(document.texts)
        digest = content_digest(document.media_type, document.texts, vectors)
        found = contents.find(connection, digest)
        if found is not None and found[1] != "failed" and documents.is_held(connection, owner_key, found[0]):
            return found
        to_embed = [
            text for text, vector in zip(document.texts, vectors, strict=True) if vector is None and text.strip()
        ]
        if to_embed:
            self._embedding.check_ready()
            if self._embedding.embedder.stamp is not None:
                stamp.check(connection, self._embedding.embedder.stamp)
            accepted.texts_to_embed += to_embed
        if found is not None:
            return found
        return contents.create(connection, digest, document.media_type, document.texts, vectors), "pending"


class _Accepted:
    """What one accepting transaction did, document by document."""

    def __init__(self, owner_key: int) -> None:
        self.owner_key = owner_key
        self.document_ids: list[str] = []
        self.outcomes: list[Outcome] = []
        self.sequences: list[int] = []
        self.texts_to_embed: list[str] = []
        self.removed = 0

    def add(self, document_id: str, outcome: Outcome, sequence: int | None = None) -> None:
        self.document_ids.append(document_id)
        self.outcomes.append(outcome)
        if sequence is not None:
            self.sequences.append(sequence)


def _log_deposit(request: FileRequest, accepted: _Accepted, watch: Stopwatch) -> None:
    texts = [text for document in request.documents for text in document.texts]
    counted = Counter(accepted.outcomes)
    event(
        log,
        "deposit",
        **watch.milliseconds(),
        documents=len(request.documents),
        partitions=len(texts),
        **{outcome: counted[outcome] for outcome in ("new", "replaced", "linked", "skipped")},
        removed=accepted.removed,
        bytes=sum(len(text) if text.isascii() else len(text.encode()) for text in texts),
    )


def check(index: int, document: DocumentIn) -> None:
    """InvalidRequest names what cannot be filed; the document is the one at `index` of a request."""
    if not document.texts:
        raise InvalidRequest.field(f"inputs[{index}]", "holds no text; give at least one.")
    if len(document.document_id.encode()) > DOCUMENT_ID_BYTES_MAX:
        raise InvalidRequest.field(
            f"document_ids[{index}]", f"is longer than {DOCUMENT_ID_BYTES_MAX} bytes of UTF-8; use a shorter id."
        )
    if not document.partitions:
        return
    if len(document.partitions) != len(document.texts):
        raise InvalidRequest.field(
            f"partitions[{index}]",
            f"has {len(document.partitions)} entries for {len(document.texts)} texts; give none, or one per text.",
        )
    widths = {len(part.embedding) for part in document.partitions if part.embedding is not None}
    if len(widths) > 1:
        raise InvalidRequest.field(
            f"partitions[{index}]", f"mixes vectors of widths {sorted(widths)}; use one width per document."
        )
    for width in widths:
        if width % CALLER_WIDTH_MULTIPLE or not 0 < width <= CALLER_WIDTH_MAX:
            raise InvalidRequest.field(
                f"partitions[{index}]",
                f"has vectors of width {width}; it must be a multiple of {CALLER_WIDTH_MULTIPLE}"
                f" up to {CALLER_WIDTH_MAX}.",
            )
    for ordinal, part in enumerate(document.partitions):
        if part.embedding is not None and not is_usable(part.embedding):
            raise InvalidRequest.field(
                f"partitions[{index}][{ordinal}].embedding",
                f"holds NaN, infinity or a number beyond {COMPONENT_MAX:g}.",
            )


def _is_blank(document: DocumentIn) -> bool:
    """Whether there is nothing to search for it by: neither a word nor a vector."""
    return not any(text.strip() for text in document.texts) and all(
        part.embedding is None for part in document.partitions
    )


def _urls(document: DocumentIn) -> list[str | None] | None:
    urls = [partition.url for partition in document.partitions]
    return urls if any(urls) else None


def _said_graph(document: DocumentIn) -> pending.SaidGraph:
    entities: Sequence[tuple[str, str]] | None = None
    if document.entities is not None:
        entities = [(entity.name, entity.kind) for entity in document.entities]
    return pending.SaidGraph(
        entities=None if entities is None else list(entities),
        relationships=[(edge.subject, edge.predicate, edge.object) for edge in document.relationships],
    )
