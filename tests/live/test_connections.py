"""Large bodies, connections that stop half way, and callers at the same time: nobody is harmed by anybody else."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from node_process import Client, Json, NodeProcess

LIMIT = 100 * 2**20
START = "POST {} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"


def head(length: int, path: str = "/v1/library") -> bytes:
    return f"{START.format(path)}Content-Length: {length}\r\n\r\n".encode()


def connect(node: NodeProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", node.port), timeout=60)


def answer_to(connection: socket.socket) -> tuple[int, Json]:
    received = b""
    while b"\r\n\r\n" not in received or not received.endswith(b"}"):
        part = connection.recv(65_536)
        assert part, received
        received += part
    status, _, body = received.partition(b"\r\n\r\n")
    return int(status.split()[1]), json.loads(body)


def documents(client: Client, owner: str, ids: list[str]) -> list[Json]:
    return client.post("/v1/documents", {"owner_id": owner, "document_ids": ids})["documents"]


# ---------------------------------------------------------------------------------------------------- large


def test_ten_megabytes_in_one_text_come_back_and_are_found_by_a_rare_word(client: Client, node: NodeProcess) -> None:
    # Equal pieces are embedded once, so that this takes seconds; ten megabytes of prose take the model minutes.
    line = "the same line of the tide table again\n" * 132_000
    text = f"{line}quillfoxery {line}"
    assert len(text) > 10_000_000
    thread = {"owner_id": "large"}
    filed = client.post("/v1/batch/embeddings", {"inputs": [text], "document_ids": ["large"], "thread": thread})
    assert filed["documents"] == [{"id": "large", "outcome": "new"}]
    assert [document["texts"] for document in documents(client, "large", ["large"])] == [[text]]
    node.until(lambda: client.post("/v1/search", {"query": "quillfoxery", "thread": thread})["texts"] == [text], 120)
    assert client.post("/v1/remove", {"owner_id": "large", "document_ids": ["large"]})["removed_count"] == 1
    assert client.post("/v1/search", {"query": "quillfoxery", "thread": thread})["texts"] == []


def test_a_body_over_the_limit_is_refused_before_it_is_read(client: Client, node: NodeProcess) -> None:
    with connect(node) as connection:
        connection.sendall(head(110 * 2**20))
        status, problem = answer_to(connection)
    assert (status, problem["title"], problem["type"]) == (413, "Request too large", "/problems/too-large")
    assert f"{LIMIT:,}" in problem["detail"]
    assert client.post("/v1/library", {"owner_id": "large"}) == {"groups": [], "has_more": False}


def test_a_body_over_the_limit_that_hides_its_length_is_refused_too(client: Client, node: NodeProcess) -> None:
    chunk = b"100000\r\n" + b" " * 2**20 + b"\r\n"
    with connect(node) as connection:
        connection.sendall(f"{START.format('/v1/library')}Transfer-Encoding: chunked\r\n\r\n".encode())
        sending = threading.Thread(target=send_until_refused, args=(connection, chunk, 110))
        sending.start()
        status, problem = answer_to(connection)
        sending.join()
    assert (status, problem["title"]) == (413, "Request too large")
    assert client.post("/v1/library", {"owner_id": "large"}) == {"groups": [], "has_more": False}


def send_until_refused(connection: socket.socket, chunk: bytes, times: int) -> None:
    try:
        for _ in range(times):
            connection.sendall(chunk)
    except OSError:
        pass


def test_a_client_that_sends_all_of_a_large_body_gets_to_read_the_refusal(client: Client) -> None:
    status, problem = client.send("/v1/library", b'{"owner_id": "' + b"x" * 110 * 2**20 + b'"}')
    assert (status, problem["title"]) == (413, "Request too large")


# ---------------------------------------------------------------------------------------------------- half way


@pytest.fixture
def half_open(node: NodeProcess) -> Iterator[list[socket.socket]]:
    """Connections that stopped at every point of a request."""
    request = head(40) + b'{"owner_id": "half"}'
    connections = [connect(node) for _ in range(100)]
    for number, connection in enumerate(connections):
        connection.sendall(request[: number * len(request) // len(connections)])
    yield connections
    for connection in connections:
        connection.close()


def test_half_open_connections_hold_nobody_up(client: Client, half_open: list[socket.socket]) -> None:
    for number in range(20):
        thread = {"owner_id": "half"}
        client.post("/v1/batch/embeddings", {"inputs": ["a text"], "document_ids": [f"{number}"], "thread": thread})
    assert len(documents(client, "half", [str(number) for number in range(20)])) == 20


def test_who_leaves_in_the_middle_of_a_request_has_filed_nothing(client: Client, node: NodeProcess) -> None:
    body = json.dumps({"inputs": ["a text"], "document_ids": ["left"], "thread": {"owner_id": "leaver"}}).encode()
    for sent in (0, 1, len(body) // 2, len(body) - 1):
        with connect(node) as connection:
            connection.sendall(head(len(body), "/v1/batch/embeddings") + body[:sent])
    assert documents(client, "leaver", ["left"]) == []


def test_who_leaves_before_the_answer_has_filed_all_or_nothing(client: Client, node: NodeProcess) -> None:
    ids = [f"left {number}" for number in range(40)]
    body = {"inputs": ids, "document_ids": ids, "thread": {"owner_id": "leaver"}, "wait": True}
    data = json.dumps(body).encode()
    for _ in range(10):
        with connect(node) as connection:
            connection.sendall(head(len(data), "/v1/batch/embeddings") + data)
    for _ in range(10):
        with connect(node) as connection:
            query = json.dumps({"query": "a slow question", "thread": {"owner_id": "leaver"}}).encode()
            connection.sendall(head(len(query), "/v1/search") + query)
    assert len(documents(client, "leaver", ids)) in (0, 40)
    node.until(lambda: len(documents(client, "leaver", ids)) == 40, 30)


def test_what_is_no_http_is_refused(client: Client, node: NodeProcess) -> None:
    for nonsense in (
        b"\0" * 100,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"a" * 70_000,
    ):
        with connect(node) as connection:
            connection.sendall(nonsense)
            connection.shutdown(socket.SHUT_WR)
            received = connection.recv(65_536)
        assert received == b"" or b"400 Bad Request" in received
    assert client.get("/livez") == {"status": "ok"}


# ---------------------------------------------------------------------------------------------------- at once


def test_deposits_of_one_document_at_once_leave_exactly_one_of_them(client: Client, node: NodeProcess) -> None:
    words = [f"{word}{number}" for word in ("amber", "birch", "cedar", "delta") for number in range(10)]

    def deposit(writer: int) -> None:
        own = node.client()
        for word in words[writer::4]:
            entities = [[{"name": f"Name {word}"}, {"name": "Anchor"}]]
            edges = [[{"subject": f"Name {word}", "predicate": "holds", "object": "Anchor"}]]
            body = {"inputs": [[f"the text of {word}", f"more of {word}"]], "document_ids": ["one"]}
            body |= {"entities": entities, "relationships": edges, "thread": {"owner_id": "at once"}}
            own.post("/v1/batch/embeddings", body | {"wait": writer % 2 == 0})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(deposit, range(4)))
    client.post("/v1/batch/embeddings", {"inputs": ["last"], "thread": {"owner_id": "someone"}, "wait": True})
    (document,) = documents(client, "at once", ["one"])
    word = document["texts"][0].split()[-1]
    assert word in words
    assert document["texts"] == [f"the text of {word}", f"more of {word}"]
    thread = {"owner_id": "at once", "top_k": 100}
    found = client.post("/v1/search", {"query": "the text", "thread": thread})["texts"]
    assert sorted(found) == sorted(document["texts"])
    graph = client.post("/v1/graph", {"thread": thread})
    assert {entity["name"] for entity in graph["entities"]} == {f"Name {word}", "Anchor"}
    assert [edge["weight"] for edge in graph["relationships"]] == [1]


def test_the_same_text_from_many_at_once_is_new_once(node: NodeProcess) -> None:
    def deposit(_: int) -> str:
        body = {"inputs": ["a text that everybody sends"], "thread": {"owner_id": "all at once"}}
        return node.client().post("/v1/batch/embeddings", body)["documents"][0]["outcome"]

    with ThreadPoolExecutor(8) as pool:
        outcomes = sorted(pool.map(deposit, range(40)))
    assert outcomes == ["new", *["skipped"] * 39]


def test_deposits_and_removals_at_once_end_with_what_was_answered_last(client: Client, node: NodeProcess) -> None:
    def alternate(writer: int) -> None:
        own, thread, ids = node.client(), {"owner_id": "both"}, [f"{writer}"]
        for number in range(15):
            own.post("/v1/batch/embeddings", {"inputs": ["a shared text"], "document_ids": ids, "thread": thread})
            if number < 14 or writer % 2:
                assert own.post("/v1/remove", {"owner_id": "both", "document_ids": ids})["removed_count"] == 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(alternate, range(4)))
    assert [document["id"] for document in documents(client, "both", ["0", "1", "2", "3"])] == ["0", "2"]
    client.post("/v1/batch/embeddings", {"inputs": ["last one"], "thread": {"owner_id": "someone"}, "wait": True})
    answer = client.post("/v1/search", {"query": "shared", "thread": {"owner_id": "both"}})
    assert answer["texts"] == ["a shared text"]
    assert answer["references"][0]["document_id"] in ("0", "2")
