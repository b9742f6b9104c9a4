"""A full disk: deposits are refused, what was accepted waits, reads go on, and with room everything goes on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import Faults, FaultyFiles, FaultyVfs
from in_process import InProcess, document, ids, opened, until

from thread_service.errors import StorageFull


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[tuple[InProcess, Faults]]:
    faults = Faults(tmp_path)
    vfs = FaultyVfs("node-disk", faults)
    options = {"vfs": "node-disk", "files": FaultyFiles(faults)}
    with opened(tmp_path / "data", store_options=options) as node:
        yield node, faults
        faults.space = None
    vfs.unregister()


def test_a_deposit_that_finds_no_room_is_refused_whole_and_taken_when_there_is_room(
    disk: tuple[InProcess, Faults],
) -> None:
    node, faults = disk
    node.file("ann", document("the heron", id="a", name="Heron"))
    faults.space = 0
    for _ in range(3):
        with pytest.raises(StorageFull) as refused:
            node.file("ann", document("the creek " * 9_000, id="b"), group="g")
        assert refused.value.http_status == 507
    with pytest.raises(StorageFull):
        node.remove("ann")
    assert ids(node.search("ann", "heron")) == ["a"]
    assert node.documents("ann", "b") == ()
    assert node.library("ann").groups == ()
    assert [entity.name for entity in node.graph("ann").entities] == ["Heron"]

    faults.space = None
    node.file("ann", document("the creek " * 9_000, id="b"), group="g")
    assert set(ids(node.search("ann", "heron creek"))) == {"a", "b"}


def test_what_was_accepted_before_the_disk_filled_is_indexed_when_there_is_room(
    disk: tuple[InProcess, Faults], caplog: pytest.LogCaptureFixture
) -> None:
    node, faults = disk
    node.embedder.open.clear()
    node.file("ann", document("the heron", id="a", edges=[("Heron", "eats", "Crab")]), wait=False)
    faults.space = 0
    with caplog.at_level(logging.WARNING):
        node.embedder.open.set()
        until(lambda: "the disk is full" in caplog.text)
    assert node.documents("ann", "a")[0].texts == ("the heron",)
    assert node.search("ann", "heron").passages == ()
    faults.space = None
    node.settle()
    assert ids(node.search("ann", "heron")) == ["a"]
    assert len(node.graph("ann", "crab").relationships) == 1
    again = node.reopened(store_options={})
    try:
        assert ids(again.search("ann", "heron")) == ["a"]
    finally:
        again.close()
