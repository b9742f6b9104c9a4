"""A `Device` without a GPU: NumPy, torch on the CPU, `scan_lut.cu` compiled for the host, torch for Triton's kernels.

It counts what goes to the device and what is launched there, and fails when it is told to.
"""

from __future__ import annotations

import atexit
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from host_scan import HostLaunch, build

from thread_kernels import scan_exact, scan_lut, scan_wide
from thread_kernels.device import Residence
from thread_kernels.lookup import Centroids
from thread_kernels.scan_lut import SUBSPACES
from thread_kernels.selection import EVERY_ROW, NO_ROW, TILE_ROWS, Array, Launch


class NoMemory(Exception):
    """What a library raises that finds no memory on the device."""


class Refused(Exception):
    """What a library raises when the device does not do one thing."""


class Broken(Exception):
    """What a library raises when the device does not answer."""


@dataclass(frozen=True)
class HostCosts:
    """What a test decides, in place of `DeviceCosts`."""

    product_from: int | None
    up_to: int
    ruling_out: float

    def gather_up_to(self, rows: int, batch: int) -> int:
        return self.up_to


class HostDevice:
    """`counts` has the uploads, their bytes, and the launches of each kernel. `fail` is called before a launch,
    `encoding` before vectors are encoded, and `waiting` when the end of a piece of long work is waited for."""

    name = "host"
    arrays = np
    torch_name = "cpu"

    def __init__(
        self,
        launch: HostLaunch,
        *,
        memory_bytes: int = 1 << 30,
        pinned_bytes: int = 1 << 30,
        product: Launch[scan_exact.Scan] | None = None,
        product_from: int | None = None,
        gather_up_to: int = 0,
        ruling_out: float = 0.0,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.fail: Callable[[int], None] = lambda queries: None
        self.encoding: Callable[[], None] = lambda: None
        self.waiting: Callable[[], None] = lambda: None
        self.memory_bytes = memory_bytes
        self.pinned_bytes = pinned_bytes
        self.is_working = False
        self._launch = launch
        self._product = product
        self._costs = HostCosts(product_from, gather_up_to, ruling_out)

    @contextmanager
    def working(self) -> Iterator[None]:
        before, self.is_working = self.is_working, True
        try:
            yield
        finally:
            self.is_working = before

    def scan_lut(self, scan: scan_lut.Scan, bounds: Array, tile_stride: int, keys: Array, counts: Array) -> None:
        self.fail(scan.queries)
        self.counts["scan_lut"] += 1
        self._launch(scan, bounds, tile_stride, keys, counts)

    def scan_exact(self, scan: scan_exact.Scan, bounds: Array, tile_stride: int, keys: Array, counts: Array) -> None:
        self.fail(scan.queries)
        self.counts["scan_exact"] += 1
        assert self._product is not None
        self._product(scan, bounds, tile_stride, keys, counts)

    def scan_wide(self, scan: scan_wide.Scan, bounds: Array, tile_stride: int, keys: Array, counts: Array) -> None:
        self.fail(scan.queries)
        self.counts["scan_wide"] += 1
        plain_scan_wide(scan, bounds, tile_stride, keys, counts)

    def wait(self) -> None:
        self.waiting()

    def upload(self, values: np.ndarray) -> np.ndarray:
        assert self.is_working
        self.counts["uploads"] += 1
        self.counts["bytes"] += values.nbytes
        return values.copy()

    def download(self, array: np.ndarray) -> np.ndarray:
        assert self.is_working
        return array.copy()

    def pinned(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> np.ndarray:
        return np.full(shape, 77, dtype)

    def tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array)

    def array(self, tensor: torch.Tensor) -> np.ndarray:
        return tensor.numpy()

    def encode(self, vectors: torch.Tensor, centroids: torch.Tensor) -> torch.Tensor:
        self.encoding()
        parts = vectors.view(len(vectors), *centroids.shape[::2]).transpose(0, 1)
        scores = parts @ centroids.transpose(1, 2) - centroids.square().sum(dim=2)[:, None] / 2
        dtype = torch.uint8 if centroids.shape[1] <= 256 else torch.uint16
        return scores.argmax(dim=2).T.to(dtype).contiguous()

    def fill_pairs(self, queries: torch.Tensor, centroids: Centroids, pairs: torch.Tensor) -> None:
        tables = self.tables(queries, centroids)
        _, subspaces, codes = tables.shape
        words = [16 * (subspace % 4) + subspace // 4 for subspace in range(SUBSPACES)]
        for lane in range(2):
            mine = tables[lane::2].transpose(1, 2).half()
            pairs[: len(mine), :codes, words[:subspaces], lane] = mine

    def tables(self, queries: torch.Tensor, centroids: Centroids) -> torch.Tensor:
        subspaces, _, components = centroids.centred.shape
        parts = queries.view(len(queries), subspaces, components).transpose(0, 1)
        tables = 2 * parts @ centroids.centred.transpose(1, 2) - centroids.offsets[:, None]
        return (tables * centroids.scales(queries)[None, :, None]).transpose(0, 1).contiguous()

    def block_distances(
        self, queries: torch.Tensor, table: scan_exact.Packed, rows: torch.Tensor, blocks: int
    ) -> torch.Tensor:
        assert self.is_working
        self.counts["block_distances"] += 1
        self.fail(len(queries))
        width = queries.shape[1]
        at = rows.clamp(min=0)
        listed = table.values[at, :width].float() * table.scales[at][..., None]
        apart = (listed - queries[:, None]).unflatten(2, (blocks, width // blocks)).norm(dim=3).sum(dim=2)
        return apart.masked_fill((rows < 0) | table.squares[at].isnan(), torch.inf)

    def seconds(self, work: Callable[[], object]) -> float:
        started = time.perf_counter()
        work()
        return time.perf_counter() - started

    def costs(self, width: int, centroids: int) -> Any:
        assert self.is_working
        self.counts["costs"] += 1
        return self._costs

    def give_back(self) -> None:
        self.counts["given back"] += 1

    def is_out_of_memory(self, error: Exception) -> bool:
        return isinstance(error, NoMemory | torch.OutOfMemoryError)

    def is_failure(self, error: Exception) -> bool:
        return isinstance(error, Refused | Broken)

    def is_lost(self, error: Exception) -> bool:
        return isinstance(error, Broken)


def plain_scan_wide(scan: scan_wide.Scan, bounds: Array, tile_stride: int, keys: Array, counts: Array) -> None:
    """What `scan_wide.TritonLaunch` does, in NumPy."""
    queries, subspaces, _ = scan.tables.shape
    codes = scan_wide.unpack_codes(scan.codes, scan.rows, subspaces)
    rows = np.flatnonzero(np.arange(scan.rows) // TILE_ROWS % tile_stride == 0)
    for query in range(queries):
        number = scan.filter_of[query]
        if number == NO_ROW:
            continue
        passing = rows
        if number != EVERY_ROW:
            bits = scan.bitmaps[number]
            passing = rows[bits[rows // 32] >> (rows % 32).astype(np.uint32) & 1 == 1]
        scores = scan.tables[query].numpy()[np.arange(subspaces), codes[passing]].sum(axis=1)
        passing, scores = passing[~np.isnan(scores)], scores[~np.isnan(scores)]
        pattern = scores.view(np.uint32)
        ordered = np.where(pattern >> 31, ~pattern, pattern | np.uint32(1 << 31)).astype(np.uint64)
        found = ordered << np.uint64(32) | (passing.astype(np.uint64) ^ np.uint64(0xFFFFFFFF))
        found = found[found > bounds[query]]
        np.maximum.at(keys[query], np.arange(len(found)) % keys.shape[1], found)
        counts[query] = len(found)


@cache
def host_launch() -> HostLaunch:
    """Compiled once for all tests."""
    folder = TemporaryDirectory()
    atexit.register(folder.cleanup)
    return HostLaunch(build(Path(folder.name)))


def host_device(**options: Any) -> HostDevice:
    return HostDevice(host_launch(), **options)


def fails_above(queries: int, error: type[Exception]) -> Callable[[int], Any]:
    """For `HostDevice.fail`: every launch of more than so many queries fails."""

    def fail(asked: int) -> None:
        if asked > queries:
            raise error(f"{asked} queries")

    return fail


def leave_room(residence: Residence, size: int) -> None:
    """Give the device of `residence` so little memory that `size` bytes are left beside what lies there: half is for
    work, and half of that for queries."""
    used, for_queries = residence.used_bytes, residence._for_queries
    share = used + size - for_queries
    residence.device.memory_bytes = 2 * (share if share // 2 >= for_queries else -(-2 * (used + size) // 3))  # type: ignore[misc]
