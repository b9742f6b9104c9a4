"""The best rows of a table of codes for a batch of queries, by sums of look-ups: `scan_lut.cu` and what surrounds it.

    best = best_rows(Scan(tables, queries, codes, rows, bitmaps, filter_of), keep=256, launch=CudaLaunch())

The kernel puts what beats a query's bound into the query's buffer; here the bounds are chosen. A bound is the 64th
best key among one 64th of the tiles, so about 4,096 rows beat it and fit into 8,192 slots. A sample that is itself too
large for the slots gets its bound from a sparser one, by the same kernel. The bound only saves work: when too many or
too few rows beat it, another one is tried, and the result is exact under the kernel's scores whatever the sample said.

A key is the score, as an unsigned integer of the same order, above the inverted row number: larger is better, no two
are equal, and equal scores go to the lower row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from thread_kernels.interface import Bool, EngineUnavailable

SOURCE = Path(__file__).with_suffix(".cu")
SUBSPACES, CODES = 64, 256
TABLE_BYTES = CODES * SUBSPACES * 4
"""Of two queries, in shared memory."""
TILE_ROWS = 128
EVERY_ROW, NO_ROW = -1, -2
NO_BOUND = np.uint64(0x007FFFFF << 32)
"""Below every key of a score that is not NaN."""

_MOST_ROWS = 1 << 31
_CHUNK_TILES = 128
"""Tiles that one block scans: 1 MB of codes for 64 KB of table."""
_BLOCKS_WANTED = 4
"""A multiprocessor; a table too small for so many is cut into smaller chunks."""
_SAMPLING = 64
_SLOTS = 8_192
_SLOTS_PER_KEPT = 16
"""So that few of the best keys meet in a slot, and an overflowing buffer gives a good bound for the next scan."""

Array = Any
"""A NumPy or CuPy array, as the launch takes them."""


@dataclass(frozen=True, slots=True)
class Scan:
    """What one launch reads. C-contiguous arrays of NumPy or CuPy, all of the same."""

    tables: Array
    """float16[pairs, 256, 64, 2]: `lookup.fill_pairs`"""
    queries: int
    codes: Array
    """uint8[tiles, 8192]: `pack_codes`"""
    rows: int
    bitmaps: Array
    """uint32[filters, 4 × tiles]: a `pack_mask` for each filter"""
    filter_of: Array
    """int32[queries]: the number of the query's filter, EVERY_ROW or NO_ROW. Other numbers are not checked."""


@dataclass(frozen=True, slots=True)
class Best:
    """The best rows of each query, best first; of equal scores the lower row. Arrays of the kind that `Scan` held."""

    rows: Array
    """int64[queries, keep]; −1 past `counts`"""
    scores: Array
    """float32[queries, keep]; −inf past `counts`"""
    counts: Array
    """int64[queries]: less than `keep` when fewer pass the filter"""


class Launch(Protocol):
    """Runs the kernel once over every `tile_stride`-th tile.

    Puts the keys above uint64[queries] `bounds` into uint64[queries, slots] `keys`, in any order, and their number into
    uint32[queries] `counts`; both are zeros before. When there are more keys than slots, the best of those that fall
    to a slot stays.
    """

    def __call__(self, scan: Scan, bounds: Array, tile_stride: int, keys: Array, counts: Array) -> None: ...


def tile_count(rows: int) -> int:
    return -(-rows // TILE_ROWS)


def _scanned_tiles(rows: int, tile_stride: int) -> int:
    return -(-tile_count(rows) // tile_stride)


def pack_codes(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """uint8[n, subspaces] as uint8[tiles, 8192], in the order in which `scan_lut.cu` reads them.

    Missing sub-spaces get code 0, whose entry in the table is 0, and so do the rows that fill up the last tile, which
    never pass. ValueError for more than 64 sub-spaces.
    """
    rows, subspaces = codes.shape
    if subspaces > SUBSPACES:
        raise ValueError(f"{subspaces} sub-spaces; the scan takes {SUBSPACES} at most")
    padded = np.zeros((tile_count(rows) * TILE_ROWS, SUBSPACES), dtype=np.uint8)
    padded[:rows, :subspaces] = codes
    # Row 64 h + 16 j + r of a tile, sub-spaces 4 g … 4 g + 3 as one number: [tile, h, j, r, g] to [tile, h, t, r, j].
    by_group = padded.view(np.uint32).reshape(-1, 2, 4, 16, 16).transpose(0, 1, 4, 3, 2)
    r = np.arange(16)
    packed = np.ascontiguousarray(by_group[:, :, r[:, None] ^ r, r])
    return packed.view(np.uint8).reshape(-1, TILE_ROWS * SUBSPACES)


def pack_mask(mask: Bool) -> npt.NDArray[np.uint32]:
    """bool[n] as uint32[4 × tiles]: bit i of word w for row 32 w + i, zeros after the last row."""
    padded = np.zeros(tile_count(len(mask)) * TILE_ROWS, dtype=np.bool_)
    padded[: len(mask)] = mask
    return np.packbits(padded, bitorder="little").view("<u4")


def best_rows(scan: Scan, keep: int, launch: Launch, arrays: Any = np) -> Best:
    """The `keep` best rows of each query that pass its filter. `arrays` is the module of the arrays: numpy or cupy.

    ValueError for arrays of another shape or type than `Scan` says.
    """
    _check(scan, keep)
    if not (keep and scan.rows and scan.queries):
        return _decoded(arrays.zeros((scan.queries, keep), dtype=np.uint64), arrays)

    slots = max(_SLOTS, _SLOTS_PER_KEPT * keep)
    rank = slots // 2 // _SAMPLING
    bounds = arrays.full(scan.queries, NO_BOUND, dtype=np.uint64)
    sample = arrays.zeros((scan.queries, 0), dtype=np.uint64)
    stride = 1
    while _scanned_tiles(scan.rows, stride) * TILE_ROWS > slots:
        stride *= _SAMPLING
    while stride > 1:
        sample, _ = _launched(scan, bounds, stride, slots, launch, arrays)
        bounds = _just_below(sample, rank, bounds, arrays)
        stride //= _SAMPLING

    keys, counts = _launched(scan, bounds, 1, slots, launch, arrays)
    while True:
        overflowed = counts > slots
        too_few = (counts < keep) & (bounds > NO_BOUND)
        again = overflowed | too_few
        if not again.any():
            return _decoded(keys[:, :keep], arrays)
        # The stored keys are some of all, so the best `keep` of all are at least as good as the best `keep` of these:
        # this bound loses nothing, and no query needs it more than a few times.
        rank *= 8
        deeper = _just_below(sample, rank, arrays.full_like(bounds, NO_BOUND), arrays)
        bounds = arrays.where(too_few, deeper, bounds)
        bounds = arrays.where(overflowed, keys[:, keep - 1] - np.uint64(1), bounds)
        unsettled = replace(scan, filter_of=arrays.where(again, scan.filter_of, np.int32(NO_ROW)))
        new_keys, new_counts = _launched(unsettled, bounds, 1, slots, launch, arrays)
        keys, counts = arrays.where(again[:, None], new_keys, keys), arrays.where(again, new_counts, counts)


def _launched(scan: Scan, bounds: Array, stride: int, slots: int, launch: Launch, arrays: Any) -> tuple[Array, Array]:
    """uint64[queries, slots] keys, best first and then zeros, and uint32[queries] how many there were to store."""
    keys = arrays.zeros((scan.queries, slots), dtype=np.uint64)
    counts = arrays.zeros(scan.queries, dtype=np.uint32)
    launch(scan, bounds, stride, keys, counts)
    return arrays.sort(keys, axis=1)[:, ::-1], counts


def _just_below(keys: Array, rank: int, otherwise: Array, arrays: Any) -> Array:
    """A bound that the best `rank` of each query's `keys` beat; `otherwise` where there are fewer."""
    if rank > keys.shape[1]:
        return otherwise
    worst = keys[:, rank - 1]
    return arrays.where(worst > 0, worst - np.uint64(1), otherwise)


def _decoded(keys: Array, arrays: Any) -> Best:
    found = keys > 0
    high = (keys >> np.uint64(32)).astype(np.uint32)
    bits = arrays.where(high >> np.uint32(31), high & np.uint32(0x7FFFFFFF), ~high)
    rows = (keys & np.uint64(0xFFFFFFFF)).astype(np.int64) ^ 0xFFFFFFFF
    return Best(
        rows=arrays.where(found, rows, -1),
        scores=arrays.where(found, bits.view(np.float32), np.float32(-np.inf)),
        counts=found.sum(axis=1),
    )


def _check(scan: Scan, keep: int) -> None:
    tiles = tile_count(scan.rows)
    expected = {
        "tables": (np.float16, (-(-scan.queries // 2), CODES, SUBSPACES, 2)),
        "codes": (np.uint8, (tiles, TILE_ROWS * SUBSPACES)),
        "bitmaps": (np.uint32, (len(scan.bitmaps), 4 * tiles)),
        "filter_of": (np.int32, (scan.queries,)),
    }
    for name, (dtype, shape) in expected.items():
        array = getattr(scan, name)
        if array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
            raise ValueError(
                f"{name}: expected a contiguous {np.dtype(dtype)}{list(shape)}, got {array.dtype}{list(array.shape)}"
            )
    if keep < 0 or not 0 <= scan.rows <= _MOST_ROWS:
        raise ValueError(f"keep {keep} and rows {scan.rows} are at least 0, and rows at most {_MOST_ROWS}")


@dataclass(frozen=True, slots=True)
class BlockShape:
    """How the kernel is compiled for one architecture."""

    threads: int
    blocks: int
    """On a multiprocessor at once: what the compiler shares the registers out for."""

    @classmethod
    def of(cls, architecture: int) -> BlockShape:
        """For a compute capability such as 86. The largest that needs no spills; cards but the A100 hold one table."""
        return cls(threads=512, blocks=2) if architecture == 80 else cls(threads=768, blocks=1)

    @property
    def definitions(self) -> dict[str, int]:
        """The macros that `scan_lut.cu` is compiled with."""
        return {"THREADS": self.threads, "BLOCKS_PER_SM": self.blocks}

    def grid(self, scan: Scan, tile_stride: int, multiprocessors: int) -> tuple[tuple[int, int], int]:
        """The grid, and the tiles of a chunk: a multiple of the warps, so that none idles at the end."""
        warps, pairs = self.threads // 32, -(-scan.queries // 2)
        tiles = _scanned_tiles(scan.rows, tile_stride)
        share = tiles * pairs // (_BLOCKS_WANTED * multiprocessors)
        turns = max(1, min(_CHUNK_TILES, share) // warps)
        chunk = turns * warps
        return (pairs, -(-tiles // chunk)), chunk


class CudaLaunch:
    """The kernel on the current CUDA device, compiled when this is made. `Scan` holds CuPy arrays.

    EngineUnavailable without CuPy or a device.
    """

    def __init__(self) -> None:
        try:
            import cupy
        except ImportError:
            raise EngineUnavailable(
                "the scan on a GPU needs CuPy; type: pip install 'thread-node[cuda13]' (or cuda12)"
            ) from None
        if not cupy.is_available():
            raise EngineUnavailable("CuPy finds no CUDA device; nvidia-smi says whether the driver does")
        device = cupy.cuda.Device()
        self._shape = BlockShape.of(int(device.compute_capability))
        self._multiprocessors = int(device.attributes["MultiProcessorCount"])
        macros = (f"-D{name}={value}" for name, value in self._shape.definitions.items())
        module = cupy.RawModule(code=SOURCE.read_text(), options=("-std=c++17", *macros))
        self._kernel = module.get_function("scan_lut")
        self._kernel.max_dynamic_shared_size_bytes = TABLE_BYTES  # over 48 KB only on request

    def __call__(self, scan: Scan, bounds: Array, tile_stride: int, keys: Array, counts: Array) -> None:
        grid, chunk = self._shape.grid(scan, tile_stride, self._multiprocessors)
        numbers = (scan.queries, scan.rows, tile_stride, chunk, keys.shape[1])
        pointers = (scan.tables, scan.codes, scan.bitmaps, scan.filter_of, bounds, keys, counts)
        self._kernel(grid, (self._shape.threads,), (*pointers, *map(np.uint32, numbers)), shared_mem=TABLE_BYTES)
