"""What every embedding model keeps to: in ONNX form, on torch, voyage-4-nano, Mistral, and OpenAI's kind."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import embeddings_server as does
import numpy as np
import pytest
from embeddings_server import EmbeddingsServer, running

sys.path.append(str(Path(__file__).parents[1] / "node"))

from in_process import InProcess, WordsEmbedder, document, opened, until

from thread_service.batching.embed import EmbeddingQueue
from thread_service.errors import NotReady
from thread_service.models.choice import choose
from thread_service.models.embedder import Embedder, EmbeddingFailed, ModelUnavailable, Status, name_for_callers
from thread_service.settings import Settings

PROVIDERS = ("onnx", "torch", "voyage", "mistral", "openai")
TEXTS = ["alpha beta", "gamma", "alpha beta gamma delta", "one two alpha"]
MEGABYTES = {
    "words": "alpha beta gamma delta one two " * 33_826,
    "unbroken": "x" * 2**20,
    "NUL": "\0" * 2**20,
    "emoji": "👩🏽‍🚀" * 69_906,
}
TAKEN_BYTES = 100_000
"""What the hosted models take in one request."""
ODD = ["", " \t\n ", "\x00", "👩‍👩‍👧 \u202e", "alpha" * 5_000]


@dataclass(frozen=True, slots=True)
class Provider:
    """A model as the settings name it. `spoil` makes loading fail, `mend` the opposite."""

    settings: Settings
    environment: dict[str, str]
    spoil: Callable[[], object]
    mend: Callable[[], object]

    def make(self, **changed: Any) -> Embedder:
        return choose(self.settings, None, self.environment, **changed).embedder

    def again(self, embedder: Embedder) -> Embedder:
        """The one that the stamp alone leads to."""
        assert embedder.stamp is not None
        settings = Settings(models_dir=self.settings.models_dir, device="cpu")
        return choose(settings, embedder.stamp, self.environment).embedder


def local(folder: Path) -> Provider:
    tokenizer = folder / "tokenizer.json"
    aside = folder / "aside"
    return Provider(
        Settings(embedding_model=str(folder), models_dir=folder.parent / "models", device="cpu"),
        {},
        lambda: tokenizer.rename(aside),
        lambda: aside.rename(tokenizer),
    )


def hosted(server: EmbeddingsServer, name: Any, variable: str) -> Provider:
    def spoil() -> None:
        server.script.append(does.status(401, "wrong key"))

    def refuse(texts: list[str]) -> Any:
        is_taken = sum(len(text.encode()) for text in texts) <= TAKEN_BYTES
        return None if is_taken else does.status(400, "too many tokens")

    server.refuses = refuse
    settings = Settings(embedder=name, embedding_url=server.url, embedding_model="m")
    return Provider(settings, {variable: does.KEY}, spoil, server.script.clear)


def write_bert(folder: Path) -> Path:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'thread-node[torch]'")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from tiny_model import WORDS, write_tokenizer

    torch.manual_seed(5)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    transformers.BertModel(transformers.BertConfig(vocab_size=len(WORDS), **sizes)).save_pretrained(folder)
    write_tokenizer(folder / "tokenizer.json")
    modules = [{"type": "a.Transformer", "path": ""}, {"type": "a.Pooling", "path": "1_Pooling"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    return folder


def write_small_voyage(folder: Path) -> Path:
    """Of one block, and with short windows: a megabyte of bytes is a million tokens."""
    pytest.importorskip("torch", reason="torch is not installed: pip install 'thread-node[torch]'")
    from tiny_voyage import CONFIG, tensors, write_voyage

    others = ("model.layers.1.", "model.layers.2.")
    weights = {name: tensor for name, tensor in tensors().items() if not name.startswith(others)}
    config = dict(CONFIG) | {"num_hidden_layers": 1}
    return write_voyage(folder, weights=weights, config=config, sentence_bert_config={"max_seq_length": 64})


@pytest.fixture(params=PROVIDERS)
def provider(request: pytest.FixtureRequest, tmp_path: Path, model_folder: Callable[..., Path]) -> Iterator[Provider]:
    folder = tmp_path / "a folder" / "the-model"
    if request.param in ("mistral", "openai"):
        with running(EmbeddingsServer()) as server:
            yield hosted(server, request.param, f"{request.param.upper()}_API_KEY")
        return
    if request.param == "torch":
        write_bert(folder)
    elif request.param == "voyage":
        write_small_voyage(folder)
    else:
        folder = model_folder("a folder/the-model")
    yield local(folder)


@pytest.fixture
def embedder(provider: Provider) -> Iterator[Embedder]:
    embedder = provider.make()
    embedder.load()
    yield embedder
    embedder.close()


def check(vectors: Any, count: int, embedder: Embedder) -> None:
    assert embedder.stamp is not None
    assert vectors.shape == (count, embedder.stamp.width)
    assert vectors.dtype == np.float32
    assert np.isfinite(vectors).all()
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_it_is_idle_then_ready_and_has_no_vectors_before_or_after(provider: Provider) -> None:
    embedder = provider.make()
    assert (embedder.status, embedder.stamp) == (Status(), None)
    for call in (lambda: embedder.embed(TEXTS, "query"), lambda: embedder.count_tokens(TEXTS)):
        with pytest.raises(NotReady, match="embedding model idle"):
            call()
    embedder.load()
    assert embedder.status == Status("ready")
    assert embedder.stamp is not None
    name, _, width = embedder.stamp.space.rpartition("@")
    assert (bool(name), int(width)) == (True, embedder.stamp.width)
    embedder.close()
    embedder.close()
    with pytest.raises(NotReady):
        embedder.embed(TEXTS, "query")


@pytest.mark.parametrize("role", ["query", "document"])
def test_vectors_have_unit_length_their_texts_order_and_nothing_of_their_neighbours(
    embedder: Embedder, role: Any
) -> None:
    together = embedder.embed(TEXTS, role)
    check(together, len(TEXTS), embedder)
    np.testing.assert_allclose(embedder.embed(TEXTS[::-1], role)[::-1], together, atol=1e-5)
    for text, vector in zip(TEXTS, together, strict=True):
        np.testing.assert_allclose(embedder.embed([text], role)[0], vector, atol=1e-5)
    check(embedder.embed([], role), 0, embedder)


def test_odd_texts_have_vectors_and_are_counted(embedder: Embedder) -> None:
    check(embedder.embed(ODD, "document"), len(ODD), embedder)
    assert embedder.count_tokens(ODD) > 0
    assert embedder.count_tokens([]) == 0


@pytest.mark.parametrize("text", MEGABYTES.values(), ids=MEGABYTES)
def test_a_megabyte_of_anything_has_a_vector_and_is_counted(embedder: Embedder, text: str) -> None:
    assert len(text.encode()) >= 10**6
    vectors = embedder.embed([text, "alpha beta"], "document")
    check(vectors, 2, embedder)
    np.testing.assert_allclose(vectors[1], embedder.embed(["alpha beta"], "document")[0], atol=1e-5)
    counted = embedder.count_tokens([text, "alpha beta"])
    assert counted == embedder.count_tokens([text]) + embedder.count_tokens(["alpha beta"])
    assert counted > (len(text) / 6 if text is MEGABYTES["words"] else 2)


def test_what_is_not_unicode_is_refused_and_others_go_on(embedder: Embedder) -> None:
    with pytest.raises(EmbeddingFailed):
        embedder.embed(["\ud800"], "document")
    check(embedder.embed(TEXTS, "document"), len(TEXTS), embedder)


def test_the_stamp_leads_back_to_the_model(provider: Provider, embedder: Embedder) -> None:
    again = provider.again(embedder)
    again.load()
    assert again.stamp == embedder.stamp
    np.testing.assert_array_equal(again.embed(TEXTS, "query"), embedder.embed(TEXTS, "query"))
    again.close()


def test_a_failure_is_told_without_a_path_and_loading_is_tried_again(provider: Provider, tmp_path: Path) -> None:
    provider.spoil()
    embedder = provider.make()
    queue = EmbeddingQueue(embedder, retry_seconds=(60,))
    is_ready = threading.Event()
    with pytest.raises(ModelUnavailable) as caught:
        embedder.load()
    status = embedder.status
    assert (status.phase, status.error) == ("failed", str(caught.value))
    assert str(tmp_path) not in str(status)
    with pytest.raises(NotReady, match="embedding model failed: ") as refused:
        queue.check_ready()
    assert refused.value.retry_after_seconds is not None
    assert str(tmp_path) not in refused.value.for_callers
    provider.mend()
    queue.start(is_ready.set)
    assert is_ready.wait(20)
    check(queue.submit(TEXTS, "document").result(20), len(TEXTS), embedder)
    queue.close()


def test_a_failed_call_tells_callers_nothing_of_the_inside() -> None:
    assert "/srv" not in EmbeddingFailed("/srv/models/minilm/model.safetensors failed").for_callers


@pytest.mark.parametrize(
    ("model", "shown"),
    [
        ("/srv/models/minilm", "minilm"),
        ("./models/minilm", "minilm"),
        ("~/minilm", "minilm"),
        ("org/repo@main", "org/repo@main"),
        ("openai:m@http://127.0.0.1:8000/v1", "openai:m@http://127.0.0.1:8000/v1"),
        ("package:one+two", "package:one+two"),
    ],
)
def test_callers_know_a_folder_by_its_name(model: str, shown: str) -> None:
    assert name_for_callers(model) == shown


def test_a_node_shows_how_far_its_model_is_and_no_path_of_it(tmp_path: Path, model_folder: Callable[..., Path]) -> None:
    folder = model_folder("a folder/the-model")
    (folder / "tokenizer.json").rename(folder / "aside")
    embedder = local(folder).make()
    node = InProcess(tmp_path / "data", embedder, ready=False, retry_seconds=(0.01,))  # type: ignore[arg-type]

    def shown() -> dict[str, float]:
        pages = {metric.name: metric for metric in node.run(node.node.metrics())}
        return {sample.labels["phase"]: sample.value for sample in pages["thread_embedding_phase"].samples}

    try:
        until(lambda: node.node.embedder_health().phase == "failed")
        health = node.node.embedder_health()
        assert health.model == "the-model"
        assert "tokenizer.json" in str(health.error)
        assert str(tmp_path) not in f"{health}"
        with pytest.raises(NotReady) as refused:
            node.file("ann", document("text", id="a"))
        assert str(tmp_path) not in refused.value.for_callers
        assert refused.value.retry_after_seconds is not None
        (folder / "aside").rename(folder / "tokenizer.json")
        until(lambda: node.queue.is_ready)
        assert shown() == {"idle": 0, "downloading": 0, "loading": 0, "ready": 1, "failed": 0}
        node.file("ann", document("alpha beta", id="a"))
        health = node.node.embedder_health()
        assert (health.model, health.phase, health.index) == ("the-model", "ready", "matches")
        assert node.value("SELECT model FROM stamp") == str(folder.resolve())
    finally:
        node.close()


def test_a_download_has_a_fraction_in_health_and_metrics(tmp_path: Path) -> None:
    embedder = WordsEmbedder()
    embedder.may_load.clear()
    embedder.status = Status("downloading", fraction=0.25)
    with opened(tmp_path, embedder, ready=False) as node:
        health = node.node.embedder_health()
        assert (health.phase, health.fraction) == ("downloading", 0.25)
        pages = {metric.name: metric for metric in node.run(node.node.metrics())}
        assert [sample.value for sample in pages["thread_embedding_downloaded_ratio"].samples] == [0.25]
        phases = {sample.labels["phase"]: sample.value for sample in pages["thread_embedding_phase"].samples}
        assert phases == {"idle": 0, "downloading": 1, "loading": 0, "ready": 0, "failed": 0}
        with pytest.raises(NotReady, match="embedding model downloading 25%"):
            node.file("ann", document("text", id="a"))
