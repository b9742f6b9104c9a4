from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
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
