"""What scans cost on a device: which one is taken follows from the seconds that a clock says."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from kernel_errors import real_size


@pytest.fixture
def device_costs(device: str) -> ModuleType:
    from thread_kernels import device_costs

    return device_costs


def costs_of(device_costs: ModuleType, by_lookup: list[float], by_product: list[float] | None) -> Any:
    return device_costs.DeviceCosts(1_000, tuple(by_lookup), by_product and tuple(by_product), 0.01, ruling_out=0.0)


@pytest.mark.parametrize(
    ("by_product", "batch"),
    [
        ([9, 9, 9, 9, 9], 256),
        ([9, 9, 1, 1, 1], 16),
        ([0, 0, 0, 0, 0], 1),
        ([9, 1, 9, 1, 1], 64),
        ([1, 1, 1, 1, 40], None),
        (None, None),
    ],
)
def test_the_product_is_taken_from_where_it_is_faster_and_stays_so(
    device_costs: ModuleType, by_product: list[float] | None, batch: int | None
) -> None:
    assert costs_of(device_costs, [1, 2, 4, 8, 32], by_product).product_from == batch


def test_the_faster_scan_of_a_batch_decides_what_is_gathered(device_costs: ModuleType) -> None:
    costs = costs_of(device_costs, [1, 2, 4, 8, 32], [3, 3, 3, 3, 6])
    assert costs.scan_seconds(1_000, 1) == 1
    assert costs.scan_seconds(2_000, 1) == 2
    assert costs.scan_seconds(1_000, 5) == 3, "what 16 queries cost"
    assert costs.scan_seconds(1_000, 512) == 12, "twice what 256 cost"
    assert costs.gather_up_to(1_000) == 100
    assert costs.gather_up_to(1_000_000) == 100_000
    assert costs.gather_up_to(1_000, batch=4) == 50


class Clocked:
    """Stands for the kernels: writes down what they are given, and says what each costs without running it again."""

    def __init__(self) -> None:
        self.batches: dict[str, list[int]] = {"lookup": [], "product": []}
        self.gathered: list[Any] = []
        self._last = 0.0

    def lookup(self, scan: Any, *buffers: Any) -> None:
        self._launch("lookup", scan, *buffers)
        self._last = scan.queries / 1_000

    def product(self, scan: Any, *buffers: Any) -> None:
        self._launch("product", scan, *buffers)
        self._last = 0.01

    def block_distances(self, query: Any, table: Any, rows: Any, blocks: int) -> Any:
        self.gathered.append((query, table, rows, blocks))
        self._last = 0.5 if len(self.gathered) == 1 else 0.25
        return query.new_zeros(rows.shape)

    def __call__(self, work: Callable[[], object]) -> float:
        return self._last

    def _launch(self, name: str, scan: Any, bounds: Any, tile_stride: int, keys: Any, counts: Any) -> None:
        scan.check()
        assert len(bounds) == len(keys) == len(counts) == scan.queries
        assert tile_stride == 1
        self.batches[name].append(scan.queries)


@pytest.mark.parametrize("has_rows", [True, False])
def test_both_scans_and_gathering_are_timed_and_logged(
    device_costs: ModuleType,
    torch: ModuleType,
    device: str,
    has_rows: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arrays = np if device == "cpu" else pytest.importorskip("cupy", reason="CuPy is not installed")
    clocked = Clocked()
    monkeypatch.setattr(device_costs, "_GATHERED", 500)
    monkeypatch.setattr(device_costs, "block_distances", clocked.block_distances)
    product = clocked.product if has_rows else None
    with caplog.at_level(logging.INFO, logger="thread_kernels"):
        costs = device_costs.measure(
            16, torch.int8, clocked.lookup, product, clocked, arrays=arrays, device=device, name="a card", rows=1_000
        )
    assert clocked.batches == {"lookup": list(device_costs.BATCHES), "product": list(device_costs.BATCHES) * has_rows}
    assert costs.by_lookup == (0.001, 0.004, 0.016, 0.064, 0.256)
    assert costs.by_product == ((0.01,) * 5 if has_rows else None)
    assert costs.gathered == 0.001
    assert costs.ruling_out == 0.25
    [(query, table, rows, blocks), (_, _, few, blocks_of_scores)] = clocked.gathered
    assert (few.shape, blocks_of_scores) == ((1, 128), 16)
    assert (query.shape[0], len(table.values), rows.shape, blocks) == (1, 1_000, (1, 500), 1)
    assert rows[0].tolist() == list(range(0, 1_000, 2))
    [message] = caplog.messages
    assert message.startswith("a card, measured in ")
    assert f"the matrix product from {'16' if has_rows else 'no number of'} queries on" in message


def test_codes_of_two_bytes_are_timed_by_their_own_scan_in_as_many_launches_as_a_search_takes(
    device_costs: ModuleType, torch: ModuleType, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from thread_kernels import scan_wide

    arrays = np if device == "cpu" else pytest.importorskip("cupy", reason="CuPy is not installed")
    clocked = Clocked()
    monkeypatch.setattr(device_costs, "_GATHERED", 500)
    monkeypatch.setattr(device_costs, "block_distances", clocked.block_distances)
    monkeypatch.setattr(scan_wide, "TABLE_BYTES", 3 * 4 * 64 * 512)

    def wide(scan: Any, *buffers: Any) -> None:
        assert scan.tables.shape[1:] == (64, 512)
        assert (int(scan.codes.max()), len(arrays.unique(scan.codes))) == (511, 512)
        clocked.lookup(scan, *buffers)

    def narrow(*_: Any) -> None:
        raise AssertionError("no table is scanned by it")

    costs = device_costs.measure(
        16,
        torch.int8,
        narrow,
        None,
        clocked,
        arrays=arrays,
        device=device,
        name="a card",
        rows=1_000,
        wide=wide,
        centroids=512,
    )
    assert clocked.batches["lookup"] == [1, 3, 3, 3, 3]
    assert costs.by_lookup == pytest.approx((0.001, 2 * 0.003, 6 * 0.003, 22 * 0.003, 86 * 0.003))


def test_the_kernels_themselves_find_nothing_and_take_some_time(
    device_costs: ModuleType, torch: ModuleType, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "cuda":
        pytest.skip("the next test is the same with both kernels at real size")
    from thread_kernels.scan_exact import TritonLaunch

    monkeypatch.setattr(device_costs, "BATCHES", (1, 3))
    monkeypatch.setattr(device_costs, "_GATHERED", 20)
    found: list[int] = []
    product = TritonLaunch(tiles=4)

    def launch(scan: Any, bounds: Any, tile_stride: int, keys: Any, counts: Any) -> None:
        product(scan, bounds, tile_stride, keys, counts)
        found.append(int(counts.sum()))

    device_costs.measure(
        4, torch.float16, lambda *_: None, launch, lambda work: 1.0, arrays=np, device=device, name="a card", rows=500
    )
    assert found == [0, 0]


@real_size
def test_a_card_is_measured_in_a_moment(device_costs: ModuleType, torch: ModuleType, device: str) -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    from thread_kernels.scan_exact import TritonLaunch
    from thread_kernels.scan_lut import CudaLaunch

    costs = device_costs.measure(
        1024,
        torch.int8,
        CudaLaunch(),
        TritonLaunch(),
        device_costs.seconds_on_card,
        arrays=cupy,
        device=device,
        name="a card",
    )
    assert 0 < min(costs.by_lookup) <= max(costs.by_lookup) < 0.1
    assert costs.by_product is not None
    assert 0 < min(costs.by_product) <= max(costs.by_product) < 0.1
    assert 0 < costs.gathered < 1e-3
