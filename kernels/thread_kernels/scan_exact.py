"""The scan of whole vectors for a large batch of queries: a matrix product in int8 or float16, selected as it is made.

    best = best_rows(Scan(pack(queries, torch.int8), table, rows, bitmaps, filter_of), keep=256, launch=TritonLaunch())

    score = 2 q · x − |x|² = |q|² − |q − x|²,  q and x rounded to int8 or float16, |x|² of x itself

Larger is nearer. Every vector has its own scale, so that neither type overflows or loses a short vector. Products of
int8 add up in int32 and are exact; those of float16 add up in float32. Tensor cores share every row among 64 queries,
which a scan by look-ups cannot: this one wins when queries are many and their vectors fit on the card. The keys that
beat a query's bound go to the query's buffer, and `selection` chooses the bounds; no array the size of the table is
written.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
import triton
import triton.language as tl
from torch.utils.dlpack import from_dlpack

from thread_kernels.selection import EVERY_ROW, NO_ROW, TILE_ROWS, Array, check_arrays, scanned_tiles, tile_count

PADDING = 128
"""Components are filled up to a multiple of this, so that no load along a vector is masked."""
OPTIONS = {"num_warps": 8, "num_stages": 3}
"""That the kernel is compiled with."""
TYPES = {torch.int8: "int8", torch.float16: "float16"}

_LARGEST_INT8 = 127
_FLOAT16_EXPONENT = 15
"""Scaled components stay below 2¹⁵; float16 reaches to 65,504."""
_LEAST_EXPONENT = -100
"""So that a scale is a float32 that is not zero."""
ROWS_PACKED = 8_192
"""At a time, which takes some 30 bytes a component beside the result."""

_EVERY, _NONE, _TILE = tl.constexpr(EVERY_ROW), tl.constexpr(NO_ROW), tl.constexpr(TILE_ROWS)
_ONES, _SIGN = tl.constexpr(0xFFFFFFFF), tl.constexpr(0x80000000)


@dataclass(frozen=True, slots=True)
class Packed:
    """Vectors as the kernel reads them: component i of row n is about `values[n, i] * scales[n]`."""

    values: torch.Tensor
    """int8 or float16[n, width filled up with zeros to a multiple of PADDING]"""
    scales: torch.Tensor
    """float32[n]"""
    squares: torch.Tensor
    """float32[n]: |x|² before rounding. A row where it is NaN is never found."""

    @property
    def parts(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.values, self.scales, self.squares

    def first(self, count: int) -> Packed:
        return Packed(self.values[:count], self.scales[:count], self.squares[:count])


def pack(vectors: torch.Tensor, dtype: torch.dtype) -> Packed:
    """Round float[n, width] to int8 (steps of the greatest component / 127) or float16 (scaled by a power of two)."""
    count, width = vectors.shape
    device = vectors.device
    values = torch.zeros((count, -(-width // PADDING) * PADDING), dtype=dtype, device=device)
    scales, squares = (torch.empty(count, dtype=torch.float32, device=device) for _ in range(2))
    for start in range(0, count, ROWS_PACKED):
        part = slice(start, start + ROWS_PACKED)
        rows = vectors[part].float()
        squares[part] = rows.double().square().sum(dim=1)
        rows = rows.nan_to_num(0)  # the square of a row that is gone is NaN, which is enough
        largest = rows.abs().amax(dim=1)
        if dtype == torch.int8:
            scale = largest / _LARGEST_INT8
            rounded = (rows / torch.where(scale > 0, scale, 1.0)[:, None]).round()
        else:
            exponents = torch.frexp(largest).exponent.clamp(min=_LEAST_EXPONENT) - _FLOAT16_EXPONENT
            scale = torch.ldexp(torch.ones_like(largest), exponents)
            rounded = torch.ldexp(rows, -exponents[:, None])
        scales[part], values[part, :width] = scale, rounded.to(dtype)
    return Packed(values, scales, squares)


@dataclass(frozen=True, slots=True)
class Scan:
    """What one launch reads: contiguous, and on one device. `bitmaps` and `filter_of` are NumPy or CuPy arrays."""

    asked: Packed
    """The queries."""
    table: Packed
    """Of the same type and width; there may be room for more than `rows`."""
    rows: int
    bitmaps: Array
    """uint32[filters, 4 × tiles]: a `pack_mask` for each filter"""
    filter_of: Array
    """int32[queries]: the number of the query's filter, EVERY_ROW or NO_ROW. Other numbers are not checked."""

    @property
    def queries(self) -> int:
        return len(self.asked.values)

    def check(self) -> None:
        width = self.asked.values.shape[1]
        dtype = TYPES.get(self.table.values.dtype, "int8")
        room = max(len(self.table.values), self.rows)
        arrays = {"bitmaps": self.bitmaps, "filter_of": self.filter_of}
        expected: dict[str, tuple[str, tuple[int, ...]]] = {
            "bitmaps": ("uint32", (len(self.bitmaps), 4 * tile_count(self.rows))),
            "filter_of": ("int32", (self.queries,)),
        }
        for name, packed, count in (("queries", self.asked, self.queries), ("rows", self.table, room)):
            arrays |= {f"{name}: {each}": getattr(packed, each) for each in ("values", "scales", "squares")}
            expected |= {
                f"{name}: values": (dtype, (count, -(-width // PADDING) * PADDING)),
                f"{name}: scales": ("float32", (count,)),
                f"{name}: squares": ("float32", (count,)),
            }
        check_arrays(arrays, expected)

    def filtered_by(self, filter_of: Array) -> Self:
        return replace(self, filter_of=filter_of)


def constants(queries: int, width: int, dtype: torch.dtype, tiles: int = 1) -> dict[str, int]:
    """The compile-time constants of the kernel, for so many queries of `width` components. None of these spills."""
    return {
        "WIDTH": width,
        "QUERIES": 32 if queries <= 32 else 64,
        "TILES": tiles,
        "DEPTH": PADDING if dtype == torch.int8 else PADDING // 2,
    }


class TritonLaunch:
    """The kernel on the device of the scan, on CuPy's current stream, where torch's tensors must be ready too.

    `tiles` are scored by one program.
    """

    def __init__(self, tiles: int = 1) -> None:
        self._tiles = tiles

    def __call__(self, scan: Scan, bounds: Array, tile_stride: int, keys: Array, counts: Array) -> None:
        asked, table = scan.asked, scan.table
        shape = constants(scan.queries, asked.values.shape[1], table.values.dtype, self._tiles)
        tile_blocks = triton.cdiv(scanned_tiles(scan.rows, tile_stride), self._tiles)
        with stream_of(keys):
            scan_exact_kernel[(triton.cdiv(scan.queries, shape["QUERIES"]) * tile_blocks,)](
                asked.values,
                asked.scales,
                table.values,
                table.scales,
                table.squares,
                *map(tensor_of, (scan.bitmaps, scan.filter_of, bounds, keys, counts)),
                scan.queries,
                scan.rows,
                tile_stride,
                keys.shape[1],
                **shape,
                **OPTIONS,
            )


def tensor_of(array: Array) -> torch.Tensor:
    """The same memory as a tensor; by way of signed integers, for which DLPack needs no recent version of anything."""
    size = array.dtype.itemsize
    tensor = from_dlpack(array.view(np.dtype(f"i{size}")))
    return tensor.view({2: torch.uint16, 4: torch.uint32, 8: torch.uint64}[size]) if array.dtype.kind == "u" else tensor


def stream_of(array: Array) -> AbstractContextManager[Any]:
    """CuPy's current stream as torch's, where `array` is CuPy's."""
    if not hasattr(array, "__cuda_array_interface__"):
        return nullcontext()
    import cupy

    pointer = cupy.cuda.get_current_stream().ptr
    # For 0, the default stream, torch would make a new one.
    return torch.cuda.stream(torch.cuda.ExternalStream(pointer) if pointer else torch.cuda.default_stream())


@triton.jit  # type: ignore[untyped-decorator]
def least_score(bound: tl.tensor) -> tl.tensor:
    """The float32 score in uint64 `bound`."""
    high = (bound >> 32).to(tl.uint32)
    return tl.where(high >> 31 != 0, high ^ _SIGN, high ^ _ONES).to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def keys_of(scores: tl.tensor, row: tl.tensor) -> tl.tensor:
    """uint64 keys of float32 `scores`; int32 `row` is of a shape that goes with theirs."""
    pattern = scores.to(tl.uint32, bitcast=True)
    ordered = tl.where(pattern >> 31 != 0, pattern ^ _ONES, pattern ^ _SIGN)
    return (ordered.to(tl.uint64) << 32) | (row.to(tl.uint32) ^ _ONES).to(tl.uint64)


# Numbers that differ from call to call are not compiled in: a search would wait for the compiler.
@triton.jit(do_not_specialize=["query_count", "row_count", "tile_stride", "capacity"])  # type: ignore[untyped-decorator]
def scan_exact_kernel(
    asked: tl.tensor,
    factors: tl.tensor,
    stored: tl.tensor,
    scales: tl.tensor,
    squares: tl.tensor,
    bitmaps: tl.tensor,
    filter_of: tl.tensor,
    bounds: tl.tensor,
    keys: tl.tensor,
    counts: tl.tensor,
    query_count: tl.tensor,
    row_count: tl.tensor,
    tile_stride: tl.tensor,
    capacity: tl.tensor,
    WIDTH: tl.constexpr,
    QUERIES: tl.constexpr,
    TILES: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """One program: QUERIES × TILES tiles of rows, DEPTH components at a time.

    Grid: query blocks × tile blocks in one dimension; query blocks vary fastest, so that those running share rows in
    the L2. `bounds` and `keys` are uint64, `counts` and `bitmaps` uint32.
    """
    query_blocks = tl.cdiv(query_count, QUERIES)
    query = (tl.program_id(0) % query_blocks) * QUERIES + tl.arange(0, QUERIES)
    first_tile = (tl.program_id(0) // query_blocks) * TILES
    is_query = query < query_count

    filter = tl.load(filter_of + query, mask=is_query, other=_NONE)
    tiles = tl.cdiv(row_count, _TILE)
    bitmap = bitmaps + filter.to(tl.int64) * (4 * tiles)
    place = tl.arange(0, 4 * TILES)
    word_tile = (first_tile + place // 4) * tile_stride
    words = tl.load(
        bitmap[:, None] + (word_tile * 4 + place % 4)[None, :],
        mask=(filter >= 0)[:, None] & (word_tile < tiles)[None, :],
        other=0,
    )
    wanted = (tl.max((words != 0).to(tl.int32), axis=1) > 0) | (filter == _EVERY)
    if tl.max(wanted.to(tl.int32), axis=0) == 0:
        return

    position = tl.arange(0, TILES * _TILE)
    row = (first_tile + position // _TILE) * tile_stride * _TILE + position % _TILE
    is_row = row < row_count
    component = tl.arange(0, DEPTH)
    query_start = asked + (query * WIDTH)[:, None] + component[None, :]
    row_start = stored + (row.to(tl.int64) * WIDTH)[None, :] + component[:, None]
    if stored.dtype.element_ty == tl.int8:
        products = tl.zeros((QUERIES, TILES * _TILE), dtype=tl.int32)
    else:
        products = tl.zeros((QUERIES, TILES * _TILE), dtype=tl.float32)
    for first in range(0, WIDTH, DEPTH):
        q = tl.load(query_start + first, mask=is_query[:, None], other=0)
        x = tl.load(row_start + first, mask=is_row[None, :], other=0)
        products = tl.dot(q, x, products, out_dtype=products.dtype)

    factor = 2 * tl.load(factors + query, mask=is_query, other=0.0)
    scale = tl.load(scales + row, mask=is_row, other=0.0)
    square = tl.load(squares + row, mask=is_row, other=0.0)
    scores = products.to(tl.float32) * factor[:, None] * scale[None, :] - square[None, :]

    bound = tl.load(bounds + query, mask=is_query, other=0)
    least = least_score(bound)
    # A NaN is not >= anything and never gets in.
    passes = (scores >= least[:, None]) & (wanted[:, None] & is_row[None, :])
    if tl.max(tl.max(passes.to(tl.int32), axis=1), axis=0) > 0:
        bits = tl.load(bitmap[:, None] + (row // 32)[None, :], mask=passes & (filter >= 0)[:, None], other=0)
        passes = passes & ((((bits >> (row % 32)[None, :]) & 1) != 0) | (filter == _EVERY)[:, None])
        key = keys_of(scores, row[None, :])
        passes = passes & (key > bound[:, None])
        # The counter counts past the end, so that an overflow shows. A slot keeps its best key then, so most of the
        # best keys of all are still there to give a bound for the next scan.
        taken = passes.to(tl.int32)
        found = tl.sum(taken, axis=1)
        start = tl.atomic_add(counts + query, found, mask=found > 0)
        slot = (start.to(tl.int32)[:, None] + tl.cumsum(taken, axis=1) - 1) % capacity
        tl.atomic_max(keys + (query.to(tl.int64) * capacity)[:, None] + slot, key, mask=passes)
