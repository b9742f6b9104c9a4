"""The CUDA engine on a device without a GPU: what goes there and when, and that its answers are those of the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from threading import Event
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


def new_table(
    store: Callable[[np.ndarray], np.ndarray] | None = None, **options: object
) -> tuple[CudaTable, HostDevice]:
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
    """Beside the queries: of each the number of its filter, its depth and its count; of a row set what has changed."""
    table, device = coded
    members = table.row_set()
    members.add(range(0, ROWS, 2))
    mine = Filter.any_of(members)
    of_queries = QUERIES.nbytes + (4 + 8 + 8) * len(QUERIES)
    words = -(-ROWS // 32)

    def uploaded() -> int:
        device.counts.clear()
        table.search(QUERIES, 10, [mine] * 72)
        return device.counts["bytes"] - of_queries

    assert [uploaded() for _ in range(3)] == [8 * words, 0, 0], "a row set goes there once"
    table.row_set().add([0])
    assert uploaded() == 0, "another set has changed"
    members.add([1, 3, 2_001])
    members.discard([10, 2_000])
    assert uploaded() == 8 * 2, "two words have"
    table.append(QUERIES[:1])
    table.remove([ROWS])
    assert uploaded() == 0, "a row without a code came and went"
    assert device.counts["scan_lut"] == 1


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


def test_where_room_does_not_double_it_grows_by_an_eighth_and_vectors_stay(caplog: pytest.LogCaptureFixture) -> None:
    from host_device import leave_room

    table, _ = new_table()
    grow(table, VECTORS[:2_000])
    leave_room(table.compression.current.codes.codebook.residence, 1_000_000)
    grow(table, VECTORS[2_000:2_300])
    codes = table.compression.current.codes
    assert (codes.vectors.is_resident, codes.coded_rows) == (True, 2_300)
    assert (len(codes.vectors.values), len(codes.tiles.memory)) == (2_300 + 2_300 // 8, 2 * 16)
    assert not caplog.records
    assert recall(table.search(QUERIES, 10, [None] * 72), nearest_of(VECTORS[:2_300], QUERIES, 10)) >= 0.95
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


def test_the_device_rules_out_rows_without_changing_an_answer(
    coded: tuple[CudaTable, HostDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, device = coded
    filters = [None, only(table, range(0, ROWS, 2))] * 36
    counts = [1, 5, 10, 40] * 18
    taken: list[int] = []
    view = table._blocks.view
    read = type(view).vectors
    monkeypatch.setattr(type(view), "vectors", lambda self, rows: taken.append(len(rows)) or read(self, rows))

    ruled_out = table.search(QUERIES, counts, filters)
    assert device.counts["block_distances"] == 1
    few = sum(taken)
    taken.clear()
    monkeypatch.setattr("thread_kernels.rescore._ROUNDING", 1e9)  # anything may be nearest
    for one, other in zip(table.search(QUERIES, counts, filters), ruled_out, strict=True):
        np.testing.assert_array_equal(one.rows, other.rows)
        np.testing.assert_array_equal(one.distances, other.distances)
    assert few < sum(taken) / 2
    assert few >= sum(counts)


def test_no_row_is_ruled_out_where_that_costs_more_than_measuring_it() -> None:
    table, device = new_table(ruling_out=1e3)
    grow(table, VECTORS[:1_000])
    device.counts.clear()
    found = table.search(QUERIES, 10, [None] * 72)
    assert (device.counts["scan_lut"], device.counts["block_distances"]) == (1, 0)
    assert recall(found, nearest_of(VECTORS[:1_000], QUERIES, 10)) >= 0.95
    table.close()


def test_a_querys_answer_does_not_depend_on_those_beside_it(coded: tuple[CudaTable, HostDevice]) -> None:
    table, _ = coded
    mine = only(table, range(0, ROWS, 2))
    together = table.search(QUERIES, [3] * 36 + [200] * 36, [mine] * 36 + [None] * 36)
    alone = [table.search(query[None], 3, [mine])[0] for query in QUERIES[:36]]
    for one, other in zip(alone, together, strict=False):
        np.testing.assert_array_equal(one.rows, other.rows)


def gathering_table(
    monkeypatch: pytest.MonkeyPatch, gather_up_to: int, **options: object
) -> tuple[CudaTable, HostDevice]:
    """A table for which a row measured in main memory is dear, and a scan of its codes is not."""
    from host_device import host_device

    from thread_kernels import coded_table
    from thread_kernels.compression import CompressPolicy
    from thread_kernels.costs import RowCosts
    from thread_kernels.device import Residence
    from thread_kernels.engine_cuda import CudaTable

    device = host_device(gather_up_to=gather_up_to, **options)
    table = CudaTable(WIDTH, CompressPolicy(100, 8), Residence(device))
    grow(table, VECTORS)
    current = table.compression.current
    assert current is not None
    table.compression.adopt(replace(current, coded_cost=1e-12, gathered_cost=1.0))
    monkeypatch.setattr(coded_table, "row_costs", lambda width: RowCosts(scanned=1.0, gathered=1.0))
    return table, device


def test_rows_that_pass_are_gathered_on_the_device_while_that_takes_less_than_a_scan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, device = gathering_table(monkeypatch, 500)
    table.append(QUERIES[:3])  # without codes
    everything = np.concatenate([VECTORS, QUERIES[:3]])
    table.remove(range(0, 600, 60))
    rows = np.setdiff1d(np.r_[np.arange(0, ROWS, 7), [ROWS, ROWS + 2]], np.arange(0, 600, 60))
    few, many = only(table, rows), only(table, range(1, ROWS, 2))
    queries = QUERIES[:8] + np.float32(0.01)
    device.counts.clear()
    before = table.stats()

    found = table.search(queries, 10, [few, many] * 4)

    assert (device.counts["scan_lut"], device.counts["block_distances"]) == (1, 2)
    stats = table.stats()
    assert (stats.gathered - before.gathered, stats.by_code - before.by_code) == (4, 4)
    truth = nearest_of(everything, queries[::2], 10, rows)
    for hits, wanted in zip(found[::2], truth, strict=True):
        assert set(hits.rows) == set(wanted)
    assert recall(found[1::2], nearest_of(everything, queries[1::2], 10, np.arange(1, ROWS, 2))) >= 0.95

    survivors = table.candidates(queries, 2, [few] * 8)
    for query, survived in zip(queries, survivors, strict=True):
        distances = dict(zip(rows, table.rescore(query, rows).distances, strict=True))
        assert set(sorted(rows, key=distances.__getitem__)[:2]) <= set(survived)
        assert len(survived) < len(rows)
    table.close()


def test_a_device_that_fails_at_gathering_leaves_it_to_main_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from host_device import NoMemory, fails_above

    table, device = gathering_table(monkeypatch, 500)
    assert table.compression.current is not None
    codes = table.compression.current.codes
    assert codes.gather_up_to(4) == 500
    with monkeypatch.context() as patch:
        patch.setattr("thread_kernels.device_codes._MOST_GATHERED", 1_000)
        assert codes.gather_up_to(4) == 250, "so many distances there is room for"
    few = only(table, range(0, ROWS, 7))
    device.fail = fails_above(0, NoMemory)
    found = table.search(QUERIES[:4], 10, [few] * 4)
    assert recall(found, nearest_of(VECTORS, QUERIES[:4], 10, np.arange(0, ROWS, 7))) == 1.0
    table.close()


def test_vectors_that_do_not_fit_on_the_device_are_read_in_main_memory(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thread_kernels.device_rows._FEWEST", 60_000)
    table, device = gathering_table(monkeypatch, 500, memory_bytes=2 * 15_000_000, product_from=1)
    assert table.compression.current is not None
    codes = table.compression.current.codes
    residence = codes.codebook.residence
    assert not codes.vectors.is_resident
    assert residence.pinned_bytes == codes.vectors.values.nbytes == 2 * 128 * 60_000
    assert caplog.text.count("lie in main memory") == 1
    few = only(table, range(0, ROWS, 7))
    device.counts.clear()
    found = table.search(QUERIES, 10, [few, None] * 36)
    assert recall(found[1::2], nearest_of(VECTORS, QUERIES[1::2], 10)) >= 0.95
    assert dict(device.counts)["scan_lut"] == device.counts["block_distances"] == 1
    assert device.counts["scan_exact"] == 0

    table.remove(range(0, ROWS, 3))
    table.compact()
    grow(table, QUERIES)
    kept = np.r_[np.setdiff1d(np.arange(ROWS), np.arange(0, ROWS, 3)), np.arange(ROWS, ROWS + 72)]
    everything = np.concatenate([VECTORS, QUERIES])
    assert recall(table.search(QUERIES, 10, [None] * 72), nearest_of(everything, QUERIES, 10, kept)) >= 0.95
    del codes
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


def test_saved_codes_are_restored_and_the_vectors_beside_them_read_again() -> None:
    store = Store(WIDTH)
    table, _ = new_table(store)
    grow(table, VECTORS[:1_000], store)
    table.remove([0, 500])
    saved = table.save()
    assert saved is not None
    before = table.search(QUERIES, 10, [None] * 72)

    kept = Store(WIDTH)
    kept.put(VECTORS[saved.rows])
    may_read = Event()

    def read(rows: np.ndarray) -> np.ndarray:
        assert may_read.wait(60) or len(rows) < 500
        return kept(rows)

    other, device = new_table(read)
    assert other.restore(saved.data, len(saved.rows)) == range(998)
    assert device.counts["costs"] == 1, "measured before anybody searches"
    current = other.compression.current
    assert current is not None
    assert current.codes.vectors is None
    assert (kept.read, other.stats().coded_rows, other.stats().state) == (0, 998, "training")
    may_read.set()
    assert other.compression.wait(60)
    assert kept.read == 998
    codes = other.compression.current.codes
    assert codes.vectors.rows == 998
    assert codes.tiles is current.codes.tiles
    for one, two in zip(before, other.search(QUERIES, 10, [None] * 72), strict=True):
        np.testing.assert_array_equal(one.rows, saved.rows[two.rows])
    grow(other, VECTORS[1_000:1_200], kept)
    assert other.stats().coded_rows == other.compression.current.codes.vectors.rows == 1_198
    for each in (table, other):
        each.close()


def test_saving_takes_no_room_on_the_device_nor_moves_vectors(caplog: pytest.LogCaptureFixture) -> None:
    table, device = new_table()
    grow(table, VECTORS[:1_000])
    table.remove([0, 500, 999])
    codes = table.compression.current.codes
    device.memory_bytes, device.pinned_bytes = 2 * codes.codebook.residence.used_bytes, 0
    saved = table.save()
    assert saved is not None
    np.testing.assert_array_equal(saved.rows, np.delete(np.arange(1_000), [0, 500, 999]))
    assert table.compression.current.codes is codes
    assert not caplog.records
    table.close()


def test_a_restored_table_without_room_for_vectors_is_searched_by_codes(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(WIDTH)
    table, _ = new_table(store)
    grow(table, VECTORS[:1_000], store)
    saved = table.save()
    assert saved is not None
    monkeypatch.setattr("thread_kernels.device_rows._FEWEST", 60_000)
    other, _ = new_table(store, memory_bytes=2 * 15_000_000, pinned_bytes=0)
    other.restore(saved.data, 1_000)
    assert other.compression.wait(60)
    assert other.compression.current.codes.vectors is None
    assert caplog.text.count("nor in main memory") == 1
    found = other.search(QUERIES, 10, [None] * 72)
    assert recall(found, nearest_of(VECTORS[:1_000], QUERIES, 10)) >= 0.95
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
