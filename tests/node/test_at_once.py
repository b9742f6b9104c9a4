"""Filing, removing and reading at the same time: no errors, no stranger's words, nothing left over."""

from __future__ import annotations

import asyncio
import random

from in_process import InProcess, document, group
from snapshot import in_memory, stored

from thread_service.node.operations import (
    DocumentsRequest,
    FileRequest,
    GraphRequest,
    LibraryRequest,
    RemoveRequest,
    SearchRequest,
)
from thread_service.store.loading import load
from thread_service.store.resident import Resident

ROUNDS = 25


def test_operations_at_once_show_nothing_restricted_and_leave_a_consistent_store(node: InProcess) -> None:
    node.file("eve", document("Eve's own words about Ada Quill", id="own"))

    async def write(owner: str, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(ROUNDS):
            id = f"{owner}{chance.randrange(6)}"
            if chance.random() < 0.3:
                await node.node.remove(RemoveRequest(owner, (id,)))
                continue
            said = document(
                f"{owner} secret {chance.randrange(4)}",
                "shared words about Ada Quill",
                id=id,
                name=chance.choice((None, "Ada Quill", f"{owner} secret")),
                entities=chance.choice((None, ("Ada Quill", f"Mx {owner} secret"))),
                edges=[("Ada Quill", f"{owner} secret verb", "Ledger")],
            )
            into = None if chance.random() < 0.5 else group("g", "restricted")
            await node.node.file(
                FileRequest(owner, (said,), into, gate=chance.random() < 0.3, wait=chance.random() < 0.3)
            )

    async def read(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(ROUNDS):
            query = chance.choice(("ann secret 1", "Ada Quill", "who holds the secret of ben"))
            scope = chance.choice(("personal", "global"))
            answers = [
                await node.node.search(SearchRequest("eve", query, scope=scope, group_ids=("g",), top_k=50)),
                await node.node.graph(GraphRequest("eve", "Ada Quill", query=query, hops=3)),
                await node.node.graph(GraphRequest("eve")),
                await node.node.library(LibraryRequest("eve", include_available=True)),
                await node.node.documents(DocumentsRequest("eve", ("ann1", "ben1"), True)),
            ]
            assert "secret" not in repr(answers)
            [passage] = (await node.node.search(SearchRequest("eve", "own words"))).passages
            assert passage.document_id == "own"
            mine = await node.node.search(SearchRequest("ann", "ann secret 1", top_k=50))
            assert {passage.owner_id for passage in mine.passages} <= {"ann"}

    async def everything() -> None:
        await asyncio.gather(*(write(owner, seed) for seed, owner in enumerate(("ann", "ben") * 2)), read(5), read(6))

    node.run(everything())
    node.settle()
    loaded = Resident(node.store.resident.engine, node.store.segments)
    with node.store.read() as connection:
        load(loaded, connection, node.store.segments)
    assert in_memory(node, loaded) == in_memory(node)
    assert stored(node)["to do"] == [0, 0, 0, 0]
    node.remove("ann")
    node.remove("ben")
    node.settle()
    assert {owner for owner, _ in stored(node)["documents"]} == {"eve"}
    assert node.value("SELECT count(*) FROM contents") == 1
