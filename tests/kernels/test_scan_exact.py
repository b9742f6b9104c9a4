"""The scan of whole vectors against the plain truth: in Triton's interpreter, or on a GPU with `-m gpu`.

Which rows are the best is compared under the kernel's own scores, which a run that keeps every row gives; how far these
are from float64 is compared beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from kernel_errors import TOLERANCES, error, real_size

from thread_kernels import reference
from thread_kernels.selection import EVERY_ROW, NO_BOUND, NO_ROW, Best, best_rows, pack_mask, tile_count

TYPES = ["int8", "float16"]


class Machine:
    """Where the kernel runs, and how often it has."""

    def __init__(self, torch: ModuleType, device: str) -> None:
        from thread_kernels import scan_exact

        self.scan_exact, self.device, self.torch = scan_exact, device, torch
        self.arrays = np if device == "cpu" else pytest.importorskip("cupy", reason="CuPy is not installed")
        # The interpreter's time goes by program, not by row.
        self._launch = scan_exact.TritonLaunch(tiles=8 if device == "cpu" else 1)
        self.launches = 0

    def scan(self, queries: Any, vectors: Any, dtype: str, masks: Sequence[Any] | None = None) -> Any:
        """`masks` has a bool[n] or None for each query."""
        masks = masks or [None] * len(queries)
        bitmaps = [pack_mask(mask) for mask in masks if mask is not None]
        numbers = iter(range(len(bitmaps)))
        stacked = np.array(bitmaps, dtype=np.uint32).reshape(len(bitmaps), 4 * tile_count(len(vectors)))
        filter_of = np.array([EVERY_ROW if mask is None else next(numbers) for mask in masks], dtype=np.int32)
        return self.scan_exact.Scan(
            self.packed(queries, dtype),
            self.packed(vectors, dtype),
            len(vectors),
            self.arrays.asarray(stacked),
            self.arrays.asarray(filter_of),
        )

    def packed(self, vectors: Any, dtype: str) -> Any:
        return self.scan_exact.pack(self.torch.tensor(vectors, device=self.device), getattr(self.torch, dtype))

    def best_rows(self, scan: Any, keep: int) -> Best:
        best = best_rows(scan, keep, self.launch, self.arrays)
        host: Callable[[Any], Any] = getattr(self.arrays, "asnumpy", np.asarray)
        return Best(host(best.rows), host(best.scores), host(best.counts))

    def launch(self, *arguments: Any) -> None:
        self.launches += 1
        self._launch(*arguments)

    def scores(self, queries: Any, vectors: Any, dtype: str) -> Any:
        """float32[q, n]: the kernel's own, by one launch without a bound; NaN where a row has no key."""
        count = len(queries), len(vectors)
        keys = self.arrays.zeros(count, dtype=np.uint64)
        bounds = self.arrays.full(count[0], NO_BOUND, dtype=np.uint64)
        self._launch(self.scan(queries, vectors, dtype), bounds, 1, keys, self.arrays.zeros(count[0], dtype=np.uint32))
        found = getattr(self.arrays, "asnumpy", np.asarray)(keys)
        high = (found >> np.uint64(32)).astype(np.uint32)
        values = np.where(high >> 31, high & 0x7FFFFFFF, ~high).astype(np.uint32).view(np.float32)
        rows = (found & np.uint64(0xFFFFFFFF)).astype(np.int64) ^ 0xFFFFFFFF
        scores = np.full(count, np.nan, dtype=np.float32)
        for query in range(count[0]):
            stored = found[query] > 0
            scores[query, rows[query, stored]] = values[query, stored]
        return scores

    def check(
        self,
        queries: Any,
        vectors: Any,
        dtype: str,
        keep: int,
        masks: Sequence[Any] | None = None,
        scores: Any = None,
    ) -> Any:
        """`scores` are the kernel's own, which are returned."""
        best = self.best_rows(self.scan(queries, vectors, dtype, masks), keep)
        scores = self.scores(queries, vectors, dtype) if scores is None else scores
        expected = reference.best_rows(scores, keep, masks or [None] * len(queries))
        np.testing.assert_array_equal(best.counts, [len(each) for each in expected])
        for query, rows in enumerate(expected):
            np.testing.assert_array_equal(best.rows[query, : len(rows)], rows)
            np.testing.assert_array_equal(best.scores[query, : len(rows)], scores[query, rows])
        past = np.arange(keep) >= best.counts[:, None]
        assert (best.rows[past] == -1).all()
        assert (best.scores[past] == -np.inf).all()
        return scores


@pytest.fixture
def machine(torch: ModuleType, device: str) -> Machine:
    return Machine(torch, device)


def sample(queries: int, rows: int, width: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(rows)
    return (
        rng.standard_normal((queries, width), dtype=np.float32),
        rng.standard_normal((rows, width), dtype=np.float32),
    )


def whole(*shape: int) -> Any:
    """Whole numbers, of which float16 and float32 lose nothing."""
    return np.random.default_rng(5).integers(-3, 4, shape).astype(np.float32)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows", [0, 1, 31, 129, 1000])
def test_the_best_rows_are_found(machine: Machine, rows: int, dtype: str) -> None:
    queries, vectors = sample(3, rows, 100)
    scores = machine.check(queries, vectors, dtype, keep=40)
    if rows:
        assert error(scores, reference.product_scores(queries, vectors)) < TOLERANCES[dtype]


@real_size
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("queries", "rows"), [(1, 300_000), (33, 100_000), (256, 100_000)])
def test_the_best_rows_are_found_at_real_size(machine: Machine, queries: int, rows: int, dtype: str) -> None:
    asked, vectors = sample(queries, rows, 1024)
    masks = [None if query % 3 else np.arange(rows) % 1000 == query for query in range(queries)]
    scores = machine.check(asked, vectors, dtype, 256, masks)
    assert error(scores, reference.product_scores(asked, vectors)) < TOLERANCES[dtype]


@pytest.mark.parametrize(("queries", "width"), [(1, 1), (40, 128), (70, 129)])
def test_batches_of_every_size_and_vectors_of_every_width(machine: Machine, queries: int, width: int) -> None:
    asked, vectors = whole(queries, width), whole(200, width)
    scores = machine.check(asked, vectors, "float16", keep=30)
    np.testing.assert_array_equal(scores, reference.product_scores(asked, vectors))


def test_every_query_has_its_own_filter(machine: Machine) -> None:
    rows = 1000
    one = np.arange(rows) == 999
    masks = [None, ~one, one, np.zeros(rows, bool), np.arange(rows) % 3 == 0, np.arange(rows) // 128 == 5, one]
    machine.check(*sample(7, rows, 16), "int8", 40, masks)


def test_a_query_that_may_see_no_row_finds_nothing(machine: Machine) -> None:
    scan = machine.scan(*sample(4, 300, 16), "int8")
    scan.filter_of[:] = machine.arrays.asarray([NO_ROW, EVERY_ROW, NO_ROW, NO_ROW])
    assert machine.best_rows(scan, 10).counts.tolist() == [0, 10, 0, 0]


def test_with_everything_masked_nothing_is_found(machine: Machine) -> None:
    machine.check(*sample(2, 300, 16), "float16", 10, [np.zeros(300, bool)] * 2)


def test_more_than_all_and_none_can_be_asked_for(machine: Machine) -> None:
    queries, vectors = sample(3, 31, 16)
    machine.check(queries, vectors, "int8", keep=100)
    assert machine.best_rows(machine.scan(queries, vectors, "int8"), keep=0).rows.shape == (3, 0)


def test_bits_after_the_last_row_and_room_for_more_rows_are_ignored(machine: Machine) -> None:
    queries, vectors = sample(2, 400, 16)
    scan = replace(machine.scan(queries, vectors, "int8"), rows=200)
    ones = machine.arrays.full((1, 8), 0xFFFFFFFF, dtype=np.uint32)
    zero = machine.arrays.zeros(2, dtype=np.int32)
    best = machine.best_rows(replace(scan, bitmaps=ones, filter_of=zero), 256)
    assert best.counts.tolist() == [200, 200]
    assert best.rows.max() == 199


@pytest.mark.parametrize("dtype", TYPES)
def test_ties_go_to_the_lower_row(machine: Machine, dtype: str) -> None:
    vectors = np.zeros((1000, 16), dtype=np.float32)
    vectors[700:720] = 1
    best = machine.best_rows(machine.scan(np.ones((2, 16), dtype=np.float32), vectors, dtype), keep=60)
    expected = [*range(700, 720), *range(40)]
    assert best.rows.tolist() == [expected, expected]
    np.testing.assert_allclose(best.scores[0], [16.0] * 20 + [0.0] * 40, rtol=1e-6)


@pytest.mark.parametrize("dtype", TYPES)
def test_nan_never_passes(machine: Machine, dtype: str) -> None:
    queries, vectors = sample(2, 300, 16)
    vectors[5::7, 3] = np.nan
    vectors[40:60] = np.nan
    best = machine.best_rows(machine.scan(queries, vectors, dtype), keep=300)
    there = (~np.isnan(vectors).any(axis=1)).nonzero()[0]
    assert [sorted(rows[: len(there)].tolist()) for rows in best.rows] == [there.tolist()] * 2
    assert best.counts.tolist() == [len(there)] * 2


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("length", [1e-12, 1e-3, 1e15])
def test_vectors_keep_their_digits_whatever_their_length(machine: Machine, length: float, dtype: str) -> None:
    queries, vectors = (each * np.float32(length) for each in sample(2, 200, 48))
    vectors[:100] *= 100
    scores = machine.scores(queries, vectors, dtype)
    expected = reference.product_scores(queries, vectors)
    assert error(scores[:, 100:], expected[:, 100:]) < TOLERANCES[dtype]
    assert error(scores, expected) < TOLERANCES[dtype]


@pytest.mark.parametrize(("order", "launches"), [("any", 2), ("falling", 4), ("equal", 4)])
def test_no_order_of_the_rows_misleads_the_bound(machine: Machine, order: str, launches: int) -> None:
    rows = 8_400
    queries, vectors = whole(1, 8), whole(rows, 8)
    if order == "falling":
        vectors = vectors[np.argsort(-reference.product_scores(queries, vectors)[0])]
    if order == "equal":
        vectors[:] = vectors[0]
    exact = reference.product_scores(queries, vectors).astype(np.float32)
    machine.check(queries, vectors, "float16", 300, scores=exact)
    assert machine.launches <= launches


def test_nothing_is_written_beside_the_buffers(machine: Machine) -> None:
    queries, vectors = sample(3, 300, 16)
    poison = np.uint64(0xDEAD)
    keys = machine.arrays.full((5, 64), poison, dtype=np.uint64)
    counts = machine.arrays.full(5, 0xDEAD, dtype=np.uint32)
    keys[1:4], counts[1:4] = 0, 0
    bounds = machine.arrays.full(3, NO_BOUND, dtype=np.uint64)
    machine.launch(machine.scan(queries, vectors, "int8"), bounds, 1, keys[1:4], counts[1:4])
    assert (keys[[0, 4]] == poison).all()
    assert counts.tolist() == [0xDEAD, 300, 300, 300, 0xDEAD], "counts past the slots"
    assert (keys[1:4] > 0).all()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda scan: {"bitmaps": scan.bitmaps[:, :-1]}, r"bitmaps: expected a contiguous uint32\[1, 12\]"),
        (lambda scan: {"filter_of": scan.filter_of[:1]}, r"filter_of: expected a contiguous int32\[2\]"),
        (lambda scan: {"rows": 301}, r"rows: values: expected a contiguous int8\[301, 128\], got int8\[300, 128\]"),
        (
            lambda scan: {"asked": replace(scan.asked, values=scan.asked.values.half())},
            r"queries: values: expected a contiguous int8\[2, 128\], got float16",
        ),
        (
            lambda scan: {"table": replace(scan.table, scales=scan.table.scales[::2])},
            r"rows: scales: expected a contiguous float32\[300\], got float32\[150\]",
        ),
        (
            lambda scan: {"asked": replace(scan.asked, values=scan.asked.values[:, :100])},
            r"queries: values: expected a contiguous int8\[2, 128\], got int8\[2, 100\]",
        ),
    ],
)
def test_arrays_that_the_kernel_would_misread_are_refused(
    machine: Machine, change: Callable[[Any], dict[str, Any]], match: str
) -> None:
    scan = machine.scan(*sample(2, 300, 16), "int8", [None, np.ones(300, bool)])
    with pytest.raises(ValueError, match=match):
        machine.best_rows(replace(scan, **change(scan)), 10)
