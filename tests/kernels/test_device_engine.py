"""The CUDA engine on a device without a GPU: what goes there and when, and that its answers are those of the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest
from coded_tables import Store, clustered, grow, nearest_of, only, recall

from thread_kernels import Filter
from thread_kernels.reference import ReferenceEngine

if TYPE_CHECKING:
    from host_device import HostDevice

    from thread_kernels.engine_cuda import CudaTable

WIDTH, ROWS = 48, 3_000
VECTORS = clustered(ROWS, WIDTH)
QUERIES = clustered(72, WIDTH, seed=2)

pytestmark = pytest.mark.usefixtures("host_kernels")


@pytest.fixture(scope="module")
def made(host_kernels: None) -> Iterator[tuple[CudaTable, HostDevice]]:
    table, device = new_table()
    grow(table, VECTORS)
    yield table, device
    table.close()


@pytest.fixture
def coded(made: tuple[CudaTable, HostDevice]) -> tuple[CudaTable, HostDevice]:
    made[1].counts.clear()
    return made


def new_table(store: Store | None = None, **options: object) -> tuple[CudaTable, HostDevice]:
    from host_device import host_device

    from thread_kernels.engine_cuda import CudaEngine

    device = host_device(**options)
    return CudaEngine(device, "always").table(WIDTH, store), device


def test_queries_of_any_filter_and_count_are_one_launch(coded: tuple[CudaTable, HostDevice]) -> None:
    table, device = coded
    rows = [None, *(np.arange(start, ROWS, step) for start, step in ((0, 2), (1, 2), (0, 3), (5, 7)))]
    filters = [None if each is None else only(table, each) for each in rows]
    kinds = [number % len(rows) for number in range(72)]
    counts = [10] * 32 + [100] * 32 + [1] * 8

    found = table.search(QUERIES, counts, [filters[kind] for kind in kinds])

    assert device.counts["scan_lut"] == 1
    asked = zip(QUERIES, counts, kinds, strict=True)
    assert recall(found, [nearest_of(VECTORS, query[None], k, rows[kind])[0] for query, k, kind in asked]) >= 0.95
    for query, hits, k in zip(QUERIES, found, counts, strict=True):
        assert len(hits.rows) == k
        exact = ((VECTORS[hits.rows].astype(np.float64) - query) ** 2).sum(axis=1)
        np.testing.assert_allclose(hits.distances, exact, rtol=1e-6)


def test_a_search_uploads_its_queries_and_no_codebook(coded: tuple[CudaTable, HostDevice]) -> None:
    table, device = coded
    mine = only(table, range(0, ROWS, 2))
    bitmap = 4 * 4 * -(-ROWS // 128)
    for expected in (bitmap, 0, 0):
        device.counts.clear()
        table.search(QUERIES, 10, [mine] * 72)
        assert device.counts["bytes"] == QUERIES.nbytes + 4 * 72 + expected, "a filter goes there once"
    table.row_set().add([0])
    device.counts.clear()
    table.search(QUERIES, 10, [mine] * 72)
    assert device.counts["bytes"] == QUERIES.nbytes + 4 * 72 + bitmap, "and again when a row set has changed"


def test_new_rows_are_one_upload_and_move_no_old_ones() -> None:
    table, device = new_table()
    grow(table, VECTORS[:1_000])
    codes = table.compression.current.codes
    memory = codes.tiles.memory
    for start, stop in ((1_000, 1_100), (1_100, 1_450), (1_450, 1_600)):
        before = codes.tiles.packed.copy()
        device.counts.clear()
        table.append(VECTORS[start:stop])
        assert table.compression.wait(120)
        codes = table.compression.current.codes
        assert codes.tiles.memory is memory, "there is room"
        assert (device.counts["uploads"], device.counts["bytes"]) == (1, VECTORS[start:stop].nbytes)
        complete = start // 128
        np.testing.assert_array_equal(codes.tiles.packed[:complete], before[:complete])
    residence = codes.codebook.residence
    used = residence.used_bytes
    grow(table, VECTORS[1_600:])
    assert len(table.compression.current.codes.tiles.memory) == 2 * len(memory), "doubled"
    found = table.search(VECTORS[::50], 1, [None] * 60)
    assert np.mean([hits.rows[0] == row for hits, row in zip(found, range(0, ROWS, 50), strict=True)]) >= 0.97
    assert residence.used_bytes > used
    del codes, memory
    table.close()


def test_removed_rows_leave_the_device_and_memory_is_given_back() -> None:
    table, _ = new_table()
    grow(table, VECTORS)
    residence = table.compression.current.codes.codebook.residence
    used = residence.used_bytes
    kept = np.setdiff1d(np.arange(ROWS), np.arange(0, ROWS, 3))
    table.remove(range(0, ROWS, 3))
    table.compact()

    codes = table.compression.current.codes
    np.testing.assert_array_equal(codes.numbers, kept)
    assert residence.used_bytes < used
    for filter, rows in ((None, kept), (only(table, range(1, ROWS, 2)), kept[kept % 2 == 1])):
        found = table.search(QUERIES, 10, [filter] * 72)
        assert all(np.isin(hits.rows, rows).all() for hits in found)
        assert recall(found, nearest_of(VECTORS, QUERIES, 10, rows)) >= 0.95
    table.close()


def test_several_tables_share_a_device() -> None:
    from host_device import host_device

    from thread_kernels.engine_cuda import CudaEngine

    engine = CudaEngine(host_device(), "always")
    tables = {width: engine.table(width) for width in (WIDTH, 100)}
    vectors = {width: clustered(1_000, width) for width in tables}
    for width, table in tables.items():
        grow(table, vectors[width])
    for width, table in tables.items():
        queries = clustered(20, width, seed=3)
        assert recall(table.search(queries, 10, [None] * 20), nearest_of(vectors[width], queries, 10)) >= 0.95
        table.close()


def test_large_batches_are_scanned_by_whole_vectors_where_that_is_faster() -> None:
    from thread_kernels.scan_exact import TritonLaunch

    table, device = new_table(product=TritonLaunch(), product_from=8)
    grow(table, VECTORS[:500])
    table.remove(range(200))
    table.compact()
    grow(table, VECTORS[500:700])
    mine = only(table, range(0, 700, 2))
    filters = [None, mine] * 4

    found = table.search(QUERIES[:8], 10, filters)

    assert device.counts["scan_exact"] == 1, "and none when the reach of the codes was measured"
    rows = np.arange(200, 700)
    for query, hits, filter in zip(QUERIES, found, filters, strict=False):
        passing = rows if filter is None else rows[rows % 2 == 0]
        assert recall([hits], nearest_of(VECTORS, query[None], 10, passing)) >= 0.9
    table.search(QUERIES[:7], 10, [None] * 7)
    assert device.counts["scan_exact"] == 1
    table.close()


def test_saved_codes_are_restored_without_reading_a_vector() -> None:
    store = Store(WIDTH)
    table, _ = new_table(store)
    grow(table, VECTORS[:1_000], store)
    table.remove([0, 500])
    saved = table.save()
    assert saved is not None
    before = table.search(QUERIES, 10, [None] * 72)

    kept = Store(WIDTH)
    kept.put(VECTORS[saved.rows])
    other, _ = new_table(kept)
    assert other.restore(saved.data, len(saved.rows)) == range(998)
    assert (kept.read, other.stats().coded_rows) == (0, 998)
    for one, two in zip(before, other.search(QUERIES, 10, [None] * 72), strict=True):
        np.testing.assert_array_equal(one.rows, saved.rows[two.rows])
    grow(other, VECTORS[1_000:1_200], kept)
    assert other.stats().coded_rows == 1_198
    for each in (table, other):
        each.close()


def test_an_engine_without_codes_answers_like_the_reference() -> None:
    from host_device import host_device

    from thread_kernels.engine_cuda import CudaEngine

    tables = [engine.table(WIDTH) for engine in (CudaEngine(host_device()), ReferenceEngine())]
    filters: list[list[Filter | None]] = []
    for table in tables:
        table.append(VECTORS)
        filters.append([None, only(table, range(0, ROWS, 300))] * 36)
    found, expected = (table.search(QUERIES, 10, mine) for table, mine in zip(tables, filters, strict=True))
    for one, two in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.rows, two.rows)
        np.testing.assert_allclose(one.distances, two.distances, rtol=1e-6)
    assert tables[0].stats().coded_rows == 0


def test_the_host_device_computes_what_the_kernels_do(interpreter: None) -> None:
    """What stands in for the Triton kernels in these tests gives their results."""
    import torch
    from host_device import host_device

    from thread_kernels import encode, lookup

    device = host_device()
    random = torch.Generator().manual_seed(0)
    vectors, centroids = torch.randn((5, 12), generator=random), torch.randn((3, 7, 4), generator=random)
    assert torch.equal(device.encode(vectors, centroids), encode.encode(vectors, centroids))
    prepared = lookup.Centroids.prepare(centroids, "cpu")
    pairs = [lookup.new_pairs(5, "cpu") for _ in range(2)]
    device.fill_pairs(vectors, prepared, pairs[0])
    lookup.fill_pairs(vectors, prepared, pairs[1])
    np.testing.assert_allclose(pairs[0].float(), pairs[1].float(), rtol=2e-3, atol=1)
