"""Export: an owner's documents page by page; and pages that stay within what a message holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from in_process import InProcess, document, group, unit

from thread_service.node import contents, library
from thread_service.node.operations import ExportAnswer, ExportRequest
from thread_service.store.segments import Location

IDS = ("", "a", "a\0", "a-1", "a-10", "a-2", "aé", "a\uffff", "a😀", "b", "Z")


def export(node: InProcess, owner: str, **more: Any) -> ExportAnswer:
    return node.run(node.node.export(ExportRequest(owner, **more)))


def exported(node: InProcess, owner: str, **more: Any) -> list[str]:
    answer = export(node, owner, **more)
    assert answer.documents or not answer.has_more
    return [found.document_id for found in answer.documents]


def pages(node: InProcess, owner: str, **more: Any) -> list[list[str]]:
    found, after_id = [], ""
    while True:
        answer = export(node, owner, after_id=after_id, **more)
        assert answer.documents or not answer.has_more
        found.append([filed.document_id for filed in answer.documents])
        if not answer.has_more:
            return found
        after_id = found[-1][-1]


@pytest.fixture
def filed(node: InProcess) -> InProcess:
    node.file("ann", *(document(f"text of {id!a}", id=id) for id in IDS if id), wait=False)
    node.file("ben", document("his", id="a-3"), group=group("g", "available"), wait=False)
    return node


def test_pages_hold_every_document_once_in_the_order_of_code_points(filed: InProcess) -> None:
    for limit in (1, 2, 3, 9, 10, 11, 0):
        found = pages(filed, "ann", limit=limit)
        assert [id for page in found for id in page] == sorted(id for id in IDS if id)
        assert all(len(page) == limit for page in found[:-1])
        assert found[-1]


def test_a_prefix_and_a_cursor_that_need_not_exist_narrow_it(filed: InProcess) -> None:
    for prefix in ("a", "a-", "a-1", "a\0", "a😀", "b", "c", "%", "a-1_"):
        for after_id in ("", "a-1", "a-11", "c"):
            expected = [id for id in sorted(IDS) if id and id.startswith(prefix) and id > after_id]
            assert exported(filed, "ann", prefix=prefix, after_id=after_id) == expected


def test_more_documents_than_are_looked_up_at_once_are_all_there(
    filed: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thread_service.store.documents._IDS_AT_ONCE", 2)
    assert exported(filed, "ann") == sorted(id for id in IDS if id)
    assert exported(filed, "ann", prefix="a-") == ["a-1", "a-10", "a-2"]


def test_groups_narrow_it_and_without_them_ungrouped_documents_are_covered(node: InProcess) -> None:
    node.file("ann", document("1", id="one"), group=group("g"))
    node.file("ann", document("2", id="two"), group=group("h"))
    node.file("ann", document("2", id="two"), group=group("g"))
    node.file("ann", document("3", id="three"))
    node.file("ben", document("4", id="four"), group=group("g", "available"))
    assert exported(node, "ann") == ["one", "three", "two"]
    assert exported(node, "ann", group_ids=("g",)) == ["one", "two"]
    assert exported(node, "ann", group_ids=("h", "unknown")) == ["two"]
    assert exported(node, "ann", group_ids=("unknown",)) == []
    assert export(node, "ann", prefix="two").documents[0].group_id == "g"


def test_an_owner_of_nothing_exports_nothing_of_others(filed: InProcess) -> None:
    assert export(filed, "eve") == ExportAnswer(())
    assert export(filed, "") == ExportAnswer(())


def test_an_export_equals_the_deposit_before_it_is_embedded_and_after_a_restart(node: InProcess) -> None:
    vector = np.frombuffer(np.arange(16, dtype="<f4").tobytes(), "<f4").copy()
    vector[0] = -0.0
    said = document("one\0", "", "two", id="a", name="A", metadata=b"\0\xff", vectors=[vector, vector, None])
    node.embedder.open.clear()
    node.file("ann", said, wait=False)
    before = export(node, "ann", include_embeddings=True).documents
    node.embedder.open.set()
    again = node.reopened()
    try:
        again.settle()
        for (found,) in (before, export(again, "ann", include_embeddings=True).documents):
            assert (found.texts, found.name, found.metadata) == (("one\0", "", "two"), "A", b"\0\xff")
            assert [part.embedding.tobytes() for part in found.partitions] == [vector.tobytes(), vector.tobytes(), b""]
        assert export(again, "ann").documents[0].partitions == ()
    finally:
        again.close()


def test_a_page_that_grows_too_large_is_cut_before_the_document_that_does_not_fit(
    node: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "PAGE_BYTES_MAX", 1_000)
    monkeypatch.setattr(contents, "WHOLE_PAGE_BYTES_MAX", 2_000)
    sizes = {"a": 300, "b": 300, "c": 5_000, "d": 300, "e": 1_000, "f": 10}
    node.file("ann", *(document("é" * (size // 2), id=id) for id, size in sizes.items()), wait=False)
    assert pages(node, "ann", limit=100) == [["a", "b"], ["c"], ["d"], ["e"], ["f"]]
    assert pages(node, "ann") == [["a", "b"], ["c"], ["d", "e", "f"]]


def test_documents_that_do_not_fit_are_marked_as_cut(node: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "ANSWER_BYTES_MAX", 1_000)
    node.file("ann", *(document("x" * 400, id=id, vectors=[unit(1)]) for id in "abc"), wait=False)
    assert [found.document_id for found in node.documents("ann", "a", "b", "c")] == ["a"]
    assert [found.document_id for found in node.documents("ann", "c", "unknown")] == ["c"]


def test_a_library_page_that_grows_too_large_is_cut_between_group_ids(
    node: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "WHOLE_PAGE_BYTES_MAX", 2_000)
    monkeypatch.setattr(library, "PAGE_BYTES_MAX", 2_000)
    for owner in ("ann", "ben"):
        for name in ("g", "h", "i"):
            node.file(owner, document("x", id=name * 300), group=group(name, "available"), wait=False)
    for limit in (0, 2):
        found, after_id, has_more = [], "", True
        while has_more:
            answer = node.library("ann", include_available=True, after_id=after_id, limit=limit)
            found.append([group.group_id for group in answer.groups])
            after_id, has_more = found[-1][-1], answer.has_more
        assert found == [["g", "g"], ["h", "h"], ["i", "i"]]


def test_reading_a_vector_while_everything_is_cleared_finds_nothing_and_no_error(
    node: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.file("ann", document("heron", id="a", vectors=[unit(1)]))
    read_checked = node.store.segments.read_checked

    def after_a_clear(locations: Sequence[Location]) -> Any:
        monkeypatch.setattr(node.store.segments, "read_checked", read_checked)
        node.store.clear(lambda _: None)
        return read_checked(locations)

    monkeypatch.setattr(node.store.segments, "read_checked", after_a_clear)
    assert node.documents("ann", "a", embeddings=True) == ()
