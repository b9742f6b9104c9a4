"""Documents that take long, or that cannot be indexed for no reason the node knows: nobody else waits for them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from in_process import InProcess, document, opened, until

from thread_service.node import document_batches
from thread_service.store import graph


def ids(node: InProcess, query: str) -> set[str]:
    return {passage.document_id for passage in node.search("ann", query, graph_mode="off").passages}


def test_documents_overtake_one_with_long_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_batches, "LONG_BYTES", 50_000)
    with opened(tmp_path) as node:
        node.embedder.open.clear()
        node.file("ann", document("held", id="held"), wait=False)
        book = [f"chapter {number} {'tide ' * 1_600}" for number in range(20)]  # two of them fill a batch of the model
        node.file("ann", document(*book, id="book"), wait=False)
        for number in range(3):
            node.file("ann", document(f"note {number}", id=f"note {number}"), wait=False)
        node.embedder.open.set()
        node.settle()
        order = [text.split(" ")[0] for text, _ in node.embedder.embedded]
        assert order.count("chapter") == 20
        assert order.index("note") < 8
        assert "chapter" in order[order.index("note") :]
        assert ids(node, "note") >= {"note 0", "note 1", "note 2"}
        assert "book" in ids(node, "chapter 19")


class Faulty:
    """`graph.contribute`, which fails for the documents in `faulty` as long as they are in it."""

    def __init__(self, node: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
        self.faulty: set[str] = set()
        self.attempts: list[str] = []
        contribute = graph.contribute

        def fails(connection: Any, document_key: int, *more: Any) -> None:
            [(document_id,)] = connection.execute(
                "SELECT document_id FROM documents WHERE document_key = ?", (document_key,)
            ).fetchall()
            if document_id in self.faulty:
                self.attempts.append(document_id)
                raise ZeroDivisionError("no fault that anybody foresaw")
            contribute(connection, document_key, *more)

        monkeypatch.setattr(graph, "contribute", fails)


def test_a_document_at_fault_is_given_up_and_the_others_of_its_batch_are_searchable_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("thread_service.node.indexing.RETRY_SECONDS", 0.01)
    with opened(tmp_path) as node, caplog.at_level(logging.ERROR, "thread_service.node.document_batches"):
        fault = Faulty(node, monkeypatch)
        fault.faulty = {"bad"}
        filed = node.file("ann", *(document(f"text of {each}", id=each) for each in ("one", "bad", "two")))
        assert filed.outcomes == ("new", "failed", "new")
        assert ids(node, "text") == {"one", "two"}
        # Once with its batch, then alone until it is given up.
        assert fault.attempts == ["bad"] * (1 + document_batches.ATTEMPTS)
        assert "it could not be indexed: ZeroDivisionError" in caplog.text
        assert node.rows("SELECT failure FROM contents WHERE state = 'failed'") == [
            ("it could not be indexed: ZeroDivisionError",)
        ]
        fault.faulty = set()
        assert node.file("ann", document("text of bad", id="bad")).outcomes != ("failed",)
        assert ids(node, "text") == {"one", "two", "bad"}


def test_a_document_that_failed_once_is_tried_again_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thread_service.node.indexing.RETRY_SECONDS", 0.01)
    with opened(tmp_path) as node:
        fault = Faulty(node, monkeypatch)
        fault.faulty = {"bad"}
        node.file("ann", document("text of bad", id="bad"), wait=False)
        until(lambda: bool(fault.attempts))
        fault.faulty = set()
        node.settle()
        assert ids(node, "text") == {"bad"}


@pytest.mark.parametrize("size", [1, 200_000], ids=["short", "long"])
def test_a_document_that_cannot_be_read_from_the_store_is_given_up_and_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr("thread_service.node.indexing.RETRY_SECONDS", 0.01)
    load, faulty, attempts = document_batches.load, {"bad"}, list[str]()

    def fails(connection: Any, documents: Any) -> Any:
        for each in documents:
            [(document_id,)] = connection.execute(
                "SELECT document_id FROM documents WHERE document_key = ?", (each.document_key,)
            ).fetchall()
            if document_id in faulty:
                attempts.append(document_id)
                raise ZeroDivisionError("no fault that anybody foresaw")
        return load(connection, documents)

    monkeypatch.setattr(document_batches, "load", fails)
    with opened(tmp_path) as node:
        texts = {"one": "text of one", "bad": "text of bad" + " more" * size, "two": "text of two"}
        filed = node.file("ann", *(document(text, id=each) for each, text in texts.items()))
        assert filed.outcomes == ("new", "failed", "new")
        assert ids(node, "text") == {"one", "two"}
        assert document_batches.ATTEMPTS <= len(attempts) <= 2 * document_batches.ATTEMPTS
        assert node.rows("SELECT failure FROM contents WHERE state = 'failed'") == [
            ("it could not be indexed: ZeroDivisionError",)
        ]
        faulty.clear()
        assert node.file("ann", document(texts["bad"], id="bad")).outcomes != ("failed",)
        assert ids(node, "text") == {"one", "two", "bad"}
