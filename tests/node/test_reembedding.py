"""Another model takes the place of the one that wrote the index: what is searched before, after, and after a crash."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import WIDTH, InProcess, Vector, WordsEmbedder, document, group, ids, opened, unit, until

from thread_service.batching.embed import EmbeddingQueue
from thread_service.errors import Busy, InvalidRequest, NotReady, ThreadError
from thread_service.models.embedder import EmbeddingFailed, ModelUnavailable, Stamp, Status
from thread_service.node import reembedding
from thread_service.node.operations import SearchRequest

OTHER_WIDTH = 32
DOCUMENTS = [document(f"The heron number {n} stood in the creek.", id=f"d{n}") for n in range(6)]
EDGE = document("A ledger of tides.", id="edge", edges=[("Ada Quill", "keeps", "Tidal Ledger")])


class Turned(WordsEmbedder):
    """Another model of words: its vectors are those of `WordsEmbedder` backwards, so both widths may be the same."""

    def vector(self, text: str) -> Vector:
        return super().vector(text)[::-1].copy()


class Reembedder:
    """A node that may be given another model; `said` is its progress."""

    def __init__(self, path: Path, *next_models: WordsEmbedder, embedder: WordsEmbedder | None = None) -> None:
        self.next_models = [*next_models]
        self.asked: list[tuple[dict[str, Any], Stamp | None]] = []
        self.said: list[tuple[str, float | None]] = []
        self.node = InProcess(path, embedder, another_model=self._another)

    def _another(self, wanted: Mapping[str, Any], begun: Stamp | None) -> EmbeddingQueue | None:
        self.asked.append((dict(wanted), begun))
        return EmbeddingQueue(self.next_models.pop(0), retry_seconds=(0.01,)) if self.next_models else None

    def say(self, text: str, fraction: float | None = None, /) -> None:
        self.said.append((text, fraction))

    def run(self, **wanted: Any) -> dict[str, Any]:
        return self.node.run(self.node.node.reembed(wanted, self.say))

    def start(self, **wanted: Any) -> Callable[[], dict[str, Any]]:
        """Run it beside the test; the answer waits for its result, or raises it."""
        found: list[Any] = []

        def work() -> None:
            try:
                found.append(asyncio.run(self.node.node.reembed(wanted, self.say)))
            except BaseException as error:
                found.append(error)

        thread = threading.Thread(target=work)
        thread.start()

        def result() -> dict[str, Any]:
            thread.join(20)
            if isinstance(found[0], BaseException):
                raise found[0]
            answer: dict[str, Any] = found[0]
            return answer

        return result


@pytest.fixture
def open_node(tmp_path: Path) -> Iterator[Callable[..., Reembedder]]:
    made: list[Reembedder] = []

    def make(*next_models: WordsEmbedder, embedder: WordsEmbedder | None = None) -> Reembedder:
        made.append(Reembedder(tmp_path / "data", *next_models, embedder=embedder))
        return made[-1]

    yield make
    for each in made:
        each.node.embedder.open.set()
        each.node.close()


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reembedding, "TEXTS_A_BATCH", 2)
    monkeypatch.setattr(reembedding, "RETRY_SECONDS", 0.01)


def check_index(node: InProcess, model: WordsEmbedder) -> None:
    """Every vector of the index is what the model makes of its text; nothing else is stored, and memory agrees."""
    assert node.rows("SELECT space, width FROM stamp") == [(f"{model.model}@{model.width}", model.width)]
    assert node.rows("SELECT * FROM next_stamp") == []
    texts = dict(node.rows("SELECT partition_key, text FROM partitions"))
    found = {
        (purpose, key): node.store.segments.read(segment, np.array([slot]))[0]
        for purpose, key, segment, slot in node.rows(
            "SELECT purpose, subject_key, segment, slot FROM vectors WHERE purpose <> 'caller'"
        )
    }
    expected = {("model", key): model.vector(text) for key, text in texts.items()}
    for key, text in node.rows("SELECT predicate_key, predicate FROM predicates"):
        expected["predicate", key] = model.vector(f"Relationship predicate: {text}")
    for key in node.rows("SELECT relationship_key FROM relationships"):
        expected["relationship", key[0]] = found["relationship", key[0]]
    assert found.keys() == expected.keys()
    for subject, vector in expected.items():
        np.testing.assert_allclose(found[subject], vector, atol=1e-6)
    assert node.run(node.node.verify(full=True, progress=lambda *_: None))["damage"] == []


def test_the_old_index_serves_until_the_switch_and_the_new_one_from_then_on(
    open_node: Callable[..., Reembedder],
) -> None:
    old, new = WordsEmbedder(), WordsEmbedder("new", OTHER_WIDTH)
    made = open_node(new, embedder=old)
    node = made.node
    node.file("ann", *DOCUMENTS, EDGE, group=group("open", "available"))
    new.open.clear()
    result = made.start(embedding_model="new")
    until(lambda: any("embedding anew: 0 of 9" in text for text, _ in made.said))
    assert ids(node.search("bob", "heron number 3", scope="global"))[0] == "d3"
    assert node.node.embedder_health().vector_space == f"words@{WIDTH}"
    node.file("ann", document("A boat came in late.", id="late"), group="open")
    node.remove("ann", "d5")
    new.open.set()
    answer = result()
    assert answer.pop("seconds") >= 0
    assert answer == {
        "space": f"new@{OTHER_WIDTH}",
        "model": "new",
        "was": f"words@{WIDTH}",
        "kept": 0,
        "texts": 7,
        "relationships": 1,
        "predicates": 1,
        "resumed": 0,
        "without": 0,
    }
    assert made.asked == [({"embedding_model": "new"}, None)]
    assert made.said[-2][1] == 1.0
    assert node.node.embedder_health().vector_space == f"new@{OTHER_WIDTH}"
    assert node.node.embedder_health().index == "matches"
    check_index(node, new)
    old.embedded.clear()
    assert ids(node.search("bob", "heron number 3", scope="global", lexical=False, graph_mode="off"))[0] == "d3"
    assert ids(node.search("ann", "A boat came in late."))[0] == "late"
    assert [edge.predicate for edge in node.graph("ann", query="who keeps what").relationships] == ["keeps"]
    node.file("ann", document("Filed with the new one.", id="after"))
    assert ids(node.search("ann", "filed with the new one"))[0] == "after"
    assert ("Filed with the new one.", "document") in new.embedded
    until(lambda: old._closed)
    assert old.embedded == [], "nothing is asked of the old one any more"


def test_a_switch_to_vectors_of_the_same_width_takes_no_row_of_the_old_model(
    open_node: Callable[..., Reembedder], tmp_path: Path
) -> None:
    new = Turned("turned")
    made = open_node(new)
    made.node.file("ann", *DOCUMENTS, EDGE)
    made.run(embedding_model="turned")
    check_index(made.node, new)
    plain = {"lexical": False, "graph_mode": "off"}
    assert made.node.search("ann", "The heron number 2 stood in the creek.", **plain).passages[0].distance < 1e-3
    made.node = made.node.reopened(Turned("turned"))
    assert made.node.search("ann", "The heron number 2 stood in the creek.", **plain).passages[0].distance < 1e-3
    check_index(made.node, new)


def test_after_a_crash_it_goes_on_where_it_was(open_node: Callable[..., Reembedder]) -> None:
    first = WordsEmbedder("new", OTHER_WIDTH)
    made = open_node(first)
    made.node.file("ann", *DOCUMENTS)
    embed = first.embed

    def embed_some(texts: Any, role: Any) -> Vector:
        if DOCUMENTS[4].texts[0] in texts:
            first.open.clear()
        return embed(texts, role)

    first.embed = embed_some  # type: ignore[method-assign]
    result = made.start(embedding_model="new")
    until(lambda: made.node.value("SELECT count(*) FROM vectors WHERE purpose = 'next_model'") >= 2)
    until(lambda: not first.open.is_set())
    made.node.node.stop()
    with pytest.raises(NotReady, match="run `thread reembed` again"):
        result()
    made.node.close()
    second = WordsEmbedder("new", OTHER_WIDTH)
    made = open_node(second)
    assert made.node.node.embedder_health().vector_space == f"words@{WIDTH}", "the old index serves"
    assert ids(made.node.search("ann", "heron number 3"))[0] == "d3"
    answer = made.run()
    assert made.asked == [({}, Stamp(f"new@{OTHER_WIDTH}", "new", None, OTHER_WIDTH))]
    assert answer["texts"] == 6
    assert answer["resumed"] in (2, 4)
    assert len(second.embedded) == 6 - answer["resumed"], "what was embedded is not embedded again"
    check_index(made.node, second)


def test_an_index_of_another_model_is_embedded_with_the_one_that_runs(open_node: Callable[..., Reembedder]) -> None:
    made = open_node()
    made.node.file("ann", *DOCUMENTS)
    made.node.close()
    made = open_node(embedder=WordsEmbedder("other", OTHER_WIDTH))
    assert made.node.node.embedder_health().index == "mismatch"
    with pytest.raises(ThreadError, match="thread reembed"):
        made.node.file("ann", document("refused", id="b"))
    assert made.run()["texts"] == 6
    assert made.node.node.embedder_health().index == "matches"
    made.node.file("ann", document("A boat.", id="b"))
    assert ids(made.node.search("ann", "heron number 3"))[0] == "d3"
    check_index(made.node, made.node.embedder)


def test_vectors_that_callers_brought_stay_as_they_are(open_node: Callable[..., Reembedder]) -> None:
    made = open_node(WordsEmbedder("new", OTHER_WIDTH))
    node = made.node
    node.file("ann", document("mine", "not mine", id="mixed", vectors=[unit(1.0), None]), DOCUMENTS[0])
    answer = made.run(embedding_model="new")
    assert (answer["kept"], answer["texts"]) == (1, 2)
    assert node.rows("SELECT purpose, width FROM vectors ORDER BY 1") == [
        ("caller", WIDTH),
        ("model", OTHER_WIDTH),
        ("model", OTHER_WIDTH),
    ]
    content = node.documents("ann", "mixed", embeddings=True)[0]
    assert [len(part.embedding) for part in content.partitions] == [WIDTH, 0]
    assert ids(node.search("ann", query_embedding=unit(1.0))) == ["mixed"]


def test_a_text_that_the_next_model_refuses_leaves_everything_as_it_was(open_node: Callable[..., Reembedder]) -> None:
    new, again = WordsEmbedder("new", OTHER_WIDTH), WordsEmbedder("new", OTHER_WIDTH)
    new.refused = again.refused = {DOCUMENTS[2].texts[0], "concept: Ada Quill keeps concept: Tidal Ledger"}
    made = open_node(new, again)
    node = made.node
    node.file("ann", *DOCUMENTS, EDGE)
    with pytest.raises(ThreadError, match=r"refuses 1 texts of the documents 'd2'.*nothing was switched"):
        made.run(embedding_model="new")
    assert ids(node.search("ann", "heron number 2"))[0] == "d2"
    node.remove("ann", "d2")
    answer = made.run(embedding_model="new")
    assert (answer["texts"], answer["relationships"], answer["without"]) == (6, 0, 1)
    assert answer["resumed"] == 7
    assert [edge.predicate for edge in node.graph("ann", "tidal ledger").relationships] == ["keeps"]


def test_a_model_that_cannot_be_loaded_changes_nothing(open_node: Callable[..., Reembedder]) -> None:
    new = WordsEmbedder("new", OTHER_WIDTH)
    new.load_error = "no such file"
    made = open_node(new)
    made.node.file("ann", *DOCUMENTS)
    with pytest.raises(ModelUnavailable, match="no such file"):
        made.run(embedding_model="new")
    assert made.node.rows("SELECT * FROM next_stamp") == []
    assert ids(made.node.search("ann", "heron number 2"))[0] == "d2"


def test_a_download_is_progress_with_a_fraction(open_node: Callable[..., Reembedder]) -> None:
    new = WordsEmbedder("new", OTHER_WIDTH)
    new.status = Status("downloading", fraction=0.25)
    new.may_load.clear()
    made = open_node(new)
    made.node.file("ann", *DOCUMENTS)
    result = made.start(embedding_model="new")
    until(lambda: ("embedding model downloading 25%", 0.25) in made.said)
    new.may_load.set()
    assert result()["texts"] == 6


def test_a_model_that_is_away_is_waited_for(open_node: Callable[..., Reembedder]) -> None:
    new = WordsEmbedder("new", OTHER_WIDTH)
    new.is_away = True
    made = open_node(new)
    made.node.file("ann", *DOCUMENTS)
    result = made.start(embedding_model="new")
    until(lambda: any("waiting: the model is away" in text for text, _ in made.said))
    new.is_away = False
    assert result()["texts"] == 6


def test_a_model_that_goes_away_while_texts_are_tried_one_by_one_is_waited_for(
    open_node: Callable[..., Reembedder], monkeypatch: pytest.MonkeyPatch
) -> None:
    new = WordsEmbedder("new", OTHER_WIDTH)
    new.refused = {DOCUMENTS[2].texts[0]}
    embed = new.embed

    def go_away_after_the_first_refusal(texts: Any, role: Any) -> Vector:
        try:
            return embed(texts, role)
        except EmbeddingFailed:
            new.is_away = not refusals
            refusals.append(texts)
            raise

    refusals: list[Any] = []
    monkeypatch.setattr(new, "embed", go_away_after_the_first_refusal)
    made = open_node(new)
    made.node.file("ann", *DOCUMENTS)
    result = made.start(embedding_model="new")
    until(lambda: any("waiting: the model is away" in text for text, _ in made.said))
    new.is_away = False
    with pytest.raises(ThreadError, match="refuses 1 texts of the documents 'd2'"):
        result()
    assert made.node.value("SELECT count(*) FROM vectors WHERE purpose = 'next_model'") == 5


def test_naming_the_model_of_the_index_forgets_what_was_begun(open_node: Callable[..., Reembedder]) -> None:
    new = WordsEmbedder("new", OTHER_WIDTH)
    new.refused = {DOCUMENTS[2].texts[0]}
    made = open_node(new, WordsEmbedder())
    made.node.file("ann", *DOCUMENTS)
    with pytest.raises(ThreadError):
        made.run(embedding_model="new")
    assert made.node.value("SELECT count(*) FROM vectors WHERE purpose = 'next_model'") == 5
    assert made.run(embedding_model="words")["seconds"] == 0
    check_index(made.node, made.node.embedder)
    with pytest.raises(InvalidRequest, match="--embedding-model"):
        made.run()


def test_one_at_a_time_and_a_clear_ends_it(open_node: Callable[..., Reembedder]) -> None:
    new = WordsEmbedder("new", OTHER_WIDTH)
    new.open.clear()
    made = open_node(new)
    made.node.file("ann", *DOCUMENTS)
    result = made.start(embedding_model="new")
    until(lambda: made.node.rows("SELECT * FROM next_stamp") != [])
    with pytest.raises(Busy, match="already"):
        made.run(embedding_model="new")
    made.node.run(made.node.node.clear())
    new.open.set()
    with pytest.raises(ThreadError, match="cleared"):
        result()
    assert made.node.rows("SELECT * FROM vectors") == []


def test_searches_beside_the_switch_answer_with_one_model_or_the_other(open_node: Callable[..., Reembedder]) -> None:
    new = Turned("turned")
    made = open_node(new)
    node = made.node
    node.file("ann", *DOCUMENTS)
    result = made.start(embedding_model="turned")

    async def search_on() -> list[float]:
        distances: list[float] = []
        while node.node.embedder_health().model != "turned" or len(distances) < 20:
            request = SearchRequest("ann", DOCUMENTS[1].texts[0], lexical=False, graph_mode="off")
            distances.append((await node.node.search(request)).passages[0].distance)
        return distances

    distances = node.run(search_on())
    result()
    assert max(distances) < 1e-3, "a vector of one model was compared with those of the other"


def test_compaction_leaves_what_is_made_and_gives_back_what_was_replaced(open_node: Callable[..., Reembedder]) -> None:
    first, new = WordsEmbedder("new"), WordsEmbedder("new")
    first.refused = {DOCUMENTS[2].texts[0]}
    made = open_node(first, new)
    node = made.node
    node.file("ann", *DOCUMENTS)
    with pytest.raises(ThreadError):
        made.run(embedding_model="new")
    node.remove("ann", "d4")
    assert node.run(node.node.compact(lambda *_: None)).rows == 2
    assert made.run(embedding_model="new")["resumed"] == 4
    assert node.run(node.node.compact(lambda *_: None)).rows == 5
    check_index(node, new)


def test_a_database_of_before_is_brought_up_to_date(tmp_path: Path) -> None:
    with opened(tmp_path) as node:
        node.file("ann", *DOCUMENTS)
        node.remove("ann", "d5")
        last = node.value("SELECT seq FROM sqlite_sequence WHERE name = 'vectors'")
        before = node.rows("SELECT * FROM vectors")

        def go_back(connection: Any) -> None:
            connection.execute("DROP TABLE next_stamp")
            connection.execute("ALTER TABLE partitions ADD COLUMN vector BLOB")
            connection.execute("DROP TABLE brought_vectors")
            connection.pragma("user_version", 2)

        node.store.write(lambda connection, _: go_back(connection)).result()
    with opened(tmp_path) as node:
        assert node.rows("SELECT * FROM vectors") == before
        assert node.value("SELECT seq FROM sqlite_sequence WHERE name = 'vectors'") == last
        assert ids(node.search("ann", "heron number 3"))[0] == "d3"
        assert node.run(node.node.verify(full=True, progress=lambda *_: None))["damage"] == []
