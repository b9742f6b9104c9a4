"""What a node's tables, queues and store show when somebody asks: read now, kept nowhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import get_args, get_type_hints

from prometheus_client.metrics_core import Metric

from thread_kernels import TableStats
from thread_service import observe
from thread_service.batching.scan import BATCH_BOUNDS, ScanQueue
from thread_service.batching.serving import ServingModel
from thread_service.models.embedder import Phase
from thread_service.models.gpu_memory import read_gpu_memory
from thread_service.node.extracting import Extracting
from thread_service.store import documents, room, sql
from thread_service.store.store import Store

_STATES: tuple[str, ...] = get_args(get_type_hints(TableStats)["state"])

_TABLE: tuple[tuple[observe.Declaration, Callable[[TableStats], float]], ...] = (
    (observe.TABLE_ROWS, lambda stats: stats.rows),
    (observe.TABLE_DEAD_ROWS, lambda stats: stats.dead_rows),
    (observe.TABLE_CODED_ROWS, lambda stats: stats.coded_rows),
    (observe.TABLE_CODE_BYTES, lambda stats: stats.code_bytes),
    (observe.TABLE_VECTOR_BYTES, lambda stats: stats.vector_bytes),
    (observe.TABLE_DEPTH, lambda stats: stats.depth),
    (observe.TABLE_CROSSOVER, lambda stats: stats.crossover_rows),
    (observe.TABLE_TRAINED_ROWS, lambda stats: stats.trained_rows),
    (observe.TABLE_TRAINING_SECONDS, lambda stats: stats.training_seconds),
)


def read(store: Store, embedding: ServingModel, scans: ScanQueue, extracting: Extracting) -> list[Metric]:
    """Everything declared in `observe` that a node itself knows. Blocking."""
    return [
        *(*_filed(store), *_extraction(extracting), *_embedding(embedding)),
        *(*_scans(scans), *_tables(store), *_cache(store), *_disk(store), *_gpu()),
    ]


def _filed(store: Store) -> Iterable[Metric]:
    with store.read() as connection:
        yield observe.DOCUMENTS.read_one(store.resident.document_count)
        yield observe.OWNERS.read_one(documents.owner_count(connection))
        yield observe.PENDING_DOCUMENTS.read_one(sql.value(connection, "SELECT count(*) FROM pending"))


def _extraction(extracting: Extracting) -> Iterable[Metric]:
    counts, stats, is_ready = extracting.counts(), extracting.stats, extracting.is_ready
    yield observe.EXTRACTION_READY.read([] if is_ready is None else [((), is_ready)])
    yield observe.EXTRACTION_DOCUMENTS.read([(("waiting",), counts.waiting), (("put off",), counts.put_off)])
    yield observe.EXTRACTION_ANSWERS.read(
        [(("usable",), stats.answered), (("invalid",), stats.invalid), (("none",), stats.failed)]
    )


def _embedding(embedding: ServingModel) -> Iterable[Metric]:
    stats = embedding.stats()
    status = embedding.embedder.status
    yield observe.EMBEDDING_READY.read_one(embedding.is_ready)
    yield observe.EMBEDDING_PHASE.read([((phase,), phase == status.phase) for phase in get_args(Phase)])
    yield observe.EMBEDDING_DOWNLOADED.read([] if status.fraction is None else [((), status.fraction)])
    yield observe.EMBEDDING_WAITING.read(
        [(("query",), stats.waiting_queries), (("document",), stats.waiting_documents)]
    )
    yield observe.EMBEDDING_TEXTS.read_one(stats.texts)
    yield observe.EMBEDDING_BATCHES.read_one(stats.batches)
    yield observe.EMBEDDING_FAILED.read_one(stats.failed_batches)
    yield observe.EMBEDDING_WAIT.read_one(stats.wait_seconds)
    yield observe.QUERY_CACHE.read([(("hit",), stats.query_cache_hits), (("miss",), stats.query_cache_misses)])


def _cache(store: Store) -> Iterable[Metric]:
    cache = store.cache_stats()
    for declaration, rows in ((observe.CACHE_ROWS, cache.rows), (observe.CACHE_RESTORED, store.restored_rows)):
        yield declaration.read([((purpose, str(width)), count) for (purpose, width), count in sorted(rows.items())])
    yield observe.CACHE_WRITTEN.read([] if cache.written_at is None else [((), cache.written_at)])


def _scans(scans: ScanQueue) -> Iterable[Metric]:
    stats = scans.stats()
    yield observe.SCAN_WAITING.read_one(stats.waiting)
    yield observe.SCAN_BATCHES.read_counts(BATCH_BOUNDS, stats.batch_sizes, stats.queries)
    yield observe.SCAN_REFUSED.read_one(stats.refused)
    yield observe.SCAN_ABANDONED.read_one(stats.abandoned)
    yield observe.SCAN_WAIT.read_one(stats.wait_seconds)
    yield observe.SCAN_SECONDS.read_one(stats.scan_seconds)


def _tables(store: Store) -> Iterable[Metric]:
    yield observe.ENGINE_LOST.read_one(store.resident.engine.fault is not None)
    yield observe.ENGINE_MEMORY.read([((place,), size) for place, size in store.resident.engine.memory_bytes.items()])
    with store.resident.lock:
        tables = sorted(store.resident.tables.items())
    found = [((purpose, str(width)), resident.table.stats()) for (purpose, width), resident in tables]
    for declaration, value in _TABLE:
        yield declaration.read([(table, value(stats)) for table, stats in found])
    yield observe.TABLE_STATE.read(
        [((*table, state), stats.state == state) for table, stats in found for state in _STATES]
    )
    yield observe.TABLE_QUERIES.read(
        [
            ((*table, plan), count)
            for table, stats in found
            for plan, count in (("gather", stats.gathered), ("scan", stats.scanned), ("code", stats.by_code))
        ]
    )


def _disk(store: Store) -> Iterable[Metric]:
    yield observe.DISK_FREE.read_one(room.free_bytes(store.directory))
    yield observe.DISK_USED.read([((kind,), taken) for kind, taken in room.used_bytes(store.directory).items()])


def _gpu() -> Iterable[Metric]:
    yield observe.GPU_MEMORY.read(
        [
            ((str(memory.index), state), size)
            for memory in read_gpu_memory()
            for state, size in (("used", memory.used_bytes), ("free", memory.free_bytes))
        ]
    )
