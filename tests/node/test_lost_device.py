"""A node whose device stops answering: it serves from main memory, files on, and says so; the CUDA engine without a
GPU, as in the tests of the engines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import in_process
import numpy as np
import pytest
from in_process import InProcess, document, ids, until
from litestar.testing import TestClient
from prometheus_client.parser import text_string_to_metric_families

from thread_kernels import create_engine
from thread_service.settings import Settings
from thread_service.wire.http import create_app

sys.path.append(str(Path(__file__).parents[1] / "kernels"))

if TYPE_CHECKING:
    from host_device import HostDevice

WIDTH, ROWS = 48, 600
VECTORS = np.random.default_rng(0).standard_normal((ROWS + 1, WIDTH)).astype(np.float32)
ASKED = range(0, ROWS, 40)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> HostDevice:
    """What every node of the test computes on, until `create_engine` is put back."""
    if "triton" not in sys.modules:  # it reads this when it is imported
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    for package in ("torch", "triton"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    import host_scan

    if host_scan.COMPILER is None:
        pytest.skip("no g++ to compile the kernel for the CPU")
    from host_device import host_device

    from thread_kernels.engine_cuda import CudaEngine

    device = host_device()
    monkeypatch.setattr(in_process, "create_engine", lambda *_, **__: CudaEngine(device, "always"))
    return device


@pytest.fixture
def node(device: HostDevice, tmp_path: Path) -> Iterator[InProcess]:
    node = InProcess(tmp_path / "data")
    documents = [document(f"text {number}", id=f"{number}", vectors=[VECTORS[number]]) for number in range(ROWS)]
    node.file("ann", *documents)
    table = node.store.resident.tables["caller", WIDTH].table
    until(lambda: table.stats().state == "coded")
    yield node
    node.close()


def answers(node: InProcess) -> list[list[tuple[str, float]]]:
    found = [node.search("ann", query_embedding=VECTORS[number]).passages for number in ASKED]
    return [[(each.document_id, round(each.distance, 4)) for each in passages] for passages in found]


def kept(node: InProcess) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in node.store.directory.vectors.iterdir()}


def said(node: InProcess) -> tuple[dict[str, Any], float]:
    """The engine by `/health`, and by the page of metrics whether its device is lost."""
    with TestClient(create_app(node.node, Settings())) as client:
        engine = client.get("/health").json()["engine"]
        page = text_string_to_metric_families(client.get("/metrics").text)
        [lost] = [sample.value for family in page for sample in family.samples if sample.name == "thread_engine_lost"]
    return engine, lost


def test_a_node_that_loses_its_device_answers_files_on_and_says_so(
    node: InProcess, device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    from host_device import Broken, fails_above

    assert ids(node.search("ann", query_embedding=VECTORS[5]))[0] == "5"
    assert device.counts["scan_lut"] > 0
    engine, lost = said(node)
    assert (engine, lost) == ({"device": "cuda"}, 0)

    files = kept(node)
    device.fail = fails_above(0, Broken)
    device.counts.clear()
    found = answers(node)
    assert [passages[0] for passages in found] == [(f"{number}", 0) for number in ASKED]
    assert device.counts["scan_lut"] == 0
    engine, lost = said(node)
    assert (engine["device"], lost) == ("cuda", 1)
    assert engine["error"].startswith("host does not answer")
    assert kept(node) == files

    node.file("ann", document("filed since", id="new", vectors=[VECTORS[ROWS]]))
    assert ids(node.search("ann", query_embedding=VECTORS[ROWS]))[0] == "new"
    node.remove("ann", "new")
    assert node.run(node.node.verify(full=True, progress=lambda *_: None))["damage"] == []
    assert node.store.database.failure is None

    monkeypatch.setattr(in_process, "create_engine", create_engine)
    again = node.reopened()
    try:
        assert answers(again) == found
        assert said(again)[1] == 0
    finally:
        again.close()
