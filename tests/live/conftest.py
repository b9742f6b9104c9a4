from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The process under test is started by the same class as in the crash tests.
sys.path.append(str(Path(__file__).parents[1] / "crash"))

from node_process import Client, NodeProcess, missing_model


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """One node for all tests, which therefore keep to owners of their own."""
    if reason := missing_model():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("live")
    with NodeProcess(folder / "data", folder / "node.log") as process:
        process.wait_ready()
        yield process
        assert process.terminate() == 0, process.tail()


@pytest.fixture
def client(node: NodeProcess) -> Iterator[Client]:
    client = Client(node.port)
    yield client
    client.close()
    assert node.process.poll() is None, node.tail()
    assert "Traceback" not in node.tail(), node.tail()
