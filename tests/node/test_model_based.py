"""A node beside plain dictionaries: after every operation each owner sees in both the same.

`MODEL_EXAMPLES=200 pytest tests/node/test_model_based.py` looks for longer.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dictionaries import Dictionaries, seen
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from in_process import ENGINE, InProcess, document, group, unit

from thread_service.node.operations import DocumentIn, GroupMetadata, UpdateDocumentRequest, UpdateGroupRequest
from thread_service.text import ids

EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "4"))
STEPS = 24
ENGINES: dict[str, dict[str, Any]] = {"cpu": ENGINE}
"""What the engine of each run is made with."""

OWNERS = ["ann", "ben", "cyd"]
DOCUMENTS = ["one", "two", "ONE", "\u00e9", "e\u0301"]
GROUPS = ["g", "G", "h"]
WIDTH = 32
BROUGHT = unit(1, 2, 3, width=WIDTH)
CONTENTS: list[DocumentIn] = [
    document("the heron stands in the harbour", "the tide is out"),
    document("the heron stands in the harbour"),
    document("lamps along the quay"),
    document("def lamps(quay): return quay", media_type="code"),
    document("brought", "half brought", vectors=[BROUGHT, None]),
    document("brought", "  ", vectors=[unit(3, 2, 1, width=WIDTH), BROUGHT]),
    document("  "),
    document("tide", "  "),
]
NAMES = ["Ada", "Port Selwyn", "Tidal Ledger"]
KINDS = ["person", "concept"]
ENTITIES = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(KINDS)), max_size=3)
EDGES = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(["keeps", "names"]), st.sampled_from(NAMES)), max_size=3
)
ACCESS = st.sampled_from([None, "available", "restricted"])
OWNER, DOCUMENT, GROUP = st.sampled_from(OWNERS), st.sampled_from(DOCUMENTS), st.sampled_from(GROUPS)
QUERIES = ["the heron in the harbour", "lamps", "Ada keeps the tide"]
POOL = [ids.entity_id(kind, name) for name in NAMES for kind in KINDS]


def said(content: DocumentIn, name: str | None, entities: Any, edges: Any, metadata: bytes) -> DocumentIn:
    told = document(*content.texts, name=name, entities=entities, edges=edges)
    return replace(content, name=name, metadata=metadata, entities=told.entities, relationships=told.relationships)


SAID = st.builds(
    said,
    st.sampled_from(CONTENTS),
    st.sampled_from([None, None, "notes of May", "notes of June"]),
    ENTITIES,
    EDGES,
    st.sampled_from([b"", b"\0\xff"]),
)
INTO = st.none() | st.builds(
    group,
    GROUP,
    ACCESS,
    label=st.sampled_from(["", "a label"]),
    description=st.sampled_from([None, "about"]),
    tags=st.sampled_from([None, ("tag",), ("b", "a")]),
)


class Machine(RuleBasedStateMachine):
    engine: dict[str, Any]

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.expected = Dictionaries()
        self.node = self._opened()
        self.asked = 0

    def _opened(self) -> InProcess:
        return InProcess(Path(self.directory.name) / "data", engine_options=self.engine, mention_linking=False)

    @initialize(said=SAID, into=INTO)
    def begin(self, said: DocumentIn, into: Any) -> None:
        self.deposit("ann", "one", said, into, False, True)

    @rule(owner=OWNER, id=DOCUMENT, said=SAID, into=INTO, gate=st.booleans(), wait=st.booleans())
    def deposit(self, owner: str, id: str, said: DocumentIn, into: Any, gate: bool, wait: bool) -> None:
        said = replace(said, document_id=id)
        self.node.file(owner, said, group=into, gate=gate, wait=wait)
        self.expected.deposit(owner, said, into, gate=gate)

    @rule(owner=OWNER, id=DOCUMENT, into=INTO, gate=st.booleans())
    def deposit_again(self, owner: str, id: str, into: Any, gate: bool) -> None:
        """What is filed already, or another owner's content under the same id."""
        known = [document for (_, known), document in self.expected.documents.items() if known == id]
        if known:
            self.deposit(owner, id, known[0].said, into, gate, True)

    @rule(owner=OWNER, group_id=GROUP, access=ACCESS, label=st.sampled_from(["", "new label"]), replaced=st.booleans())
    def update_group(self, owner: str, group_id: str, access: Any, label: str, replaced: bool) -> None:
        metadata = GroupMetadata("new", ("c",)) if replaced else None
        request = UpdateGroupRequest(owner, group_id, access, label, metadata)
        applied = self.node.run(self.node.node.update_group(request)).applied
        told = None if metadata is None else (metadata.description, metadata.tags)
        assert applied == self.expected.update_group(owner, group_id, access, label, told)

    @rule(owner=OWNER, id=DOCUMENT, access=ACCESS, group_id=st.sampled_from(["", *GROUPS]))
    def update_document(self, owner: str, id: str, access: Any, group_id: str) -> None:
        request = UpdateDocumentRequest(owner, id, access, group_id)
        applied = self.node.run(self.node.node.update_document(request)).applied
        assert applied == self.expected.update_document(owner, id, access, group_id)

    @rule(owner=OWNER, removed=st.lists(DOCUMENT, min_size=1, max_size=3))
    def remove(self, owner: str, removed: list[str]) -> None:
        assert self.node.remove(owner, *removed) == self.expected.remove(owner, *removed)

    @rule(owner=OWNER, entity=st.sampled_from(POOL), name=st.sampled_from(NAMES))
    def rename(self, owner: str, entity: str, name: str) -> None:
        self.node.settle()
        renamed = self.node.run(self.node.node.graph_admin.rename_entity(owner, entity, name))
        assert renamed == self.expected.rename(owner, entity, name)

    @rule(owner=OWNER, entity=st.sampled_from(POOL), into=st.sampled_from(POOL))
    def merge(self, owner: str, entity: str, into: str) -> None:
        self.node.settle()
        merged = self.node.run(self.node.node.graph_admin.merge_entities(owner, entity, into))
        assert merged == self.expected.merge(owner, entity, into)

    @rule(owner=OWNER, entity=st.sampled_from(POOL))
    def delete_entity(self, owner: str, entity: str) -> None:
        self.node.settle()
        self.node.run(self.node.node.graph_admin.delete_entity(owner, entity))
        self.expected.delete_entity(owner, entity)

    @rule(owner=OWNER, place=st.integers(0, 5))
    def delete_edge(self, owner: str, place: int) -> None:
        edges = sorted({edge for document in self.expected.documents.values() for edge in document.edges})
        if edges:
            self.node.settle()
            edge = edges[place % len(edges)]
            self.node.run(self.node.node.graph_admin.delete_relationship(owner, ids.relationship_id(*edge)))
            self.expected.delete_edge(owner, edge)

    @rule()
    def restart(self) -> None:
        self.node.close()
        self.node = self._opened()

    @rule()
    def compact(self) -> None:
        self.node.settle()
        self.node.run(self.node.node.compact(lambda *_: None))

    @rule(owner=OWNER, everything=st.integers(0, 2))
    def remove_all(self, owner: str, everything: int) -> None:
        if everything == 0:
            documents = self.expected.stats()[0]
            assert self.node.run(self.node.node.clear()).documents == documents
            self.expected.clear()
        else:
            assert self.node.remove(owner) == self.expected.remove(owner)

    @invariant()
    def everybody_sees_the_same(self) -> None:
        self.node.settle()
        self.asked += 1
        query = QUERIES[self.asked % len(QUERIES)]
        for owner in OWNERS:
            expected = self.expected.seen(owner, DOCUMENTS, GROUPS, WIDTH)
            answered = seen(self.node, owner, DOCUMENTS, GROUPS, BROUGHT, query)
            for what, wanted in expected.items():
                assert answered[what] == wanted, f"{owner}, {what}: {answered[what]}, not {wanted}"

    def teardown(self) -> None:
        report = self.node.run(self.node.node.verify(full=True, progress=lambda *_: None))
        self.node.close()
        self.directory.cleanup()
        assert report["clean"], report["damage"]


@pytest.mark.timeout(120 + 30 * EXAMPLES)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_owner_sees_what_plain_dictionaries_say(engine: str) -> None:
    machine = type("Machine", (Machine,), {"engine": ENGINES[engine]})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
