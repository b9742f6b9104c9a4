"""The files of the page: what is answered for them, and that they stand alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

import pytest
from fake_node import FakeNode
from litestar.testing import TestClient

from thread_service.settings import Settings
from thread_service.wire.http import create_app
from thread_service.wire.page import page_files
from thread_service.wire.secret import Stack

OWN = [path for path in page_files() if not path.startswith("vendor/")]
OUTSIDE = re.compile(rb"https?://(?!www\.w3\.org/)")


@pytest.fixture
def client() -> Iterator[TestClient[Any]]:
    with TestClient(create_app(FakeNode(), Settings()), raise_server_exceptions=False) as client:
        yield client


def test_the_page_is_at_the_root_and_may_load_nothing_from_elsewhere(client: TestClient[Any]) -> None:
    page = client.get("/")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert page.text.startswith("<!doctype html>")
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    assert client.get("/", headers={"accept": "application/json"}).content == page.content


@pytest.mark.parametrize(
    ("name", "media_type"),
    [
        ("index.html", "text/html; charset=utf-8"),
        ("page.css", "text/css; charset=utf-8"),
        ("main.js", "text/javascript; charset=utf-8"),
        ("icon.svg", "image/svg+xml"),
        ("vendor/cytoscape.min.mjs", "text/javascript; charset=utf-8"),
        ("vendor/cytoscape.LICENSE", "text/plain; charset=utf-8"),
    ],
)
def test_a_file_has_its_type_and_is_sent_once(client: TestClient[Any], name: str, media_type: str) -> None:
    first = client.get(f"/page/{name}")
    assert (first.status_code, first.headers["content-type"]) == (200, media_type)
    assert first.content == page_files()[name].content
    assert first.headers["cache-control"] == "no-cache"
    tag = first.headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = client.get(f"/page/{name}", headers={"if-none-match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert client.get(f"/page/{name}", headers={"if-none-match": '"other"'}).status_code == 200
    head = client.head(f"/page/{name}")
    assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize(
    "path",
    [
        "/page/", "/page/nothing.js", "/page/vendor", "/page/vendor/", "/page/../settings.py", "/page/..%2fsettings.py",
        "/page/%2e%2e/settings.py", "/page//etc/passwd", "/page/vendor/../../settings.py", "/page/main.js%00",
        "/page/..\\settings.py", "/page/MAIN.JS", "/index.html",
    ],
)  # fmt: skip
def test_nothing_else_is_served(client: TestClient[Any], path: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")


def test_only_reading_is_served(client: TestClient[Any]) -> None:
    assert client.post("/").status_code == 405
    assert client.put("/page/main.js").status_code == 405


def test_a_key_is_wanted_by_what_the_page_asks_and_not_by_its_files() -> None:
    with TestClient(create_app(FakeNode(), Settings(api_key="k3y"))) as client:
        assert client.get("/").status_code == client.get("/page/main.js").status_code == 200
        assert client.get("/metrics").headers["www-authenticate"] == "Bearer"


def test_in_a_stack_the_files_want_a_loopback_host_and_no_secret() -> None:
    stack = Stack("s3cret", "craft")
    with TestClient(create_app(FakeNode(), Settings(), stack=stack), base_url="http://127.0.0.1:8081") as client:
        assert client.get("/").status_code == client.get("/page/main.js").status_code == 200
        assert client.get("/", headers={"host": "evil.example"}).status_code == 421
        assert client.get("/page/main.js", headers={"host": "evil.example"}).status_code == 421
        assert "www-authenticate" not in client.get("/metrics").headers


def test_every_file_that_is_named_is_there_and_every_file_is_named() -> None:
    files = page_files()
    named = {"index.html", "vendor/cytoscape.LICENSE"}
    named |= {path.decode() for path in re.findall(rb'(?:href|src)="page/([^"]+)"', files["index.html"].content)}
    for path in OWN:
        for target in re.findall(rb'(?:from|import\() ?"\./([^"]+)"|^import "\./([^"]+)"', files[path].content, re.M):
            named.add(str(PurePosixPath(path).parent / (target[0] or target[1]).decode()))
    assert named == set(files)


@pytest.mark.parametrize("path", OWN)
def test_no_file_turns_text_into_markup_or_names_another_host(path: str) -> None:
    content = page_files()[path].content
    for forbidden in (b"innerHTML", b"outerHTML", b"insertAdjacentHTML", b"document.write", b"eval(", b"new Function"):
        assert forbidden not in content
    assert OUTSIDE.search(content) is None
    assert path.endswith((".css", ".html", ".svg")) or content.startswith(b"/** "), "a module says what it is"


def test_the_graph_library_comes_with_its_licence() -> None:
    assert b"The Cytoscape Consortium" in page_files()["vendor/cytoscape.LICENSE"].content
    assert b"Permission is hereby granted" in page_files()["vendor/cytoscape.LICENSE"].content
