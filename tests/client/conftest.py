from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# A node in process, and an application over a real port, belong to the tests of the node and of its page.
sys.path.append(str(Path(__file__).parents[1] / "node"))
sys.path.append(str(Path(__file__).parents[1] / "page"))

from in_process import opened
from serving import served

from thread_client import Client
from thread_service.settings import Settings
from thread_service.wire.http import create_app


@pytest.fixture(scope="session")
def key() -> str:
    return "known-to-both-sides"


@pytest.fixture(scope="session")
def node_url(tmp_path_factory: pytest.TempPathFactory, key: str) -> Iterator[str]:
    """A node that asks for a key, served over HTTP. Tests keep to owners of their own."""
    with (
        opened(tmp_path_factory.mktemp("client") / "data") as node,
        served(create_app(node.node, Settings(api_key=key))) as url,
    ):
        yield url


@pytest.fixture
def client(node_url: str, key: str, request: pytest.FixtureRequest) -> Iterator[Client]:
    with Client(node_url, owner_id=request.node.name, api_key=key) as client:
        yield client
