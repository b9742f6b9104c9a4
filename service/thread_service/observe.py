"""What a running node tells its operator in numbers: metrics for Prometheus. The log is in `logs`.

Metrics of every layer are declared here, once, so that a reader finds them in one place and `docs/metrics.md`
(`python -m thread_service.observe > docs/metrics.md`) lists what `/metrics` shows. Some are counted as things happen,
on one registry for the process; those of a node's tables and queues are read when the page is asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)


@dataclass(frozen=True, slots=True)
class Declaration:
    """What the page and the documentation need to know of one metric. The name of a counter ends with `_total`."""

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    help: str
    labels: tuple[str, ...] = ()

    def read(self, samples: Iterable[tuple[Sequence[str], float]]) -> Metric:
        """The family of samples of a counter or a gauge that are read only now: values of the labels → value."""
        of_kind = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        family = of_kind(self.name, self.help, labels=self.labels)
        for values, value in samples:
            family.add_metric(values, value)
        return family

    def read_one(self, value: float) -> Metric:
        """The same of one that has no labels."""
        return self.read([((), value)])

    def read_counts(self, bounds: Sequence[float], counts: Sequence[int], total: float) -> Metric:
        """The family of a histogram. `counts` are of the values up to each bound and over the last one."""
        family = HistogramMetricFamily(self.name, self.help)
        cumulative, buckets = 0, list[tuple[str, float]]()
        for bound, count in zip((*bounds, "+Inf"), counts, strict=True):
            cumulative += count
            buckets.append((str(bound), cumulative))
        family.add_metric([], buckets, total)
        return family


DECLARATIONS: list[Declaration] = []


def _declared(kind: Literal["counter", "gauge", "histogram"], name: str, help: str, *labels: str) -> Declaration:
    declaration = Declaration(kind, name, help, labels)
    DECLARATIONS.append(declaration)
    return declaration


def _counter(name: str, help: str, *labels: str) -> Counter:
    _declared("counter", name, help, *labels)
    return Counter(name, help, labels, registry=REGISTRY)


def _gauge(name: str, help: str, *labels: str) -> Gauge:
    _declared("gauge", name, help, *labels)
    return Gauge(name, help, labels, registry=REGISTRY)


def _histogram(name: str, help: str, *labels: str) -> Histogram:
    _declared("histogram", name, help, *labels)
    return Histogram(name, help, labels, buckets=_SECONDS, registry=REGISTRY)


HTTP_REQUESTS = _counter("thread_http_requests_total", "HTTP requests answered.", "route", "status")
HTTP_SECONDS = _histogram(
    "thread_http_request_seconds", "Time from the start of an HTTP request to the start of its answer.", "route"
)
HTTP_IN_HAND = _gauge("thread_http_requests_in_hand", "Operations asked for over HTTP that have no answer yet.")
GRPC_REQUESTS = _counter("thread_grpc_requests_total", "gRPC calls answered.", "rpc", "status")
GRPC_SECONDS = _histogram(
    "thread_grpc_request_seconds", "Time from the arrival of a gRPC message to its answer.", "rpc"
)

PHASE_SECONDS = _histogram(
    "thread_phase_seconds",
    "Time of one step of what the log has a line for: search, deposit, searchable, extracted; the step total is all.",
    "event",
    "phase",
)


def time_phases(event: str, total_ms: float, *phases: Mapping[str, float]) -> None:
    """Count what the line of `event` says about durations, in milliseconds by phase."""
    for phase, milliseconds in (("total", total_ms), *(item for each in phases for item in each.items())):
        PHASE_SECONDS.labels(event, phase).observe(milliseconds / 1e3)


SESSION_UP = _gauge("thread_session_up", "Whether a session is held.", "peer")
SESSION_REQUESTS = _counter("thread_session_requests_total", "Messages that came over a session.", "peer", "kind")

DOCUMENTS = _declared("gauge", "thread_documents", "Documents of all owners.")
OWNERS = _declared("gauge", "thread_owners", "Owners who hold a document.")
PENDING_DOCUMENTS = _declared("gauge", "thread_pending_documents", "Documents filed and not searchable yet.")

EXTRACTION_READY = _declared(
    "gauge", "thread_extraction_ready", "Whether the instruct model can be asked; none without one."
)
EXTRACTION_DOCUMENTS = _declared(
    "gauge",
    "thread_extraction_documents",
    "Documents with keywords that an instruct model is to read: waiting, or put off for a later pass.",
    "state",
)
EXTRACTION_ANSWERS = _declared(
    "counter",
    "thread_extraction_answers_total",
    "Requests to the instruct model by what came of them: usable, invalid, none.",
    "outcome",
)

EMBEDDING_READY = _declared("gauge", "thread_embedding_ready", "Whether the embedding model is ready.")
EMBEDDING_PHASE = _declared(
    "gauge",
    "thread_embedding_phase",
    "1 for how far the embedding model is: idle, downloading, loading, ready, failed.",
    "phase",
)
EMBEDDING_DOWNLOADED = _declared(
    "gauge", "thread_embedding_downloaded_ratio", "Share of the model that is downloaded; none but while it downloads."
)
EMBEDDING_WAITING = _declared("gauge", "thread_embedding_waiting_texts", "Texts that wait to be embedded.", "role")
EMBEDDING_TEXTS = _declared("counter", "thread_embedding_texts_total", "Texts given to the embedding model.")
EMBEDDING_BATCHES = _declared("counter", "thread_embedding_batches_total", "Calls of the embedding model.")
EMBEDDING_FAILED = _declared("counter", "thread_embedding_failed_batches_total", "Calls of the model that failed.")
EMBEDDING_WAIT = _declared(
    "counter", "thread_embedding_wait_seconds_total", "Time that texts have waited for their batch, summed."
)
QUERY_CACHE = _declared(
    "counter", "thread_query_cache_requests_total", "Queries by whether their vector was remembered.", "outcome"
)

SCAN_WAITING = _declared("gauge", "thread_scan_waiting_requests", "Searches that wait for the scan in hand to end.")
SCAN_BATCHES = _declared("histogram", "thread_scan_batch_queries", "Queries served by one scan of one table.")
SCAN_REFUSED = _declared("counter", "thread_scan_refused_total", "Searches refused because too many waited.")
SCAN_ABANDONED = _declared("counter", "thread_scan_abandoned_total", "Searches whose caller left before the scan.")
SCAN_WAIT = _declared("counter", "thread_scan_wait_seconds_total", "Time that searches waited for a scan, summed.")
SCAN_SECONDS = _declared("counter", "thread_scan_seconds_total", "Time spent scanning.")

ENGINE_LOST = _declared(
    "gauge", "thread_engine_lost", "Whether the engine has lost its GPU, so that searches are exact on the CPU."
)
ENGINE_MEMORY = _declared(
    "gauge",
    "thread_engine_memory_bytes",
    "Memory that the tables take on a GPU, and of the main memory that it reads: device, pinned; none without one.",
    "place",
)

_TABLE = ("purpose", "width")
TABLE_ROWS = _declared("gauge", "thread_table_rows", "Rows that take memory, removed ones included.", *_TABLE)
TABLE_DEAD_ROWS = _declared("gauge", "thread_table_dead_rows", "Removed rows that still take memory.", *_TABLE)
TABLE_CODED_ROWS = _declared("gauge", "thread_table_coded_rows", "Rows that have a code.", *_TABLE)
TABLE_CODE_BYTES = _declared(
    "gauge", "thread_table_row_code_bytes", "Size of one row's code; 0 without codes.", *_TABLE
)
TABLE_VECTOR_BYTES = _declared("gauge", "thread_table_vector_bytes", "Memory of float32 vectors.", *_TABLE)
TABLE_DEPTH = _declared(
    "gauge", "thread_table_depth_rows", "Rows by code that are measured for the best 10; 0 without codes.", *_TABLE
)
TABLE_CROSSOVER = _declared(
    "gauge", "thread_table_crossover_rows", "Passing rows up to which a search gathers instead of scanning.", *_TABLE
)
TABLE_STATE = _declared(
    "gauge", "thread_table_state", "1 for the state the table is in: exact, training, coded, failed.", *_TABLE, "state"
)
TABLE_TRAINED_ROWS = _declared(
    "gauge", "thread_table_trained_rows", "Rows when the codebook was trained; 0 without one.", *_TABLE
)
TABLE_TRAINING_SECONDS = _declared(
    "gauge", "thread_table_training_seconds", "Length of the last training, calibration included.", *_TABLE
)
TABLE_QUERIES = _declared(
    "counter", "thread_table_queries_total", "Queries by how they were answered: gather, scan, code.", *_TABLE, "plan"
)

CACHE_ROWS = _declared("gauge", "thread_code_cache_rows", "Rows whose codes the cache on the disk holds.", *_TABLE)
CACHE_RESTORED = _declared(
    "gauge", "thread_code_cache_restored_rows", "Rows whose codes the start took from the cache.", *_TABLE
)
CACHE_WRITTEN = _declared(
    "gauge", "thread_code_cache_written_timestamp_seconds", "Unix time when the cache was written; none without one."
)


DISK_FREE = _declared("gauge", "thread_disk_free_bytes", "Free room of the file system that holds the data directory.")
DISK_USED = _declared(
    "gauge", "thread_disk_used_bytes", "Room that the node's files take: database, vectors, cache.", "kind"
)

GPU_MEMORY = _declared(
    "gauge",
    "thread_gpu_memory_bytes",
    "Memory of a GPU that NVIDIA's driver shows, whichever process has it: used, free; none without a driver.",
    "device",
    "state",
)


def markdown() -> str:
    """`docs/metrics.md`: every metric as a row of a table."""
    lines = [
        "# Metrics",
        "",
        "<!-- Generated by `python -m thread_service.observe`: change the declarations there, not this page. -->",
        "",
        "`GET /metrics` answers in the text format of Prometheus. With `--api-key` it wants the key, as every",
        "route but the health ones does. A table of vectors is named by its `width` and its `purpose`: `model` for",
        "embedded texts, `caller` for vectors that were brought along, `relationship` and `predicate` for edges, and",
        "`next_…` for what `thread reembed` makes, until that is searched.",
        "",
        "| metric | kind | labels | meaning |",
        "|---|---|---|---|",
    ]
    for item in DECLARATIONS:
        labels = ", ".join(f"`{label}`" for label in item.labels)
        lines.append(f"| `{item.name}` | {item.kind} | {labels} | {item.help} |")
    lines += [
        "",
        "Beside these there are `process_*` (resident memory, CPU time, open files, start time) and `python_info`.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
