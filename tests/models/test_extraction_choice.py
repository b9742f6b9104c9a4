"""What finds the entities of a node's documents, for which settings, and what is said when it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer
from embeddings_server import running

from thread_service.models.cuda_driver import Device, Driver
from thread_service.models.extraction import choice
from thread_service.models.extraction.choice import VLLM_MODEL, choose
from thread_service.models.extraction.extractor import InstructExtractor
from thread_service.models.extraction.interface import Entity
from thread_service.settings import Settings
from thread_service.text.policy import Policy

BIG = Driver((13, 0), (Device("NVIDIA RTX 4090", (8, 9), 24 << 30),))
MIDDLE = Driver((13, 0), (Device("NVIDIA RTX 4080", (8, 9), 16376 << 20),))
SMALL = Driver((13, 0), (Device("NVIDIA RTX 3060", (8, 6), 12 << 30),))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A machine that has what vLLM needs; the command's path."""
    monkeypatch.setattr(choice, "read_driver", lambda: BIG)
    command = tmp_path / "bin" / "vllm"
    command.parent.mkdir()
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    return str(command)


def test_a_machine_with_all_that_is_needed_gets_a_vllm_of_its_own(gpu: str) -> None:
    chosen = choose(Settings(vllm_command=f"{gpu} --flag", vllm_port=8123), {})
    assert isinstance(chosen.extractor, InstructExtractor)
    assert (chosen.about, chosen.missing) == (f"{VLLM_MODEL} (vLLM on port 8123)", "")
    assert chosen.extractor.complaint() == "vLLM is starting"
    assert chosen.extractor.slots == 16
    chosen.extractor.close()


def test_what_is_missing_is_said_and_keywords_are_found(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(driver: Any = BIG, **more: Any) -> str:
        def read() -> Driver | None:
            if isinstance(driver, Exception):
                raise driver
            found: Driver | None = driver
            return found

        monkeypatch.setattr(choice, "read_driver", read)
        asked = choose(Settings(graph_backend="vllm", **{"vllm_command": gpu, **more}), {})
        quiet = choose(Settings(**{"vllm_command": gpu, **more}), {})
        assert asked.extractor is None
        assert quiet.extractor is None
        assert quiet.missing == ""
        assert asked.missing == f"--graph-backend vllm: {asked.about.removeprefix('keywords: ')}"
        assert quiet.about == asked.about
        return asked.missing

    assert "needs a CUDA device, or --graph-url" in missing(None)
    assert "needs a CUDA device" in missing(Driver((13, 0), ()))
    assert "answers cuInit with error 999" in missing(OSError("the NVIDIA driver answers cuInit with error 999"))
    assert "--device cpu" in missing(device="cpu")
    assert "there is no command '/nowhere/vllm'" in missing(vllm_command="/nowhere/vllm")
    assert "there is no command" in missing(vllm_command='"unclosed')
    assert "takes 10 GB, and --vllm-gpu-share leaves 6 of NVIDIA RTX 3060's; it is too small for both" in missing(SMALL)
    assert missing(MIDDLE).endswith("leaves 9 of NVIDIA RTX 4080's; give --vllm-gpu-share 0.60")
    enough = choose(Settings(graph_backend="vllm", vllm_command=gpu, vllm_gpu_share=0.6), {})
    assert enough.missing == ""
    small = choose(Settings(vllm_command=gpu, graph_model="org/small"), {})
    assert small.about.startswith("org/small (vLLM on port ")


def test_keywords_are_found_when_they_are_asked_for(gpu: str) -> None:
    assert choose(Settings(graph_backend="keyword", vllm_command=gpu), {}).extractor is None


@pytest.mark.parametrize(
    ("backend", "variable", "about", "slots"),
    [
        ("mistral", "MISTRAL_API_KEY", "mistral-tiny (https://api.mistral.ai/v1)", 2),
        ("openai", "OPENAI_API_KEY", "gpt-4o-mini (https://api.openai.com/v1)", 8),
    ],
)
def test_a_provider_wants_its_key(backend: Any, variable: str, about: str, slots: int) -> None:
    without = choose(Settings(graph_backend=backend), {})
    assert (without.extractor, without.missing) == (
        None, f"--graph-backend {backend}: {variable} is not set, or holds no key",
    )  # fmt: skip
    chosen = choose(Settings(graph_backend=backend), {variable: "k"})
    assert chosen.extractor is not None
    assert (chosen.about, chosen.missing, chosen.extractor.slots) == (about, "", slots)
    chosen.extractor.close()


@pytest.mark.parametrize(
    ("backend", "variables", "sent"),
    [
        ("", {}, None),
        ("vllm", {"VLLM_API_KEY": "v", "OPENAI_API_KEY": "o"}, "Bearer v"),
        ("openai", {"VLLM_API_KEY": "v", "OPENAI_API_KEY": "o"}, "Bearer o"),
        ("mistral", {"MISTRAL_API_KEY": "m"}, "Bearer m"),
    ],
)
def test_a_server_that_is_named_is_asked_without_a_gpu(
    backend: Any, variables: dict[str, str], sent: str | None
) -> None:
    with running(ChatServer()) as server:
        chosen = choose(Settings(graph_backend=backend, graph_url=server.url, graph_model="org/own"), variables)
        assert chosen.extractor is not None
        assert chosen.about == f"org/own ({server.url})"
        assert chosen.extractor.extract(["Ada Quill"], Policy()).entities == (Entity("Ada Quill", "person"),)
        _, headers, request = server.heads[0]
        assert headers.get("Authorization") == sent
        assert request["model"] == "org/own"
        chosen.extractor.close()
