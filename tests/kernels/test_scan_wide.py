"""The scan of two-byte codes against the plain truth: in Triton's interpreter, or on a GPU with `-m gpu`.

Entries of the tables are sixteenths from −4 to 4, so that float32 adds them up without rounding, in whatever order:
rows and scores are compared exactly, ties included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from kernel_errors import real_size

from thread_kernels import reference
from thread_kernels.selection import EVERY_ROW, NO_BOUND, NO_ROW, Best, best_rows, pack_mask, tile_count


class Machine:
    """Where the kernel runs, and how often it has."""

    def __init__(self, torch: ModuleType, device: str) -> None:
        from thread_kernels import scan_wide

        self.scan_wide, self.device, self.torch = scan_wide, device, torch
        self.arrays = np if device == "cpu" else pytest.importorskip("cupy", reason="CuPy is not installed")
        self._launch = scan_wide.TritonLaunch()
        self.launches = 0

    def scan(self, tables: Any, codes: Any, masks: Sequence[Any] | None = None) -> Any:
        """`masks` has a bool[n] or None for each query."""
        masks = masks or [None] * len(tables)
        bitmaps = [pack_mask(mask) for mask in masks if mask is not None]
        numbers = iter(range(len(bitmaps)))
        stacked = np.array(bitmaps, dtype=np.uint32).reshape(len(bitmaps), 4 * tile_count(len(codes)))
        filter_of = np.array([EVERY_ROW if mask is None else next(numbers) for mask in masks], dtype=np.int32)
        return self.scan_wide.Scan(
            self.torch.tensor(tables, device=self.device),
            self.arrays.asarray(self.scan_wide.pack_codes(codes)),
            len(codes),
            self.arrays.asarray(stacked),
            self.arrays.asarray(filter_of),
        )

    def best_rows(self, scan: Any, keep: int) -> Best:
        best = best_rows(scan, keep, self.launch, self.arrays)
        host: Callable[[Any], Any] = getattr(self.arrays, "asnumpy", np.asarray)
        return Best(host(best.rows), host(best.scores), host(best.counts))

    def launch(self, *arguments: Any) -> None:
        self.launches += 1
        self._launch(*arguments)

    def check(self, tables: Any, codes: Any, keep: int, masks: Sequence[Any] | None = None) -> None:
        best = self.best_rows(self.scan(tables, codes, masks), keep)
        scores = reference.lookup_scores(tables, codes)
        expected = reference.best_rows(scores, keep, masks or [None] * len(tables))
        np.testing.assert_array_equal(best.counts, [len(each) for each in expected])
        for query, rows in enumerate(expected):
            np.testing.assert_array_equal(best.rows[query, : len(rows)], rows)
            np.testing.assert_array_equal(best.scores[query, : len(rows)], scores[query, rows])
        past = np.arange(keep) >= best.counts[:, None]
        assert (best.rows[past] == -1).all()
        assert (best.scores[past] == -np.inf).all()


@pytest.fixture
def machine(torch: ModuleType, device: str) -> Machine:
    return Machine(torch, device)


def sample(queries: int, rows: int, subspaces: int = 8, centroids: int = 512, seed: int = 0) -> tuple[Any, Any]:
    """float32[q, subspaces, k] tables and uint16[n, subspaces] codes."""
    rng = np.random.default_rng(seed)
    tables = rng.integers(-64, 65, (queries, subspaces, centroids)).astype(np.float32) / 16
    return tables, rng.integers(0, centroids, (rows, subspaces), dtype=np.uint16)


@pytest.mark.parametrize("rows", [0, 1, 31, 127, 129, 1000])
@pytest.mark.parametrize(
    ("queries", "subspaces", "centroids"), [(1, 64, 512), (3, 8, 257), (2, 1, 512), (2, 13, 300), (1, 3, 65_536)]
)
def test_the_best_rows_are_found(machine: Machine, queries: int, rows: int, subspaces: int, centroids: int) -> None:
    machine.check(*sample(queries, rows, subspaces, centroids), keep=40)


def test_the_highest_code_is_looked_up_where_it_lies(machine: Machine) -> None:
    tables = np.zeros((1, 2, 65_536), dtype=np.float32)
    tables[0, 0, 65_535], tables[0, 1, 65_535] = 1, 2
    codes = np.array([[0, 0], [65_535, 0], [0, 65_535], [65_535, 65_535]], dtype=np.uint16)
    best = machine.best_rows(machine.scan(tables, codes), 4)
    assert best.rows.tolist() == [[3, 2, 1, 0]]
    assert best.scores.tolist() == [[3, 2, 1, 0]]


def test_every_query_has_its_own_filter(machine: Machine) -> None:
    rows = 1000
    tables, codes = sample(7, rows)
    one = np.arange(rows) == 999
    masks = [None, ~one, one, np.zeros(rows, bool), np.arange(rows) % 3 == 0, np.arange(rows) // 128 == 5, one]
    machine.check(tables, codes, 40, masks)


def test_a_query_that_may_see_no_row_finds_nothing(machine: Machine) -> None:
    scan = machine.scan(*sample(4, 300))
    scan.filter_of[machine.arrays.asarray([0, 2, 3])] = NO_ROW
    assert machine.best_rows(scan, 10).counts.tolist() == [0, 10, 0, 0]


def test_where_everything_is_masked_nothing_is_found(machine: Machine) -> None:
    machine.check(*sample(2, 1000), keep=10, masks=[np.zeros(1000, bool)] * 2)


def test_more_than_all_and_none_can_be_asked_for(machine: Machine) -> None:
    tables, codes = sample(3, 31)
    machine.check(tables, codes, keep=100)
    assert machine.best_rows(machine.scan(tables, codes), keep=0).rows.shape == (3, 0)


def test_bits_after_the_last_row_are_ignored(machine: Machine) -> None:
    scan = machine.scan(*sample(2, 200), [np.zeros(200, bool)] * 2)
    scan.bitmaps[:] = 0xFFFFFFFF
    best = machine.best_rows(scan, 256)
    assert best.counts.tolist() == [200, 200]
    assert best.rows.max() == 199


def test_ties_go_to_the_lower_row(machine: Machine) -> None:
    tables = np.ones((2, 4, 512), dtype=np.float32)
    tables[:, :, 300] = 2
    codes = np.zeros((1000, 4), dtype=np.uint16)
    codes[800:830] = 300
    best = machine.best_rows(machine.scan(tables, codes), keep=50)
    assert best.rows.tolist() == [[*range(800, 830), *range(20)]] * 2
    assert best.scores[0].tolist() == [8.0] * 30 + [4.0] * 20


def test_nan_never_passes_and_infinities_are_ordered(machine: Machine) -> None:
    tables, codes = sample(2, 1000, centroids=300)
    tables[0, :, 3:40] = np.nan
    tables[1, 0, :100], tables[1, 0, 100:200] = np.inf, -np.inf
    assert np.isnan(reference.lookup_scores(tables, codes)).any()
    machine.check(tables, codes, keep=1000)


@pytest.mark.parametrize("order", ["rising", "falling"])
def test_a_bound_that_the_order_of_the_rows_misleads_loses_nothing(machine: Machine, order: str) -> None:
    rows = 10_000
    tables, codes = sample(1, rows, subspaces=2)
    ranked = codes[np.argsort(reference.lookup_scores(tables, codes)[0])]
    codes = ranked if order == "rising" else np.ascontiguousarray(ranked[::-1])
    machine.check(tables, codes, 100, [np.arange(rows) % 2 == 0])
    assert 2 <= machine.launches <= 4


def test_more_keys_than_slots_are_counted_and_the_best_of_a_slot_stays(machine: Machine) -> None:
    tables, codes = sample(1, 1000)
    keys = machine.arrays.zeros((1, 64), dtype=np.uint64)
    counts = machine.arrays.zeros(1, dtype=np.uint32)
    bounds = machine.arrays.full(1, NO_BOUND, dtype=np.uint64)
    machine.launch(machine.scan(tables, codes), bounds, 1, keys, counts)
    assert counts.tolist() == [1000]
    stored = [row ^ 0xFFFFFFFF for row in (keys[0] & np.uint64(0xFFFFFFFF)).tolist()]
    assert len(set(stored)) == 64
    [best] = reference.best_rows(reference.lookup_scores(tables, codes), 1, [None])
    assert best[0] in stored


def test_tables_may_lie_apart(machine: Machine) -> None:
    """As `lookup.tables` leaves them where sub-spaces are no multiple of 4."""
    tables, codes = sample(3, 200, subspaces=5)
    roomy = machine.torch.full((3, 8, 512), float("nan"), device=machine.device)
    roomy[:, :5] = machine.torch.tensor(tables, device=machine.device)
    found = machine.best_rows(replace(machine.scan(tables, codes), tables=roomy[:, :5]), 20)
    np.testing.assert_array_equal(found.rows, machine.best_rows(machine.scan(tables, codes), 20).rows)


@real_size
@pytest.mark.parametrize(("rows", "centroids"), [(1_000_000, 512), (200_000, 65_536)])
def test_the_best_rows_are_found_at_real_size(machine: Machine, rows: int, centroids: int) -> None:
    machine.check(*sample(3, rows, 64, centroids), 300, [None, np.arange(rows) % 3 == 0, np.arange(rows) > rows - 10])


@pytest.mark.parametrize("rows", [0, 1, 127, 128, 129])
def test_codes_are_unpacked_as_they_were_packed(machine: Machine, rows: int) -> None:
    _, codes = sample(1, rows, subspaces=5)
    packed = machine.scan_wide.pack_codes(codes)
    assert packed.shape == (tile_count(rows), 128 * 5)
    np.testing.assert_array_equal(machine.scan_wide.unpack_codes(packed, rows, 5), codes)


def test_the_tables_of_a_launch_are_bounded(machine: Machine) -> None:
    at_once = machine.scan_wide.queries_at_once
    assert (at_once(64, 512), at_once(64, 65_536), at_once(1 << 20, 65_536)) == (2_048, 16, 1)


@pytest.mark.parametrize(
    ("name", "change", "match"),
    [
        ("tables", lambda each: each.half(), r"tables: expected a contiguous float32\[8, 512\], got float16"),
        ("tables", lambda each: each.mT.contiguous().mT, "tables: expected a contiguous float32"),
        ("codes", lambda each: each.astype(np.uint8), r"codes: expected a contiguous uint16\[3, 1024\], got uint8"),
        ("codes", lambda each: each[:-1], r"codes: expected a contiguous uint16\[3, 1024\], got uint16\[2, 1024\]"),
        ("bitmaps", lambda each: each[:, :-1].copy(), r"bitmaps: expected a contiguous uint32\[1, 12\]"),
        ("filter_of", lambda each: each[:1], r"filter_of: expected a contiguous int32\[2\]"),
        ("rows", lambda each: 1 << 32, "expected"),
    ],
)
def test_arrays_that_the_kernel_would_misread_are_refused(
    machine: Machine, name: str, change: Callable[[Any], Any], match: str
) -> None:
    scan = machine.scan(*sample(2, 300), [None, np.ones(300, bool)])
    with pytest.raises(ValueError, match=match):
        best_rows(replace(scan, **{name: change(getattr(scan, name))}), 10, lambda *_: None)
