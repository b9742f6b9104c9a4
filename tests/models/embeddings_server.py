"""A server on loopback that speaks the embeddings API and misbehaves on request.

`script` holds what it does with the next requests, in order; after that, and for "well", it answers as it should.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

WIDTH = 16
KEY = "k3y-of-the-tests"


def vector_of(text: str, width: int = WIDTH) -> NDArray[np.float32]:
    """[width] of unit length."""
    vector = np.random.default_rng(crc32(text.encode("utf-8", "surrogatepass"))).standard_normal(width)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def status(code: int, message: str = "no", **headers: str) -> Callable[[Any, list[str]], None]:
    """Answer with this status, the error as Mistral writes it."""
    return lambda handler, _: handler.reply(code, json.dumps({"object": "error", "message": message}), **headers)


def body(text: str) -> Callable[[Any, list[str]], None]:
    return lambda handler, _: handler.reply(200, text)


def data(change: Callable[[list[dict[str, Any]]], Any]) -> Callable[[Any, list[str]], None]:
    """Answer with a changed list of vectors."""

    def act(handler: Any, texts: list[str]) -> None:
        items = good(texts)
        handler.reply(200, json.dumps({"object": "list", "data": change(items) or items}))

    return act


def good(texts: list[str]) -> list[dict[str, Any]]:
    """Vectors three times as long as they should be, in reverse order."""
    items = [{"index": index, "embedding": (3 * vector_of(text)).tolist()} for index, text in enumerate(texts)]
    return items[::-1]


def hang_up(handler: Any, texts: list[str]) -> None:
    """Promise more than is sent."""
    handler.reply(200, json.dumps({"data": good(texts)}), content_length="100000")


def silence(handler: Any, _: list[str]) -> None:
    handler.server.patience.wait(10)


def drip(handler: Any, _: list[str]) -> None:
    """A byte now and then: no single wait is long."""
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    while not handler.server.patience.wait(0.02):
        handler.wfile.write(b" ")
        handler.wfile.flush()


class EmbeddingsServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, handler: type[BaseHTTPRequestHandler] | None = None) -> None:
        super().__init__(("127.0.0.1", 0), handler or Handler)
        self.script: deque[Callable[[Any, list[str]], None] | str] = deque()
        self.refuses: Callable[[list[str]], Callable[[Any, list[str]], None] | None] = lambda texts: None
        self.requests: list[list[str]] = []
        self.times: list[float] = []
        self.heads: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.patience = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    @property
    def texts(self) -> list[str]:
        return [text for texts in self.requests for text in texts]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is what some tests are about."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: EmbeddingsServer

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        texts = request["input"]
        self.server.requests.append(texts)
        self.server.times.append(time.monotonic())
        self.server.heads.append((self.path, dict(self.headers), request))
        act: Any = self.server.script.popleft() if self.server.script else self.server.refuses(texts)
        if texts and texts[0].startswith("held"):
            self.server.gate.wait(10)
        if callable(act):
            act(self, texts)
        else:
            self.reply(200, json.dumps({"object": "list", "data": good(texts), "usage": {"prompt_tokens": 1}}))

    def reply(self, code: int, text: str, *, content_length: str = "", **headers: str) -> None:
        content = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", content_length or str(len(content)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)
        if content_length:
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        pass


Server = TypeVar("Server", bound=EmbeddingsServer)


@contextmanager
def running(server: Server) -> Iterator[Server]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.patience.set()
        server.gate.set()
        server.shutdown()
        thread.join()
        server.server_close()
