"""Filing: what an accepted deposit promises, and what is refused with nothing stored."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from in_process import TIMEOUT, WIDTH, InProcess, WordsEmbedder, document, group, happens, ids, opened, unit, until
from numpy.typing import NDArray

from thread_service.errors import Busy, IndexMismatch, InvalidRequest, NotReady
from thread_service.models.embedder import Role, Status
from thread_service.node.document_batches import PARTITIONS_A_BATCH
from thread_service.node.operations import DocumentIn, FileRequest, PartitionIn
from thread_service.text.ids import content_id

TEXT = "The heron stood in the tidal creek."
OTHER = "Salt marshes flood twice a day."


def counts(node: InProcess) -> tuple[int, int, int]:
    """(documents, contents, partitions)."""
    return tuple(node.value(f"SELECT count(*) FROM {name}") for name in ("documents", "contents", "partitions"))


# ---------------------------------------------------------------------------------------------------- contents


def test_content_is_stored_and_embedded_once_whatever_owners_and_ids_point_to_it(node: InProcess) -> None:
    node.file("ann", document(TEXT, id="a"))
    node.file("ann", document(TEXT, id="b"))
    node.file("ben", document(TEXT, id="a"))
    assert counts(node) == (3, 1, 1)
    assert node.embedder.count(TEXT) == 1
    assert node.value("SELECT count(*) FROM vectors WHERE purpose = 'model'") == 1
    for owner in ("ann", "ben"):
        assert [p.text for p in node.search(owner, "heron").passages] == [TEXT]


def test_equal_texts_in_one_request_are_embedded_once(node: InProcess) -> None:
    node.file("ann", document(TEXT, id="a"), document(TEXT, OTHER, TEXT, id="b"), document(TEXT, id="c"))
    assert node.embedder.count(TEXT) == 1
    assert counts(node) == (3, 2, 4)


def test_a_repeat_before_the_first_is_indexed_is_embedded_once(node: InProcess) -> None:
    node.embedder.open.clear()
    node.file("ann", document(TEXT, id="a"), wait=False)
    node.file("ben", document(TEXT, id="a"), wait=False)
    node.embedder.open.set()
    node.settle()
    assert node.embedder.count(TEXT) == 1
    assert ids(node.search("ben", "heron")) == ["a"]


def test_media_type_and_brought_vectors_are_part_of_the_content(node: InProcess) -> None:
    node.file("ann", document(TEXT, id="a"), document(TEXT, id="b", media_type="code"))
    node.file("ann", document(TEXT, id="c", vectors=[unit(1)]), document(TEXT, id="d", vectors=[unit(-1)]))
    assert counts(node) == (4, 4, 4)


def test_a_document_without_an_id_is_named_by_its_texts(node: InProcess) -> None:
    filed = node.file("ann", document(TEXT, OTHER), document(TEXT + OTHER))
    assert filed.document_ids == (content_id([TEXT, OTHER]), content_id([TEXT + OTHER]))
    assert len(set(filed.document_ids)) == 2


def test_tokens_count_what_needs_embedding_only(node: InProcess) -> None:
    assert node.file("ann", document(TEXT, "  ", id="a"), document("x", id="b", vectors=[unit(1)])).tokens == 7
    assert node.file("ann", document(TEXT, "  ", id="a")).tokens == 0


def test_what_another_owner_filed_is_answered_as_new(node: InProcess) -> None:
    node.file("ann", document(TEXT, id="a"))
    filed = node.file("ben", document(TEXT, id="b"), document(TEXT, id="c"), gate=True)
    assert (filed.outcomes, filed.tokens) == (("new", "new"), 7)
    assert node.embedder.count(TEXT) == 1
    away = node.reopened(WordsEmbedder(), ready=False)
    try:
        until(lambda: away.queue.is_ready)
        away.embedder.status = Status("loading")
        for text in (TEXT, OTHER):
            with pytest.raises(NotReady):
                away.file("eve", document(text, id="e"), wait=False)
        assert away.file("ben", document(TEXT, id="d"), wait=False).outcomes == ("new",)
    finally:
        away.close()


# ---------------------------------------------------------------------------------------------------- outcomes


def test_the_gate_skips_what_is_there_and_links_it_to_a_new_group(node: InProcess) -> None:
    def outcome(**more: object) -> str:
        return node.file("ann", document(TEXT, name="Heron", **more), gate=True, group=into).outcomes[0]

    into = None
    assert outcome() == "new"
    assert outcome() == "skipped"
    into = group("birds", "available")
    assert outcome(metadata=b"ignored") == "linked"
    assert outcome() == "skipped"
    assert node.embedder.count(TEXT) == 1
    assert ids(node.search("stranger", "heron", scope="global")) == [content_id([TEXT])]
    [filed] = node.documents("ann", content_id([TEXT]))
    assert (filed.metadata, filed.group_id) == (b"", "birds")


def test_without_the_gate_a_redeposit_replaces_name_metadata_and_graph_and_embeds_nothing(node: InProcess) -> None:
    node.file("ann", document(TEXT, id="a", name="Old", metadata=b"old", entities=["Heron"]), group="one")
    filed = node.file("ann", document(TEXT, id="a", name="New", metadata=b"\0new", entities=["Creek"]), group="two")
    assert filed.outcomes == ("replaced",)
    assert node.embedder.count(TEXT) == 1
    [found] = node.documents("ann", "a")
    assert (found.name, found.metadata, found.group_id) == ("New", b"\0new", "two")
    assert {entity.name for entity in node.graph("ann").entities} == {"Creek", "New"}
    assert [len(g.documents) for g in node.library("ann").groups] == [1, 1]


def test_other_content_under_an_own_id_takes_the_place_of_the_old_at_once(node: InProcess) -> None:
    node.file("ann", document(TEXT, id="a", entities=["Heron"]))
    node.embedder.open.clear()
    node.file("ann", document(OTHER, id="a", entities=["Marsh"]), wait=False)
    assert node.graph("ann").entities == ()
    assert node.documents("ann", "a")[0].texts == (OTHER,)
    assert node.search("ann", query_embedding=node.embedder.vector("heron")).passages == ()
    node.embedder.open.set()
    node.settle()
    assert [passage.text for passage in node.search("ann", "heron").passages] == [OTHER]
    assert {entity.name for entity in node.graph("ann").entities} == {"Marsh"}
    assert counts(node) == (1, 1, 1)


def test_nobody_replaces_or_detects_anothers_document_under_the_same_id(node: InProcess) -> None:
    node.file("ann", document(TEXT, id="a", name="Mine"), group=group("g", "available"))
    assert node.file("ben", document(OTHER, id="a"), gate=True).outcomes == ("new",)
    assert node.file("eve", document(TEXT, id="a"), gate=True).outcomes == ("new",)
    assert node.documents("ann", "a")[0].texts == (TEXT,)
    assert node.remove("ben", "a") == 1
    assert node.documents("ann", "a")[0].name == "Mine"


def test_a_blank_document_ends_as_failed_and_is_tried_again_when_it_is_deposited_again(node: InProcess) -> None:
    blank = document(" \n\t", id="a", name="Blank", entities=["Nothing"])
    assert node.file("ann", blank).outcomes == ("failed",)
    assert node.rows("SELECT state, failure FROM contents") == [("failed", "all texts are blank")]
    assert node.embedder.embedded == []
    assert node.search("ann", "anything").passages == ()
    assert node.graph("ann").entities == ()
    assert node.documents("ann", "a")[0].texts == (" \n\t",)
    assert node.file("ann", blank, gate=True, wait=False).outcomes == ("failed",)


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("gate", [True, False])
def test_a_blank_text_among_others_is_said_to_have_failed_at_once(node: InProcess, wait: bool, gate: bool) -> None:
    given = document(TEXT), document(" \n"), document("  ", vectors=[unit(1)])
    for outcome in ("new", "skipped" if gate else "replaced"):
        filed = node.file("ann", *given, group="g", wait=wait, gate=gate)
        assert filed.outcomes == (outcome, "failed", outcome)
        assert {place: "blank" in why for place, why in filed.reasons.items()} == {1: True}
    node.settle()
    assert node.rows("SELECT state, count(*) FROM contents GROUP BY state") == [("failed", 1), ("ready", 2)]


def test_a_refused_text_fails_its_own_document_only_and_a_redeposit_tries_again(node: InProcess) -> None:
    node.embedder.refused = {TEXT}
    filed = node.file("ann", document(TEXT, id="a", name="Heron"), document(OTHER, id="b"))
    assert filed.outcomes == ("failed", "new")
    assert "log says why" in filed.reasons[0]
    assert node.rows("SELECT state FROM contents ORDER BY content_key") == [("failed",), ("ready",)]
    assert ids(node.search("ann", "heron in the tidal creek")) == ["b"]
    node.embedder.refused = set()
    assert node.file("ann", document(TEXT, id="a", name="Heron"), gate=True).outcomes == ("replaced",)
    assert ids(node.search("ann", "heron in the tidal creek")) == ["a", "b"]
    assert [entity.name for entity in node.graph("ann").entities] == ["Heron"]


def test_a_document_whose_content_failed_gets_its_graph_when_another_owner_files_it_with_success(
    node: InProcess,
) -> None:
    node.embedder.refused = {TEXT}
    node.file("ann", document(TEXT, id="a", name="Heron", entities=["Marsh"]))
    assert node.graph("ann").entities == ()
    node.embedder.refused = set()
    node.file("ben", document(TEXT, id="b"))
    assert ids(node.search("ann", "heron in the tidal creek")) == ["a"]
    assert {entity.name for entity in node.graph("ann").entities} == {"Heron", "Marsh"}
    assert node.rows("SELECT count(*) FROM set_aside") == [(0,)]


class _Holding(WordsEmbedder):
    """Waits with the text "held" until it is told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.go_on = threading.Event(), threading.Event()

    def embed(self, texts: Sequence[str], role: Role) -> NDArray[np.float32]:
        if "held" in texts:
            self.reached.set()
            assert self.go_on.wait(TIMEOUT)
        return super().embed(texts, role)


def test_a_document_keeps_its_graph_when_its_content_is_tried_again_while_it_is_given_up(tmp_path: Path) -> None:
    embedder = _Holding()
    embedder.refused = {TEXT}
    large = (TEXT, *(f"filling {number}" for number in range(PARTITIONS_A_BATCH)))
    with opened(tmp_path, embedder) as node:
        # The first takes a batch of its own; the second finds the content failed, while "held" is embedded.
        said = [document(*large, id="1"), document(*large, id="2", entities=["Heron"]), document("held", id="3")]
        node.file("ann", *said, wait=False)
        assert embedder.reached.wait(TIMEOUT)
        until(lambda: node.rows("SELECT 1 FROM contents WHERE state = 'failed'") == [(1,)])
        embedder.refused = set()
        node.file("ann", said[0], wait=False)
        embedder.go_on.set()
        node.settle()
        assert {entity.name for entity in node.graph("ann").entities} == {"Heron"}
        assert node.rows("SELECT count(*) FROM set_aside") == [(0,)]


def test_a_relationship_the_model_refuses_holds_nothing_up(node: InProcess) -> None:
    node.embedder.refused = {"concept: Heron eats concept: Crab"}
    node.file("ann", document(TEXT, id="a", edges=[("Heron", "eats", "Crab"), ("Heron", "fears", "Fox")]))
    assert {edge.predicate for edge in node.graph("ann").relationships} == {"eats", "fears"}
    assert node.value("SELECT count(*) FROM vectors WHERE purpose = 'relationship'") == 1
    assert node.is_idle


# ---------------------------------------------------------------------------------------------------- brought vectors


def test_brought_vectors_come_back_bit_for_bit_also_while_pending(node: InProcess) -> None:
    odd = np.random.default_rng(7).standard_normal(WIDTH).astype(np.float32) * np.float32(1e-20)
    odd[:3] = [np.float32(-0.0), np.finfo(np.float32).smallest_subnormal, 1e15]
    said = document("seen", "embedded here", id="a", vectors=[odd, None])
    node.embedder.open.clear()
    node.file("ann", said, wait=False)

    def brought() -> list[bytes]:
        return [part.embedding.tobytes() for part in node.documents("ann", "a", embeddings=True)[0].partitions]

    assert brought() == [odd.tobytes(), b""]
    node.embedder.open.set()
    node.settle()
    assert brought() == [odd.tobytes(), b""]
    assert node.embedder.embedded == [("embedded here", "document")]


def test_urls_of_partitions_come_back_and_others_name_the_document(node: InProcess) -> None:
    node.file("ann", DocumentIn(("x", "y"), "../a b", partitions=(PartitionIn(url="https://x.test/"), PartitionIn())))
    first, second = node.documents("ann", "../a b", embeddings=True)[0].partitions
    assert first.url == "https://x.test/"
    assert second.url.endswith("/documents/..%2Fa%20b")
    assert (first.partition_id, second.partition_id) == ("../a b:0", "../a b:1")


@pytest.mark.parametrize(
    ("said", "field"),
    [
        (document(), "inputs[1]"),
        (document("x", "y", vectors=[unit(1)]), "partitions[1]"),
        (document("x", "y", vectors=[unit(1), unit(1, width=32)]), "partitions[1]"),
        (document("x", vectors=[unit(1, width=24)]), "partitions[1]"),
        (document("x", vectors=[np.zeros(0, np.float32)]), "partitions[1]"),
        (document("x", vectors=[np.zeros(16_400, np.float32)]), "partitions[1]"),
        (document("x", "y", vectors=[None, np.full(WIDTH, np.nan, np.float32)]), "partitions[1][1].embedding"),
        (document("x", vectors=[np.full(WIDTH, np.inf, np.float32)]), "partitions[1][0].embedding"),
        (document("x", vectors=[np.full(WIDTH, 1e16, np.float32)]), "partitions[1][0].embedding"),
        (document("x", id="é" * 513), "document_ids[1]"),
    ],
)
def test_a_faulty_document_is_named_and_nothing_of_the_request_is_stored(
    node: InProcess, said: DocumentIn, field: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        node.file("ann", document(TEXT, id="fine"), said, group="g")
    assert [error.field for error in refused.value.fields] == [field]
    assert counts(node) == (0, 0, 0)
    assert node.library("ann").groups == ()


@pytest.mark.parametrize("id", ["../../x", "a\0b\0", "\0", "🦀" * 256, "d" * 1024, "a/b?c=%00", "O'Brien\" OR 1=1 --"])
def test_any_text_up_to_1024_bytes_is_a_document_id_and_an_owner(node: InProcess, id: str) -> None:
    node.file(id, document(TEXT, id=id, name=id, entities=[id], edges=[(id, id, "x")]), group=id)
    assert ids(node.search(id, "heron", group_ids=(id,))) == [id]
    assert node.documents(id, id)[0].group_id == id
    assert [found.document_id for found in node.library(id, document_ids=(id,)).groups[0].documents] == [id]
    assert node.remove(id, id) == 1
    assert not [path for path in node.path.rglob("*") if path.name.startswith(("x", "🦀", "d" * 9))]


# ---------------------------------------------------------------------------------------------------- the model


def test_while_the_model_loads_only_documents_that_bring_all_vectors_are_taken(
    tmp_path: Path, embedder: WordsEmbedder
) -> None:
    embedder.may_load.clear()
    with opened(tmp_path, embedder, ready=False) as node:
        for said in (document(TEXT, id="a"), document("x", TEXT, id="a", vectors=[unit(1), None])):
            with pytest.raises(NotReady) as refused:
                node.file("ann", said, document("x", id="b", vectors=[unit(1)]), wait=False)
            assert refused.value.retry_after_seconds
        assert counts(node) == (0, 0, 0)
        with pytest.raises(NotReady):
            node.search("ann", "x")

        edge = ("Heron", "eats", "Crab")
        filed = node.file(
            "ann", document("heron", "crab", id="c", vectors=[unit(1), unit(0, 1)], edges=[edge]), wait=False
        )
        assert (filed.outcomes, filed.tokens) == (("new",), 0)
        until(lambda: node.search("ann", query_embedding=unit(1)).passages != ())
        assert [p.text for p in node.search("ann", query_embedding=unit(0.1, 1)).passages] == ["crab", "heron"]
        assert len(node.graph("ann", "heron").relationships) == 1

        embedder.may_load.set()
        node.settle()  # the relationship's words were waiting for the model
        assert node.value("SELECT count(*) FROM vectors WHERE purpose = 'relationship'") == 1


def test_who_waits_while_the_model_loads_is_answered_when_it_has_loaded(
    tmp_path: Path, embedder: WordsEmbedder
) -> None:
    embedder.may_load.clear()
    with opened(tmp_path, embedder, ready=False) as node:

        async def file() -> None:
            said = document("heron", id="a", vectors=[unit(1)], edges=[("Heron", "eats", "Crab")])
            waiting = asyncio.create_task(node.node.file(FileRequest("ann", (said,), wait=True)))
            await happens(lambda: counts(node)[0] == 1 and node.value("SELECT count(*) FROM pending") == 0)
            assert not waiting.done()
            embedder.may_load.set()
            await waiting

        node.run(file())
        assert node.is_idle


def test_who_waits_is_told_when_the_model_fails(tmp_path: Path, embedder: WordsEmbedder) -> None:
    embedder.may_load.clear()
    embedder.load_error = "no such file"
    with opened(tmp_path, embedder, ready=False, retry_seconds=(60,)) as node:
        said = document("heron", id="a", vectors=[unit(1)], edges=[("Heron", "eats", "Crab")])

        async def file() -> None:
            waiting = asyncio.create_task(node.node.file(FileRequest("ann", (said,), wait=True)))
            left = asyncio.create_task(node.node.file(FileRequest("ben", (said,), wait=True)))
            await happens(lambda: counts(node)[0] == 2 and node.value("SELECT count(*) FROM pending") == 0)
            left.cancel()  # a caller who has gone does not keep the others from being answered
            await asyncio.sleep(0)
            embedder.may_load.set()
            with pytest.raises(NotReady, match="no such file"):
                await waiting

        node.run(file())
        node.file("eve", document("crab", id="b", vectors=[unit(0, 1)]), wait=False)
        until(lambda: ids(node.search("eve", query_embedding=unit(0, 1))) == ["b"])


def test_a_model_of_another_space_sees_nothing_and_files_nothing_until_the_index_is_cleared(node: InProcess) -> None:
    node.file("ann", document(TEXT, id="a", entities=["Heron"], edges=[("Heron", "stands in", "Creek")]))
    node.file("ann", document("brought", id="b", vectors=[unit(1)]))
    other = node.reopened(WordsEmbedder("other"))
    try:
        assert other.node.embedder_health().index == "mismatch"
        assert other.node.embedder_health().indexed_with == f"words@{WIDTH}"
        assert ids(other.search("ann", "heron", lexical=True)) == ["b"]  # callers' vectors are a space of their own
        with pytest.raises(IndexMismatch, match="words@64"):
            other.file("ann", document(OTHER, id="c"))
        assert other.documents("ann", "c") == ()
        assert other.documents("ann", "a")[0].texts == (TEXT,)

        assert other.run(other.node.clear()).documents == 2
        assert other.node.embedder_health().index == "matches"
        other.file("ann", document(OTHER, id="c"))
        assert ids(other.search("ann", "marshes")) == ["c"]
        assert other.value("SELECT space FROM stamp") == f"other@{WIDTH}"
    finally:
        other.close()


def test_what_waits_for_the_model_of_the_index_does_not_hold_up_brought_vectors(node: InProcess) -> None:
    node.file("ann", document(TEXT, id="a"))
    node.embedder.is_away = True
    node.file("ann", document(OTHER, id="b"), wait=False)
    other = node.reopened(WordsEmbedder("other"))
    try:
        other.file("ann", document("brought", id="c", vectors=[unit(1)]), wait=False)
        until(lambda: ids(other.search("ann", query_embedding=unit(1))) == ["c"])
        again = other.reopened()
    finally:
        other.close()
    try:
        again.settle()
        assert ids(again.search("ann", "salt marshes"))[0] == "b"
    finally:
        again.close()


def test_the_same_model_matches_after_reopening_and_nothing_is_embedded_again(node: InProcess) -> None:
    node.file("ann", document(TEXT, id="a", edges=[("Heron", "stands in", "Creek")]))
    before = node.search("ann", "heron")
    again = node.reopened()
    try:
        assert again.search("ann", "heron") == before
        assert [role for _, role in again.embedder.embedded] == ["query"]
    finally:
        again.close()


# ---------------------------------------------------------------------------------------------------- bounds, crashes


def test_at_the_bound_nothing_of_a_request_is_taken_and_room_comes_back(
    tmp_path: Path, embedder: WordsEmbedder
) -> None:
    with opened(tmp_path, embedder, pending_documents_max=3) as node:
        embedder.open.clear()
        node.file("ann", document("one", id="1"), document("two", id="2"), wait=False)
        for _ in range(3):  # a deposit that takes another's place in the queue takes no room of its own
            node.file("ann", document("two again", id="2"), wait=False)
        with pytest.raises(Busy) as refused:
            node.file("ann", document("three", id="3"), document("four", id="4"), group="g", wait=False)
        assert refused.value.retry_after_seconds
        assert node.documents("ann", "3", "4") == ()
        assert node.library("ann").groups == ()
        assert node.remove("ann", "2") == 1
        node.file("ann", document("three", id="3"), document("four", id="4"), wait=False)
        node.run(node.node.clear())
        node.file("ann", *(document(f"text {n}", id=str(n)) for n in range(3)), wait=False)
        embedder.open.set()
        node.settle()
        node.file("ann", *(document(f"text {n}", id=str(n)) for n in range(3)))


def test_what_was_pending_when_the_node_stopped_is_indexed_by_the_next(node: InProcess) -> None:
    node.embedder.is_away = True
    node.file("ann", document(TEXT, id="a", name="Heron", edges=[("Heron", "stands in", "Creek")]), wait=False)
    node.file("ann", document(OTHER, id="b"), wait=False)
    again = node.reopened()
    try:
        again.settle()
        assert ids(again.search("ann", "heron in the creek")) == ["a", "b"]
        assert len(again.graph("ann", "heron").relationships) == 1
        assert again.embedder.count(TEXT) == 1
    finally:
        again.close()


def test_who_waits_is_answered_when_every_document_can_be_searched_also_one_that_was_filed_before(
    node: InProcess,
) -> None:
    node.embedder.open.clear()
    node.file("ann", document(TEXT), gate=True, wait=False)

    async def file() -> None:
        waiting = asyncio.create_task(node.node.file(FileRequest("ann", (document(TEXT),), gate=True, wait=True)))
        done, _ = await asyncio.wait([waiting], timeout=0.2)
        assert not done
        node.embedder.open.set()
        assert (await waiting).outcomes == ("skipped",)

    node.run(file())
    assert [p.text for p in node.search("ann", "heron").passages] == [TEXT]


def test_the_empty_owner_is_the_node_itself(node: InProcess) -> None:
    node.file("", document(TEXT, id="a"))
    assert node.search("", "heron").passages == ()
    assert ids(node.search(f"{node.node.node_id.lower()}-thread", "heron")) == ["a"]
