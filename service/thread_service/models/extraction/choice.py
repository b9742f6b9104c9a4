"""What finds the entities of a node's documents: an instruct model, or the program's own keywords, and why.

    --graph-backend vllm      a vLLM of our own on this machine's GPU, or the one at --graph-url
    --graph-backend mistral   Mistral's API
    --graph-backend openai    OpenAI's API, or any that speaks as it does at --graph-url
    --graph-backend keyword   no model

Without a backend it is vLLM's. What cannot run is no reason not to start: keywords are found instead, and it is said
what is missing.
"""

from __future__ import annotations

import math
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from thread_service.models.cuda_driver import read_driver
from thread_service.models.extraction.interface import Extractor
from thread_service.models.provider_key import URLS, VARIABLES, Provider, provider_key
from thread_service.settings import Settings, SettingsError

VLLM_MODEL = "casperhansen/mistral-nemo-instruct-2407-awq"
VLLM_MODEL_BYTES = 10 * 10**9
"""What it takes on the device: 8.4 GB of weights, and room for a few texts at a time."""
OWN_BYTES = 3 * 2**30
"""What the node itself takes on the device: the embedding model, its batches, CUDA."""

_MODELS = {"vllm": VLLM_MODEL, "openai": "gpt-4o-mini", "mistral": "mistral-tiny"}
_SLOTS = {"vllm": 16, "openai": 8, "mistral": 2}
"""Documents at a time. vLLM puts them into one batch; Mistral's API takes two."""


@dataclass(frozen=True, slots=True)
class ExtractionChoice:
    """`extractor`: None for keywords. `about` names what was chosen and why. `missing`: what a model that was asked
    for lacks, else empty."""

    extractor: Extractor | None
    about: str
    missing: str = ""


def choose(settings: Settings, environment: Mapping[str, str]) -> ExtractionChoice:
    """What these settings ask for; nothing is started yet. Raises SettingsError for an address that is none."""
    backend = settings.graph_backend or "vllm"
    if backend == "keyword":
        return ExtractionChoice(None, "keywords, asked for by --graph-backend")
    missing = _missing(backend, settings, environment)
    if missing:
        is_asked_for = bool(settings.graph_backend)
        about = f"keywords: {missing}"
        return ExtractionChoice(None, about, f"--graph-backend {backend}: {missing}" if is_asked_for else "")
    model = settings.graph_model or _MODELS[backend]
    extractor, where = _extractor(backend, model, settings, environment)
    return ExtractionChoice(extractor, f"{model} ({where})")


def _missing(backend: str, settings: Settings, environment: Mapping[str, str]) -> str:
    if settings.graph_url:
        return ""
    if backend == "vllm":
        return _missing_for_vllm(settings)
    provider: Provider = "mistral" if backend == "mistral" else "openai"
    return "" if provider_key(provider, environment) else f"{VARIABLES[provider]} is not set, or holds no key"


def _missing_for_vllm(settings: Settings) -> str:
    if settings.device == "cpu":
        return "an instruct model needs CUDA, and --device cpu does without"
    try:
        driver = read_driver()
    except OSError as error:
        return str(error)
    if driver is None or not driver.devices:
        return "an instruct model needs a CUDA device, or --graph-url"
    command = _command(settings)
    if not command or shutil.which(command[0]) is None:
        return f"there is no command {settings.vllm_command!r}: install vLLM in an environment of its own and name it"
    device = driver.devices[0]
    room = device.memory_bytes * settings.vllm_gpu_share
    if not settings.graph_model and room < VLLM_MODEL_BYTES:
        return (
            f"{VLLM_MODEL} takes {VLLM_MODEL_BYTES / 1e9:.0f} GB, and --vllm-gpu-share leaves {room / 1e9:.0f} of "
            f"{device.name}'s; {_instead(device.memory_bytes)}"
        )
    return ""


def _instead(memory_bytes: int) -> str:
    """What to do about too small a share of a device: a larger one, unless the node then has too little."""
    if memory_bytes < VLLM_MODEL_BYTES + OWN_BYTES:
        return "it is too small for both models: give --graph-url of a server elsewhere, or --graph-backend keyword"
    return f"give --vllm-gpu-share {math.ceil(20 * VLLM_MODEL_BYTES / memory_bytes) / 20:.2f}"


def _command(settings: Settings) -> list[str]:
    try:
        return shlex.split(settings.vllm_command)
    except ValueError:
        return []


def _extractor(backend: str, model: str, settings: Settings, environment: Mapping[str, str]) -> tuple[Extractor, str]:
    # Only now: the HTTP client takes a quarter of a second to import, which keywords need not wait for.
    from thread_service.models.extraction.chat_api import ChatApi
    from thread_service.models.extraction.extractor import InstructExtractor
    from thread_service.models.extraction.vllm import VllmServer
    from thread_service.models.http_api import Misconfigured

    slots = _SLOTS[backend]
    if backend == "vllm" and not settings.graph_url:
        server = VllmServer(
            _command(settings),
            model,
            port=settings.vllm_port,
            gpu_share=settings.vllm_gpu_share,
            max_model_len=settings.vllm_max_model_len,
            models_dir=settings.models_dir,
            environment=environment,
        )
        api = ChatApi(server.url, model, lambda: server.key)
        return InstructExtractor(api, slots=slots, server=server), f"vLLM on port {server.port}"
    url = settings.graph_url or URLS["mistral" if backend == "mistral" else "openai"]
    try:
        api = ChatApi(url, model, _key(backend, environment))
    except Misconfigured as error:
        raise SettingsError(f"--graph-url: {error}") from None
    return InstructExtractor(api, slots=slots), url


def _key(backend: str, environment: Mapping[str, str]) -> Callable[[], str]:
    """Read at every request; a server of one's own may do without."""
    if backend == "vllm":
        return lambda: environment.get("VLLM_API_KEY", "").strip()
    provider: Provider = "mistral" if backend == "mistral" else "openai"
    return lambda: provider_key(provider, environment)
