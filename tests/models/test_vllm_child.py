"""The vLLM that a node starts, a command that behaves as it does in its place: waited for, started again, ended."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from thread_service.errors import NotReady
from thread_service.models.extraction import vllm
from thread_service.models.extraction.chat_api import ChatApi
from thread_service.models.extraction.extractor import InstructExtractor
from thread_service.models.extraction.interface import Entity
from thread_service.models.extraction.vllm import VllmServer
from thread_service.text.policy import Policy

STAND_IN = Path(__file__).with_name("stand_in_vllm.py")


class Life:
    """How the next life of the stand-in goes, and what those before saw."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.set()

    def set(self, **how: Any) -> None:
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps(how))
        fresh.rename(self.path)

    @property
    def seen(self) -> list[dict[str, Any]]:
        path = self.path.with_suffix(".seen")
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(vllm, "FIRST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(vllm, "LONGEST_PAUSE_SECONDS", 0.1)
    monkeypatch.setattr(vllm, "UNWELL_MAX", 3)


@pytest.fixture
def life(tmp_path: Path) -> Life:
    return Life(tmp_path / "life.json")


@pytest.fixture
def make(life: Life, tmp_path: Path) -> Iterator[Callable[..., VllmServer]]:
    made: list[VllmServer] = []

    def server(*, command: list[str] | None = None, model: str = "org/model@abc", port: int = 0) -> VllmServer:
        made.append(
            VllmServer(
                command or [sys.executable, str(STAND_IN)],
                model,
                port=port,
                gpu_share=0.5,
                max_model_len=8_192,
                models_dir=tmp_path / "models",
                environment={
                    **{name: value for name, value in os.environ.items() if name in ("PATH", "LD_LIBRARY_PATH")},
                    "STAND_IN": str(life.path),
                    "MISTRAL_API_KEY": "s3cret",
                    "THREAD_API_KEY": "s3cret",
                    "AMBIENT_STACK_SECRET": "s3cret",
                    "VLLM_API_KEY": "theirs",
                    "PYTHONPATH": "/ours",
                    "CUDA_VISIBLE_DEVICES": "1",
                },
            )
        )
        return made[-1]

    yield server
    for each in made:
        each.close()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.005)


def is_alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def test_it_is_waited_for_asked_with_its_key_and_leaves_nothing_behind(
    make: Callable[..., VllmServer], life: Life, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    life.set(start_seconds=0.3)
    server = make()
    extractor = InstructExtractor(ChatApi(server.url, "org/model@abc", lambda: server.key), slots=1, server=server)
    assert server.complaint() == "vLLM is starting"
    extractor.start()
    with pytest.raises(NotReady, match="vLLM is starting"):
        extractor.extract(["Ada Quill"], Policy())
    until(lambda: not server.complaint())
    assert extractor.extract(["Ada Quill"], Policy()).entities == (Entity("Ada Quill", "person"),)
    (first,) = life.seen
    assert " ".join(first["arguments"]) == (
        f"serve org/model --host 127.0.0.1 --port {server.port} --served-model-name org/model@abc"
        " --gpu-memory-utilization 0.5 --max-model-len 8192 --uvicorn-log-level warning"
        " --revision abc --tokenizer-revision abc"
    )
    environment = first["environment"]
    assert "s3cret" not in environment.values()
    assert "PYTHONPATH" not in environment
    assert environment["CUDA_VISIBLE_DEVICES"] == "1"
    assert environment["HF_HUB_CACHE"] == str(tmp_path / "models")
    assert environment["VLLM_API_KEY"] == server.key
    extractor.close()
    assert not is_alive(first["pid"])
    until(lambda: not is_alive(first["worker"]))
    lines = [record.getMessage() for record in caplog.records if record.name == vllm.__name__]
    assert "vllm: INFO 11-30 01:02:03 [api_server.py:1] vLLM API server version 0.0.0" in lines
    assert "vllm: Loading shards: 100%" in lines
    assert any(line.startswith("vLLM is ready after") for line in lines)
    assert server.key not in caplog.text


def test_one_that_ends_is_started_again_and_says_why(
    make: Callable[..., VllmServer], life: Life, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    life.set(crash=True)
    server = make(model="org/model")
    server.start()
    until(lambda: len(life.seen) >= 3)
    assert "--revision" not in life.seen[0]["arguments"]
    assert "vLLM ended by itself (torch.OutOfMemoryError: CUDA out of memory.) after" in caplog.text
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "vllm: ERROR 11-30 01:02:04 [core.py:2] EngineCore failed to start." in warnings
    assert "vllm: torch.OutOfMemoryError: CUDA out of memory." in warnings
    life.set()
    until(lambda: not server.complaint())
    last = life.seen[-1]
    os.kill(last["pid"], signal.SIGKILL)
    until(lambda: server.complaint())
    until(lambda: not server.complaint())
    assert life.seen[-1]["pid"] != last["pid"]
    until(lambda: not is_alive(last["worker"]))


def test_one_that_ends_again_and_again_is_given_longer_pauses_to_a_limit(
    make: Callable[..., VllmServer], life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm, "LONGEST_PAUSE_SECONDS", 0.15)
    life.set(crash=True)
    server = make()
    pauses: list[float] = []
    wait = server._closing.wait

    def recorded(seconds: float) -> bool:
        if seconds != vllm.POLL_SECONDS:
            pauses.append(seconds)
        return wait(seconds)

    monkeypatch.setattr(server._closing, "wait", recorded)
    server.start()
    until(lambda: len(pauses) >= 4)
    assert pauses[:4] == [0.05, 0.1, 0.15, 0.15]


def test_one_that_stops_answering_is_ended_and_started_again(make: Callable[..., VllmServer], life: Life) -> None:
    server = make()
    server.start()
    until(lambda: not server.complaint())
    life.set(mute=True)
    until(lambda: "does not answer any more" in server.complaint() or len(life.seen) > 1)
    life.set()
    until(lambda: len(life.seen) > 1 and not server.complaint())
    assert not is_alive(life.seen[0]["pid"])


def test_what_cannot_be_started_is_said_and_tried_again(
    make: Callable[..., VllmServer], life: Life, caplog: pytest.LogCaptureFixture
) -> None:
    missing = make(command=["/nowhere/vllm"])
    missing.start()
    until(lambda: "/nowhere/vllm: No such file or directory" in missing.complaint())
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = make(port=other.getsockname()[1])
        taken.start()
        until(lambda: f"port {taken.port} is in use" in taken.complaint())
        assert life.seen == []
    until(lambda: not taken.complaint())


def test_closing_one_that_was_never_started_or_is_starting_returns(make: Callable[..., VllmServer], life: Life) -> None:
    make().close()
    life.set(start_seconds=60)
    server = make()
    server.start()
    until(lambda: life.seen)
    server.close()
    assert not is_alive(life.seen[0]["pid"])


def test_it_ends_with_a_node_that_is_killed(life: Life, tmp_path: Path) -> None:
    program = f"""
        import os, time
        from pathlib import Path
        from thread_service.models.extraction.vllm import VllmServer
        server = VllmServer([{sys.executable!r}, {str(STAND_IN)!r}], "m", port=0, gpu_share=0.5, max_model_len=2_048,
                            models_dir=Path("."), environment=dict(os.environ))
        server.start()
        time.sleep(600)
    """
    environment = {**os.environ, "STAND_IN": str(life.path)}
    node = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], env=environment)
    try:
        until(lambda: life.seen)
        pid, worker = life.seen[0]["pid"], life.seen[0]["worker"]
        assert is_alive(pid)
        node.kill()
        node.wait()
        until(lambda: not is_alive(pid))
    finally:
        node.kill()
        node.wait()
    os.kill(worker, signal.SIGKILL)  # vLLM ends its workers itself, the stand-in does not
