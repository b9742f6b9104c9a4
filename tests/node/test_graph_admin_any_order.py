"""Administration of the graph, among deposits and removals in any order, leaves what filing the documents with the new
names and kinds leaves: assertions, edges, links by name, vectors and memory alike."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import apsw
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from in_process import InProcess, document, group, opened
from snapshot import in_memory, stored

from thread_service.node.operations import DocumentIn
from thread_service.store import graph, links
from thread_service.store.changes import Changes
from thread_service.store.graph_cache import GraphCache
from thread_service.store.loading import load
from thread_service.store.resident import Resident
from thread_service.text import ids
from thread_service.text.keywords import keywords
from thread_service.text.mentions import name_key

OWNERS = ("ann", "ben")
IDS = ("open", "two", "three")
"""The first is filed into a group that everybody may read."""
CONTENTS = (
    "Ada Quill keeps the Tidal Ledger. The ledger names Quill.",
    "Ada Quill Hall stands in Port Selwyn; Orrin Vale built the Long Clock for Ada Quill.",
    "By night",
)
NAMES = ("Ada Quill", "ADA  quill", "Quill", "Port Selwyn", "Tidal Ledger", "ledger", "Ada Quill Hall", "📚")
KINDS = ("person", "concept", "document", "Tool")
PREDICATES = ("keeps", "names")
ENTITY = st.tuples(st.sampled_from(NAMES), st.sampled_from(KINDS))
ENDS = ("Ada Quill", "Quill", "Tidal Ledger")
EDGE = st.tuples(st.sampled_from(ENDS), st.sampled_from(PREDICATES), st.sampled_from(ENDS))


@dataclass(frozen=True)
class Deposit:
    owner: str
    id: str
    said: DocumentIn


@dataclass(frozen=True)
class Removal:
    owner: str
    id: str


@dataclass(frozen=True)
class Edit:
    """`what` happens to an entity that somebody's documents assert, with `name`, `kind` or another such entity."""

    what: str
    owner: str
    place: int
    other_place: int
    name: str
    kind: str


@dataclass(frozen=True)
class EdgeRemoval:
    owner: str
    place: int


@dataclass(frozen=True)
class ReExtraction:
    owner: str
    id: str


SAID = st.builds(
    lambda text, name, entities, edges: document(text, name=name, entities=entities, edges=edges),
    st.sampled_from(CONTENTS),
    st.sampled_from((None, *NAMES)),
    st.none() | st.lists(ENTITY, max_size=3),
    st.lists(EDGE, max_size=4),
)
OWNER = st.sampled_from(OWNERS)
DEPOSITS = st.builds(Deposit, OWNER, st.sampled_from(IDS), SAID)
EDITS = st.builds(
    Edit,
    st.sampled_from(("rename", "rename", "kind", "merge", "merge", "delete")),
    OWNER,
    st.integers(0, 20),
    st.integers(0, 20),
    st.sampled_from(NAMES),
    st.sampled_from(KINDS),
)
OTHERS = st.one_of(
    st.builds(Removal, OWNER, st.sampled_from(IDS)),
    st.builds(EdgeRemoval, OWNER, st.integers(0, 5)),
    st.builds(ReExtraction, OWNER, st.sampled_from(IDS)),
)
Step = Deposit | Removal | Edit | EdgeRemoval | ReExtraction


@dataclass
class Said:
    """What a document says: (entity id, source) → (kind, spelling, mentions), and edges → weight."""

    filed: DocumentIn
    is_named: bool = True
    entities: dict[tuple[str, str], tuple[str, str, int]] = field(default_factory=dict)
    edges: dict[tuple[str, str, str], int] = field(default_factory=dict)

    def add(self, source: str, kind: str, spelling: str, mentions: int = 1) -> str:
        """What is there already keeps its spelling."""
        entity_id = ids.entity_id(kind, spelling)
        known = self.entities.get((entity_id, source), (kind, spelling, 0))
        self.entities[entity_id, source] = (*known[:2], known[2] + mentions)
        return entity_id

    def contribution(self) -> graph.Contribution:
        kept: list[graph.Entity] = []
        place: dict[str, int] = {}
        for (entity_id, source), (kind, spelling, mentions) in sorted(self.entities.items()):
            if source == "given" or entity_id not in place:
                place[entity_id] = len(kept)
            kept += [graph.Entity(spelling, kind, source)] * mentions  # type: ignore[arg-type]
        edges = [
            graph.Edge(place[subject], predicate, place[object_])
            for (subject, predicate, object_), weight in self.edges.items()
            for _ in range(weight)
        ]
        return graph.Contribution(tuple(kept), tuple(edges))


class Expected:
    """What each document says, on plain dictionaries."""

    def __init__(self) -> None:
        self.said: dict[tuple[str, str], Said] = {}

    def of(self, owner: str) -> Iterator[Said]:
        return (said for (name, _), said in self.said.items() if name == owner)

    def deposit(self, owner: str, id: str, filed: DocumentIn) -> None:
        told = graph.contribution(
            [(entity.name, entity.kind) for entity in filed.entities or ()],
            [(edge.subject, edge.predicate, edge.object) for edge in filed.relationships],
            keywords(filed.texts) if filed.entities is None else (),
        )
        said = Said(filed)
        found = [said.add(entity.source, entity.kind, entity.name) for entity in told.entities]
        for edge in told.edges:
            key = found[edge.subject], edge.predicate, found[edge.object]
            said.edges[key] = said.edges.get(key, 0) + 1
        self.said[owner, id] = said

    def own_name(self, owner: str, said: Said) -> str | None:
        """The entity that a document's own name makes, unless another kind of entity bears the name."""
        name = said.filed.name if said.is_named else None
        if name is None or not name_key(name):
            return None
        for other in self.of(owner):
            for (_, source), (kind, spelling, _) in other.entities.items():
                if source == "given" and kind != links.DOCUMENT and name_key(spelling) == name_key(name):
                    return None
        return ids.entity_id(links.DOCUMENT, name)

    def find(self, owner: str, entity_id: str) -> str | None:
        """How the owner's oldest document spells the entity."""
        named = {id(said): self.own_name(owner, said) for said in self.of(owner)}
        for said in self.of(owner):
            for source in ("given", "keyword"):
                if (entity_id, source) in said.entities:
                    return said.entities[entity_id, source][1]
            if named[id(said)] == entity_id:
                assert said.filed.name is not None
                return said.filed.name.strip()
        return None

    def take(self, owner: str, entity_id: str) -> list[tuple[Said, str, str, int]]:
        """Take the entity out of every document; what was there, own names as given."""
        taken: list[tuple[Said, str, str, int]] = []
        named = [said for said in self.of(owner) if self.own_name(owner, said) == entity_id]
        for said in self.of(owner):
            for source in ("given", "keyword"):
                if (entity_id, source) in said.entities:
                    _, spelling, mentions = said.entities.pop((entity_id, source))
                    taken.append((said, source, spelling, mentions))
        for said in named:
            said.is_named = False
            assert said.filed.name is not None
            taken.append((said, "given", said.filed.name.strip(), 1))
        return taken

    def move(self, owner: str, entity_id: str, kind: str, name: str | None) -> str:
        target = ids.entity_id(kind, name or self.find(owner, entity_id) or "")
        if target == entity_id:
            self._respell(owner, entity_id, name)
            return target
        for said, source, spelling, mentions in self.take(owner, entity_id):
            said.add(source, kind, name or spelling, mentions)
        for said in self.of(owner):
            edges, said.edges = said.edges, {}
            for (subject, predicate, object_), weight in edges.items():
                ends = [target if end == entity_id else end for end in (subject, object_)]
                if ends[0] != ends[1]:
                    key = ends[0], predicate, ends[1]
                    said.edges[key] = said.edges.get(key, 0) + weight
        return target

    def _respell(self, owner: str, entity_id: str, name: str | None) -> None:
        if name is None:
            return
        named = [said for said in self.of(owner) if self.own_name(owner, said) == entity_id]
        for said in self.of(owner):
            for key, (kind, _, mentions) in said.entities.items():
                if key[0] == entity_id:
                    said.entities[key] = kind, name, mentions
        for said in named:
            assert said.filed.name is not None
            if said.filed.name.strip() != name:
                said.is_named = False
                said.add("given", links.DOCUMENT, name)

    def entities(self, step: Edit) -> tuple[str, str]:
        """The two entities that the step is about."""
        found = {entity_id for said in self.said.values() for entity_id, _ in said.entities}
        found |= {made for (owner, _), said in self.said.items() if (made := self.own_name(owner, said))}
        known = [*sorted(found), "unknown"]
        return known[step.place % len(known)], known[step.other_place % len(known)]

    def edit(self, step: Edit) -> str | None:
        """What the operation answers; nothing for a removal."""
        entity_id, other_id = self.entities(step)
        spelling, other = self.find(step.owner, entity_id), self.find(step.owner, other_id)
        if step.what == "merge":
            if other is None:
                return None
            if spelling is not None and entity_id != other_id:
                self.move(step.owner, entity_id, self.kind(step.owner, other_id), other)
            return other_id
        if spelling is None:
            return None
        if step.what == "delete":
            self.take(step.owner, entity_id)
            for said in self.of(step.owner):
                said.edges = {key: weight for key, weight in said.edges.items() if entity_id not in key}
            return None
        if step.what == "rename":
            return self.move(step.owner, entity_id, self.kind(step.owner, entity_id), step.name)
        return self.move(step.owner, entity_id, ids.normalise_kind(step.kind), None)

    def kind(self, owner: str, entity_id: str) -> str:
        for said in self.of(owner):
            for (known, _), (kind, _, _) in said.entities.items():
                if known == entity_id:
                    return kind
        return links.DOCUMENT

    def edge(self, step: EdgeRemoval) -> str:
        """One of the edges that anybody's documents assert, which then goes from the owner's."""
        found = sorted({key for said in self.said.values() for key in said.edges})
        if not found:
            return "unknown"
        key = found[step.place % len(found)]
        for said in self.of(step.owner):
            said.edges.pop(key, None)
        return ids.relationship_id(*key)

    def re_extract(self, step: ReExtraction) -> int:
        said = self.said.get((step.owner, step.id))
        found = [] if said is None else keywords(said.filed.texts)
        if said is not None and found:
            said.entities = {key: value for key, value in said.entities.items() if key[1] != "keyword"}
            for word in found:
                said.add("keyword", "concept", word)
        return len(found)


def _apply(node: InProcess, expected: Expected, step: Step) -> None:
    admin = node.node.graph_admin
    if isinstance(step, Deposit):
        into = group("g", "available") if step.id == IDS[0] else None
        node.file(step.owner, replace(step.said, document_id=step.id), group=into)
        expected.deposit(step.owner, step.id, step.said)
    elif isinstance(step, Removal):
        assert node.remove(step.owner, step.id) == (expected.said.pop((step.owner, step.id), None) is not None)
    elif isinstance(step, EdgeRemoval):
        node.run(admin.delete_relationship(step.owner, expected.edge(step)))
    elif isinstance(step, ReExtraction):
        assert node.run(admin.re_extract(step.owner, step.id)) == expected.re_extract(step)
    else:
        entity_id, other_id = expected.entities(step)
        operation = {
            "rename": lambda: admin.rename_entity(step.owner, entity_id, step.name),
            "kind": lambda: admin.set_entity_kind(step.owner, entity_id, step.kind),
            "merge": lambda: admin.merge_entities(step.owner, entity_id, other_id),
            "delete": lambda: admin.delete_entity(step.owner, entity_id),
        }[step.what]
        assert node.run(operation()) == expected.edit(step)


def _file_afresh(node: InProcess, expected: Expected) -> None:
    for (owner, id), said in expected.said.items():
        node.file(
            owner,
            replace(said.filed, document_id=id, entities=(), relationships=()),
            group=group("g", "available") if id == IDS[0] else None,
        )

    def say(connection: apsw.Connection, changes: Changes) -> None:
        for key, owner, id in connection.execute(
            "SELECT document_key, owner_id, document_id FROM documents JOIN owners USING (owner_key)"
        ).fetchall():
            said = expected.said[owner, id]
            if not said.is_named:
                connection.execute("UPDATE documents SET name_key = '' WHERE document_key = ?", (key,))
            graph.contribute(connection, key, said.contribution(), changes)
            links.mark(connection, key)

    node.store.write(say).result()
    node.node._indexer.nudge()
    node.settle()


def _links(node: InProcess, cache: GraphCache) -> Any:
    """All that a cache says about links and names."""
    version = cache.version()
    with node.store.read() as connection:
        entities = [key for (key,) in connection.execute("SELECT DISTINCT entity_key FROM assertions")]
        filed = [key for (key,) in connection.execute("SELECT document_key FROM documents")]
        owners = [key for (key,) in connection.execute("SELECT owner_key FROM owners")]
        seen = cache.at(connection, version)
        return (
            seen.documents_of(entities),
            {key: sorted(found) for key, found in seen.entities_of(filed).items()},
            [seen.names(entities, owner) for owner in owners],
        )


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(DEPOSITS, min_size=2, max_size=5), st.lists(DEPOSITS | EDITS | EDITS | EDITS | OTHERS, max_size=9))
def test_what_is_left_is_as_if_it_had_been_filed_so(deposits: list[Step], steps: list[Step]) -> None:
    expected = Expected()
    with tempfile.TemporaryDirectory() as directory, opened(Path(directory) / "any order") as node:
        for step in (*deposits, *steps):
            _apply(node, expected, step)
            node.settle()
            node.store.write(lambda connection, changes: None).result()  # what was committed before is published
            assert _links(node, node.store.resident.graph) == _links(node, GraphCache())
        with opened(Path(directory) / "afresh") as fresh:
            _file_afresh(fresh, expected)
            assert stored(node) == stored(fresh)
            memory = in_memory(node)
            assert memory == in_memory(fresh)
        report = node.run(node.node.verify(full=True, progress=lambda *_: None))
        assert report["clean"], report["damage"]
        loaded = Resident(node.store.resident.engine, node.store.segments)
        with node.store.read() as connection:
            load(loaded, connection, node.store.segments)
        assert in_memory(node, loaded) == memory
