"""Deposits, re-deposits, removals and changes of access, in any order, leave what filing the survivors leaves."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from in_process import InProcess, document, group, opened, unit
from snapshot import in_memory, stored

from thread_service.node.operations import Access, DocumentIn
from thread_service.store import documents
from thread_service.store.loading import load
from thread_service.store.resident import Resident

OWNERS = ("ann", "ben")
IDS = ("one", "two", "three")
TEXTS: tuple[DocumentIn, ...] = (
    document("Ada Quill keeps the Tidal Ledger.", "Orrin Vale built the Long Clock for Ada Quill."),
    document("The ledger of Port Selwyn names Quill, not Ada Quill Hall."),
    document("Ada Quill Hall stands in Port Selwyn."),
    document("keeps = lambda ledger: ledger", media_type="code"),
    document("Port Selwyn by night", "  ", vectors=[unit(1, 2, width=32), None]),
    document("  "),
)
NAMES = (None, "Ada Quill", "Tidal Ledger", "ledger", "Port Selwyn")
ENTITIES = (
    None,
    (),
    (("Ada Quill", "person"), ("ADA QUILL", "person"), "Port Selwyn"),
    (("Ada Quill Hall", "place"), ("Quill", "person")),
    (("quill", "tool"), ("Ledger", "book"), ("Tidal Ledger", "document")),
)
EDGES = (
    (),
    (("Ada Quill", "keeps", "Tidal Ledger"), ("ada quill", "Keeps", "Tidal  Ledger")),
    (("Orrin Vale", "built", "Long Clock"), ("Ada Quill", "keeps", "Port Selwyn")),
)


@dataclass(frozen=True)
class Deposit:
    owner: str
    id: str
    said: DocumentIn
    group_id: str | None
    access: Access | None
    gate: bool
    wait: bool


@dataclass(frozen=True)
class Removal:
    owner: str
    ids: tuple[str, ...]


@dataclass
class Filed:
    """What is there of a document: what was said last, its groups (the newest last), and its access."""

    said: DocumentIn
    groups: list[str] = field(default_factory=list)
    access: Access = "restricted"


def _said(content: DocumentIn, name: str | None, entities: object, edges: object, metadata: bytes) -> DocumentIn:
    told = document(*content.texts, name=name, entities=entities, edges=edges)  # type: ignore[arg-type]
    return replace(content, name=name, metadata=metadata, entities=told.entities, relationships=told.relationships)


SAID = st.builds(
    _said,
    st.sampled_from(TEXTS),
    st.sampled_from(NAMES),
    st.sampled_from(ENTITIES),
    st.sampled_from(EDGES),
    st.sampled_from((b"", b"\0\xff")),
)
DEPOSITS = st.builds(
    Deposit,
    st.sampled_from(OWNERS),
    st.sampled_from(IDS),
    SAID,
    st.sampled_from((None, "g", "h")),
    st.sampled_from((None, "available", "restricted")),
    st.booleans(),
    st.booleans(),
)
REMOVALS = st.builds(
    Removal, st.sampled_from(OWNERS), st.lists(st.sampled_from(IDS), max_size=2, unique=True).map(tuple)
)


class Expected:
    """The rules of ownership, groups and access, on plain dictionaries."""

    def __init__(self) -> None:
        self.filed: dict[tuple[str, str], Filed] = {}
        self.groups: dict[tuple[str, str], Access] = {}

    def deposit(self, step: Deposit) -> None:
        key = (step.owner, step.id)
        group_key = (step.owner, step.group_id or "")
        if step.group_id is not None:
            if group_key in self.groups and step.access is not None:
                for (owner, _), filed in self.filed.items():
                    if owner == step.owner and step.group_id in filed.groups:
                        filed.access = step.access
            self.groups[group_key] = step.access or self.groups.get(group_key, "restricted")
        known = self.filed.get(key)
        if known is None:
            known = self.filed[key] = Filed(step.said)
        elif step.gate and _content(known.said) == _content(step.said) and not _is_blank(step.said):
            if step.group_id is None or step.group_id in known.groups:
                return
        else:
            known.said = step.said
        if step.group_id is not None:
            known.groups = [*(g for g in known.groups if g != step.group_id), step.group_id]
            known.access = self.groups[group_key]

    def remove(self, step: Removal) -> int:
        gone = [key for key in self.filed if key[0] == step.owner and (key[1] in step.ids or not step.ids)]
        for key in gone:
            del self.filed[key]
        if not step.ids:
            self.groups = {key: access for key, access in self.groups.items() if key[0] != step.owner}
        return len(gone)


def _is_blank(said: DocumentIn) -> bool:
    return not any(text.strip() for text in said.texts)


def _content(said: DocumentIn) -> object:
    return said.media_type, said.texts, [part.embedding is not None for part in said.partitions]


def _file_afresh(node: InProcess, expected: Expected) -> None:
    for (owner, id), filed in expected.filed.items():
        said = replace(filed.said, document_id=id)
        node.file(owner, said)
        for group_id in filed.groups:
            node.file(owner, said, group=group_id, gate=True)
    access = {(owner, id): filed.access for (owner, id), filed in expected.filed.items()}
    for key, owner, id in node.rows(
        "SELECT document_key, owner_id, document_id FROM documents JOIN owners USING (owner_key)"
    ):
        wanted = access[owner, id]
        node.store.write(
            lambda connection, changes, key=key, wanted=wanted: documents.set_access(connection, [key], wanted, changes)
        ).result()
    node.settle()


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(DEPOSITS | DEPOSITS | DEPOSITS | REMOVALS, min_size=2, max_size=14))
def test_what_is_left_is_as_if_only_that_had_been_filed(steps: list[Deposit | Removal]) -> None:
    expected = Expected()
    with tempfile.TemporaryDirectory() as directory, opened(Path(directory) / "any order") as node:
        for step in steps:
            if isinstance(step, Deposit):
                if step.gate and _is_blank(step.said):
                    node.settle()  # the gate takes again what has failed, and lets wait what is still to fail
                into = None if step.group_id is None else group(step.group_id, step.access)
                node.file(
                    step.owner, replace(step.said, document_id=step.id), group=into, gate=step.gate, wait=step.wait
                )
                expected.deposit(step)
            else:
                assert node.remove(step.owner, *step.ids) == expected.remove(step)
        node.settle()
        with opened(Path(directory) / "afresh") as fresh:
            _file_afresh(fresh, expected)
            assert stored(node) == stored(fresh)
            memory = in_memory(node)
            assert memory == in_memory(fresh)
        # A memory built from the store equals the one that followed every write.
        loaded = Resident(node.store.resident.engine, node.store.segments)
        with node.store.read() as connection:
            load(loaded, connection, node.store.segments)
        assert in_memory(node, loaded) == memory
