"""Compaction beside everything else a node does."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import numpy as np
import pytest
from in_process import InProcess, document, ids, until

from thread_service.errors import NotReady
from thread_service.node.operations import DocumentsRequest, FileRequest, RemoveRequest, SearchRequest
from thread_service.store import compaction


def test_answers_are_the_same_before_and_after_a_compaction_and_after_a_restart(node: InProcess) -> None:
    for number in range(30):
        edges = [(f"Person {number}", "knows", "Ann Lee")]
        node.file("ann", document(f"heron number{number}", id=f"{number}", name=f"Person {number}", edges=edges))
    node.remove("ann", *(f"{number}" for number in range(0, 30, 2)))
    node.settle()

    def answers(node: InProcess) -> list[object]:
        found = [node.search("ann", query, top_k=10) for query in ("number7", "who knows Ann Lee", "heron")]
        passages = [[(p.document_id, p.distance, p.text) for p in answer.passages] for answer in found]
        return [passages, node.graph("ann", "Ann Lee")]

    before = answers(node)
    done = node.run(node.node.compact(lambda _: None))
    assert done.rows >= 30  # partitions and their edges
    assert answers(node) == before
    again = node.reopened()
    try:
        assert answers(again) == before
        assert again.run(again.node.compact(lambda _: None)).rows == 0
    finally:
        again.close()


def test_filing_searching_reading_and_removing_go_on_while_it_compacts(
    node: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "MOVE_ROWS", 2)
    brought = {f"text {number}": node.embedder.vector(f"text{number}") for number in range(30)}
    node.file("ann", *(document(f"{key}", id=key, vectors=[vector]) for key, vector in brought.items()))
    done = asyncio.Event()

    async def compact() -> int:
        rounds = 0
        while not done.is_set():
            await node.node.compact(lambda _: None)
            rounds += 1
        return rounds

    async def use() -> None:
        for number in range(15):
            assert await node.node.remove(RemoveRequest("ann", (f"text {number}",))) == 1
            key, vector = f"new {number}", node.embedder.vector(f"new{number}")
            brought[key] = vector
            fresh = document(key, id=key, vectors=[vector])
            await node.node.file(FileRequest("ann", (fresh,), wait=True))
            for wanted in (key, f"text {number + 15}"):
                found = await node.node.search(SearchRequest("ann", query_embedding=brought[wanted], top_k=1))
                assert ids(found) == [wanted]
            read = await node.node.documents(DocumentsRequest("ann", (key, f"text {number + 15}"), True))
            for content in read.documents:
                assert np.array_equal(content.partitions[0].embedding, brought[content.document_id])
        done.set()

    async def both() -> int:
        rounds, _ = await asyncio.gather(compact(), use())
        return rounds

    assert node.run(both()) > 1
    left = {content.document_id for content in node.documents("ann", *brought)}
    assert left == {*brought} - {f"text {number}" for number in range(15)}


def test_a_compaction_ends_when_the_node_stops(node: InProcess, tmp_path: Path) -> None:
    node.file("ann", *(document(f"text {number}", id=f"{number}") for number in range(4)))
    node.remove("ann", "0")
    with node.store.appending():
        reported = list[str]()
        outcome = list[BaseException]()

        def work() -> None:
            try:
                node.store.compact(reported.append)
            except NotReady as error:
                outcome.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        node.node.stop()
    thread.join(10)
    until(lambda: not thread.is_alive())
    assert "stopping" in str(outcome[0])
    assert len(node.documents("ann", "1", "2", "3")) == 3
