"""The pages for machines: the OpenAPI document and the metrics."""

from __future__ import annotations

from typing import Any

import pytest
from fake_node import FakeNode
from litestar.testing import TestClient

from thread_service.observe import REGISTRY

Client = TestClient[Any]
ROUTES = [
    *("batch/embeddings", "search", "graph", "library", "library/document", "documents", "export"),
    *("group/update", "document/update", "remove", "clear"),
]


@pytest.fixture
def openapi(client: Client) -> Any:
    assert client.get("/schema/openapi.json").json() == client.get("/schema").json()
    return client.get("/schema").json()


@pytest.mark.parametrize("route", ROUTES)
def test_each_request_is_documented_with_an_example_that_works(client: Client, openapi: Any, route: str) -> None:
    operation = openapi["paths"][f"/v1/{route}"]["post"]
    (content,) = operation["requestBody"]["content"].values()
    (example,) = content["schema"]["examples"]
    assert client.post(f"/v1/{route}", json=example).status_code == 200
    assert "application/problem+json" in operation["responses"]["400"]["content"]


def test_the_document_shows_fields_words_and_bounds(openapi: Any) -> None:
    schemas = openapi["components"]["schemas"]
    assert not any("." in name or "_" in name for name in schemas), sorted(schemas)
    assert schemas["BatchRequest"]["required"] == ["inputs", "thread"]
    assert schemas["BatchRequest"]["properties"]["inputs"]["maxItems"] == 10_000
    assert "global" in str(schemas["Thread"]["properties"]["scope"])


def test_requests_are_counted_and_timed_by_route(client: Client, node: FakeNode) -> None:
    def count(route: str, status: str) -> float:
        return REGISTRY.get_sample_value("thread_http_requests_total", {"route": route, "status": status}) or 0.0

    before = count("/v1/clear", "200"), count("/v1/clear", "400"), count("unmatched", "404")
    client.post("/v1/clear", json={"confirm": True})
    client.post("/v1/clear", json={})
    client.get("/no/such/path")
    after = count("/v1/clear", "200"), count("/v1/clear", "400"), count("unmatched", "404")
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 1, 1]
    page = client.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain; version=")
    assert 'thread_http_request_seconds_count{route="/v1/clear"}' in page.text
