"""The scan of a table of codes for a batch of queries, by sums of look-ups: `scan_lut.cu` and what surrounds it.

    best = best_rows(Scan(tables, queries, codes, rows, bitmaps, filter_of), keep=256, launch=CudaLaunch())

The kernel puts what beats a query's bound into the query's buffer; `selection` chooses the bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from thread_kernels.interface import EngineUnavailable
from thread_kernels.selection import TILE_ROWS, Array, check_arrays, scanned_tiles, tile_count

SOURCE = Path(__file__).with_suffix(".cu")
SUBSPACES, CODES = 64, 256
TABLE_BYTES = CODES * SUBSPACES * 4
"""Of two queries, in shared memory."""

_CHUNK_TILES = 128
"""Tiles that one block scans: 1 MB of codes for 64 KB of table."""
_BLOCKS_WANTED = 4
"""A multiprocessor; a table too small for so many is cut into smaller chunks."""


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

    def check(self) -> None:
        tiles = tile_count(self.rows)
        check_arrays(
            {"tables": self.tables, "codes": self.codes, "bitmaps": self.bitmaps, "filter_of": self.filter_of},
            {
                "tables": ("float16", (-(-self.queries // 2), CODES, SUBSPACES, 2)),
                "codes": ("uint8", (tiles, TILE_ROWS * SUBSPACES)),
                "bitmaps": ("uint32", (len(self.bitmaps), 4 * tiles)),
                "filter_of": ("int32", (self.queries,)),
            },
        )

    def filtered_by(self, filter_of: Array) -> Self:
        return replace(self, filter_of=filter_of)


def pack_codes(codes: Array, arrays: Any = np) -> Array:
    """uint8[n, subspaces] as uint8[tiles, 8192], in the order in which `scan_lut.cu` reads them.

    Missing sub-spaces get code 0, whose entry in the table is 0, and so do the rows that fill up the last tile, which
    never pass. `arrays` is the module of the codes: numpy or cupy. ValueError for more than 64 sub-spaces.
    """
    rows, subspaces = codes.shape
    if subspaces > SUBSPACES:
        raise ValueError(f"{subspaces} sub-spaces; the scan takes {SUBSPACES} at most")
    padded = arrays.zeros((tile_count(rows) * TILE_ROWS, SUBSPACES), dtype=np.uint8)
    padded[:rows, :subspaces] = codes
    # Row 64 h + 16 j + r of a tile, sub-spaces 4 g … 4 g + 3 as one number: [tile, h, j, r, g] to [tile, h, t, r, j].
    by_group = padded.view(np.uint32).reshape(-1, 2, 4, 16, 16).transpose(0, 1, 4, 3, 2)
    packed = arrays.ascontiguousarray(_exchanged(by_group, arrays))
    return packed.view(np.uint8).reshape(-1, TILE_ROWS * SUBSPACES)


def unpack_codes(packed: Array, rows: int, subspaces: int, arrays: Any = np) -> Array:
    """uint8[rows, subspaces] of uint8[tiles, 8192]: what `pack_codes` was given."""
    by_chunk = packed.view(np.uint32).reshape(-1, 2, 16, 16, 4)
    plain = arrays.ascontiguousarray(_exchanged(by_chunk, arrays).transpose(0, 1, 4, 3, 2))
    return plain.view(np.uint8).reshape(-1, SUBSPACES)[:rows, :subspaces]


def _exchanged(chunks: Array, arrays: Any) -> Array:
    """[tile, h, g, r, j] as [tile, h, t, r, j] with t = g ^ r, or back."""
    r = arrays.arange(16)
    return chunks[:, :, r[:, None] ^ r, r]


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
        tiles = scanned_tiles(scan.rows, tile_stride)
        share = tiles * pairs // (_BLOCKS_WANTED * multiprocessors)
        turns = max(1, min(_CHUNK_TILES, share) // warps)
        chunk = turns * warps
        return (pairs, -(-tiles // chunk)), chunk


def cupy_with_a_device() -> Any:
    """CuPy. EngineUnavailable where it is not installed or finds no device."""
    try:
        import cupy
    except ImportError:
        raise EngineUnavailable(
            "the scan on a GPU needs CuPy; type: pip install 'thread-node[cuda13]' (or cuda12)"
        ) from None
    try:
        found = cupy.is_available()
    except RuntimeError:  # CuPy 13 says so where there is no driver, or one of an older CUDA
        found = False
    if not found:
        raise EngineUnavailable(
            "CuPy finds no CUDA device; nvidia-smi says whether the driver does. If so, install what is built for the "
            "driver's CUDA version, with pip install 'thread-node[cuda13]' or [cuda12]; if not, install NVIDIA's driver"
        )
    return cupy


class CudaLaunch:
    """The kernel on the current CUDA device, compiled when this is made. `Scan` holds CuPy arrays.

    EngineUnavailable without CuPy or a device.
    """

    def __init__(self) -> None:
        cupy = cupy_with_a_device()
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
