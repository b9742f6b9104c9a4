"""A node on plain dictionaries: what every owner sees after deposits, updates, removals and edits of the graph.

It knows the rules and nothing of how they are kept. `seen` asks the real node the same questions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from in_process import InProcess, Vector

from thread_service.node.operations import Access, DocumentIn, ExportRequest, GroupIn, SearchRequest
from thread_service.store import graph
from thread_service.text import ids

View = dict[str, Any]
Pair = tuple[str, str, str]
"""An edge: the ids of its ends around its predicate."""


@dataclass
class Group:
    label: str
    access: Access
    description: str | None = None
    tags: tuple[str, ...] = ()


@dataclass
class Document:
    """`number`: documents are numbered as they come. `groups`: the last one is the primary one."""

    number: int
    said: DocumentIn
    access: Access = "restricted"
    groups: list[str] = field(default_factory=list)
    entities: Counter[str] = field(default_factory=Counter)
    edges: Counter[Pair] = field(default_factory=Counter)

    @property
    def content(self) -> Any:
        vectors = [None if part.embedding is None else part.embedding.tobytes() for part in self.said.partitions]
        return self.said.media_type, self.said.texts, *vectors

    @property
    def is_blank(self) -> bool:
        return not any(text.strip() for text in self.said.texts)

    def searchable(self, width: int) -> list[str]:
        """The texts that have a row in the table of this width; 0 stands for the model's."""
        parts = self.said.partitions or (None,) * len(self.said.texts)
        widths = [0 if part is None or part.embedding is None else len(part.embedding) for part in parts]
        return [
            text for text, own in zip(self.said.texts, widths, strict=True) if own == width and (own or text.strip())
        ]


class Dictionaries:
    """`names`: how each entity id is spelled, and its kind."""

    def __init__(self) -> None:
        self.documents: dict[tuple[str, str], Document] = {}
        self.groups: dict[tuple[str, str], Group] = {}
        self.names: dict[str, tuple[str, str]] = {}
        self._filed = 0

    # ------------------------------------------------------------------------------------------ filing

    def deposit(self, owner: str, said: DocumentIn, into: GroupIn | None, *, gate: bool) -> None:
        if into is not None:
            self._ensure_group(owner, into)
        key = (owner, said.document_id)
        known = self.documents.get(key)
        new = Document(self._filed, said)
        if known is not None and gate and known.content == new.content and not new.is_blank:
            if into is None or into.group_id in known.groups:
                return
        else:
            if known is None:
                self._filed += 1
                known = self.documents[key] = new
            known.said = said
            self._assert(known)
        if into is not None:
            known.groups = [*(group for group in known.groups if group != into.group_id), into.group_id]
            known.access = self.groups[owner, into.group_id].access

    def _ensure_group(self, owner: str, into: GroupIn) -> None:
        key = (owner, into.group_id)
        if key not in self.groups:
            self.groups[key] = Group(into.label, into.access or "restricted", into.description, into.tags or ())
        elif into.access is not None:
            self._set_group_access(owner, into.group_id, into.access)
        if into.tags and key in self.groups:
            self.groups[key].tags = tuple(sorted({*self.groups[key].tags, *into.tags}))

    def _assert(self, document: Document) -> None:
        said = document.said
        document.entities, document.edges = Counter(), Counter()
        if document.is_blank:  # it never comes so far
            return
        told = graph.contribution(
            [(entity.name, entity.kind) for entity in said.entities or ()],
            [(edge.subject, edge.predicate, edge.object) for edge in said.relationships],
        )
        found = [self._entity(entity.kind, entity.name) for entity in told.entities]
        document.entities = Counter(found)
        document.edges = Counter((found[edge.subject], edge.predicate, found[edge.object]) for edge in told.edges)
        if said.name is not None:
            document.entities[self._entity("document", said.name)] += 1

    def _entity(self, kind: str, name: str) -> str:
        entity_id = ids.entity_id(kind, name)
        self.names.setdefault(entity_id, (name, kind))
        return entity_id

    def remove(self, owner: str, *document_ids: str) -> int:
        gone = [key for key in self.documents if key[0] == owner and (key[1] in document_ids or not document_ids)]
        for key in gone:
            del self.documents[key]
        if not document_ids:
            self.groups = {key: group for key, group in self.groups.items() if key[0] != owner}
        return len(gone)

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]

    # ------------------------------------------------------------------------------------------ updates

    def _set_group_access(self, owner: str, group_id: str, access: Access) -> None:
        self.groups[owner, group_id].access = access
        for (holder, _), document in self.documents.items():
            if holder == owner and group_id in document.groups:
                document.access = access

    def update_group(
        self, owner: str, group_id: str, access: Access | None, label: str, metadata: tuple[str | None, Any] | None
    ) -> bool:
        group = self.groups.get((owner, group_id))
        if group is None:
            return False
        if access is not None:
            self._set_group_access(owner, group_id, access)
        group.label = label or group.label
        if metadata is not None:
            group.description, group.tags = metadata
        return access is not None or bool(label) or metadata is not None

    def update_document(self, owner: str, document_id: str, access: Access | None, group_id: str) -> bool:
        document = self.documents.get((owner, document_id))
        if document is None:
            return False
        document.access = access or document.access
        if (owner, group_id) not in self.groups:
            return access is not None
        # It takes the place of the primary one.
        document.groups = [*(group for group in document.groups[:-1] if group != group_id), group_id]
        return True

    # ------------------------------------------------------------------------------------------ the graph

    def asserts(self, owner: str, entity_id: str) -> bool:
        return any(document.entities[entity_id] for (holder, _), document in self.documents.items() if holder == owner)

    def move(self, owner: str, entity_id: str, target: str) -> None:
        for (holder, _), document in self.documents.items():
            if holder == owner and entity_id != target:
                if count := document.entities.pop(entity_id, 0):
                    document.entities[target] += count
                before, document.edges = document.edges, Counter()
                for (subject, predicate, object_), weight in before.items():
                    ends = [target if end == entity_id else end for end in (subject, object_)]
                    if ends[0] != ends[1]:
                        document.edges[ends[0], predicate, ends[1]] += weight

    def rename(self, owner: str, entity_id: str, name: str) -> str | None:
        if not self.asserts(owner, entity_id):
            return None
        target = self._entity(self.names[entity_id][1], name)
        self.move(owner, entity_id, target)
        return target

    def merge(self, owner: str, entity_id: str, into: str) -> str | None:
        if not self.asserts(owner, into):
            return None
        if self.asserts(owner, entity_id):
            self.move(owner, entity_id, into)
        return into

    def delete_entity(self, owner: str, entity_id: str) -> None:
        if not self.asserts(owner, entity_id):
            return
        for (holder, _), document in self.documents.items():
            if holder == owner:
                document.entities.pop(entity_id, None)
                document.edges = Counter({k: v for k, v in document.edges.items() if entity_id not in (k[0], k[2])})

    def delete_edge(self, owner: str, edge: Pair) -> None:
        for (holder, _), document in self.documents.items():
            if holder == owner:
                document.edges.pop(edge, None)

    # ------------------------------------------------------------------------------------------ what is seen

    def _readable(self, owner: str) -> Iterator[tuple[tuple[str, str], Document]]:
        """The caller's own documents first, then available ones, each in the order in which they came."""
        readable = [
            (key, document)
            for key, document in self.documents.items()
            if key[0] == owner or document.access == "available"
        ]
        yield from sorted(readable, key=lambda item: (item[0][0] != owner, item[1].number))

    def read(self, owner: str, document_id: str) -> Any:
        for key, document in self._readable(owner):
            if key[1] == document_id:
                return self._content(owner, key, document)
        return None

    def _content(self, owner: str, key: tuple[str, str], document: Document) -> Any:
        shown = [group for group in reversed(document.groups) if self._is_open(owner, key[0], group)]
        primary = document.groups[-1:]
        # Of several that may be shown and are not the primary one, the oldest.
        group = shown[0] if shown and shown[0] in primary else self._oldest(key[0], shown)
        label = "" if group is None else self.groups[key[0], group].label
        said = document.said
        return key, said.name, said.texts, said.media_type, said.metadata, group or "", label

    def _oldest(self, owner: str, group_ids: list[str]) -> str | None:
        return next((group_id for holder, group_id in self.groups if holder == owner and group_id in group_ids), None)

    def _is_open(self, owner: str, holder: str, group_id: str) -> bool:
        """A restricted group of another owner's is as one that does not exist."""
        return owner == holder or self.groups[holder, group_id].access == "available"

    def library(self, owner: str, include_available: bool) -> Any:
        return {
            (group_id, holder): (
                group.label,
                group.access,
                group.description,
                sorted(group.tags),
                sorted(
                    (document_id, document.said.name)
                    for (filer, document_id), document in self.documents.items()
                    if filer == holder
                    and group_id in document.groups
                    and (holder == owner or document.access == "available")
                ),
            )
            for (holder, group_id), group in self.groups.items()
            if holder == owner or (include_available and group.access == "available")
        }

    def found(self, owner: str, width: int, within: Callable[[str, Document], bool]) -> Any:
        """(text, as which document it is shown), each content once."""
        shown: dict[Any, Any] = {}
        for key, document in self._readable(owner):
            if within(key[0], document):
                shown.setdefault(document.content, (key, document))
        return sorted((text, key) for key, document in shown.values() for text in document.searchable(width))

    def graph(self, owner: str) -> Any:
        entities: dict[str, tuple[int, set[str]]] = {}
        edges: dict[str, tuple[int, set[str]]] = {}
        for (_, document_id), document in self._readable(owner):
            for found, said in (
                (entities, document.entities),
                (edges, {ids.relationship_id(*edge): weight for edge, weight in document.edges.items()}),
            ):
                for key, count in said.items():
                    before, holders = found.get(key, (0, set()))
                    found[key] = before + count, holders | {document_id}
        return (
            {key: (*self.names[key], count, sorted(holders)) for key, (count, holders) in entities.items()},
            {key: (count, sorted(holders)) for key, (count, holders) in edges.items()},
            (len(entities), len(edges)),
        )

    def stats(self) -> Any:
        filed = {(key[1], document.content): False for key, document in self.documents.items()}
        for key, document in self.documents.items():
            filed[key[1], document.content] |= document.access == "available"
        return len(filed), len(self.groups), len({owner for owner, _ in self.documents}), sum(filed.values())

    def seen(self, owner: str, document_ids: list[str], group_ids: list[str], width: int) -> View:
        own = [key for key in self.documents if key[0] == owner]
        group = group_ids[0]
        return {
            "library": self.library(owner, False),
            "library with available": self.library(owner, True),
            "documents": [found for key in document_ids if (found := self.read(owner, key)) is not None],
            "export": [self._content(owner, key, self.documents[key]) for key in sorted(own)],
            "export of a group": [
                self._content(owner, key, self.documents[key])
                for key in sorted(own)
                if group in self.documents[key].groups
            ],
            "own": self.found(owner, 0, lambda holder, _: holder == owner),
            "all readable": self.found(owner, 0, lambda holder, _: True),
            "in a group": self.found(
                owner,
                0,
                lambda holder, document: group in document.groups and self._is_open(owner, holder, group),
            ),
            "code": self.found(owner, 0, lambda holder, document: document.said.media_type == "code"),
            "by a vector": self.found(owner, width, lambda holder, _: True),
            "graph": self.graph(owner),
            "stats": self.stats(),
        }


# ---------------------------------------------------------------------------------------------------- the real one


def seen(
    node: InProcess, owner: str, document_ids: list[str], group_ids: list[str], vector: Vector, query: str
) -> View:
    """The same of a node. Pages are asked for one by one, and searches for more than there is."""

    def found(**how: Any) -> Any:
        request = SearchRequest(owner, **{"query": query, "top_k": 1_000, **how})
        passages = node.run(node.node.search(request)).passages
        assert [passage.distance for passage in passages] == sorted(passage.distance for passage in passages)
        return sorted((passage.text, (passage.owner_id, passage.document_id)) for passage in passages)

    plain = {"graph_mode": "off", "lexical": False}
    stats = node.run(node.node.stats())
    return {
        "library": _library(node, owner, include_available=False),
        "library with available": _library(node, owner, include_available=True),
        "documents": [_content(document) for document in node.documents(owner, *document_ids)],
        "export": _export(node, owner, ()),
        "export of a group": _export(node, owner, (group_ids[0],)),
        "own": found(**plain),
        "all readable": found(scope="global"),
        "in a group": found(group_ids=(group_ids[0],)),
        "code": found(scope="global", media_type="code", **plain),
        "by a vector": found(scope="global", query="", query_embedding=vector),
        "graph": _graph(node, owner),
        "stats": (stats.documents, stats.groups, stats.owners, stats.available_documents),
    }


def _content(document: Any) -> Any:
    key = document.owner_id, document.document_id
    return (
        *(key, document.name, document.texts, document.media_type, document.metadata),
        *(document.group_id, document.group_label),
    )


def _export(node: InProcess, owner: str, group_ids: tuple[str, ...]) -> list[Any]:
    documents: list[Any] = []
    request, has_more = ExportRequest(owner, group_ids, limit=1), True
    while has_more:
        answer = node.run(node.node.export(replace(request, after_id=documents[-1][0][1] if documents else "")))
        documents += map(_content, answer.documents)
        has_more = answer.has_more
    return documents


def _library(node: InProcess, owner: str, *, include_available: bool) -> Any:
    groups: list[Any] = []
    has_more = True
    while has_more:
        after_id = groups[-1].group_id if groups else ""
        answer = node.library(owner, include_available=include_available, limit=1, after_id=after_id)
        groups += answer.groups
        has_more = answer.has_more
    return {
        (group.group_id, group.owner_id): (
            group.label,
            group.access,
            group.description,
            sorted(group.tags),
            sorted((document.document_id, document.name) for document in group.documents),
        )
        for group in groups
    }


def _graph(node: InProcess, owner: str) -> Any:
    answer = node.graph(owner, limit=1_000)
    return (
        {e.entity_id: (e.name, e.kind, e.mention_count, list(e.document_ids)) for e in answer.entities},
        {edge.relationship_id: (edge.weight, list(edge.document_ids)) for edge in answer.relationships},
        (answer.entity_count, answer.relationship_count),
    )
