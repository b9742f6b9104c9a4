"""The scan by look-ups against the plain truth: its CUDA C source on the CPU, or on a GPU with `-m gpu`.

`kernel_scores` repeats the kernel's arithmetic, rounding by rounding, so rows and scores are compared exactly; how far
that arithmetic is from float64 is a test of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import host_scan
import numpy as np
import pytest

from thread_kernels import EngineUnavailable, reference, scan_lut
from thread_kernels.scan_lut import BlockShape, CudaLaunch, Scan
from thread_kernels.selection import EVERY_ROW, NO_ROW, Best, Launch, best_rows, pack_mask, tile_count


@dataclass
class Machine:
    """Where the kernel runs, and how often it has."""

    launch: Launch[Scan]
    arrays: Any
    launches: int = 0

    def best_rows(self, scan: Scan, keep: int) -> Best:
        best = best_rows(self._moved(scan, self.arrays.asarray), keep, self._counted, self.arrays)
        host: Callable[[Any], Any] = getattr(self.arrays, "asnumpy", np.asarray)
        return Best(host(best.rows), host(best.scores), host(best.counts))

    def _counted(self, scan: Scan, bounds: Any, tile_stride: int, keys: Any, counts: Any) -> None:
        self.launches += 1
        self.launch(scan, bounds, tile_stride, keys, counts)

    @staticmethod
    def _moved(scan: Scan, move: Callable[[Any], Any]) -> Scan:
        tables, codes, bitmaps, filter_of = map(move, (scan.tables, scan.codes, scan.bitmaps, scan.filter_of))
        return Scan(tables, scan.queries, codes, scan.rows, bitmaps, filter_of)


@pytest.fixture(scope="module")
def host_launch(tmp_path_factory: pytest.TempPathFactory) -> Launch[Scan]:
    if host_scan.COMPILER is None:
        pytest.skip("no g++ to compile the kernel for the CPU")
    return host_scan.HostLaunch(host_scan.build(tmp_path_factory.mktemp("scan_lut")))


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def machine(request: pytest.FixtureRequest) -> Machine:
    if request.param == "cpu":
        return Machine(request.getfixturevalue("host_launch"), np)
    try:
        return Machine(CudaLaunch(), pytest.importorskip("cupy"))
    except EngineUnavailable as error:
        pytest.skip(str(error))


def sample(queries: int, rows: int, subspaces: int = 64, codes: int = 256, seed: int = 0) -> tuple[Any, Any]:
    """float16[q, subspaces, codes] tables and uint8[n, subspaces] codes."""
    rng = np.random.default_rng(seed)
    tables = rng.standard_normal((queries, subspaces, codes)).astype(np.float16)
    return tables, rng.integers(0, codes, (rows, subspaces), dtype=np.uint8)


def scan_of(tables: Any, codes: Any, masks: Sequence[Any] | None = None) -> Scan:
    """`masks` has a bool[n] or None for each query."""
    queries, subspaces, code_count = tables.shape
    pairs = np.full((-(-queries // 2), 256, 64, 2), np.nan, dtype=np.float16)
    pairs[:, :, 16 * (np.arange(subspaces, 64) % 4) + np.arange(subspaces, 64) // 4] = 0
    for query, subspace in np.ndindex(queries, subspaces):
        pairs[query // 2, :code_count, 16 * (subspace % 4) + subspace // 4, query % 2] = tables[query, subspace]

    masks = masks or [None] * queries
    bitmaps = [pack_mask(mask) for mask in masks if mask is not None]
    numbers = iter(range(len(bitmaps)))
    filter_of = np.array([EVERY_ROW if mask is None else next(numbers) for mask in masks], dtype=np.int32)
    words = 4 * tile_count(len(codes))
    stacked = np.array(bitmaps, dtype=np.uint32).reshape(len(bitmaps), words)
    return Scan(pairs, queries, scan_lut.pack_codes(codes), len(codes), stacked, filter_of)


def kernel_scores(tables: Any, codes: Any) -> Any:
    """float32[q, n]: sums of 16 in float16 in the order of the row's lane, the four sums in float32."""
    rows, subspaces = codes.shape
    padded_tables = np.zeros((len(tables), 64, 256), dtype=np.float16)
    padded_tables[:, :subspaces, : tables.shape[2]] = tables
    padded_codes = np.zeros((rows, 64), dtype=np.uint8)
    padded_codes[:, :subspaces] = codes

    row = np.arange(rows)
    lane, half = row % 16, row % 128 // 64
    scores = np.zeros((len(tables), rows), dtype=np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        for part in range(4):
            partial = None
            for step, place in np.ndindex(4, 4):
                subspace = 4 * ((4 * part + step) ^ lane) + (place ^ half)
                entries = padded_tables[:, subspace, padded_codes[row, subspace]]
                partial = entries if partial is None else partial + entries
            scores += partial
    return scores


def check(machine: Machine, tables: Any, codes: Any, keep: int, masks: Sequence[Any] | None = None) -> None:
    best = machine.best_rows(scan_of(tables, codes, masks), keep)
    scores = kernel_scores(tables, codes)
    expected = reference.best_rows(scores, keep, masks or [None] * len(tables))
    np.testing.assert_array_equal(best.counts, [len(each) for each in expected])
    for query, rows in enumerate(expected):
        np.testing.assert_array_equal(best.rows[query, : len(rows)], rows)
        np.testing.assert_array_equal(best.scores[query, : len(rows)], scores[query, rows])
    past = np.arange(keep) >= best.counts[:, None]
    assert (best.rows[past] == -1).all()
    assert (best.scores[past] == -np.inf).all()


ODD_SHAPES = [
    (queries, rows, subspaces, codes)
    for queries, subspaces, codes in [(1, 64, 256), (3, 16, 16), (3, 1, 2), (4, 64, 16), (2, 63, 256)]
    for rows in (0, 1, 31, 127, 129, 1000)
]


@pytest.mark.parametrize("shape", ODD_SHAPES)
def test_the_best_rows_are_found(machine: Machine, shape: tuple[int, int, int, int]) -> None:
    check(machine, *sample(*shape), keep=40)


def check_filters(machine: Machine) -> None:
    rows = 1000
    tables, codes = sample(7, rows)
    one = np.arange(rows) == 999
    masks = [None, ~one, one, np.zeros(rows, bool), np.arange(rows) % 3 == 0, np.arange(rows) // 128 == 5, one]
    check(machine, tables, codes, 40, masks)


def test_every_query_has_its_own_filter(machine: Machine) -> None:
    check_filters(machine)


def test_a_query_that_may_see_no_row_costs_nothing_and_finds_nothing(machine: Machine) -> None:
    tables, codes = sample(4, 300)
    scan = scan_of(tables, codes)
    scan.filter_of[[0, 2, 3]] = NO_ROW
    assert machine.best_rows(scan, 10).counts.tolist() == [0, 10, 0, 0]


def test_more_than_all_and_none_can_be_asked_for(machine: Machine) -> None:
    tables, codes = sample(3, 31)
    check(machine, tables, codes, keep=100)
    assert machine.best_rows(scan_of(tables, codes), keep=0).rows.shape == (3, 0)


def test_bits_after_the_last_row_are_ignored(machine: Machine) -> None:
    tables, codes = sample(2, 200)
    scan = scan_of(tables, codes, [np.zeros(200, bool)] * 2)
    scan.bitmaps[:] = 0xFFFFFFFF
    best = machine.best_rows(scan, 256)
    assert best.counts.tolist() == [200, 200]
    assert best.rows.max() == 199


def test_ties_go_to_the_lower_row(machine: Machine) -> None:
    tables = np.ones((2, 64, 256), dtype=np.float16)
    codes = np.zeros((20_000, 64), dtype=np.uint8)
    codes[12_345:12_400] = 1
    tables[:, :, 1] = 2
    best = machine.best_rows(scan_of(tables, codes), keep=100)
    expected = [*range(12_345, 12_400), *range(45)]
    assert best.rows.tolist() == [expected, expected]
    assert best.scores[0].tolist() == [128.0] * 55 + [64.0] * 45


def test_nan_never_passes_and_infinities_are_ordered(machine: Machine) -> None:
    tables, codes = sample(2, 1000, codes=16)
    tables[0, :, 3] = np.nan
    tables[1, 0, :4] = np.inf, -np.inf, np.nan, 60_000
    assert np.isnan(kernel_scores(tables, codes)).any()
    check(machine, tables, codes, keep=1000)


def test_scores_are_near_the_exact_sums(machine: Machine) -> None:
    tables, codes = sample(3, 1000)
    best = machine.best_rows(scan_of(tables, codes), keep=1000)
    exact = np.take_along_axis(reference.lookup_scores(tables, codes), best.rows, axis=1)
    assert np.linalg.norm(best.scores - exact) / np.linalg.norm(exact) < 1e-3


@pytest.mark.parametrize("rows", [8_192, 8_193, 90_000, 530_000])
def test_a_sampled_bound_loses_nothing(machine: Machine, rows: int) -> None:
    check(machine, *sample(1, rows), keep=100)
    assert machine.launches == {8_192: 1, 8_193: 2, 90_000: 2, 530_000: 3}[rows]


@pytest.mark.parametrize("passing", [50, 8_000, 45_000])
def test_a_filter_that_thins_the_sample_loses_nothing(machine: Machine, passing: int) -> None:
    mask = np.zeros(90_000, bool)
    mask[:: 90_000 // passing] = True
    check(machine, *sample(2, 90_000), keep=100, masks=[mask, None])
    assert machine.launches == 2


def by_score(order: str, rows: int) -> tuple[Any, Any]:
    """Rows whose scores rise or fall with the row number, or are best or worst where the sample looks."""
    tables, codes = sample(2, rows)
    tables[1] = tables[0]
    ranked = codes[np.argsort(kernel_scores(tables[:1], codes)[0])]
    sampled = np.arange(rows) // 128 % 64 == 0
    if order == "falling":
        return tables, np.ascontiguousarray(ranked[::-1])
    if order == "rising":
        return tables, ranked
    placed = np.empty_like(codes)
    first = sampled if order == "sample is worst" else ~sampled
    placed[first], placed[~first] = ranked[: first.sum()], ranked[first.sum() :]
    return tables, placed


@pytest.mark.parametrize("order", ["rising", "falling", "sample is best", "sample is worst"])
def test_no_order_of_the_rows_misleads_the_bound(machine: Machine, order: str) -> None:
    tables, codes = by_score(order, 40_000)
    check(machine, tables, codes, 300, [None, np.arange(40_000) % 2 == 0])
    assert machine.launches <= 4


def test_one_misled_query_does_not_disturb_the_others(machine: Machine) -> None:
    """The rows that the third query may see are worse in the sample than elsewhere; the others see all of them."""
    rows = 40_000
    tables, codes = sample(5, rows)
    scores = kernel_scores(tables, codes)[2]
    sampled = np.arange(rows) // 128 % 64 == 0
    mask = np.where(sampled, scores < np.quantile(scores, 0.2), scores > np.quantile(scores, 0.5))
    check(machine, tables, codes, 100, [None, None, mask, None, None])
    assert machine.launches == 3


def test_equal_rows_by_the_thousand_fit(machine: Machine) -> None:
    tables, codes = sample(2, 40_000)
    codes[np.random.default_rng(1).random(40_000) < 0.9] = codes[0]
    check(machine, tables, codes, 300)


def check_under_sanitisers(library: Path) -> None:
    for shape in ODD_SHAPES:
        check(Machine(host_scan.HostLaunch(library), np), *sample(*shape), keep=40)
    check_filters(Machine(host_scan.HostLaunch(library), np))


@pytest.mark.skipif(host_scan.COMPILER is None, reason="no g++ to compile the kernel for the CPU")
def test_the_sanitisers_find_nothing(tmp_path: Path) -> None:
    library = host_scan.build(tmp_path, *host_scan.SANITISERS)
    code = "import pathlib, sys, test_scan_lut as t; t.check_under_sanitisers(pathlib.Path(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(library)],
        env=os.environ
        | {
            "LD_PRELOAD": host_scan.sanitiser(),
            "ASAN_OPTIONS": "detect_leaks=0",
            "PYTHONPATH": str(Path(__file__).parent),
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_codes_of_a_row_lie_where_the_kernel_reads_them() -> None:
    _, codes = sample(1, 300)
    packed = scan_lut.pack_codes(codes).reshape(3, 2, 16, 16, 4, 4)
    for row, subspace in np.random.default_rng(0).integers(0, (300, 64), (200, 2)):
        half, j, r = row % 128 // 64, row % 64 // 16, row % 16
        assert packed[row // 128, half, (subspace // 4) ^ r, r, j, subspace % 4] == codes[row, subspace]


def test_look_ups_of_a_warp_hit_every_bank_of_shared_memory_once() -> None:
    lanes = np.arange(32)
    for t, place in np.ndindex(16, 4):
        subspaces = 4 * (t ^ (lanes % 16)) + (place ^ (lanes // 16))
        words = 16 * (subspaces % 4) + subspaces // 4
        assert sorted(words % 32) == list(range(32))


def test_a_grid_covers_every_tile_and_fills_the_card() -> None:
    shape = BlockShape.of(86)
    tables, codes = sample(3, 1000)
    scan = scan_of(tables, codes)
    for rows, stride in [(1, 1), (1000, 1), (1_000_000, 1), (1_000_000, 64), (100_000_000, 1)]:
        (pairs, chunks), tiles = shape.grid(Scan(scan.tables, 3, None, rows, None, None), stride, multiprocessors=82)
        scanned = -(-tile_count(rows) // stride)
        assert pairs == 2
        assert (chunks - 1) * tiles < scanned <= chunks * tiles
        assert tiles % (shape.threads // 32) == 0
        assert tiles <= 128
    assert chunks < 65_536


@pytest.mark.parametrize(
    ("name", "change", "match"),
    [
        ("tables", lambda each: each.astype(np.float32), r"tables: expected a contiguous float16\[1, 256, 64, 2\]"),
        ("codes", lambda each: each[:-1], r"codes: expected a contiguous uint8\[3, 8192\], got uint8\[2, 8192\]"),
        ("codes", np.asfortranarray, "codes: expected a contiguous"),
        ("bitmaps", lambda each: each[:, :-1].copy(), r"bitmaps: expected a contiguous uint32\[1, 12\]"),
        ("filter_of", lambda each: each[:1], r"filter_of: expected a contiguous int32\[2\]"),
        ("rows", lambda each: 1 << 32, "expected"),
    ],
)
def test_arrays_that_the_kernel_would_misread_are_refused(name: str, change: Callable[[Any], Any], match: str) -> None:
    tables, codes = sample(2, 300)
    scan = scan_of(tables, codes, [None, np.ones(300, bool)])
    fields = {each: getattr(scan, each) for each in ("tables", "queries", "codes", "rows", "bitmaps", "filter_of")}
    with pytest.raises(ValueError, match=match):
        best_rows(Scan(**(fields | {name: change(fields[name])})), 10, lambda *_: None)


def test_too_many_subspaces_are_refused() -> None:
    with pytest.raises(ValueError, match="65 sub-spaces; the scan takes 64 at most"):
        scan_lut.pack_codes(np.zeros((1, 65), dtype=np.uint8))


def test_without_cupy_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(EngineUnavailable, match=r"pip install 'thread-node\[cuda13\]'"):
        CudaLaunch()
