"""Which model a node takes: flags, then what wrote the index, then Mistral when there is a key, then the local one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import embeddings_server
import pytest
from embeddings_server import KEY

from thread_service.models import device
from thread_service.models.choice import CPU_MODEL, Choice, choose
from thread_service.models.embedder import ModelUnavailable, Stamp
from thread_service.models.hosted import HostedEmbedder
from thread_service.models.provider_key import provider_key
from thread_service.settings import Settings, SettingsError

HERE = "http://127.0.0.1:8000/v1"
OWN = f"openai:BAAI/bge-m3@{HERE}"
MINILM = "/models/minilm"
WITH_KEY = {"MISTRAL_API_KEY": KEY}


@pytest.fixture(autouse=True)
def without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_has_cuda_device", lambda: False)


def chosen(stored: str | None = None, environment: Mapping[str, str] | None = None, **settings: str) -> Choice:
    written = None if stored is None else Stamp(stored, stored, None, 384)
    choice = choose(Settings(**settings), written, environment or {})
    choice.embedder.close()
    return choice


@pytest.mark.parametrize(
    ("settings", "stored", "environment", "model", "why"),
    [
        ({}, None, {}, CPU_MODEL, "the default without CUDA and without MISTRAL_API_KEY"),
        ({}, None, WITH_KEY, "mistral-embed", "MISTRAL_API_KEY is set"),
        ({}, None, {"MISTRAL_API_KEY": " "}, CPU_MODEL, "the default without CUDA and without MISTRAL_API_KEY"),
        ({}, MINILM, WITH_KEY, MINILM, "it wrote the index"),
        ({}, "mistral-embed", {}, "mistral-embed", "it wrote the index"),
        ({}, OWN, WITH_KEY, OWN, "it wrote the index"),
        ({"embedder": "local"}, None, WITH_KEY, CPU_MODEL, "the default without CUDA"),
        ({"embedder": "local"}, MINILM, WITH_KEY, MINILM, "it wrote the index"),
        ({"embedder": "local"}, "mistral-embed", WITH_KEY, CPU_MODEL, "the default without CUDA"),
        ({"embedder": "mistral"}, MINILM, {}, "mistral-embed", "asked for by --embedder"),
        ({"embedder": "mistral", "embedding_url": HERE}, None, {}, f"mistral:mistral-embed@{HERE}", "by --embedder"),
        ({"embedder": "openai", "embedding_model": "BAAI/bge-m3", "embedding_url": f"{HERE}/"}, None, {}, OWN, "model"),
        ({"embedder": "openai"}, OWN, {}, OWN, "asked for by --embedder"),
        ({"embedder": "openai"}, None, {}, "openai:text-embedding-3-small@https://api.openai.com/v1", "by --embedder"),
        ({"embedding_url": "http://other/v1"}, OWN, {}, "openai:BAAI/bge-m3@http://other/v1", "it wrote the index"),
        ({"embedding_model": OWN}, MINILM, {}, OWN, "asked for by --embedding-model"),
        ({"embedding_model": MINILM}, "mistral-embed", WITH_KEY, MINILM, "asked for by --embedding-model"),
    ],
)
def test_the_model_and_the_reason(
    settings: dict[str, str], stored: str | None, environment: dict[str, str], model: str, why: str
) -> None:
    choice = chosen(stored, environment, **settings)
    assert choice.embedder.model == model
    assert choice.why.endswith(why)
    is_hosted = model == "mistral-embed" or "@http" in model
    assert isinstance(choice.embedder, HostedEmbedder) == is_hosted
    assert choice.queue.get("slots", 1) == (3 if is_hosted else 2)


def test_an_address_for_a_local_model_is_refused() -> None:
    with pytest.raises(SettingsError, match="--embedding-url"):
        chosen(embedder="local", embedding_url=HERE)


def test_without_a_key_the_official_address_is_not_asked() -> None:
    embedder = choose(Settings(embedder="mistral"), None, {}).embedder
    with pytest.raises(ModelUnavailable, match="MISTRAL_API_KEY is not set"):
        embedder.load()
    embedder.close()


def test_the_model_that_a_stamp_names_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with embeddings_server.running(embeddings_server.EmbeddingsServer()) as server:
        first = choose(
            Settings(embedder="openai", embedding_model="a@b/c", embedding_url=server.url), None, {}
        ).embedder
        first.load()
        assert first.stamp is not None
        assert first.stamp.space == f"a@b/c@{embeddings_server.WIDTH}"
        again = choose(Settings(), first.stamp, {"OPENAI_API_KEY": KEY}).embedder
        again.load()
        assert again.stamp == first.stamp
        assert [head[2]["model"] for head in server.heads] == ["a@b/c"] * 2
        assert [head[1].get("Authorization") for head in server.heads] == [None, f"Bearer {KEY}"]
        first.close()
        again.close()


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ({"mistral": "file-key"}, "file-key"),
        ({"mistral": {"api_key": "file-key"}}, "file-key"),
        ({"mistral": {"apiKey": "file-key"}}, "file-key"),
        ({"MISTRAL_API_KEY": "file-key"}, "file-key"),
        ({"openai": "other"}, KEY),
        ({"mistral": {"api_key": 5}}, KEY),
        ({"mistral": ["x"]}, KEY),
        (["mistral"], KEY),
        ("mistral", KEY),
    ],
)
def test_the_key_file_of_a_stack_goes_before_the_variable(tmp_path: Path, content: object, key: str) -> None:
    environment = {"RAO_HOME": str(tmp_path), **WITH_KEY}
    assert provider_key("mistral", environment) == KEY
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "providers.json").write_text(json.dumps(content))
    assert provider_key("mistral", environment) == key


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_key_file_is_passed_over(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "providers.json").write_bytes(damage)
    assert provider_key("mistral", {"RAO_HOME": str(tmp_path), **WITH_KEY}) == KEY


@pytest.mark.parametrize("key", ["two words", "schlüssel", "line\nbreak", "nul\0"])
def test_what_cannot_travel_in_a_header_is_no_key(key: str) -> None:
    assert provider_key("openai", {"OPENAI_API_KEY": key}) == ""
