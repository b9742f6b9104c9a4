"""Writes that contradict each other, at once: one of the two orders has happened, and the answers say which."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from in_process import InProcess, document, group, opened
from snapshot import stored

from thread_service.node.operations import FileRequest, RemoveRequest, UpdateDocumentRequest, UpdateGroupRequest

ROUNDS = 12
OLD = document("Orrin Vale built the Long Clock.", id="a", name="Old", edges=[("Orrin Vale", "built", "Long Clock")])
NEW = document("Ada Quill keeps the Tidal Ledger.", id="a", name="New", edges=[("Ada Quill", "keeps", "Ledger")])


@pytest.fixture
def state_after(tmp_path: Path) -> Callable[..., Any]:
    """What a node holds that was only ever asked this."""
    known: dict[str, Any] = {}

    def after(name: str, *deposits: FileRequest) -> Any:
        if name not in known:
            with opened(tmp_path / f"only {name}") as node:
                for deposit in deposits:
                    node.run(node.node.file(deposit))
                node.settle()
                known[name] = stored(node)
        return known[name]

    return after


def at_once(node: InProcess, seed: int, *operations: Callable[[], Any]) -> list[Any]:
    """The answers, in the order of the operations, which start in a chance order with a chance pause between."""
    chance = random.Random(seed)
    order = list(range(len(operations)))
    chance.shuffle(order)

    async def together() -> list[Any]:
        begun: dict[int, asyncio.Task[Any]] = {}
        for index in order:
            begun[index] = asyncio.ensure_future(operations[index]())
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
        return [await begun[index] for index in range(len(operations))]

    answers = node.run(together())
    node.settle()
    return answers


@pytest.mark.parametrize("wait", [False, True])
def test_a_redeposit_against_a_removal(node: InProcess, state_after: Callable[..., Any], wait: bool) -> None:
    present = state_after("new", FileRequest("ann", (NEW,)))
    absent = state_after("nothing")
    for seed in range(ROUNDS):
        node.file("ann", OLD)
        filed, removed = at_once(
            node,
            seed,
            lambda: node.node.file(FileRequest("ann", (NEW,), wait=wait)),
            lambda: node.node.remove(RemoveRequest("ann", ("a",))),
        )
        assert removed == 1
        assert stored(node) == {"new": present, "replaced": absent}[filed.outcomes[0]]
        node.remove("ann")


def test_filing_against_clearing(node: InProcess, state_after: Callable[..., Any]) -> None:
    request = FileRequest("ann", (document(*NEW.texts, id="b", edges=[("Ada Quill", "keeps", "Ledger")]),))
    present, absent = state_after("b", request), state_after("nothing")
    for seed in range(ROUNDS):
        node.file("ann", OLD)
        _, cleared = at_once(node, seed, lambda: node.node.file(request), node.node.clear)
        assert stored(node) == {1: present, 2: absent}[cleared.documents]
        node.run(node.node.clear())


def test_filing_into_a_group_against_removing_everything(node: InProcess) -> None:
    for seed in range(ROUNDS):
        node.file("ann", OLD, group=group("g", label="old"))
        filed, removed = at_once(
            node,
            seed,
            lambda: node.node.file(FileRequest("ann", (NEW,), group("g", label="new"))),
            lambda: node.node.remove(RemoveRequest("ann")),
        )
        assert removed == 1
        groups = [(found.label, [held.name for held in found.documents]) for found in node.library("ann").groups]
        assert groups == {"new": [("new", ["New"])], "replaced": []}[filed.outcomes[0]]
        node.remove("ann")


def test_one_group_opened_and_closed_while_documents_come_and_leave(node: InProcess) -> None:
    others = [document(f"text {number}", id=str(number)) for number in range(4)]
    for seed in range(ROUNDS):
        node.file("ann", OLD, *others[:2], group=group("g", "restricted" if seed % 2 else "available"))
        node.file("ann", document("elsewhere", id="3"), group=group("h", "restricted"))
        at_once(
            node,
            seed,
            lambda: node.node.update_group(UpdateGroupRequest("ann", "g", access="available")),
            lambda: node.node.update_group(UpdateGroupRequest("ann", "g", access="restricted")),
            lambda: node.node.file(FileRequest("ann", (NEW, others[2]), group("g"))),
            lambda: node.node.remove(RemoveRequest("ann", ("0",))),
            lambda: node.node.update_document(UpdateDocumentRequest("ann", "3", group_id="g")),
        )
        [opened_group, _] = node.library("ann").groups
        held = {found.document_id for found in opened_group.documents}
        assert held == {"a", "1", "2", "3"}
        readable = {found.document_id for found in node.documents("eve", "a", "0", "1", "2")}
        assert readable == (held - {"3"} if opened_group.access == "available" else set())
        shown = {passage.document_id for passage in node.search("eve", "text", scope="global", top_k=50).passages}
        assert shown - {"3"} == readable
        node.remove("ann")
