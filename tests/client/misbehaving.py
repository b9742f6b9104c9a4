"""A server that answers as it is told, one connection a request: with a status, with nonsense, or not at all."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

DROP = None
"""Instead of an answer: the request is read, and the connection closed."""


class Answer(NamedTuple):
    status: int
    body: bytes = b""
    headers: tuple[str, ...] = ()


def problem(status: int, detail: str, *, retry_after: str | None = None, **more: Any) -> Answer:
    headers = () if retry_after is None else (f"Retry-After: {retry_after}",)
    body = {"type": "/problems/x", "title": "X", "status": status, "detail": detail, **more}
    return Answer(status, json.dumps(body).encode(), headers)


def ok(body: Any) -> Answer:
    return Answer(200, json.dumps(body).encode())


class Misbehaving:
    """`answers` in this order, the last one again and again; `requests` holds the body of each."""

    def __init__(self, answers: tuple[Answer | None, ...]) -> None:
        self._answers = list(answers)
        self.requests: list[Any] = []
        self.heads: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection:
                    self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        reader = connection.makefile("rb")
        head = b"".join(iter(reader.readline, b"\r\n"))
        if not head:
            return
        lengths = [line.partition(b":")[2] for line in head.lower().splitlines() if line.startswith(b"content-length")]
        body = reader.read(int(lengths[0])) if lengths else b""
        self.heads.append(head)
        self.requests.append(json.loads(body) if body else None)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if answer is DROP:
            return
        lines = [
            f"HTTP/1.1 {answer.status} X",
            f"Content-Length: {len(answer.body)}",
            "Content-Type: application/json",
            "Connection: close",
            *answer.headers,
        ]
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + answer.body)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@contextlib.contextmanager
def misbehaving(*answers: Answer | None) -> Iterator[Misbehaving]:
    server = Misbehaving(answers)
    try:
        yield server
    finally:
        server.close()
