"""The CUDA engine with more than 256 centroids a sub-space, on a device without a GPU: two-byte codes all their life.

The specification's rule wants 39 rows a centroid; here it is 3, so that 1,700 rows get 512 centroids.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from coded_tables import Store, clustered, grow, nearest_of, only, recall

from thread_kernels import coding

if TYPE_CHECKING:
    from host_device import HostDevice

    from thread_kernels.engine_cuda import CudaTable

WIDTH, ROWS, SUBSPACES = 32, 1_700, 8
VECTORS = clustered(ROWS, WIDTH)
QUERIES = clustered(72, WIDTH, seed=2)

pytestmark = pytest.mark.usefixtures("host_kernels", "few_rows_a_centroid")


@pytest.fixture(scope="module")
def few_rows_a_centroid() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coding, "ROWS_A_CENTROID", 3)
        yield


@pytest.fixture(scope="module")
def made(host_kernels: None, few_rows_a_centroid: None) -> Iterator[tuple[CudaTable, HostDevice]]:
    table, device = new_table()
    grow(table, VECTORS)
    yield table, device
    table.close()


@pytest.fixture
def coded(made: tuple[CudaTable, HostDevice]) -> tuple[CudaTable, HostDevice]:
    made[1].counts.clear()
    return made


def new_table(store: Store | None = None, bits: int = 10) -> tuple[CudaTable, HostDevice]:
    from host_device import host_device

    from thread_kernels.engine_cuda import CudaEngine

    device = host_device()
    return CudaEngine(device, "always", bits).table(WIDTH, store), device


def codes_of(table: CudaTable) -> Any:
    current = table.compression.current
    assert current is not None
    return current.codes


def assert_coded_anew(table: CudaTable, vectors: np.ndarray) -> None:
    """The codes on the device are those that its codebook gives `vectors`."""
    codes = codes_of(table)
    with codes.codebook.residence.using() as device:
        expected = codes.codebook.encode(device.tensor(device.upload(vectors)))
    found = codes.tiles.codes(0, len(vectors), SUBSPACES)
    assert found.dtype == expected.dtype == np.uint16
    np.testing.assert_array_equal(found, expected)


def test_the_rule_gives_more_than_256_centroids_which_take_two_bytes(coded: tuple[CudaTable, HostDevice]) -> None:
    table, device = coded
    assert codes_of(table).codebook.centroids.shape == (SUBSPACES, 512, 4)
    assert table.stats().code_bytes == 2 * SUBSPACES
    found = table.search(QUERIES, 10, [None] * 72)
    assert (device.counts["scan_wide"], device.counts["scan_lut"]) == (1, 0)
    assert recall(found, nearest_of(VECTORS, QUERIES, 10)) >= 0.95


def test_eight_bits_cap_what_the_rule_gives(coded: tuple[CudaTable, HostDevice]) -> None:
    table, device = new_table(bits=8)
    grow(table, VECTORS)
    assert codes_of(table).codebook.centroids.shape == (SUBSPACES, 256, 4)
    assert table.stats().code_bytes == 64
    assert coded[0].stats().depth <= table.stats().depth, "more centroids put the nearest rows nearer to the front"
    device.counts.clear()
    table.search(QUERIES, 10, [None] * 72)
    assert (device.counts["scan_wide"], device.counts["scan_lut"]) == (0, 1)
    table.close()


def test_filters_and_counts_of_any_kind_are_answered(coded: tuple[CudaTable, HostDevice]) -> None:
    table, _ = coded
    rows = [None, np.arange(0, ROWS, 2), np.arange(5, ROWS, 7), np.array([ROWS - 1]), np.empty(0, dtype=np.int64)]
    filters = [None if each is None else only(table, each) for each in rows]
    found = table.search(QUERIES[:5], [10, 10, 10, 10, ROWS + 1], filters)
    assert [len(hits.rows) for hits in found] == [10, 10, 10, 1, 0]
    truth = [nearest_of(VECTORS, query[None], 10, each)[0] for query, each in zip(QUERIES, rows[:4], strict=False)]
    assert recall(found[:4], truth) >= 0.95
    [everything] = table.search(QUERIES[:1], ROWS + 1, [None])
    np.testing.assert_array_equal(np.sort(everything.rows), np.arange(ROWS))


def test_a_batch_whose_tables_are_too_large_is_scanned_in_parts(
    coded: tuple[CudaTable, HostDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    from thread_kernels import scan_wide

    table, device = coded
    filters = [None if number % 3 else only(table, range(number, ROWS)) for number in range(72)]
    expected = table.search(QUERIES, 10, filters)
    device.counts.clear()
    monkeypatch.setattr(scan_wide, "TABLE_BYTES", 30 * 4 * SUBSPACES * 512)
    found = table.search(QUERIES, 10, filters)
    assert device.counts["scan_wide"] == 3, "30, 30 and 12 queries"
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.rows, other.rows)


def test_rows_are_coded_as_they_come_and_dropped_as_they_go() -> None:
    table, _ = new_table()
    for start, stop in ((0, 1_540), (1_540, 1_610), (1_610, ROWS)):
        grow(table, VECTORS[start:stop])
    assert_coded_anew(table, VECTORS)
    table.remove(np.arange(1, ROWS, 10))
    table.compact()
    left = np.setdiff1d(np.arange(ROWS), np.arange(1, ROWS, 10))
    assert_coded_anew(table, VECTORS[left])
    assert recall(table.search(QUERIES, 10, [None] * 72), nearest_of(VECTORS, QUERIES, 10, left)) >= 0.95
    table.close()


def test_a_table_that_grows_gets_wide_codes_when_it_is_trained_anew() -> None:
    table, _ = new_table()
    grow(table, VECTORS[:390])
    assert codes_of(table).tiles.memory.dtype == np.uint8
    grow(table, VECTORS[390:])
    assert table.stats().trained_rows == ROWS
    assert_coded_anew(table, VECTORS)
    table.close()


def test_saved_codes_are_taken_up_as_they_are() -> None:
    store = Store(WIDTH)
    table, _ = new_table(store)
    grow(table, VECTORS, store)
    table.remove([0, 7, ROWS - 1])
    kept = table.save()
    assert kept is not None
    anew = Store(WIDTH)
    anew.put(VECTORS[kept.rows])
    other, device = new_table(anew)
    assert other.restore(kept.data, len(kept.rows)) == range(ROWS - 3)
    assert other.compression.wait(120)
    assert_coded_anew(other, VECTORS[kept.rows])
    device.counts.clear()
    found, expected = (each.search(QUERIES, 10, [None] * 72) for each in (other, table))
    assert (device.counts["scan_wide"], device.counts["scan_lut"]) == (1, 0)
    for one, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(kept.rows[one.rows], wanted.rows)
    for each in (table, other):
        each.close()


def test_the_sample_has_enough_rows_for_every_centroid() -> None:
    from host_device import host_device

    from thread_kernels.coder_cuda import CudaCoder
    from thread_kernels.device import Residence

    residence = Residence(host_device())
    rows = [CudaCoder(residence, bits).training_rows(1 << 30) for bits in (8, 10, 16)]
    assert rows == [65_536, 65_536, 3 << 16]
    assert CudaCoder(residence, 16).training_rows(1_000) == 65_536


def test_a_sample_that_goes_to_the_device_in_pieces_gives_the_same_codebook(monkeypatch: pytest.MonkeyPatch) -> None:
    from host_device import host_device

    from thread_kernels import device_codebook
    from thread_kernels.device import Residence

    def trained() -> tuple[Any, int]:
        device = host_device()
        codebook = device_codebook.principal(Residence(device), VECTORS, rows=ROWS, bits=4)
        return codebook.centroids.numpy(), device.counts["uploads"]

    whole, few = trained()
    monkeypatch.setattr(device_codebook, "UPLOADED_BYTES", 4 * WIDTH * 100)
    pieces, many = trained()
    assert many - few == ROWS // 100 - 1
    np.testing.assert_allclose(pieces, whole, atol=1e-6)


def test_the_host_device_computes_what_the_kernels_do(coded: tuple[CudaTable, HostDevice]) -> None:
    """What stands in for the Triton kernels in these tests gives their results."""
    import torch

    from thread_kernels import lookup, scan_wide
    from thread_kernels.selection import EVERY_ROW, NO_ROW, best_rows, pack_mask

    table, device = coded
    codes = codes_of(table)
    asked = codes.codebook.rotated(torch.from_numpy(QUERIES[:4]))
    tables = device.tables(asked, codes.codebook.prepared)
    np.testing.assert_allclose(tables, lookup.tables(asked, codes.codebook.prepared), rtol=1e-4, atol=1e-2)
    exact = tables.round()  # whole numbers, which add up to the same in any order
    bitmaps = pack_mask(np.arange(ROWS) % 3 == 0)[None]
    filter_of = np.array([EVERY_ROW, 0, NO_ROW, 0], dtype=np.int32)
    scan = scan_wide.Scan(exact, codes.tiles.packed, ROWS, bitmaps, filter_of)
    best, expected = (best_rows(scan, 50, launch) for launch in (device.scan_wide, scan_wide.TritonLaunch()))
    assert best.counts.tolist() == [50, 50, 0, 50]
    for name in ("rows", "scores", "counts"):
        np.testing.assert_array_equal(getattr(best, name), getattr(expected, name))
