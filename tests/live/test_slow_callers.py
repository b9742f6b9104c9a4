"""Callers who are slow, silent or many: each is bounded, and the node answers others meanwhile."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_process import Client, NodeProcess

LIBRARY = b'{"owner_id": "others"}'


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def is_answered(node: NodeProcess) -> bool:
    """Whether a new caller is answered, and soon."""
    started = time.monotonic()
    with contextlib.closing(Client(node.port)) as client:
        answer = client.post("/v1/library", json.loads(LIBRARY))
    return answer == {"groups": [], "has_more": False} and time.monotonic() - started < 20


def grpc_port(node: NodeProcess) -> int:
    found = re.search(rb"gRPC +127\.0\.0\.1:(\d+)", node.log.read_bytes())
    assert found is not None
    return int(found[1])


@contextlib.contextmanager
def held(port: int, count: int, said: bytes = b"") -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connect(port)) for _ in range(count)]
        for connection in connections:
            connection.sendall(said)
        yield connections


def test_a_thousand_idle_connections_hold_nobody_up(client: Client, node: NodeProcess) -> None:
    with held(node.port, 1_000), held(grpc_port(node), 1_000):
        assert is_answered(node)
        assert client.post("/v1/library", json.loads(LIBRARY)) == {"groups": [], "has_more": False}
    assert is_answered(node)


@pytest.mark.parametrize(
    "flood",
    [
        b"GET /livez HTTP/1.1\r\n" + b"a: b\r\n" * 12_000,
        b"GET /livez HTTP/1.1\r\nlong: " + b"x" * 300_000,
        b"GET /" + b"x" * 300_000,
        b"POST /v1/library HTTP/1.1\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n0\r\n"
        + b"a: b\r\n" * 12_000,
    ],
    ids=["headers", "one header", "path", "trailers"],
)
def test_a_flood_of_headers_is_refused(client: Client, node: NodeProcess, flood: bytes) -> None:
    with contextlib.suppress(ConnectionError), connect(node.port) as connection:
        connection.sendall(flood)
        received = connection.recv(65_536)
        assert received == b"" or b" 431 " in received.partition(b"\r\n")[0]
    assert is_answered(node)


@pytest.mark.parametrize(("more", "status"), [(0, 200), (1, 431)])
def test_a_head_is_taken_up_to_its_bound(client: Client, node: NodeProcess, more: int, status: int) -> None:
    head = b"/livezhost: a\r\nlong: \r\n"
    long = b"x" * (65_536 + more - len(head))
    with connect(node.port) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nhost: a\r\nlong: " + long + b"\r\n\r\n")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 %d " % status)


def test_who_does_not_read_the_answer_holds_nobody_up(client: Client, node: NodeProcess) -> None:
    text = "a long line of the tide table\n" * 30_000
    filed = {"inputs": [[text] * 8], "document_ids": ["long"], "entities": [[]], "thread": {"owner_id": "slow"}}
    client.post("/v1/batch/embeddings", filed)
    body = b'{"owner_id": "slow", "document_ids": ["long"]}'
    head = b"POST /v1/documents HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    with held(node.port, 10, head % len(body) + body):
        assert is_answered(node)
    client.post("/v1/remove", {"owner_id": "slow", "all": True})


def test_a_slow_body_holds_nobody_up(client: Client, node: NodeProcess) -> None:
    head = b"POST /v1/library HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 1000000\r\n\r\n"
    with held(node.port, 200, head + b'{"owner_id": "') as connections:
        for connection in connections:
            connection.sendall(b"x")
        assert is_answered(node)


def test_a_secret_is_in_no_log_whatever_is_asked(tmp_path: Path) -> None:
    key = "k3y-that-nobody-may-read"
    with NodeProcess(tmp_path / "data", tmp_path / "log", "--api-key", key, "--log-level", "debug") as node:
        node.wait_listening()
        for method, path, right in (("POST", "/v1/library", 200), ("GET", "/metrics", 200), ("POST", "/v1/no", 404)):
            for authorization in (f"Bearer {key}", f"Bearer {key}x", f"Basic {key}", key, ""):
                with contextlib.closing(Client(node.port)) as client:
                    fields = {"Content-Type": "application/json", "Authorization": authorization}
                    client.connection.request(method, path, LIBRARY, fields)
                    response = client.connection.getresponse()
                    is_known = authorization == f"Bearer {key}"
                    assert response.status == (right if is_known or right == 404 else 401)
                    assert key.encode() not in response.read()
        assert node.terminate() == 0, node.tail()
        said = node.log.read_text(errors="replace")
    assert "DEBUG" in said or "debug" in said
    assert key not in said
    assert LIBRARY.decode() not in said
