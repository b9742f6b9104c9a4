"""The page of metrics: real values of a real node, and every one of them documented."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from in_process import WIDTH, InProcess, WordsEmbedder, document, opened, unit, until
from litestar.testing import TestClient
from prometheus_client.parser import text_string_to_metric_families

from thread_service import observe
from thread_service.models import gpu_memory
from thread_service.settings import Settings
from thread_service.wire.http import create_app

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"

Page = Callable[[], dict[tuple[str, ...], float]]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[InProcess]:
    with opened(tmp_path / "data", engine_options={"compress": "auto"}) as node:
        yield node


@pytest.fixture
def client(node: InProcess) -> Iterator[TestClient[Any]]:
    with TestClient(create_app(node.node, Settings())) as test_client:
        yield test_client


@pytest.fixture
def page(client: TestClient[Any]) -> Page:
    return lambda: samples(client.get("/metrics").text)


def samples(text: str) -> dict[tuple[str, ...], float]:
    """(name of the sample, values of its labels in the order of their names) → value."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_documentation_lists_every_metric() -> None:
    assert DOCS.read_text(encoding="utf-8") == observe.markdown(), "run python -m thread_service.observe"


def test_the_page_shows_what_was_filed_and_searched(node: InProcess, page: Page) -> None:
    edge = [("Ada", "keeps", "Ledger")]
    node.file("ann", document("one", "two", id="a"), document("three", id="b", edges=edge), document("four", id="c"))
    node.file("ben", document("brought", vectors=[unit(1, width=32)]))
    node.remove("ann", "c")
    for _ in range(2):
        node.search("ann", "one", top_k=2)

    shown = page()
    model, caller = ("model", str(WIDTH)), ("caller", "32")
    assert (shown["thread_documents",], shown["thread_owners",], shown["thread_pending_documents",]) == (3, 2, 0)
    assert (shown["thread_table_rows", *model], shown["thread_table_dead_rows", *model]) == (4, 1)
    assert (shown["thread_table_rows", *caller], shown["thread_table_dead_rows", *caller]) == (1, 0)
    assert shown["thread_table_rows", "relationship", str(WIDTH)] == 1
    assert shown["thread_table_rows", "predicate", str(WIDTH)] == 1
    assert [shown["thread_table_state", "model", state, str(WIDTH)] for state in ("exact", "coded")] == [1, 0]
    assert shown["thread_table_coded_rows", *model] == 0
    assert shown["thread_table_vector_bytes", *model] >= 4 * 4 * WIDTH
    plans = [shown["thread_table_queries_total", plan, *model] for plan in ("gather", "scan", "code")]
    assert sum(plans) == 2
    assert plans[2] == 0
    # Two searches of the model's table and both tables of edges; the vector of the second was remembered.
    assert (shown["thread_scan_batch_queries_count",], shown["thread_scan_batch_queries_sum",]) == (6, 6)
    assert shown["thread_scan_batch_queries_bucket", "1"] == shown["thread_scan_batch_queries_bucket", "+Inf"] == 6
    assert shown["thread_scan_waiting_requests",] == shown["thread_scan_refused_total",] == 0
    assert shown["thread_scan_seconds_total",] > 0
    assert (shown["thread_query_cache_requests_total", "hit"], shown["thread_embedding_ready",]) == (1, 1)
    assert shown["thread_embedding_texts_total",] == len(node.embedder.embedded)
    assert shown["process_resident_memory_bytes",] > 1e6


def test_the_page_shows_where_time_went_and_what_room_is_left(node: InProcess, page: Page) -> None:
    before = page()
    node.file("ann", document("one", "two"), document("three"))
    node.search("ann", "one")
    shown = page()

    def counted(event: str, phase: str) -> float:
        # The counters are the process's, so other tests have counted too.
        name = "thread_phase_seconds_count"
        return shown[name, event, phase] - before.get((name, event, phase), 0)

    assert counted("search", "total") == counted("search", "scan") == counted("search", "words") == 1
    assert counted("deposit", "committed") == 1
    assert counted("searchable", "index") >= 1
    assert shown["thread_phase_seconds_sum", "search", "total"] > 0
    assert 0 < shown["thread_disk_free_bytes",] < 1e18
    assert shown["thread_disk_used_bytes", "database"] > 0
    assert shown["thread_disk_used_bytes", "vectors"] >= 4 * 3 * WIDTH
    assert ("thread_extraction_ready",) not in shown


class Nvml:
    """NVIDIA's library on a machine with two devices, one of which does not answer."""

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:
        handle._obj.value = 7 if index == 0 else None
        return 0 if index == 0 else 15

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        assert handle.value == 7
        memory._obj.total, memory._obj.used, memory._obj.free = 24 << 30, 9 << 30, 15 << 30
        return 0


def test_the_page_shows_the_memory_of_the_gpu_and_none_without_one(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_memory, "_library", Nvml)
    shown = page()
    assert shown["thread_gpu_memory_bytes", "0", "used"] == 9 << 30
    assert shown["thread_gpu_memory_bytes", "0", "free"] == 15 << 30
    assert ("thread_gpu_memory_bytes", "1", "used") not in shown
    monkeypatch.setattr(gpu_memory, "_library", lambda: None)
    assert ("thread_gpu_memory_bytes", "0", "used") not in page()


def test_the_page_shows_what_the_tables_take_of_a_device_and_nothing_without_one(
    page: Page, node: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ("thread_engine_memory_bytes", "device") not in page()
    monkeypatch.setattr(
        node.store.resident.engine, "memory_bytes", {"device": 5 << 30, "pinned": 1 << 30}, raising=False
    )
    shown = page()
    assert shown["thread_engine_memory_bytes", "device"] == 5 << 30
    assert shown["thread_engine_memory_bytes", "pinned"] == 1 << 30


def test_the_page_shows_how_a_table_is_compressed(tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(50)]
    vectors = [unit(1, number, width=32) for number in range(50)]
    options: dict[str, Any] = {"engine_options": {"compress": "always"}}
    with opened(tmp_path / "data", **options) as node:
        node.file("ann", document(*texts, vectors=vectors))
        [resident] = node.store.resident.partition_tables(32, ("caller",))
        until(lambda: resident.table.stats().state == "coded")
        node.search("ann", query_embedding=vectors[0], top_k=3)
        with TestClient(create_app(node.node, Settings())) as client:
            shown = samples(client.get("/metrics").text)
    table = "caller", "32"
    assert (shown["thread_table_coded_rows", *table], shown["thread_table_trained_rows", *table]) == (50, 50)
    assert [shown["thread_table_state", "caller", state, "32"] for state in ("exact", "coded")] == [0, 1]
    assert shown["thread_table_queries_total", "code", *table] == 1
    assert 0 < shown["thread_table_row_code_bytes", *table] < 4 * 32
    assert 10 <= shown["thread_table_depth_rows", *table] <= 50
    assert shown["thread_table_training_seconds", *table] > 0
    assert ("thread_code_cache_restored_rows", *table) not in shown
    assert ("thread_code_cache_written_timestamp_seconds",) not in shown

    with opened(tmp_path / "data", **options) as node, TestClient(create_app(node.node, Settings())) as client:
        shown = samples(client.get("/metrics").text)
    assert (shown["thread_code_cache_rows", *table], shown["thread_code_cache_restored_rows", *table]) == (50, 50)
    assert time.time() - 600 < shown["thread_code_cache_written_timestamp_seconds",] <= time.time() + 1
    assert shown["thread_table_coded_rows", *table] == 50


def test_the_page_shows_what_is_not_searchable_yet(node: InProcess, page: Page) -> None:
    node.embedder.open.clear()
    node.file("ann", document("held"), wait=False)
    assert (page()["thread_pending_documents",], page()["thread_documents",]) == (1, 1)
    node.embedder.open.set()
    node.settle()
    assert (page()["thread_pending_documents",], page()["thread_documents",]) == (0, 1)


def test_the_page_answers_while_the_model_is_loading(tmp_path: Path) -> None:
    embedder = WordsEmbedder()
    embedder.may_load.clear()
    with opened(tmp_path / "data", embedder, ready=False) as node:
        with TestClient(create_app(node.node, Settings())) as client:
            shown = samples(client.get("/metrics").text)
        assert shown["thread_embedding_ready",] == 0
        assert shown["thread_documents",] == 0


def test_everything_on_the_page_is_documented(node: InProcess, client: TestClient[Any]) -> None:
    node.file("ann", document("one", edges=[("Ada", "keeps", "Ledger")]))
    client.post("/v1/search", json={"query": "one", "thread": {"owner_id": "ann"}})
    declared = {declaration.name: declaration for declaration in observe.DECLARATIONS}
    seen = set()
    for family in text_string_to_metric_families(client.get("/metrics").text):
        name = family.name + ("_total" if family.type == "counter" else "")
        if family.name.startswith("thread_") and not family.name.endswith("_created"):
            seen.add(name)
            assert (family.type, family.documentation) == (declared[name].kind, declared[name].help)
            for sample in family.samples:
                assert sample.labels.keys() - {"le"} == set(declared[name].labels)
    # Metrics with labels of requests that nobody has made show no sample, but they are there.
    assert seen == declared.keys()
