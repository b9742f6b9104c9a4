"""The page of metrics: what the process has counted and what the node shows, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from thread_service import observe
from thread_service.wire.node_protocol import Node

CONTENT_TYPE = CONTENT_TYPE_LATEST


async def page(node: Node) -> bytes:
    return generate_latest(_Page(await node.metrics()))


class _Page(Collector):
    def __init__(self, of_node: Sequence[Metric]) -> None:
        self._of_node = of_node

    def collect(self) -> Iterable[Metric]:
        yield from observe.REGISTRY.collect()
        yield from self._of_node
