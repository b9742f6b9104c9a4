"""The embedding queue: order, sharing, bounds and failures, against a model that runs only when the test lets it."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from zlib import crc32

import numpy as np
import pytest
from numpy.typing import NDArray

from thread_service.batching import embed as embed_module
from thread_service.batching import queue as queue_module
from thread_service.batching.embed import EmbeddingQueue
from thread_service.batching.queue import TextQueue
from thread_service.errors import Busy, ModelFailed, NotReady
from thread_service.logs import Event
from thread_service.models.embedder import EmbeddingFailed, ModelUnavailable, Role, Stamp, Status

TIMEOUT = 10


def vector_of(text: str) -> NDArray[np.float32]:
    angle = crc32(text.encode()) / 2**32 * 6
    return np.array([np.cos(angle), np.sin(angle)], np.float32)


class ScriptedEmbedder:
    """Gives `vector_of` each text. While `held`, every call announces itself in `entered` and waits."""

    model = "scripted"

    def __init__(self) -> None:
        self.stamp: Stamp | None = None
        self.status = Status()
        self.load_errors: list[Exception] = []
        self.calls: list[tuple[list[str], Role]] = []
        self.poison: dict[str, Exception | NDArray[np.float32]] = {}
        self.entered: queue.Queue[list[str]] = queue.Queue()
        self.open = threading.Event()
        self.open.set()
        self.closed = threading.Event()

    def load(self) -> None:
        if self.load_errors:
            error = self.load_errors.pop(0)
            self.status = Status("failed", error=str(error))
            self.entered.put(["failed to load"])
            raise error
        self.stamp = Stamp("scripted@2", "scripted", None, 2)
        self.status = Status("ready")
        self.entered.put(["loaded"])

    def embed(self, texts: Sequence[str], role: Role) -> NDArray[np.float32]:
        self.calls.append((list(texts), role))
        if not self.open.is_set():
            self.entered.put(list(texts))
            assert self.open.wait(TIMEOUT)
        for text in texts:
            if isinstance(found := self.poison.get(text), Exception):
                raise found
        return np.vstack([self.poison.get(text, vector_of(text)) for text in texts])

    def count_tokens(self, texts: Sequence[str]) -> int:
        return sum(len(text.split()) for text in texts)

    def close(self) -> None:
        self.closed.set()

    @contextmanager
    def held(self, embedding: EmbeddingQueue) -> Iterator[None]:
        """Inside, the model is busy with the document "first"; what is submitted gathers. It runs on leaving."""
        self.open.clear()
        first = embedding.submit(["first"], "document")
        assert self.entered.get(timeout=TIMEOUT) == ["first"]
        try:
            yield
        finally:
            self.open.set()
        first.result(TIMEOUT)


@pytest.fixture
def model() -> ScriptedEmbedder:
    return ScriptedEmbedder()


@pytest.fixture
def embedding(model: ScriptedEmbedder) -> Iterator[EmbeddingQueue]:
    embedding = EmbeddingQueue(model, max_waiting_texts=10, batch_texts=4, batch_bytes=100)
    embedding.start()
    assert model.entered.get(timeout=TIMEOUT) == ["loaded"]
    yield embedding
    embedding.close()


def vectors(future: Future[NDArray[np.float32]]) -> NDArray[np.float32]:
    return future.result(TIMEOUT)


def expected(*texts: str) -> NDArray[np.float32]:
    return np.vstack([vector_of(text) for text in texts])


def test_a_big_job_is_embedded_in_bounded_batches_and_answered_in_order(
    model: ScriptedEmbedder, embedding: EmbeddingQueue
) -> None:
    texts = [f"text {number}" for number in range(9)] + ["x" * 60, "y" * 60]
    np.testing.assert_array_equal(vectors(embedding.submit(texts, "document")), expected(*texts))
    assert [len(call) for call, _ in model.calls] == [1, 4, 4, 2]  # at most 4 texts, and 100 bytes, the longest first
    assert vectors(embedding.submit([], "document")).shape == (0, 2)


def test_what_takes_long_is_a_line_now_and_then_that_says_how_far_it_is(
    embedding: EmbeddingQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> list[Event]:
        return [record.msg for record in caplog.records if isinstance(record.msg, Event)]

    caplog.set_level(logging.INFO, "thread_service")
    vectors(embedding.submit([f"quick {number}" for number in range(9)], "document"))
    assert told() == []
    monkeypatch.setattr(embed_module, "PROGRESS_SECONDS", 0.0)
    vectors(embedding.submit(["query one", "query two"], "query"))
    vectors(embedding.submit([f"text {number}" for number in range(9)], "document", is_long=True))
    assert {event.name for event in told()} == {"embedding"}
    lines = [dict(event.fields) for event in told()]
    # Batches of four texts; with the last one it is done.
    assert [(line["texts"], line["pieces"], line["done"]) for line in lines] == [(9, 9, 4), (9, 9, 8)]
    assert all(line["seconds"] >= 0 for line in lines)
    caplog.clear()
    monkeypatch.setattr(embed_module, "PROGRESS_SECONDS", 3_600.0)
    vectors(embedding.submit([f"again {number}" for number in range(9)], "document"))
    assert told() == []


def test_queries_overtake_documents_between_batches(model: ScriptedEmbedder, embedding: EmbeddingQueue) -> None:
    with model.held(embedding):
        documents = embedding.submit([f"document {number}" for number in range(6)], "document")
        query = embedding.submit(["query"], "query")
    vectors(query)
    vectors(documents)
    assert [(len(texts), role) for texts, role in model.calls] == [
        (1, "document"),
        (1, "query"),
        (4, "document"),
        (2, "document"),
    ]


def test_of_several_threads_all_but_one_take_documents_and_a_query_waits_for_none(model: ScriptedEmbedder) -> None:
    embedding = EmbeddingQueue(model, batch_texts=1, slots=3)
    embedding.start()
    assert model.entered.get(timeout=TIMEOUT) == ["loaded"]
    for again in range(3):  # the first time threads are only starting, later they wait
        model.open.clear()
        a, b, c, asked = (f"{name} {again}" for name in ("a", "b", "c", "query"))
        documents = embedding.submit([a, b, c], "document")
        assert sorted(model.entered.get(timeout=TIMEOUT) for _ in range(2)) == [[a], [b]]
        query = embedding.submit([asked], "query")
        assert model.entered.get(timeout=TIMEOUT) == [asked]
        assert len(model.calls) == 4 * again + 3
        model.open.set()
        np.testing.assert_array_equal(vectors(query), expected(asked))
        np.testing.assert_array_equal(vectors(documents), expected(a, b, c))
    embedding.close()


def test_long_documents_take_turns_with_the_others_and_a_query_goes_before_both(
    model: ScriptedEmbedder, embedding: EmbeddingQueue
) -> None:
    with model.held(embedding):
        long = embedding.submit([f"long {number}" for number in range(8)], "document", is_long=True)
        others = embedding.submit([f"other {number}" for number in range(8)], "document")
        query = embedding.submit(["query"], "query")
    for job in (query, long, others):
        vectors(job)
    lanes = [call[0].split()[0] for call, _ in model.calls]
    assert lanes in (
        ["first", "query", "long", "other", "long", "other"],
        ["first", "query", "other", "long", "other", "long"],
    )


def test_jobs_that_gather_share_a_batch_and_equal_texts_are_embedded_once(
    model: ScriptedEmbedder, embedding: EmbeddingQueue
) -> None:
    with model.held(embedding):
        one = embedding.submit(["a", "b", "a"], "document")
        two = embedding.submit(["b", "c", "first"], "document")  # "first" is being embedded just now
        query = embedding.submit(["a"], "query")  # another role, so another vector
    np.testing.assert_array_equal(vectors(one), expected("a", "b", "a"))
    np.testing.assert_array_equal(vectors(two), expected("b", "c", "first"))
    np.testing.assert_array_equal(vectors(query), expected("a"))
    assert model.calls == [(["first"], "document"), (["a"], "query"), (["a", "b", "c"], "document")]
    assert embedding.stats().shared_texts == 3


def test_a_cancelled_job_is_not_embedded_unless_another_wants_its_text(
    model: ScriptedEmbedder, embedding: EmbeddingQueue
) -> None:
    with model.held(embedding):
        gone = embedding.submit(["gone", "shared"], "document")
        stays = embedding.submit(["shared"], "document")
        assert gone.cancel()
    np.testing.assert_array_equal(vectors(stays), expected("shared"))
    assert model.calls[1:] == [(["shared"], "document")]
    np.testing.assert_array_equal(vectors(embedding.submit(["gone"], "document")), expected("gone"))


def test_a_full_queue_takes_nothing_of_a_job(model: ScriptedEmbedder, embedding: EmbeddingQueue) -> None:
    with model.held(embedding):
        taken = embedding.submit([f"text {number}" for number in range(8)], "document")
        with pytest.raises(Busy) as caught:
            embedding.submit(["new 1", "new 2", "new 3"], "document")
        assert caught.value.retry_after_seconds is not None
        assert embedding.stats().waiting_documents == 8
        repeated = embedding.submit(["text 1"], "document")
        query = embedding.submit(["query"], "query")  # documents do not take the queries' room
    vectors(taken)
    vectors(repeated)
    vectors(query)
    assert not any("new" in text for texts, _ in model.calls for text in texts)


def test_a_job_over_the_bound_is_taken_when_nothing_waits(embedding: EmbeddingQueue) -> None:
    texts = [f"text {number}" for number in range(25)]
    np.testing.assert_array_equal(vectors(embedding.submit(texts, "document")), expected(*texts))


def test_a_huge_text_is_embedded_in_pieces_that_a_query_overtakes(
    model: ScriptedEmbedder, embedding: EmbeddingQueue
) -> None:
    huge = " ".join(f"word{number}" for number in range(30))  # 199 bytes; a batch takes 100
    with model.held(embedding):
        document = embedding.submit([huge, "short"], "document")
        query = embedding.submit(["query"], "query")
    long, short = vectors(document)
    vectors(query)
    assert model.calls[1] == (["query"], "query")
    pieces = [text for texts, _ in model.calls[2:] for text in texts if text != "short"]
    assert "".join(pieces) == huge
    assert all(piece.endswith(" ") for piece in pieces[:-1])
    weighted = sum(len(piece) * vector_of(piece) for piece in pieces)
    np.testing.assert_allclose(long, weighted / np.linalg.norm(weighted), atol=1e-6)
    np.testing.assert_array_equal(short, vector_of("short"))


def test_a_text_at_fault_fails_its_own_job_only(model: ScriptedEmbedder, embedding: EmbeddingQueue) -> None:
    model.poison["bad"] = ValueError("cannot embed this")
    with model.held(embedding):
        failing = embedding.submit(["fine", "bad"], "document")
        sharing = embedding.submit(["fine"], "document")
        other = embedding.submit(["other"], "document")
    with pytest.raises(EmbeddingFailed, match="ValueError: cannot embed this"):
        vectors(failing)
    np.testing.assert_array_equal(vectors(sharing), expected("fine"))
    np.testing.assert_array_equal(vectors(other), expected("other"))
    np.testing.assert_array_equal(vectors(embedding.submit(["fine"], "document")), expected("fine"))


def test_a_model_that_is_away_is_not_asked_text_by_text(model: ScriptedEmbedder, embedding: EmbeddingQueue) -> None:
    model.poison["a"] = NotReady("the provider does not answer", retry_after_seconds=7)
    with model.held(embedding):
        jobs = [embedding.submit([text], "document") for text in "abc"]
    for job in jobs:
        with pytest.raises(NotReady, match="does not answer"):
            vectors(job)
    assert [len(texts) for texts, _ in model.calls] == [1, 3]


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [(np.zeros((1, 3), np.float32), "shape"), (np.full((1, 2), np.nan, np.float32), "not finite")],
)
def test_unusable_vectors_are_an_error(
    model: ScriptedEmbedder, embedding: EmbeddingQueue, answer: NDArray[np.float32], complaint: str
) -> None:
    model.poison["bad"] = answer
    with pytest.raises(EmbeddingFailed, match=complaint):
        vectors(embedding.submit(["bad"], "document"))


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (Status(), "embedding model idle"),
        (Status("downloading", fraction=0.42), "embedding model downloading 42%"),
        (Status("loading"), "embedding model loading"),
        (Status("failed", error="no tokenizer.json"), "embedding model failed: no tokenizer.json"),
    ],
)
def test_before_the_model_is_ready_callers_are_told_how_far_it_is(status: Status, text: str) -> None:
    model = ScriptedEmbedder()
    model.status = status
    embedding = EmbeddingQueue(model)
    for call in (lambda: embedding.submit(["a"], "document"), lambda: asyncio.run(embedding.query_vector("a"))):
        with pytest.raises(NotReady) as caught:
            call()
        assert str(caught.value) == text
        assert isinstance(caught.value, ModelFailed) == (status.phase == "failed")
        assert caught.value.retry_after_seconds is not None
        assert caught.value.retry_after_seconds >= 1
    embedding.close()


def test_loading_is_tried_again_until_it_succeeds(model: ScriptedEmbedder) -> None:
    model.load_errors = [ModelUnavailable("no network"), RuntimeError("odd"), ModelUnavailable("no network")]
    embedding = EmbeddingQueue(model, retry_seconds=(0, 0))
    embedding.start()
    attempts = [model.entered.get(timeout=TIMEOUT)[0] for _ in range(4)]
    assert attempts == ["failed to load"] * 3 + ["loaded"]
    vectors(embedding.submit(["a"], "document"))
    embedding.close()


def test_closing_ends_the_pause_between_attempts(model: ScriptedEmbedder) -> None:
    model.load_errors = [ModelUnavailable("no network")]
    embedding = EmbeddingQueue(model, retry_seconds=(3600,))
    embedding.start()
    assert model.entered.get(timeout=TIMEOUT) == ["failed to load"]
    embedding.close()
    assert not any(thread.name == "embedding" for thread in threading.enumerate())
    assert model.closed.is_set()


def test_closing_answers_everyone_who_waits(model: ScriptedEmbedder, embedding: EmbeddingQueue) -> None:
    model.open.clear()
    under_way = embedding.submit(["first"], "document")
    assert model.entered.get(timeout=TIMEOUT) == ["first"]
    waiting = embedding.submit(["second"], "query")
    closing = threading.Thread(target=embedding.close)
    closing.start()
    for future in (under_way, waiting):
        with pytest.raises(NotReady, match="shutting down"):
            vectors(future)
    model.open.set()
    closing.join(TIMEOUT)
    with pytest.raises(NotReady, match="shutting down"):
        embedding.submit(["third"], "document")
    assert model.calls == [(["first"], "document")]


def test_equal_queries_at_once_share_one_computation_and_later_ones_hit_the_cache(
    model: ScriptedEmbedder, embedding: EmbeddingQueue
) -> None:
    async def ask() -> None:
        together = await asyncio.gather(*(embedding.query_vector("who?") for _ in range(5)))
        again = await embedding.query_vector("who?")
        for vector in (*together, again):
            np.testing.assert_array_equal(vector, vector_of("who?"))
            assert not vector.flags.writeable

    asyncio.run(ask())
    assert model.calls == [(["who?"], "query")]
    stats = embedding.stats()
    assert (stats.query_cache_hits, stats.query_cache_misses, stats.batches, stats.texts) == (1, 5, 1, 1)


def test_the_cache_forgets_the_query_asked_longest_ago(model: ScriptedEmbedder, embedding: EmbeddingQueue) -> None:
    async def ask() -> None:
        for number in range(256):
            await embedding.query_vector(f"query {number}")
        await embedding.query_vector("query 0")
        await embedding.query_vector("one more")  # pushes "query 1" out
        model.calls.clear()
        await embedding.query_vector("query 0")
        await embedding.query_vector("query 1")

    asyncio.run(ask())
    assert model.calls == [(["query 1"], "query")]


def test_a_cancelled_search_leaves_the_queue(model: ScriptedEmbedder, embedding: EmbeddingQueue) -> None:
    async def give_up() -> None:
        task = asyncio.create_task(embedding.query_vector("abandoned"))
        await asyncio.sleep(0)  # the task runs up to its wait
        assert embedding.stats().waiting_queries == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with model.held(embedding):
        asyncio.run(give_up())
    vectors(embedding.submit(["next"], "query"))
    assert model.calls == [(["first"], "document"), (["next"], "query")]


def test_while_the_next_query_waits_for_too_long_new_ones_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = TextQueue(max_waiting=8, batch_texts=8, batch_bytes=100)
    texts.add(["a document"], "document")
    waiting = texts.add(["a query"], "query")
    monkeypatch.setattr(queue_module, "QUERY_WAITING_SECONDS_MAX", 0.0)  # as if that long had passed
    with pytest.raises(Busy, match="queries wait 0 seconds for the model") as refusal:
        texts.add(["another"], "query")
    assert refusal.value.retry_after_seconds == 1
    texts.add(["a query"], "query")  # the same one costs nothing more
    texts.add(["another document"], "document")
    batch = texts.take()
    assert [entry.text for entry in batch] == ["a query"]
    assert batch[0].waiters[0][0] is waiting
    texts.add(["another"], "query")
