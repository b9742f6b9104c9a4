"""A copy of the files at one moment is what a killed process leaves: what a node makes of it."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
from in_process import InProcess, WordsEmbedder, document, ids, opened, unit

from thread_service.store.segments import Segments
from thread_service.store.store import Store


def shown(node: InProcess) -> tuple[object, ...]:
    """All that ann can see of it, but for when documents were filed."""
    groups = [
        (group.group_id, group.access, {each.document_id: each.name for each in group.documents})
        for group in node.library("ann").groups
    ]
    filed = [document_id for (document_id,) in node.rows("SELECT document_id FROM documents ORDER BY document_id")]
    documents = [dataclasses.replace(each, created_at=0) for each in node.documents("ann", *filed)]
    return groups, documents, node.graph("ann")


def test_a_retry_of_what_was_committed_and_never_answered_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_content = document("the creek", entities=["Creek"], edges=[("Creek", "feeds", "Lake")])
    by_id = document("the heron", id="a", name="Heron", entities=["Heron"], vectors=[unit(1)])
    with opened(tmp_path / "data") as node:
        node.file("ann", document("the lake", id="lake"))
        publish = Store.publish

        def crash(store: Store, changes: object) -> None:
            # Committed, and nobody knows of it yet.
            monkeypatch.setattr(Store, "publish", publish)
            shutil.copytree(tmp_path / "data", tmp_path / "left")
            publish(store, changes)

        monkeypatch.setattr(Store, "publish", crash)
        node.file("ann", by_content, by_id, group="g")
    embedder = WordsEmbedder()
    with opened(tmp_path / "left", embedder) as node:
        node.settle()
        before = shown(node)
        for gate, outcome in ((True, "skipped"), (False, "replaced")):
            again = node.file("ann", by_content, by_id, group="g", gate=gate)
            assert again.outcomes == (outcome, outcome)
            node.settle()
            assert shown(node) == before
        assert embedder.count("the creek") == 1
        assert node.value("SELECT count(*) FROM documents") == 3
        assert node.value("SELECT count(*) FROM vectors WHERE purpose IN ('model', 'caller')") == 3
        assert ids(node.search("ann", "creek"))[0] == again.document_ids[0]


def test_vectors_that_were_written_and_never_committed_are_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "data") as node:
        node.file("ann", document("the lake", id="lake"))
        sync = Segments.sync

        def crash(segments: Segments) -> None:
            sync(segments)
            monkeypatch.setattr(Segments, "sync", sync)
            shutil.copytree(tmp_path / "data", tmp_path / "left")

        monkeypatch.setattr(Segments, "sync", crash)
        node.file("ann", document("the heron", "the creek", id="a"))
    [segment] = (tmp_path / "left").glob("nodes/*/vectors/*.f32")
    row_bytes = 4 * node.embedder.width
    tail = segment.read_bytes()[row_bytes : 3 * row_bytes]
    assert any(tail)
    with opened(tmp_path / "left") as node:
        node.settle()
        places = [(0,), (1,), (2,)]
        assert node.rows("SELECT slot FROM vectors WHERE purpose = 'model' ORDER BY slot") == places
        assert node.value("SELECT sum(slots) FROM segments") == 3
        assert segment.read_bytes()[row_bytes : 3 * row_bytes] == tail  # indexed again into the same place
        assert ids(node.search("ann", "heron")) == ["a", "lake"]
        assert node.run(node.node.verify(full=True, progress=lambda *_: None))["damage"] == []
