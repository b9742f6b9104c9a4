"""A hosted model against a server that misbehaves: what is tried again, what is refused, and whose fault it is."""

from __future__ import annotations

import json
import logging
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from functools import partial
from typing import Any

import embeddings_server as does
import httpx
import numpy as np
import pytest
from embeddings_server import KEY, WIDTH, EmbeddingsServer, running, vector_of

from thread_service.batching.embed import EmbeddingQueue
from thread_service.errors import NotReady
from thread_service.models import hosted, http_api, turn
from thread_service.models.embedder import EmbeddingFailed, ModelUnavailable, Stamp
from thread_service.models.embeddings_api import EmbeddingsApi
from thread_service.models.hosted import HostedEmbedder, Patience
from thread_service.models.http_api import Misconfigured

PATIENCE = {"query": Patience(3, 10, 0.3), "document": Patience(5, 10, 60)}
_NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
SPEC = "openai:m@http://there/v1"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "FIRST_PAUSE_SECONDS", 0.002)
    monkeypatch.setattr(turn, "LONGEST_PAUSE_SECONDS", 0.05)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    # Each client would read all certificates of the machine anew, for connections that use none.
    monkeypatch.setattr(http_api.httpx, "Client", partial(httpx.Client, verify=_NO_CERTIFICATES))


@pytest.fixture
def server() -> Iterator[EmbeddingsServer]:
    with running(EmbeddingsServer()) as server:
        yield server


def embedder_at(url: str, key: Callable[[], str] = lambda: KEY) -> HostedEmbedder:
    return HostedEmbedder(SPEC, "m", EmbeddingsApi(url, "m", key), patience=PATIENCE)


@pytest.fixture
def embedder(server: EmbeddingsServer) -> Iterator[HostedEmbedder]:
    embedder = embedder_at(server.url)
    embedder.load()
    for record in (server.requests, server.times, server.heads):
        record.clear()
    yield embedder
    embedder.close()


def expected(*texts: str) -> np.ndarray[Any, Any]:
    return np.stack([vector_of(text) for text in texts])


def fails(embedder: HostedEmbedder, *texts: str, role: Any = "document") -> NotReady:
    with pytest.raises(NotReady) as caught:
        embedder.embed(texts, role)
    assert caught.value.retry_after_seconds is not None
    assert caught.value.retry_after_seconds >= 1
    return caught.value


# ------------------------------------------------------------------------------------------------ as it should be


def test_the_request_is_the_one_of_the_api_and_vectors_come_back_in_order_at_unit_length(
    server: EmbeddingsServer, embedder: HostedEmbedder
) -> None:
    vectors = embedder.embed(["a", "🜁\x00", ""], "query")
    np.testing.assert_allclose(vectors, expected("a", "🜁\x00", ""), atol=1e-6)
    assert vectors.dtype == np.float32
    path, headers, request = server.heads[0]
    assert path == "/v1/embeddings"
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert request == {"model": "m", "input": ["a", "🜁\x00", ""], "encoding_format": "float"}
    assert embedder.embed([], "document").shape == (0, WIDTH)
    assert len(server.requests) == 1


def test_loading_finds_out_the_width(embedder: HostedEmbedder) -> None:
    assert embedder.stamp == Stamp(f"m@{WIDTH}", SPEC, None, WIDTH)
    assert embedder.status.phase == "ready"
    assert embedder.count_tokens(["12345678", "é", ""]) == 2 + 1 + 0


def test_a_server_that_wants_no_key_is_sent_none(server: EmbeddingsServer) -> None:
    embedder = embedder_at(server.url + "/embeddings", lambda: "")
    embedder.load()
    path, headers, _ = server.heads[0]
    assert path == "/v1/embeddings"
    assert "Authorization" not in headers
    embedder.close()


# ------------------------------------------------------------------------------------------------ tried again


@pytest.mark.parametrize(
    "misdeed",
    [
        does.status(500),
        does.status(503),
        does.status(429),
        does.hang_up,
        does.body("{"),
        does.body('{"data": null}'),
        does.body('{"data": [], "deep": ' + "[" * 100_000),
        does.body('{"data": [{"index": 0, "embedding": [NaN]}, {"index": 1, "embedding": [1]}]}'),
        does.data(lambda items: items[1:]),
        does.data(lambda items: [items[0], items[0]]),
        does.data(lambda items: items[0]["embedding"].pop()),
        does.data(lambda items: items[0].update(embedding=[0] * WIDTH)),
        does.data(lambda items: items[0].update(embedding=[1e300] * WIDTH)),
        does.data(lambda items: [{**item, "embedding": item["embedding"][:-1]} for item in items]),
    ],
    ids=[
        "500",
        "503",
        "429",
        "half",
        "invalid",
        "null",
        "deep",
        "nan",
        "fewer",
        "twice",
        "ragged",
        "zero",
        "huge",
        "width",
    ],
)
@pytest.mark.parametrize("role", ["query", "document"])
def test_what_may_pass_is_tried_again(
    server: EmbeddingsServer, embedder: HostedEmbedder, misdeed: Any, role: Any
) -> None:
    server.script += [misdeed, misdeed]
    np.testing.assert_allclose(embedder.embed(["a", "b"], role), expected("a", "b"), atol=1e-6)
    assert server.requests == [["a", "b"]] * 3


def test_retry_after_is_kept_to_by_everybody(server: EmbeddingsServer, embedder: HostedEmbedder) -> None:
    server.script += [does.status(429, Retry_After="1"), "well"]
    answers: list[Any] = []
    waiting = threading.Thread(target=lambda: answers.append(embedder.embed(["a"], "document")))
    waiting.start()
    while not (server.times and embedder._turn.pause() > 0):
        time.sleep(0.001)
    refused = fails(embedder, "q", role="query")  # it would wait for longer than a query may
    assert refused.retry_after_seconds == 1
    assert "429" in str(refused)
    waiting.join(10)
    assert server.requests == [["a"], ["a"]]
    assert server.times[1] - server.times[0] >= 1


@pytest.mark.parametrize(("header", "seconds"), [("120", 120), ("1e9", 3600), ("-5", 1), ("soon", 1)])
def test_a_query_is_told_when_to_come_back(
    server: EmbeddingsServer, embedder: HostedEmbedder, header: str, seconds: int
) -> None:
    server.script += [does.status(503, Retry_After=header)] * 3
    assert fails(embedder, "q", role="query").retry_after_seconds == pytest.approx(seconds, abs=1)


def test_a_query_is_told_when_to_come_back_by_a_date(server: EmbeddingsServer, embedder: HostedEmbedder) -> None:
    server.script += [does.status(503, Retry_After=formatdate(time.time() + 300, usegmt=True))] * 3
    assert fails(embedder, "q", role="query").retry_after_seconds == pytest.approx(300, abs=60)


@pytest.mark.parametrize("misdeed", [does.silence, does.drip], ids=["silence", "drip"])
def test_a_server_that_does_not_finish_is_left_in_time(
    server: EmbeddingsServer, embedder: HostedEmbedder, misdeed: Any
) -> None:
    embedder._patience = {**PATIENCE, "query": Patience(3, 0.3, 0.3)}
    server.script += [misdeed]
    before = time.monotonic()
    assert "in time" in str(fails(embedder, "q", role="query"))
    assert time.monotonic() - before < 3
    server.patience.set()
    np.testing.assert_allclose(embedder.embed(["q"], "document"), expected("q"), atol=1e-6)


def test_attempts_end_and_pauses_grow(server: EmbeddingsServer, embedder: HostedEmbedder) -> None:
    server.refuses = lambda texts: does.status(503, "overloaded")
    assert "503 overloaded" in str(fails(embedder, "a"))
    assert len(server.requests) == 5
    assert embedder.status.phase == "ready"
    pauses = np.diff(server.times)
    assert pauses[3] > 0.002 * 2**3 / 2  # the least after the fourth failure
    server.refuses = lambda texts: None
    np.testing.assert_allclose(embedder.embed(["a"], "document"), expected("a"), atol=1e-6)


def test_a_server_that_is_gone_and_comes_back(server: EmbeddingsServer, embedder: HostedEmbedder) -> None:
    live, embedder._api = embedder._api, EmbeddingsApi("http://127.0.0.1:9/v1", "m", lambda: KEY)
    assert "cannot be reached" in str(fails(embedder, "q", role="query"))
    embedder._api.close()
    embedder._api = live
    np.testing.assert_allclose(embedder.embed(["q"], "document"), expected("q"), atol=1e-6)


def test_a_fault_of_our_own_is_no_fault_of_the_texts(
    embedder: HostedEmbedder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(embedder._api, "embed", lambda *_, **__: 1 / 0)
    assert "ZeroDivisionError" in str(fails(embedder, "a"))
    assert "nobody foresaw" in caplog.text


# ------------------------------------------------------------------------------------------------ whose fault


@pytest.mark.parametrize("code", [400, 422])
def test_a_text_that_is_refused_is_at_fault_while_others_are_embedded(
    server: EmbeddingsServer, embedder: HostedEmbedder, code: int
) -> None:
    server.refuses = lambda texts: does.status(code, "input is not allowed") if "bad" in texts else None
    with pytest.raises(EmbeddingFailed, match=f"{code} input is not allowed"):
        embedder.embed(["fine", "bad"], "document")
    assert server.requests == [["fine", "bad"], [hosted.PROBE]]


def test_a_text_that_is_not_unicode_is_at_fault(embedder: HostedEmbedder) -> None:
    with pytest.raises(EmbeddingFailed, match="not Unicode"):
        embedder.embed(["\ud800"], "document")


def test_no_text_is_at_fault_when_all_are_refused(server: EmbeddingsServer, embedder: HostedEmbedder) -> None:
    server.refuses = lambda texts: does.status(400, "Invalid model: m")
    assert "Invalid model: m" in str(fails(embedder, "a"))


@pytest.mark.parametrize(("code", "said"), [(401, "key"), (403, "key"), (404, "address"), (301, "address")])
def test_a_wrong_key_or_address_is_nobodys_text_and_is_not_asked_again_at_once(
    server: EmbeddingsServer, embedder: HostedEmbedder, code: int, said: str
) -> None:
    server.refuses = lambda texts: does.status(code, f"wrong {KEY}")
    error = fails(embedder, "q", role="query")
    assert said in str(error)
    assert error.retry_after_seconds == hosted.MISCONFIGURED_SECONDS
    fails(embedder, "q", role="query")
    assert len(server.requests) == 1


def test_another_width_than_at_the_start_fails_no_text(server: EmbeddingsServer, embedder: HostedEmbedder) -> None:
    server.refuses = lambda texts: does.data(lambda items: [{**item, "embedding": [1.0] * 8} for item in items])
    for _ in range(4):
        assert f"vectors of 8, and gave {WIDTH}" in str(fails(embedder, "a"))


def test_a_text_the_server_always_fails_over_is_given_up_after_a_while(
    server: EmbeddingsServer, embedder: HostedEmbedder
) -> None:
    server.refuses = lambda texts: does.status(500, "boom") if "poison" in texts else None
    for _ in range(hosted.ROUNDS_BEFORE_THE_TEXTS_ARE_TO_BLAME - 1):
        fails(embedder, "poison")
    with pytest.raises(EmbeddingFailed, match="time after time"):
        embedder.embed(["poison"], "document")
    np.testing.assert_allclose(embedder.embed(["fine"], "query"), expected("fine"), atol=1e-6)


def test_an_outage_of_any_length_gives_no_text_up(server: EmbeddingsServer, embedder: HostedEmbedder) -> None:
    server.refuses = lambda texts: does.status(500)
    for _ in range(hosted.ROUNDS_BEFORE_THE_TEXTS_ARE_TO_BLAME + 2):
        fails(embedder, "a")


def test_what_is_too_long_is_sent_in_parts_and_nothing_of_it_is_lost(
    server: EmbeddingsServer, embedder: HostedEmbedder
) -> None:
    def limit(texts: list[str]) -> Any:
        return does.status(400, "Too many tokens in batch") if sum(map(len, texts)) > 300 else None

    server.refuses = limit
    long = " ".join(f"word{number}" for number in range(100))
    vectors = embedder.embed(["a", "b" * 200, long, "c" * 200], "document")
    np.testing.assert_allclose(vectors[[0, 1, 3]], expected("a", "b" * 200, "c" * 200), atol=1e-6)
    pieces = [text for text in server.texts if text != long and text in long and len(text) > 1]
    pieces = list(dict.fromkeys(pieces))
    assert "".join(pieces) == long
    mean = sum(len(piece) * vector_of(piece) for piece in pieces)
    np.testing.assert_allclose(vectors[2], mean / np.linalg.norm(mean), atol=1e-5)


def test_a_text_that_stays_too_long_is_refused_in_the_end(server: EmbeddingsServer, embedder: HostedEmbedder) -> None:
    server.refuses = lambda texts: None if texts == [hosted.PROBE] else does.status(413, "too large")
    with pytest.raises(EmbeddingFailed, match="413 too large"):
        embedder.embed(["x" * 10_000], "document")
    assert len(server.requests) < 40


# ------------------------------------------------------------------------------------------------ loading and the key


def test_loading_says_what_is_wrong_and_may_be_tried_again(server: EmbeddingsServer) -> None:
    keys = iter(["", "wrong", KEY])

    def key() -> str:
        if not (found := next(keys)):
            raise Misconfigured("MISTRAL_API_KEY is not set")
        return found

    embedder = embedder_at(server.url, key)
    server.script += [does.status(401, "Unauthorized")]
    for said in ("MISTRAL_API_KEY is not set", "refuses the key"):
        with pytest.raises(ModelUnavailable, match=said):
            embedder.load()
        assert embedder.status.phase == "failed"
        with pytest.raises(NotReady):
            embedder.embed(["a"], "query")
    embedder.load()
    assert embedder.status.phase == "ready"
    embedder.close()


def test_the_key_is_in_no_message_and_in_no_log(
    server: EmbeddingsServer, embedder: HostedEmbedder, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    messages = []
    for code in (401, 404, 429, 500):
        server.refuses = lambda texts, code=code: does.status(code, f"Incorrect API key provided: {KEY}")
        messages.append(str(fails(embedder, "q", role="query")))
        embedder._turn.release()
    server.refuses = lambda texts: does.status(400, json.dumps({"echo": KEY})) if texts == ["q"] else None
    with pytest.raises(EmbeddingFailed) as caught:
        embedder.embed(["q"], "query")
    messages.append(str(caught.value))
    assert "[key]" in messages[1]
    assert KEY not in "".join(messages) + caplog.text + repr(embedder)


def test_closing_ends_a_pause(server: EmbeddingsServer, embedder: HostedEmbedder) -> None:
    server.script += [does.status(429, Retry_After="60")]
    errors: list[Exception] = []

    def call() -> None:
        try:
            embedder.embed(["a"], "document")
        except NotReady as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    while embedder._turn.pause() <= 0:
        time.sleep(0.001)
    embedder.close()
    thread.join(5)
    assert "shutting down" in str(errors[0])


# ------------------------------------------------------------------------------------------------ behind the queue


@pytest.fixture
def queue(server: EmbeddingsServer) -> Iterator[EmbeddingQueue]:
    queue = EmbeddingQueue(embedder_at(server.url), batch_texts=2, slots=3)
    queue.start()
    while not queue.is_ready:
        time.sleep(0.001)
    server.requests.clear()
    yield queue
    server.gate.set()
    server.patience.set()
    queue.close()


def test_a_query_waits_for_no_document(server: EmbeddingsServer, queue: EmbeddingQueue) -> None:
    server.gate.clear()
    documents = queue.submit([f"held {number}" for number in range(8)], "document")
    while len(server.requests) < 2:
        time.sleep(0.001)
    query = queue.submit(["query"], "query")
    np.testing.assert_allclose(query.result(10), expected("query"), atol=1e-6)
    assert not documents.done()
    assert len(server.requests) == 3  # never more than two of documents at a time
    server.gate.set()
    np.testing.assert_allclose(documents.result(10), expected(*[f"held {number}" for number in range(8)]), atol=1e-6)


def test_equal_texts_under_way_share_one_request(server: EmbeddingsServer, queue: EmbeddingQueue) -> None:
    server.gate.clear()
    first = queue.submit(["held", "twice", "twice"], "document")
    while not server.requests:
        time.sleep(0.001)
    second = queue.submit(["twice", "held"], "document")
    server.gate.set()
    np.testing.assert_allclose(first.result(10), expected("held", "twice", "twice"), atol=1e-6)
    np.testing.assert_allclose(second.result(10), expected("twice", "held"), atol=1e-6)
    assert sorted(server.texts) == ["held", "twice"]


def test_many_jobs_at_once_all_come_back_right(server: EmbeddingsServer, queue: EmbeddingQueue) -> None:
    server.script += [does.status(500), does.hang_up, "well", does.body("[]")]
    jobs = [[f"text {(number + shift) % 20}" for shift in range(5)] for number in range(20)]
    futures = [queue.submit(job, "document") for job in jobs]
    for job, future in zip(jobs, futures, strict=True):
        np.testing.assert_allclose(future.result(20), expected(*job), atol=1e-6)
