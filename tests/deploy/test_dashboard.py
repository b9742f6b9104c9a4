"""The dashboard shows what a node exports: every metric and every label of its queries is there."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from litestar.testing import TestClient
from prometheus_client.parser import text_string_to_metric_families

sys.path.append(str(Path(__file__).parents[1] / "node"))

from in_process import opened

from thread_service import observe
from thread_service.settings import Settings
from thread_service.wire.http import create_app

GRAFANA = Path(__file__).parents[2] / "docker" / "grafana"
DASHBOARD: dict[str, Any] = json.loads((GRAFANA / "dashboards" / "thread.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
ENDINGS = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
OF_PROMETHEUS = {"instance", "le"}
WANTED = {
    *("thread_http_requests_total", "thread_grpc_requests_total", "thread_phase_seconds_bucket"),
    *("thread_embedding_waiting_texts", "thread_scan_waiting_requests", "thread_embedding_wait_seconds_total"),
    *("thread_scan_wait_seconds_total", "thread_scan_batch_queries_count", "thread_table_rows"),
    *("thread_gpu_memory_bytes", "thread_embedding_ready", "thread_extraction_ready", "thread_session_up"),
    *("thread_pending_documents", "thread_disk_free_bytes", "thread_engine_memory_bytes"),
}
"""What an operator must be able to see."""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[set[str]]:
    """Names of the time series on the page of a node; of those too that have no sample yet."""
    with (
        opened(tmp_path_factory.mktemp("node")) as node,
        TestClient(create_app(node.node, Settings())) as client,
    ):
        families = text_string_to_metric_families(client.get("/metrics").text)
        yield {family.name + end for family in families for end in ENDINGS.get(family.type, ())}


def queries() -> list[tuple[str, str]]:
    return [(target["expr"], target["legendFormat"]) for panel in PANELS for target in panel["targets"]]


def metrics_of(query: str) -> set[str]:
    return set(re.findall(r"\b(?:thread|process)_\w+", query))


def test_every_query_asks_for_what_a_node_exports(exported: set[str]) -> None:
    shown = {metric for query, _ in queries() for metric in metrics_of(query)}
    assert shown <= exported
    assert shown >= WANTED
    assert all(metrics_of(query) for query, _ in queries())
    [variable] = DASHBOARD["templating"]["list"]
    assert metrics_of(variable["query"]["query"]) <= exported


def test_every_label_of_a_query_is_one_of_its_metrics() -> None:
    labels = {
        declaration.name.removesuffix("_total" if declaration.kind == "counter" else ""): {*declaration.labels}
        for declaration in observe.DECLARATIONS
    }
    for query, legend in queries():
        named = set(re.findall(r"(\w+)\s*(?:=~|!=|=)\"", query))
        named |= {label.strip() for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(",")}
        named |= set(re.findall(r"{{(\w+)}}", legend))
        for metric in metrics_of(query):
            base = re.sub(r"_(total|bucket|sum|count)$", "", metric)
            assert named <= labels.get(base, set()) | OF_PROMETHEUS, query


def test_the_panels_lie_beside_one_another() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        columns, rows = range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        assert columns.stop <= 24
        cells = {(column, row) for column in columns for row in rows}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_grafana_is_told_where_the_dashboard_and_its_data_are() -> None:
    sources = yaml.safe_load((GRAFANA / "provisioning" / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert {panel["datasource"]["uid"] for panel in PANELS} == {source["uid"] for source in sources}
    [provider] = yaml.safe_load((GRAFANA / "provisioning" / "dashboards" / "thread.yaml").read_text())["providers"]
    compose = yaml.safe_load((GRAFANA.parent / "compose.yaml").read_text())["services"]["grafana"]
    mounts = dict(mount.split(":")[:2] for mount in compose["volumes"])
    assert mounts["./grafana/dashboards"] == provider["options"]["path"]
    assert compose["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"].startswith(provider["options"]["path"])
    assert mounts["./grafana/provisioning"] == "/etc/grafana/provisioning"
