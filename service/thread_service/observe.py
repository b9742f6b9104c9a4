"""What a running node tells its operator: metrics for Prometheus, and the log.

Metrics of every layer are declared here, on one registry, so that `/metrics` shows all of them and a reader finds them
in one place.
"""

from __future__ import annotations

import logging
import sys

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)

HTTP_REQUESTS = Counter(
    "thread_http_requests", "HTTP requests answered.", labelnames=("route", "status"), registry=REGISTRY
)
HTTP_SECONDS = Histogram(
    "thread_http_request_seconds",
    "Time from the start of an HTTP request to the start of its answer.",
    labelnames=("route",),
    buckets=_SECONDS,
    registry=REGISTRY,
)

GRPC_REQUESTS = Counter("thread_grpc_requests", "gRPC calls answered.", labelnames=("rpc", "status"), registry=REGISTRY)
GRPC_SECONDS = Histogram(
    "thread_grpc_request_seconds",
    "Time from the arrival of a gRPC message to its answer.",
    labelnames=("rpc",),
    buckets=_SECONDS,
    registry=REGISTRY,
)

SESSION_UP = Gauge("thread_session_up", "Whether a session is held.", labelnames=("peer",), registry=REGISTRY)
SESSION_REQUESTS = Counter(
    "thread_session_requests", "Messages that came over a session.", labelnames=("peer", "kind"), registry=REGISTRY
)


def configure_logging(level: str) -> None:
    """Log to standard error, one line a record (and its traceback), from `level` up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # These narrate their own doings at INFO.
    for name in ("faiss.loader", "filelock", "httpcore", "httpx", "huggingface_hub"):
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))
