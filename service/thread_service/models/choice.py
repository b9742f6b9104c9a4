"""Which embedding model a node runs, and why.

    --embedder, --embedding-model  →  what wrote the index  →  Mistral, when there is a key  →  the local default

The local default is voyage-4-nano at 1024 components on CUDA, all-MiniLM-L6-v2 at its 384 elsewhere.
A hosted model is written into the index's stamp so that it is found again without any flag: `mistral-embed`, or with
the provider and the address, `openai:BAAI/bge-m3@http://127.0.0.1:8000/v1`. The address belongs to it: texts that were
embedded by a server of one's own must not go to another by mistake.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from thread_service.models import voyage
from thread_service.models.device import Device, device_for, formats_for
from thread_service.models.embedder import Embedder, Stamp
from thread_service.models.local import local_embedder
from thread_service.models.provider_key import URLS, VARIABLES, Provider, provider_key
from thread_service.settings import Settings, SettingsError

CPU_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
MISTRAL_MODEL = "mistral-embed"

_MODELS: Mapping[Provider, str] = {"mistral": MISTRAL_MODEL, "openai": "text-embedding-3-small"}
_HOSTED = re.compile(r"(mistral|openai):(.+)@(https?://[^@]+)")

# On a CPU a query is embedded beside the documents: searches beside filing take 24 ms in place of 52 (p50, 2 cores), so
# documents may come in long lists. On a GPU a query waits about a quarter of a second behind them: some 32,000 tokens
# of voyage-4-nano, which is also the longest text that it takes whole.
LOCAL_QUEUES: Mapping[Device, Mapping[str, Any]] = {
    "cpu": {"batch_bytes": 16_384, "slots": 2},
    "cuda": {"batch_texts": 512, "batch_bytes": 131_072},
}

# A request may have 16,384 tokens at Mistral; Chinese takes about one for three bytes, English one for four. Three
# slots are what the original held, one of which waits for queries only.
_HOSTED_QUEUE = {"batch_texts": 256, "batch_bytes": 24_576, "slots": 3}


@dataclass(frozen=True, slots=True)
class Choice:
    """`why`: the reason, to follow the name of the model. `queue`: how its `EmbeddingQueue` is to be set."""

    embedder: Embedder
    why: str
    queue: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Hosted:
    provider: Provider
    name: str
    url: str

    @property
    def spec(self) -> str:
        is_usual = self == _Hosted("mistral", MISTRAL_MODEL, URLS["mistral"])
        return self.name if is_usual else f"{self.provider}:{self.name}@{self.url}"


def choose(settings: Settings, stored: Stamp | None, environment: Mapping[str, str]) -> Choice:
    """The embedder for these settings over an index with this stamp (None: empty); nothing is loaded yet.

    Raises SettingsError for settings that do not go together, ModelUnavailable for a name that is no model's.
    """
    name, why = _named(settings, None if stored is None else stored.model, environment)
    hosted = _parse(name)
    if hosted is None:
        if settings.embedding_url:
            raise SettingsError("--embedding-url: the model is a local one; give --embedder mistral or openai with it")
        local = local_embedder(
            name,
            models_dir=settings.models_dir,
            wish=settings.device,
            width=settings.embedding_dim,
            stored=stored,
        )
        return Choice(local, why, LOCAL_QUEUES[local.device])
    if settings.embedding_dim is not None:
        raise SettingsError("--embedding-dim: the model is a hosted one, which gives vectors of its own width")
    return Choice(_hosted_embedder(hosted, environment), why, _HOSTED_QUEUE)


def _named(settings: Settings, stored_model: str | None, environment: Mapping[str, str]) -> tuple[str, str]:
    """A model's name as it would be in a stamp, and the reason for it."""
    stored = None if stored_model is None else _parse(stored_model)
    stored_provider = stored.provider if stored else "local"
    if settings.embedder in ("mistral", "openai"):
        provider: Provider = "mistral" if settings.embedder == "mistral" else "openai"
        same = stored if stored is not None and stored.provider == provider else None
        given = _parse(settings.embedding_model)
        if given is not None and given.provider == provider:
            return _at(given, settings.embedding_url).spec, "asked for by --embedding-model"
        model = settings.embedding_model or (same.name if same else _MODELS[provider])
        url = same.url if same else URLS[provider]
        why = "asked for by --embedding-model" if settings.embedding_model else "asked for by --embedder"
        return _at(_Hosted(provider, model, url), settings.embedding_url).spec, why
    if settings.embedding_model:
        given = None if settings.embedder == "local" else _parse(settings.embedding_model)
        name = _at(given, settings.embedding_url).spec if given else settings.embedding_model
        return name, "asked for by --embedding-model"
    if stored_model is not None and settings.embedder in ("", stored_provider):
        return _at(stored, settings.embedding_url).spec if stored else stored_model, "it wrote the index"
    if settings.embedder == "local":
        return _local_default(settings)
    if provider_key("mistral", environment):
        mistral = _Hosted("mistral", MISTRAL_MODEL, URLS["mistral"])
        return _at(mistral, settings.embedding_url).spec, "MISTRAL_API_KEY is set"
    name, why = _local_default(settings)
    return name, f"{why} and without MISTRAL_API_KEY"


def _local_default(settings: Settings) -> tuple[str, str]:
    device = device_for(settings.device)
    on_cuda = device == "cuda" and "safetensors" in formats_for(device)
    return (voyage.MODEL, "the default on CUDA") if on_cuda else (CPU_MODEL, "the default without CUDA")


def _at(hosted: _Hosted, url: str) -> _Hosted:
    return _Hosted(hosted.provider, hosted.name, url.rstrip("/")) if url else hosted


def _parse(name: str) -> _Hosted | None:
    """The hosted model that a name stands for, None for a local one."""
    if name == MISTRAL_MODEL:
        return _Hosted("mistral", name, URLS["mistral"])
    match = _HOSTED.fullmatch(name)
    return None if match is None else _Hosted("mistral" if match[1] == "mistral" else "openai", match[2], match[3])


class HostedModel(NamedTuple):
    """What can be said of a hosted model without asking it. `missing`: the variable that its key is wanted in."""

    name: str
    url: str
    missing: str


def hosted_model(model: str, environment: Mapping[str, str]) -> HostedModel | None:
    """None for a local model."""
    hosted = _parse(model)
    if hosted is None:
        return None
    has_key = provider_key(hosted.provider, environment) or not _wants_key(hosted)
    return HostedModel(hosted.name, hosted.url, "" if has_key else VARIABLES[hosted.provider])


def _wants_key(hosted: _Hosted) -> bool:
    """A server of one's own may do without."""
    return hosted.url == URLS[hosted.provider]


def _hosted_embedder(hosted: _Hosted, environment: Mapping[str, str]) -> Embedder:
    # Only now: the HTTP client takes a quarter of a second to import, which a local model need not wait for.
    from thread_service.models.embeddings_api import EmbeddingsApi
    from thread_service.models.hosted import HostedEmbedder
    from thread_service.models.http_api import Misconfigured

    def key() -> str:
        found = provider_key(hosted.provider, environment)
        if not found and _wants_key(hosted):
            raise Misconfigured(f"{VARIABLES[hosted.provider]} is not set, or holds no key; {hosted.name} needs one")
        return found

    return HostedEmbedder(hosted.spec, hosted.name, EmbeddingsApi(hosted.url, hosted.name, key))
