"""A node whose model is hosted: an outage delays deposits and loses none; what is refused ends as failed, alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import embeddings_server as does
import pytest
from embeddings_server import KEY, EmbeddingsServer, running

sys.path.append(str(Path(__file__).parents[1] / "node"))

from in_process import InProcess, document, ids, until

from thread_service.errors import NotReady
from thread_service.models import hosted, turn
from thread_service.models.embeddings_api import EmbeddingsApi
from thread_service.models.hosted import HostedEmbedder


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddingsServer]:
    monkeypatch.setattr(turn, "FIRST_PAUSE_SECONDS", 0.002)
    monkeypatch.setattr(turn, "LONGEST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(hosted, "MISCONFIGURED_SECONDS", 0.02)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with running(EmbeddingsServer()) as server:
        yield server


@pytest.fixture
def node(server: EmbeddingsServer, tmp_path: Path) -> Iterator[InProcess]:
    embedder = HostedEmbedder("mistral-embed", "mistral-embed", EmbeddingsApi(server.url, "mistral-embed", lambda: KEY))
    node = InProcess(tmp_path / "data", embedder)  # type: ignore[arg-type]
    yield node
    node.close()


@pytest.mark.parametrize(
    "outage",
    [does.status(500), does.status(429), does.status(401), does.status(400, "no such model"), does.body("{}")],
    ids=["500", "429", "401", "400", "malformed"],
)
def test_deposits_wait_for_the_end_of_an_outage_and_searches_say_when_to_come_back(
    server: EmbeddingsServer, node: InProcess, outage: object
) -> None:
    node.file("ada", document("before", id="before"))
    server.refuses = lambda texts: outage  # type: ignore[assignment,return-value]
    filed = node.file("ada", document("during", id="during"), wait=False)
    assert filed.outcomes == ("new",)
    asked = len(server.requests)
    until(lambda: len(server.requests) > asked + 6)
    with pytest.raises(NotReady) as caught:
        node.search("ada", "before")
    assert caught.value.retry_after_seconds is not None
    assert node.value("SELECT count(*) FROM contents WHERE state = 'failed'") == 0
    server.refuses = lambda texts: None
    until(lambda: node.is_idle)
    assert ids(node.search("ada", "during"))[0] == "during"
    assert node.value("SELECT model FROM stamp") == "mistral-embed"
    assert node.value("SELECT space FROM stamp") == f"mistral-embed@{does.WIDTH}"


@pytest.mark.parametrize("misdeed", [does.status(400, "not this"), does.status(500, "boom")], ids=["400", "500"])
def test_a_text_that_is_never_embedded_fails_alone(server: EmbeddingsServer, node: InProcess, misdeed: object) -> None:
    server.refuses = lambda texts: misdeed if "bad" in texts else None  # type: ignore[assignment,return-value]
    documents = [document(text, id=text) for text in ("one", "bad", "two")]
    assert node.file("ada", *documents).outcomes == ("new", "failed", "new")
    assert sorted(ids(node.search("ada", "two"))) == ["one", "two"]
    server.refuses = lambda texts: None
    assert node.file("ada", document("bad", id="bad")).outcomes == ("replaced",)
    assert "bad" in ids(node.search("ada", "bad"))
