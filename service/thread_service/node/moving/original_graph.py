"""The original's graph and policy: what each document says about entities, and how a graph is made."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from thread_service.node.moving import records
from thread_service.node.moving.plists import entries, pick, text, texts
from thread_service.node.moving.records import Unread
from thread_service.store.edges import EdgeSource
from thread_service.store.pending import KeptEdge, KeptEntity, KeptGraph
from thread_service.text import policy
from thread_service.text.ids import normalise_kind, normalise_predicate
from thread_service.text.keywords import KEYWORDS_MAX, keywords


@dataclass(slots=True)
class OriginalGraph:
    """`entities`: id → (name, kind). `listed`: the entities that list a document, `edges`: those that do."""

    entities: dict[str, tuple[str, str]] = field(default_factory=dict)
    listed: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    edges: defaultdict[str, list[tuple[str, str, str]]] = field(default_factory=lambda: defaultdict(list))

    def said_of(self, document: str, indexed: list[str] | None, document_texts: Iterable[str]) -> KeptGraph | None:
        """What a document says. `indexed`: the entities that its index names, which wins over those that list it: one
        may list a document that was filed again without it.

        Keywords cannot be told from what was given but by looking like it. None where there is nothing else: keywords
        are found again, and an instruct model may read the document.
        """
        ids = self.listed[document] if indexed is None else indexed
        wanted = [id for id in dict.fromkeys(ids) if id in self.entities]
        edges = [edge for edge in self.edges[document] if edge[0] in self.entities and edge[2] in self.entities]
        found = set(keywords(document_texts, KEYWORDS_MAX))
        if not edges and all(self._is_keyword(id, found) for id in wanted):
            return None
        given = {end for subject, _, object_ in edges for end in (subject, object_)}
        wanted = list(dict.fromkeys([*wanted, *sorted(given)]))
        at = {id: index for index, id in enumerate(wanted)}
        kept = [
            KeptEntity(*self.entities[id], "keyword" if self._is_keyword(id, found) and id not in given else "given")
            for id in wanted
        ]
        return KeptGraph(kept, [self._edge(at, *edge) for edge in edges])

    def _is_keyword(self, id: str, found: set[str]) -> bool:
        name, kind = self.entities[id]
        return kind == "concept" and name in found

    def _edge(self, at: dict[str, int], subject: str, predicate: str, object_: str) -> KeptEdge:
        source: EdgeSource = "derived" if predicate.startswith(policy.AUTOMATIC) else "given"
        return KeptEdge(at[subject], predicate, at[object_], source)


def read(value: Any, note: Callable[[Unread], None], name: str) -> OriginalGraph:
    graph = OriginalGraph()
    if not isinstance(value, dict):
        note(Unread(name, "is no dictionary"))
        return graph
    for key, each in entries(pick(value, "entities")):
        id, spelled = text(pick(each, "id")) or key, (text(pick(each, "name")) or "").strip()
        if id is None or not spelled:
            note(Unread(name, f"entity {str(id)[:80]!a} has no name"))
            continue
        graph.entities[id] = (spelled, normalise_kind(text(pick(each, "kind")) or ""))
        for document in texts(pick(each, "documentids", "documents")):
            graph.listed[document].append(id)
    for key, each in entries(pick(value, "relationships")):
        subject, object_ = text(pick(each, "subjectid")), text(pick(each, "objectid"))
        predicate = normalise_predicate(text(pick(each, "predicate")) or "")
        if subject not in graph.entities or object_ not in graph.entities or not predicate or subject == object_:
            which = str(text(pick(each, "id")) or key)[:80]
            note(Unread(name, f"relationship {which!a} has no two ends and predicate"))
            continue
        assert subject is not None
        assert object_ is not None
        for document in dict.fromkeys(texts(pick(each, "documentids", "documents"))):
            graph.edges[document].append((subject, predicate, object_))
    return graph


def read_policy(value: Any, note: Callable[[Unread], None], name: str) -> records.Policy | None:
    if not isinstance(value, dict):
        note(Unread(name, "is no dictionary"))
        return None
    default = policy.Policy()
    rule = pick(value, "comention")
    try:
        return msgspec.convert(
            {
                "type": "policy",
                "kinds": [
                    {
                        "name": normalise_kind(text(pick(kind, "name")) or ""),
                        "description": text(pick(kind, "description")) or "",
                    }
                    for _, kind in entries(pick(value, "kinds"))
                ]
                or default.kinds,
                "prompt_template": (text(pick(value, "prompttemplate")) or "").strip() or None,
                "predicate_aliases": {
                    normalise_predicate(alias): normalise_predicate(text(predicate) or "")
                    for alias, predicate in entries(pick(value, "predicatealiases"))
                    if alias and text(predicate)
                },
                "max_entities": _or(pick(value, "maxentities"), default.max_entities),
                "max_relationships": _or(pick(value, "maxrelationships"), default.max_relationships),
                "co_mention": rule
                and {
                    "enabled": _or(pick(rule, "enabled"), False),
                    "predicate": normalise_predicate(text(pick(rule, "predicate")) or "")
                    or policy.CoMention().predicate,
                    "skip_explicitly_linked": _or(pick(rule, "skipexplicitlylinked"), True),
                },
                "hub_degree_cap": pick(value, "hubdegreecap"),
            },
            records.Policy,
        )
    except msgspec.ValidationError as error:
        note(Unread(name, str(error)))
        return None


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value
