"""What the scans cost on this device, measured in a few milliseconds when an engine starts.

    costs = measure(
        1024, torch.float16, CudaLaunch(), TritonLaunch(), seconds_on_card, arrays=cupy, device="cuda", name="H100"
    )

The two crossovers that a search depends on follow: the batch from which the matrix product over whole rows
(`scan_exact`) is faster than the scan by look-ups (`scan_lut`, or `scan_wide` for codes of two bytes), and the passing
rows up to which measuring just those is faster than scanning all. So does whether ruling rows out on the device is
worth its launches. They differ tenfold between cards, so none is a constant.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from thread_kernels import scan_exact, scan_lut, scan_wide
from thread_kernels.blockwise import block_count
from thread_kernels.rescore import block_distances, errors_of, may_be_nearest
from thread_kernels.selection import EVERY_ROW, TILE_ROWS, Launch, S, tile_count

BATCHES = (1, 4, 16, 64, 256)
"""Queries of the launches that are timed."""
_TIMES = 3
_GATHERED, _LISTED = 16_384, 128

Clock = Callable[[Callable[[], object]], float]
"""Gives the seconds that some work takes on the device."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeviceCosts:
    """Immutable. Seconds are of a scan of all rows that were timed."""

    rows: int
    by_lookup: tuple[float, ...]
    """Of one launch for each of BATCHES."""
    by_product: tuple[float, ...] | None
    """None where there are no whole rows on the card."""
    gathered: float
    """Seconds for one row, measured in its place for one query."""
    ruling_out: float
    """Seconds to find out which rows of a short list may be the nearest: what that costs at least."""

    @property
    def product_from(self) -> int | None:
        """Queries from which the matrix product is the faster scan, and stays so; None if it never is."""
        found = None
        for batch, lookup, product in reversed(list(zip(BATCHES, self.by_lookup, self.by_product or (), strict=False))):
            if product >= lookup:
                break
            found = batch
        return found

    def scan_seconds(self, rows: int, batch: int) -> float:
        """Of the faster scan of so many rows; batches between those that were timed cost what the next larger does."""
        place = next((place for place, each in enumerate(BATCHES) if batch <= each), len(BATCHES) - 1)
        scans = (self.by_lookup,) if self.by_product is None else (self.by_lookup, self.by_product)
        return min(each[place] for each in scans) * rows / self.rows * max(1.0, batch / BATCHES[place])

    def gather_up_to(self, rows: int, batch: int = 1) -> int:
        """Passing rows of each query up to which a batch gathers them instead of scanning all `rows`."""
        return int(self.scan_seconds(rows, batch) / (self.gathered * max(1, batch)))


def measure(
    width: int,
    dtype: torch.dtype,
    lookup: Launch[scan_lut.Scan],
    product: Launch[scan_exact.Scan] | None,
    clock: Clock,
    *,
    arrays: Any,
    device: str,
    name: str,
    rows: int = 65_536,
    wide: Launch[scan_wide.Scan] | None = None,
    centroids: int = scan_lut.CODES,
) -> DeviceCosts:
    """Time both scans over made-up `rows` of `width` components, and `block_distances` of some; log the result.

    `wide` is the scan by look-ups in place of `lookup` for codes of more than 256 `centroids`. `product` is None where
    whole rows do not fit on the card; otherwise they are of `dtype`. `arrays` is the module of the launches' arrays,
    numpy or cupy; `device` is what torch calls the device, and `name` what people do. Each kernel is run once before,
    since a first launch compiles and allocates, and the fastest of a few counts.
    """
    began = time.perf_counter()
    batch = BATCHES[-1]
    bitmaps = arrays.zeros((0, 4 * tile_count(rows)), dtype=np.uint32)
    everything = arrays.full(batch, EVERY_ROW, dtype=np.int32)
    nothing_beats = arrays.full(batch, np.uint64(0xFFFFFFFFFFFFFFFF), dtype=np.uint64)
    keys, counts = arrays.zeros((batch, 1), dtype=np.uint64), arrays.zeros(batch, dtype=np.uint32)

    def seconds(launch: Launch[S], scan: S) -> float:
        asked = scan.queries
        work = partial(launch, scan, nothing_beats[:asked], 1, keys[:asked], counts[:asked])
        return _fastest(work, clock)

    def seconds_by_lookup(asked: int) -> float:
        tables = arrays.zeros((-(-asked // 2), scan_lut.CODES, scan_lut.SUBSPACES, 2), dtype=np.float16)
        return seconds(lookup, scan_lut.Scan(tables, asked, codes, rows, bitmaps, everything[:asked]))

    def seconds_by_wide(asked: int, launch: Launch[scan_wide.Scan]) -> float:
        at_once = min(asked, scan_wide.queries_at_once(scan_lut.SUBSPACES, centroids))
        tables = torch.zeros((at_once, scan_lut.SUBSPACES, centroids), device=device)
        scan = scan_wide.Scan(tables, codes, rows, bitmaps, everything[:at_once])
        return -(-asked // at_once) * seconds(launch, scan)

    shape = tile_count(rows), TILE_ROWS * scan_lut.SUBSPACES
    if wide is None:
        codes = arrays.zeros(shape, dtype=np.uint8)
        lookups = tuple(map(seconds_by_lookup, BATCHES))
    else:  # all over the tables, which do not lie in shared memory
        codes = arrays.asarray(np.random.default_rng(0).integers(0, centroids, shape, dtype=np.uint16))
        lookups = tuple(seconds_by_wide(asked, wide) for asked in BATCHES)
    vectors = torch.ones((rows, width), dtype=torch.float16, device=device)
    stored = scan_exact.pack(vectors, torch.float16)
    products = None
    if product is not None:
        table = stored if dtype == torch.float16 else scan_exact.pack(vectors, dtype)
        products = tuple(
            seconds(product, scan_exact.Scan(table.first(asked), table, rows, bitmaps, everything[:asked]))
            for asked in BATCHES
        )
    count = min(_GATHERED, rows)
    listed = torch.arange(count, device=device)[None] * (rows // count)
    gathered = _fastest(partial(block_distances, vectors[:1].float(), stored, listed, 1), clock)
    ruling_out = _fastest(partial(_rule_out, vectors[:1].float(), stored, listed[:, :_LISTED]), clock)
    costs = DeviceCosts(rows, lookups, products, gathered / count, ruling_out)
    _log.info(
        "%s, measured in %.1f s: scans of a million rows take %.2f ms for 1 query, %.2f ms for %d; the matrix product "
        "from %s queries on; up to %d rows are gathered",
        name,
        time.perf_counter() - began,
        1e3 * costs.scan_seconds(1_000_000, 1),
        1e3 * costs.scan_seconds(1_000_000, batch),
        batch,
        costs.product_from or "no number of",
        costs.gather_up_to(1_000_000),
    )
    return costs


def _rule_out(queries: torch.Tensor, table: scan_exact.Packed, rows: torch.Tensor) -> None:
    width = queries.shape[1]
    blocks = block_count(width)
    distances = block_distances(queries, table, rows, blocks)
    errors = errors_of(distances, table, rows, width, blocks)
    may_be_nearest(distances, errors, torch.ones(len(queries), dtype=torch.int64, device=queries.device))


def _fastest(work: Callable[[], object], clock: Clock) -> float:
    work()
    return min(clock(work) for _ in range(_TIMES))


def seconds_on_card(work: Callable[[], object]) -> float:
    """Seconds between two CUDA events around `work`, on torch's current stream; waits for it."""
    started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    started.record()
    work()
    ended.record()
    ended.synchronize()
    return float(started.elapsed_time(ended)) / 1e3
