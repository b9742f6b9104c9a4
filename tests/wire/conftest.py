from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# The node in process belongs to the tests of the node.
sys.path.append(str(Path(__file__).parents[1] / "node"))

from fake_node import FakeNode
from litestar.testing import TestClient

from thread_service.settings import Settings
from thread_service.wire.http import create_app


@pytest.fixture
def node() -> FakeNode:
    return FakeNode()


@pytest.fixture
def client(node: FakeNode) -> Iterator[TestClient[Any]]:
    with TestClient(create_app(node, Settings()), raise_server_exceptions=False) as test_client:
        yield test_client


@pytest.fixture
def unused_port() -> int:
    """A port of loopback on which nothing listens now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
