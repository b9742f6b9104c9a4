"""Documents read by an instruct model behind everything else, against a server that misbehaves."""

from __future__ import annotations

import asyncio
import logging
import ssl
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

sys.path.append(str(Path(__file__).parents[1] / "models"))

import embeddings_server as does
from chat_server import ChatServer, graph, says
from embeddings_server import running
from in_process import InProcess, WordsEmbedder, document, happens, ids, until
from snapshot import stored

from thread_service.errors import InvalidRequest, NotReady
from thread_service.models import http_api, turn
from thread_service.models.extraction import extractor as extractors
from thread_service.models.extraction.chat_api import ChatApi
from thread_service.models.extraction.extractor import InstructExtractor
from thread_service.node import extracting
from thread_service.store import pending
from thread_service.text.policy import CoMention, Policy

_NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
SLOTS = 3
TEXT = "Ada Quill met Orrin Vale at the harbour harbour."
KEYWORDS = {"harbour", "orrin", "quill", "vale"}
FOUND = {("Ada Quill", "person"), ("Orrin Vale", "person")}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each client would read all certificates of the machine anew, for connections that use none.
    monkeypatch.setattr(http_api.httpx, "Client", partial(httpx.Client, verify=_NO_CERTIFICATES))
    monkeypatch.setattr(turn, "FIRST_PAUSE_SECONDS", 0.002)
    monkeypatch.setattr(turn, "LONGEST_PAUSE_SECONDS", 0.01)
    for name in ("RETRY_SECONDS", "LOOK_SECONDS", "PROGRESS_SECONDS"):
        monkeypatch.setattr(extracting, name, 0.01)


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with running(ChatServer()) as server:
        yield server


def extractor(server: ChatServer) -> InstructExtractor:
    return InstructExtractor(ChatApi(server.url, "m", lambda: ""), slots=SLOTS, request_seconds=60)


@pytest.fixture
def make(server: ChatServer, tmp_path: Path) -> Iterator[Callable[..., InProcess]]:
    opened: list[InProcess] = []

    def node(*, read: bool = True, embedder: WordsEmbedder | None = None) -> InProcess:
        """Over the same directory; the one before is closed. `read`: with a model."""
        if opened:
            opened.pop().close()
        opened.append(InProcess(tmp_path / "data", embedder, extractor=extractor(server) if read else None))
        return opened[-1]

    yield node
    server.gate.set()
    opened.pop().close()


@pytest.fixture
def node(make: Callable[..., InProcess]) -> InProcess:
    return make()


def entities(node: InProcess, owner: str = "ann") -> set[tuple[str, str]]:
    return {(entity.name, entity.kind) for entity in node.graph(owner, limit=1_000).entities}


def edges(node: InProcess, owner: str = "ann") -> set[tuple[str, str, str]]:
    answer = node.graph(owner, limit=1_000)
    names = {entity.entity_id: entity.name for entity in answer.entities}
    return {(names[edge.subject_id], edge.predicate, names[edge.object_id]) for edge in answer.relationships}


def left(node: InProcess) -> list[Any]:
    """Why each document that is still to be read is put off; None for one that waits."""
    return [reason for (reason,) in node.rows("SELECT put_off FROM unextracted ORDER BY document_key")]


def caught_up(node: InProcess) -> None:
    until(lambda: None not in left(node) and node.is_idle)


def is_whole(node: InProcess) -> bool:
    said: list[str] = []
    return bool(node.run(node.node.verify(full=True, progress=lambda text, *_: said.append(text)))["clean"])


def filed(node: InProcess, *texts: str, **more: Any) -> None:
    """Documents that nobody described, each called by its text."""
    node.file("ann", *(document(text, id=text, entities=None, **more) for text in texts))


# ------------------------------------------------------------------------------------------------ what is found


def test_what_the_model_finds_takes_the_place_of_keywords_and_what_was_given_stays(
    server: ChatServer, node: InProcess
) -> None:
    empty = stored(node)
    server.gate.clear()
    filed(node, TEXT, edges=[("Ada Quill", "keeps", "Tidal Ledger")])
    assert ids(node.search("ann", "harbour")) == [TEXT]
    given = {("Ada Quill", "concept"), ("Tidal Ledger", "concept")}
    assert {name for name, _ in entities(node) - given} == KEYWORDS
    server.gate.set()
    caught_up(node)
    assert entities(node) == FOUND | given
    assert edges(node) == {("Ada Quill", "keeps", "Tidal Ledger"), ("Ada Quill", "knows", "Orrin Vale")}
    assert node.value("SELECT count(*) FROM vectors WHERE purpose = 'relationship'") == 2
    assert is_whole(node)
    node.remove("ann", TEXT)
    node.settle()
    assert stored(node) == empty


def test_extracted_names_are_linked_wherever_a_text_holds_them(node: InProcess) -> None:
    node.file("ann", document("orrin vale, in small letters", id="other"))
    filed(node, TEXT)
    caught_up(node)
    assert ("other", "Orrin Vale") in node.mentions("ann")


def test_documents_that_were_described_are_not_read(server: ChatServer, node: InProcess) -> None:
    node.file("ann", document(TEXT, id="a", entities=["Tide"]), document(TEXT, id="b", entities=[]))
    filed(node, "Mary Shell")
    caught_up(node)
    assert server.prompts == ["Mary Shell"]
    assert left(node) == []
    filed(node, TEXT)
    caught_up(node)
    node.file("ann", document(TEXT, id=TEXT, entities=["Tide"]))
    assert entities(node) == {("Tide", "concept"), ("Mary Shell", "person")}


def test_the_policy_counts_for_what_is_found(server: ChatServer, node: InProcess) -> None:
    paired = CoMention(enabled=True, predicate="with")
    policy = Policy(predicate_aliases={"knows": "has met"}, max_entities=3, co_mention=paired)
    node.run(node.node.graph_admin.set_policy(policy))
    filed(node, "Ada Quill, Ben Reed, Cid Moor, Dee Lane")
    caught_up(node)
    linked = {frozenset(("Ada Quill", "Ben Reed")), frozenset(("Ben Reed", "Cid Moor"))}
    assert {frozenset((a, b)) for a, said, b in edges(node) if said == "has met"} == linked
    assert {frozenset((a, b)) for a, said, b in edges(node) if said == "auto:with"} == {
        frozenset(("Ada Quill", "Cid Moor"))
    }
    node.run(node.node.graph_admin.set_policy(Policy(max_entities=2)))
    assert node.run(node.node.graph_admin.re_extract("ann", "Ada Quill, Ben Reed, Cid Moor, Dee Lane")) == 2
    assert edges(node) == {("Ada Quill", "knows", "Ben Reed")}
    assert is_whole(node)


def test_an_answer_that_finds_nothing_leaves_the_keywords(server: ChatServer, node: InProcess) -> None:
    server.refuses = lambda text: says(graph())
    filed(node, TEXT)
    caught_up(node)
    assert {name for name, _ in entities(node)} == KEYWORDS
    assert left(node) == []


def test_names_that_differ_only_in_form_become_one_entity_of_the_owner(server: ChatServer, node: InProcess) -> None:
    node.file("ann", document("x", id="given", entities=[("Ada Quill", "person"), ("Mercury", "place")]))
    node.file("ben", document("x", id="others", entities=[("ORRIN VALE", "person")]))
    spelled = iter(["ADA  QUILL,", "Ａｄａ Quill", "ada-quill", "Orrin  Vale", '"Orrin\u200d Vale"'])
    server.refuses = lambda text: says(graph((next(spelled), "person"), ("mercury!", "metal"), ("C++", "concept")))
    for number in range(5):
        filed(node, f"text {number}")
        caught_up(node)
    found = node.graph("ann", limit=1_000).entities
    counted = {(entity.name, entity.kind): entity.mention_count for entity in found}
    assert counted == {
        ("Ada Quill", "person"): 4,
        ("Orrin  Vale", "person"): 2,
        ("Mercury", "place"): 1,
        ("mercury!", "concept"): 5,
        ("C++", "concept"): 5,
    }
    # One name of two kinds: two ids, and a search for the name means both.
    clue = node.search("ann", "where is Mercury?")
    assert {"Mercury", "mercury!"} <= {entity.name for passage in clue.passages for entity in passage.entities}


def test_a_node_keeps_names_with_nuls_whole_and_of_ten_thousand_a_few(server: ChatServer, node: InProcess) -> None:
    empty = stored(node)
    names = ["A\0b", "A", "\0", "\0\0", "Ada\0 Quill", "x\0" * 200]
    server.script += [says(graph(*((name, "person") for name in names), edges=(("A\0b", "is\0at", "\0"),)))]
    filed(node, "odd")
    caught_up(node)
    assert entities(node) == {(name, "person") for name in names}
    assert edges(node) == {("A\0b", "is\0at", "\0")}
    assert [entity.name for entity in node.graph("ann", "\0\0").entities] == ["\0\0"]
    many = [f"Name {number}\0" for number in range(10_000)]
    said = tuple((many[0], f"verb {number}", many[1]) for number in range(10_000))
    server.script += [says(graph(*((name, "person") for name in many), edges=said))]
    filed(node, "many")
    caught_up(node)
    assert entities(node) == {(name, "person") for name in (*names, *many[:12])}
    assert len(edges(node)) == 1 + 15
    assert ids(node.search("ann", "odd A\0b"))[0] == "odd"
    assert is_whole(node)
    node.remove("ann")
    node.settle()
    assert stored(node) == empty


# ------------------------------------------------------------------------------------------------ nothing waits for it


def test_deposits_are_searchable_at_once_and_the_graph_catches_up_at_the_servers_pace(
    server: ChatServer, node: InProcess
) -> None:
    server.gate.clear()
    names = [f"Name {chr(65 + number // 26)}{chr(97 + number % 26)}" for number in range(100)]
    filed(node, *names)
    assert ids(node.search("ann", "name", top_k=100)) != []
    assert node.value("SELECT count(*) FROM contents WHERE state = 'ready'") == 100
    assert len(left(node)) == 100
    until(lambda: server.at_once == SLOTS)
    server.gate.set()
    caught_up(node)
    assert len(server.prompts) == 100
    assert server.most_at_once == SLOTS
    assert {name for name, kind in entities(node) if kind == "person"} == set(names)


def test_edges_that_a_model_found_are_embedded_last_and_no_deposit_waits_for_them(node: InProcess) -> None:
    def work(connection: Any, _: Any) -> tuple[list[int], bool, bool]:
        pending.embed_later(connection, "relationship", {901: "found"})
        pending.be_patient(connection, 0)
        found = pending.newest_unembedded(connection)
        pending.embed_later(connection, "relationship", {902: "filed"})
        queue = pending.unembedded(connection, 10)
        seen = [edge.subject_key for edge in queue]
        waits = pending.is_unembedded(connection, found), pending.is_unembedded(connection, found + 1)
        connection.execute("DELETE FROM unembedded")
        return seen, *waits

    assert node.store.write(work).result() == ([902, 901], False, True)


def test_a_document_replaced_or_removed_while_it_is_read_is_not_given_what_was_found(
    server: ChatServer, node: InProcess
) -> None:
    server.gate.clear()
    node.file("ann", *(document(TEXT, id=id, entities=None) for id in ("replaced", "removed", "described")))
    until(lambda: server.at_once == SLOTS)
    node.file("ann", document("Mary Shell", id="replaced", entities=None))
    node.remove("ann", "removed")
    node.file("ann", document(TEXT, id="described", entities=["Tide"]))
    server.gate.set()
    caught_up(node)
    assert entities(node) == {("Mary Shell", "person"), ("Tide", "concept")}
    assert is_whole(node)


# ------------------------------------------------------------------------------------------------ faults


@pytest.mark.parametrize(
    "outage",
    [does.status(503), does.status(429, retry_after="0.01"), does.status(500), does.body("{}")],
    ids=["503", "429", "500", "malformed"],
)
def test_documents_wait_for_the_end_of_an_outage(
    server: ChatServer, node: InProcess, outage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server.refuses = lambda text: outage
    filed(node, TEXT, "Mary Shell")
    assert ids(node.search("ann", "harbour"))[0] == TEXT
    until(lambda: len(server.heads) > 15)
    assert left(node) == [None, None]
    assert sum("extraction waits" in record.getMessage() for record in caplog.records) <= 2
    server.refuses = lambda text: None
    caught_up(node)
    assert entities(node) == FOUND | {("Mary Shell", "person")}


def test_a_document_without_a_usable_answer_is_put_off_alone_and_read_in_a_later_pass(
    server: ChatServer, node: InProcess, caplog: pytest.LogCaptureFixture
) -> None:
    server.refuses = lambda text: says("no idea") if "harbour" in text else None
    filed(node, TEXT, "Mary Shell")
    caught_up(node)
    (reason,) = left(node)
    assert "two answers that cannot be used: it holds no JSON object" in reason
    assert "put off for a later pass" in caplog.text
    assert {name for name, kind in entities(node) if kind == "concept"} == KEYWORDS
    said: list[str] = []
    result = node.run(node.node.extract(lambda text, fraction=None, /: said.append(text)))
    assert (result["taken_up"], result["extracted"], result["waiting"], result["put_off"]) == (1, 0, 0, 1)
    server.refuses = lambda text: None
    result = node.run(node.node.extract(lambda text, fraction=None, /: said.append(text)))
    assert result == {"taken_up": 1, "extracted": 1, "waiting": 0, "put_off": 0, "why": ""}
    assert entities(node) == FOUND | {("Mary Shell", "person")}
    assert said[0] == "reading documents: 1 wait"


def test_a_later_pass_says_why_it_cannot_go_on(server: ChatServer, node: InProcess) -> None:
    server.refuses = lambda text: does.status(401)
    filed(node, TEXT)
    until(lambda: server.heads)
    result = node.run(node.node.extract(lambda *_: None))
    assert (result["waiting"], result["extracted"]) == (1, 0)
    assert "refuses the key" in result["why"]
    [ready] = [metric for metric in node.run(node.node.metrics()) if metric.name == "thread_extraction_ready"]
    assert [sample.value for sample in ready.samples] == [0]


def test_reading_goes_on_where_it_was_after_a_restart(
    server: ChatServer, node: InProcess, make: Callable[..., InProcess]
) -> None:
    server.gate.clear()
    filed(node, TEXT, "Mary Shell", "Kit Marlow", "Ned Land")
    until(lambda: server.at_once == SLOTS)
    server.refuses = lambda text: does.hang_up
    server.gate.set()
    node = make(read=False)
    assert len(left(node)) == 4
    server.refuses = lambda text: None
    node = make()
    caught_up(node)
    assert entities(node) == FOUND | {(name, "person") for name in ("Mary Shell", "Kit Marlow", "Ned Land")}


def test_stopping_does_not_wait_for_a_server_that_says_nothing(
    server: ChatServer, node: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.gate.clear()
    filed(node, TEXT)
    until(lambda: server.at_once == 1)
    monkeypatch.setattr(extracting, "LEAVE_SECONDS", 0.05)
    node.node.close()
    assert server.at_once == 1


def test_without_a_model_documents_are_marked_for_the_day_there_is_one(
    server: ChatServer, make: Callable[..., InProcess], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    node = make(read=False)
    filed(node, TEXT)
    assert left(node) == [extracting.NO_MODEL]
    assert {name for name, _ in entities(node)} == KEYWORDS
    with pytest.raises(InvalidRequest, match="--graph-backend"):
        node.run(node.node.extract(lambda *_: None))
    node = make()
    assert "thread extract --pending" in caplog.text
    assert left(node) == [extracting.NO_MODEL]
    assert node.run(node.node.extract(lambda *_: None))["extracted"] == 1
    assert entities(node) == FOUND
    node.run(node.node.clear())
    assert left(node) == []


def test_metrics_count_what_waits_and_what_came_of_requests(server: ChatServer, node: InProcess) -> None:
    server.script += [says("no idea"), says("no idea"), does.status(503)]
    filed(node, "Mary Shell", TEXT, "Ned Land")
    caught_up(node)
    shown = {
        (metric.name, *sample.labels.values()): sample.value
        for metric in node.run(node.node.metrics())
        for sample in metric.samples
        if metric.name.startswith("thread_extraction")
    }
    waiting = {key[-1]: value for key, value in shown.items() if key[0] == "thread_extraction_documents"}
    outcomes = {key[-1]: value for key, value in shown.items() if key[0] == "thread_extraction_answers"}
    assert waiting["waiting"] == 0
    assert waiting["put off"] in (0, 1)
    assert (outcomes["invalid"], outcomes["none"]) == (2, 1)
    assert outcomes["usable"] == 3 - waiting["put off"]
    assert shown["thread_extraction_ready",] == 1


# ------------------------------------------------------------------------------------------------ out of turn


def test_extracting_again_asks_the_model_at_once(server: ChatServer, node: InProcess) -> None:
    filed(node, TEXT)
    caught_up(node)
    server.refuses = lambda text: says(graph(("Tidal Ledger", "work")))
    assert node.run(node.node.graph_admin.re_extract("ann", TEXT)) == 1
    assert entities(node) == {("Tidal Ledger", "work")}
    server.refuses = lambda text: says("no idea")
    assert node.run(node.node.graph_admin.re_extract("ann", TEXT)) == 0
    assert node.run(node.node.graph_admin.re_extract("ben", TEXT)) == 0
    assert entities(node) == {("Tidal Ledger", "work")}
    node.file("ann", document("Mary Shell", id="described", entities=["Tide"]))
    server.refuses = lambda text: None
    assert node.run(node.node.graph_admin.re_extract("ann", "described")) == 1
    assert entities(node) == {("Tidal Ledger", "work"), ("Tide", "concept"), ("Mary Shell", "person")}
    assert is_whole(node)


def test_extracting_again_while_the_model_is_away_is_refused_and_done_when_it_is_back(
    server: ChatServer, node: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    filed(node, TEXT)
    caught_up(node)
    monkeypatch.setattr(extractors, "MISCONFIGURED_SECONDS", 0.2)
    server.refuses = lambda text: does.status(401)
    with pytest.raises(NotReady, match="refuses the key") as caught:
        node.run(node.node.graph_admin.re_extract("ann", TEXT))
    assert caught.value.retry_after_seconds is not None
    assert left(node) == [None]
    assert entities(node) == FOUND
    server.refuses = lambda text: says(graph(("Tidal Ledger", "work")))
    caught_up(node)
    assert entities(node) == {("Tidal Ledger", "work")}


def test_who_waits_for_an_extraction_is_answered_when_the_node_stops(server: ChatServer, node: InProcess) -> None:
    filed(node, "Mary Shell")
    caught_up(node)
    server.gate.clear()
    filed(node, TEXT, "Ned Land", "Kit Marlow")
    until(lambda: server.at_once == SLOTS)

    async def scenario() -> None:
        asked = asyncio.ensure_future(node.node.graph_admin.re_extract("ann", "Mary Shell"))
        await happens(lambda: bool(node.node._extracting._asked))
        node.node.stop()
        with pytest.raises(NotReady, match="stopping"):
            await asked

    node.run(scenario())
