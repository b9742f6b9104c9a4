"""What a node logs: one line a search, a deposit and a round of indexing, in numbers only."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from in_process import InProcess, document, group, unit

from thread_service.errors import InvalidRequest
from thread_service.logs import Event


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[dict[str, Any]]:
    found = [record.msg for record in caplog.records if isinstance(record.msg, Event)]
    return [dict(event.fields) for event in found if event.name == name]


def test_a_deposit_and_its_indexing_are_a_line_each(node: InProcess, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "thread_service")
    node.embedder.refused = {"bad"}
    node.file("ann", document("älter", "b", id="one"), document("c", id="two"), group="g")
    node.file("ann", document("älter", "b", id="one"), group="g", gate=True)
    node.file("ann", document("bad", id="three"), document("c", id="two"))
    first, gated, last = events(caplog, "deposit")
    assert first.pop("committed_ms") > 0
    assert first == {
        "documents": 2, "partitions": 3, "new": 2, "replaced": 0, "linked": 0, "skipped": 0, "removed": 0, "bytes": 8
    }  # fmt: skip
    assert (gated["new"], gated["skipped"], last["new"], last["replaced"]) == (0, 1, 1, 1)
    rounds = events(caplog, "searchable")
    assert {"total_ms", "embed_ms", "index_ms"} < {*rounds[0]}
    assert [sum(each[name] for each in rounds) for name in ("documents", "failed", "texts")] == [3, 1, 4]


@pytest.mark.parametrize("mode", ["boost", "narrow", "off"])
def test_a_search_is_a_line_that_says_where_the_time_went(
    node: InProcess, caplog: pytest.LogCaptureFixture, mode: Any
) -> None:
    node.file("ann", document("a heron", id="one"), document("an owl", id="two"))
    caplog.set_level(logging.INFO, "thread_service")
    node.search("ann", "heron 🙂", graph_mode=mode)
    with pytest.raises(InvalidRequest):
        node.search("ann", " ")
    [line] = events(caplog, "search")
    phases = {"narrow_ms"} if mode == "narrow" else {"scan_ms", "rescore_ms", "evidence_ms", "join_ms"}
    assert {*phases, "embed_ms", "words_ms", "names_ms", "show_ms"} <= {*line}
    assert (line["mode"], line["query_chars"], line["results"]) == (mode, 7, 2)
    one_after_another = phases - {"scan_ms", "rescore_ms"} | {"embed_ms", "show_ms"}
    assert 0 < sum(line[name] for name in one_after_another) <= line["total_ms"] + 1


def test_nothing_that_callers_say_is_in_the_log(node: InProcess, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    node.embedder.refused = {"Sagbar text"}
    said = document(
        "Sagbar one", id="Sagbar id", name="Sagbar Name", entities=["Sagbar entity"],
        edges=[("Sagbar entity", "sagbar", "Sagbar other")], metadata=b"Sagbar metadata",
    )  # fmt: skip
    node.file("sagbar owner", said, group=group("Sagbar group", label="Sagbar label"))
    node.file("sagbar owner", document("brought Sagbar", id="Sagbar 2", vectors=[unit(1)]))
    node.search("sagbar owner", "who is Sagbar Name", entities=("Sagbar entity",))
    node.graph("sagbar owner", "Sagbar entity")
    node.documents("sagbar owner", "Sagbar id")
    node.remove("sagbar owner", "Sagbar id")
    node.settle()
    node.run(node.node.compact(lambda _: None))
    node.run(node.node.verify(full=True, progress=lambda *_: None))
    assert events(caplog, "search")
    assert "sagbar" not in caplog.text.lower()
