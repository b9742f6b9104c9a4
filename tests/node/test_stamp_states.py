"""An index and the model that runs beside it: what matches, what is refused, and what is said about it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from in_process import WIDTH, InProcess, WordsEmbedder, document, ids, opened, until

from thread_service.errors import IndexMismatch, NotReady
from thread_service.models.embedder import Stamp

HERON = document("The heron stood in the creek.", id="a", edges=[("Heron", "stands in", "Creek")])


class Revised(WordsEmbedder):
    """A model of a named revision."""

    def __init__(self, revision: str) -> None:
        super().__init__()
        self._revision = revision

    def load(self) -> None:
        super().load()
        self.stamp = Stamp(f"{self.model}@{self.width}", self.model, self._revision, self.width)


@contextlib.contextmanager
def another(path: Path, embedder: WordsEmbedder) -> Iterator[InProcess]:
    """A later start over the same directory."""
    with opened(path, embedder) as node:
        yield node


def test_an_empty_index_takes_whatever_model_runs(tmp_path: Path) -> None:
    with opened(tmp_path) as node:
        assert node.node.embedder_health().index == "matches"
        assert node.value("SELECT count(*) FROM stamp") == 0
        node.file("ann", HERON)
        assert node.value("SELECT space FROM stamp") == f"words@{WIDTH}"
        node.remove("ann")
        node.settle()
    with another(tmp_path, WordsEmbedder("other")) as node:
        assert node.node.embedder_health().index == "matches"
        node.file("ann", HERON)
        assert node.value("SELECT space FROM stamp") == f"other@{WIDTH}"
        assert ids(node.search("ann", "heron")) == ["a"]


@pytest.mark.parametrize("is_stamped", [True, False])
def test_vectors_of_another_or_an_unknown_model_are_neither_searched_nor_added_to(
    tmp_path: Path, is_stamped: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as node:
        node.file("ann", HERON)
        if not is_stamped:
            node.store.write(lambda connection, _: connection.execute("DELETE FROM stamp")).result()
    with another(tmp_path, WordsEmbedder("other")) as node:
        health = node.node.embedder_health()
        assert health.index == ("mismatch" if is_stamped else "unstamped")
        assert health.indexed_with == (f"words@{WIDTH}" if is_stamped else None)
        with pytest.raises(IndexMismatch):
            node.file("ann", document("more", id="b"))
        assert node.search("ann", "heron").passages == ()
        # What needs no vector goes on.
        assert node.documents("ann", "a")[0].texts == HERON.texts
        assert [edge.predicate for edge in node.graph("ann", "heron").relationships] == ["stands in"]
        asked = node.graph("ann", query="what stands somewhere")
        assert asked.relationships == (), "edges are matched by vectors of the same model only"
        assert node.remove("ann", "a") == 1
    said = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert ["the index was written with" in record.getMessage() for record in said] == [True]


def test_nothing_is_filed_before_the_running_model_is_known(tmp_path: Path) -> None:
    with opened(tmp_path) as node:
        node.file("ann", HERON)
    other = WordsEmbedder("other")
    other.may_load.clear()
    with opened(tmp_path, other, ready=False) as node:
        with pytest.raises(NotReady):
            node.file("ann", document("early", id="b"), wait=False)
        other.may_load.set()
        until(lambda: node.queue.is_ready)
        with pytest.raises(IndexMismatch):
            node.file("ann", document("early", id="b"), wait=False)
        assert node.value("SELECT count(*) FROM documents") == 1


def test_another_revision_of_the_model_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def said() -> list[str]:
        return [record.getMessage() for record in caplog.records if "revision" in record.getMessage()]

    with opened(tmp_path, Revised("r1")) as node:
        node.file("ann", HERON)
    with another(tmp_path, Revised("r1")) as node:
        assert ids(node.search("ann", "heron")) == ["a"]
    assert said() == []
    with another(tmp_path, Revised("r2")) as node:
        assert node.node.embedder_health().index == "matches"
        node.file("ann", document("more", id="b"))
        assert node.value("SELECT revision FROM stamp") == "r1"
        node.remove("ann")
        node.file("ann", HERON)
        assert node.value("SELECT revision FROM stamp") == "r2", "the first vectors of an empty index stamp it anew"
    [warning] = said()
    assert "revision r1" in warning
    assert "revision r2" in warning
    with another(tmp_path, Revised("r2")):
        pass
    assert len(said()) == 1
