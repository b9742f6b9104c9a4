"""The scan of codes of more than 256 centroids a sub-space, which take two bytes each: sums of look-ups, by Triton.

    best = best_rows(Scan(tables, codes, rows, bitmaps, filter_of), keep=256, launch=TritonLaunch())

    score[q, n] = sum over m of T[q, m, code[n, m]]

as `scan_lut` adds up, but in float32 and from tables in the memory of the device: 512 centroids in 64 sub-spaces are
128 KB a query, more than shared memory holds. One program scans a chunk of tiles for one query, so that what it reads
of the query's table stays in its multiprocessor's cache. The keys that beat a query's bound go to the query's buffer,
and `selection` chooses the bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
import triton
import triton.language as tl

from thread_kernels.scan_exact import keys_of, least_score, stream_of, tensor_of
from thread_kernels.selection import EVERY_ROW, NO_ROW, TILE_ROWS, Array, check_arrays, scanned_tiles, tile_count

PART = {"PART": 8}
"""Sub-spaces looked up at a time."""
TABLE_BYTES = 256 << 20
"""Of the tables of one launch: those of 16 queries where there are 65,536 centroids in 64 sub-spaces."""
_CHUNK_TILES = 64
"""That one program scans."""
_PROGRAMS = 2_048
"""Wanted at least; a table too small for so many is cut into smaller chunks."""

_EVERY, _NONE, _TILE = tl.constexpr(EVERY_ROW), tl.constexpr(NO_ROW), tl.constexpr(TILE_ROWS)
_ALL_BITS = tl.constexpr(0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class Scan:
    """What one launch reads, on one device. All but `tables` are NumPy or CuPy arrays."""

    tables: torch.Tensor
    """float32[queries, subspaces, k]: `lookup.tables`. Contiguous but for the steps from query to query."""
    codes: Array
    """uint16[tiles, 128 × subspaces]: `pack_codes`. Those of k and above are not checked."""
    rows: int
    bitmaps: Array
    """uint32[filters, 4 × tiles]: a `pack_mask` for each filter"""
    filter_of: Array
    """int32[queries]: the number of the query's filter, EVERY_ROW or NO_ROW. Other numbers are not checked."""

    @property
    def queries(self) -> int:
        return len(self.tables)

    def check(self) -> None:
        queries, subspaces, centroids = self.tables.shape
        tiles = tile_count(self.rows)
        arrays = {"codes": self.codes, "bitmaps": self.bitmaps, "filter_of": self.filter_of}
        expected: dict[str, tuple[str, tuple[int, ...]]] = {
            "codes": ("uint16", (tiles, TILE_ROWS * subspaces)),
            "bitmaps": ("uint32", (len(self.bitmaps), 4 * tiles)),
            "filter_of": ("int32", (queries,)),
        }
        if queries:  # one of them shows whether each is contiguous
            arrays["tables"], expected["tables"] = self.tables[0], ("float32", (subspaces, centroids))
        check_arrays(arrays, expected)

    def filtered_by(self, filter_of: Array) -> Self:
        return replace(self, filter_of=filter_of)


def queries_at_once(subspaces: int, centroids: int) -> int:
    """Queries of one launch, so that their tables take no more memory than a launch may."""
    return max(1, TABLE_BYTES // (4 * subspaces * centroids))


def pack_codes(codes: Array, arrays: Any = np) -> Array:
    """uint16[n, subspaces] as uint16[tiles, 128 × subspaces]: of each tile sub-space after sub-space.

    The rows that fill up the last tile get code 0. `arrays` is the module of the codes: numpy or cupy.
    """
    rows, subspaces = codes.shape
    padded = arrays.zeros((tile_count(rows) * TILE_ROWS, subspaces), dtype=np.uint16)
    padded[:rows] = codes
    by_subspace = padded.reshape(-1, TILE_ROWS, subspaces).transpose(0, 2, 1)
    return arrays.ascontiguousarray(by_subspace).reshape(-1, TILE_ROWS * subspaces)


def unpack_codes(packed: Array, rows: int, subspaces: int, arrays: Any = np) -> Array:
    """uint16[rows, subspaces] of uint16[tiles, 128 × subspaces]: what `pack_codes` was given."""
    by_row = packed.reshape(-1, subspaces, TILE_ROWS).transpose(0, 2, 1)
    return arrays.ascontiguousarray(by_row).reshape(-1, subspaces)[:rows]


class TritonLaunch:
    """The kernel on the device of the scan, on CuPy's current stream, where torch's tensors must be ready too."""

    def __call__(self, scan: Scan, bounds: Array, tile_stride: int, keys: Array, counts: Array) -> None:
        queries, subspaces, centroids = scan.tables.shape
        tiles = scanned_tiles(scan.rows, tile_stride)
        chunk = max(1, min(_CHUNK_TILES, tiles * queries // _PROGRAMS))
        with stream_of(keys):
            scan_wide_kernel[(queries * triton.cdiv(tiles, chunk),)](
                scan.tables,
                *map(tensor_of, (scan.codes, scan.bitmaps, scan.filter_of, bounds, keys, counts)),
                scan.tables.stride(0),
                queries,
                scan.rows,
                tile_stride,
                chunk,
                keys.shape[1],
                SUBSPACES=subspaces,
                CENTROIDS=centroids,
                **PART,
            )


# Numbers that differ from call to call are not compiled in: a search would wait for the compiler.
@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["table_stride", "query_count", "row_count", "tile_stride", "chunk_tiles", "capacity"]
)
def scan_wide_kernel(
    tables: tl.tensor,
    codes: tl.tensor,
    bitmaps: tl.tensor,
    filter_of: tl.tensor,
    bounds: tl.tensor,
    keys: tl.tensor,
    counts: tl.tensor,
    table_stride: tl.tensor,
    query_count: tl.tensor,
    row_count: tl.tensor,
    tile_stride: tl.tensor,
    chunk_tiles: tl.tensor,
    capacity: tl.tensor,
    SUBSPACES: tl.constexpr,
    CENTROIDS: tl.constexpr,
    PART: tl.constexpr,
) -> None:
    """One program: `chunk_tiles` tiles for one query, PART of the SUBSPACES at a time.

    Grid: queries × chunks in one dimension; queries vary fastest, so that those running share codes in the L2. `bounds`
    and `keys` are uint64, `counts` and `bitmaps` uint32.
    """
    query = tl.program_id(0) % query_count
    filter = tl.load(filter_of + query)
    if filter == _NONE:
        return
    tiles = tl.cdiv(row_count, _TILE)
    number = (tl.program_id(0) // query_count) * chunk_tiles
    last = tl.minimum(number + chunk_tiles, tl.cdiv(tiles, tile_stride))
    table = tables + query.to(tl.int64) * table_stride
    bitmap = bitmaps + filter.to(tl.int64) * (4 * tiles)
    bound = tl.load(bounds + query)
    least = least_score(bound)
    place, part = tl.arange(0, _TILE), tl.arange(0, PART)

    while number < last:  # a `range` of numbers that are not compiled in does not run in the interpreter
        tile = number * tile_stride
        row = tile * _TILE + place
        words = tl.load(bitmap + tile * 4 + place // 32, mask=(place >= 0) & (filter != _EVERY), other=_ALL_BITS)
        passes = (row < row_count) & (((words >> (place % 32)) & 1) != 0)
        if tl.max(passes.to(tl.int32), axis=0) > 0:
            code_start = codes + tile.to(tl.int64) * (SUBSPACES * _TILE)
            sums = tl.zeros((PART, _TILE), dtype=tl.float32)
            for begin in range(0, SUBSPACES, PART):
                subspace = begin + part
                looked_up = (subspace < SUBSPACES)[:, None] & passes[None, :]
                code = tl.load(code_start + (subspace * _TILE)[:, None] + place[None, :], mask=looked_up, other=0)
                entry = table + (subspace * CENTROIDS)[:, None] + code.to(tl.int32)
                sums += tl.load(entry, mask=looked_up, other=0.0)
            scores = tl.sum(sums, axis=0)
            key = keys_of(scores, row)
            # A NaN is not >= anything and never gets in.
            passes = passes & (scores >= least) & (key > bound)
            taken = passes.to(tl.int32)
            found = tl.sum(taken, axis=0)
            if found > 0:
                # The counter counts past the end, so that an overflow shows. A slot keeps its best key then, so most of
                # the best keys of all are still there to give a bound for the next scan.
                start = tl.atomic_add(counts + query, found).to(tl.int32)
                slot = (start + tl.cumsum(taken, axis=0) - 1) % capacity
                tl.atomic_max(keys + query.to(tl.int64) * capacity + slot, key, mask=passes)
        number += 1
