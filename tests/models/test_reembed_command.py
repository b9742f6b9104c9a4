"""`thread reembed` with real models and a provider: on a directory at rest, killed in the middle, and in a node."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import pytest
from embeddings_server import WIDTH as HOSTED_WIDTH
from embeddings_server import EmbeddingsServer, running, vector_of

sys.path.append(str(Path(__file__).parents[1] / "node"))

from in_process import InProcess, document, ids, until

from thread_service import cli
from thread_service.batching.embed import EmbeddingQueue
from thread_service.models.embedder import Stamp
from thread_service.models.local import local_embedder
from thread_service.node.reembedding import TEXTS_A_BATCH, another_model
from thread_service.settings import Settings, declarations
from thread_service.wire.control import commands, run_control
from thread_service.wire.control_protocol import socket_path

WORDS = ("alpha", "beta", "gamma", "delta")
TEXTS = [f"{one} {other} {number}" for number in range(40) for one in WORDS for other in WORDS]


@pytest.fixture
def server() -> Iterator[EmbeddingsServer]:
    with running(EmbeddingsServer()) as server:
        yield server


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in (*(each.variable for each in declarations().values()), "MISTRAL_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def data_dir(model_folder: Callable[..., Path], tmp_path: Path) -> Path:
    """An index that a tiny model in ONNX form wrote."""
    node = InProcess(tmp_path / "data", local_embedder(str(model_folder()), models_dir=tmp_path))  # type: ignore[arg-type]
    try:
        node.file("ann", *(document(text, id=f"d{number}") for number, text in enumerate(TEXTS)))
    finally:
        node.close()
    return tmp_path / "data"


def vectors(node: InProcess) -> dict[str, Any]:
    rows = node.rows(
        "SELECT text, segment, slot FROM vectors JOIN partitions ON partition_key = subject_key WHERE purpose = 'model'"
    )
    return {text: node.store.segments.read(segment, np.array([slot]))[0] for text, segment, slot in rows}


def check_is_hosted(data_dir: Path, server: EmbeddingsServer) -> None:
    """The index is the provider's, and a start without any flag finds that."""
    queue = another_model(Settings(), {}, Stamp("", f"openai:m@{server.url}", None, HOSTED_WIDTH), {})
    assert queue is not None
    node = InProcess(data_dir, queue.embedder)  # type: ignore[arg-type]
    try:
        assert node.rows("SELECT space, model FROM stamp") == [(f"m@{HOSTED_WIDTH}", f"openai:m@{server.url}")]
        assert node.node.embedder_health().index == "matches"
        found = vectors(node)
        assert found.keys() == {*TEXTS}
        for text, vector in found.items():
            np.testing.assert_allclose(vector, vector_of(text), atol=1e-6)
        assert ids(node.search("ann", TEXTS[7], lexical=False, graph_mode="off"))[0] == "d7"
    finally:
        node.close()


def flags(data_dir: Path, server: EmbeddingsServer) -> list[str]:
    return [
        *("reembed", "--data-dir", str(data_dir), "--embedder", "openai"),
        *("--embedding-model", "m", "--embedding-url", server.url),
    ]


def test_a_killed_command_goes_on_where_it_was(
    data_dir: Path, server: EmbeddingsServer, capsys: pytest.CaptureFixture[str]
) -> None:
    served = 0

    def hold(texts: list[str]) -> None:
        nonlocal served
        served += len(texts)
        if served > 1 + TEXTS_A_BATCH:
            server.gate.wait(30)

    server.gate.clear()
    server.refuses = hold  # type: ignore[assignment]
    command = [sys.executable, "-m", "thread_service.cli", *flags(data_dir, server)]
    process = subprocess.Popen(command, env={**os.environ, "THREAD_LOG_LEVEL": "error"}, stderr=subprocess.PIPE)
    assert process.stderr is not None
    try:
        until(lambda: _recorded(data_dir) >= TEXTS_A_BATCH)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stderr.close()
    server.gate.set()
    server.refuses = lambda texts: None
    server.requests.clear()
    assert cli.main([*flags(data_dir, server), "--json"]) == 0
    shown = capsys.readouterr()
    answer = json.loads(shown.out)
    assert (answer["command"], answer["texts"], answer["was"]) == ("reembed", len(TEXTS), "tiny@8")
    assert answer["resumed"] >= TEXTS_A_BATCH
    assert len({*server.texts} & {*TEXTS}) == len(TEXTS) - answer["resumed"], "only what was missing is embedded"
    assert "embedding model" in shown.err
    check_is_hosted(data_dir, server)


def _recorded(data_dir: Path) -> int:
    [path] = data_dir.glob("nodes/*/thread.db")
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return int(connection.execute("SELECT count(*) FROM vectors WHERE purpose = 'next_model'").get)
    finally:
        connection.close()


def test_what_came_of_it_is_said_in_sentences(
    data_dir: Path, server: EmbeddingsServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(flags(data_dir, server)) == 0
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith(f"the index is of m@{HOSTED_WIDTH} now, before of tiny@8: {len(TEXTS)} texts, 0 rel")
    assert last == f"start the node without --embedding-model, or with openai:m@{server.url}, from now on"
    assert cli.main(flags(data_dir, server)) == 0
    assert capsys.readouterr().out == f"the index is of m@{HOSTED_WIDTH} already; nothing was embedded\n"
    assert cli.main(["reembed", "--data-dir", str(data_dir)]) == 1
    assert "name the model with --embedding-model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (["--embedding-model", "/nowhere/model"], 1, "/nowhere/model is not a directory"),
        (["--embedding-model", "no name"], 1, "neither a directory nor a model name"),
        (["--embedding-url", "http://127.0.0.1:9/v1"], 1, "--embedding-url: the model is a local one"),
        (["--embedding-dim", "x"], 2, "--embedding-dim"),
    ],
)
def test_a_model_that_cannot_be_had_changes_nothing(
    data_dir: Path, more: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["reembed", "--data-dir", str(data_dir), *more]) == code
    assert said in capsys.readouterr().err
    assert _recorded(data_dir) == 0


def test_a_running_node_does_it_and_goes_on_with_the_other_model(
    data_dir: Path, server: EmbeddingsServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(models_dir=tmp_path)

    def another(wanted: Any, begun: Any) -> EmbeddingQueue | None:
        return another_model(settings, wanted, begun, {})

    embedder = local_embedder(str(tmp_path / "tiny"), models_dir=tmp_path)
    node = InProcess(data_dir, embedder, another_model=another)  # type: ignore[arg-type]
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    path = socket_path(node.store.path)
    thread = threading.Thread(target=lambda: loop.run_until_complete(run_control(path, commands(node.node), stop)))
    thread.start()
    try:
        until(path.is_socket)
        assert cli.main([*flags(data_dir, server), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["texts"] == len(TEXTS)
        assert node.node.embedder_health().vector_space == f"m@{HOSTED_WIDTH}"
        assert ids(node.search("ann", TEXTS[7], lexical=False, graph_mode="off"))[0] == "d7"
        assert cli.main(["reembed", "--data-dir", str(data_dir)]) == 1
        assert "name another one with --embedding-model" in capsys.readouterr().err
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
        node.close()
    check_is_hosted(data_dir, server)
