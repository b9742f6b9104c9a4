"""The rows of a list that may be nearest, by their float16 vectors: on the device, where they lie.

    distances = block_distances(queries, table, rows, blocks)
    places, found = may_be_nearest(distances, errors_of(distances, table, rows, width, blocks), counts)

What codes put first, or what passes a filter, is far more than anybody asks for. Only rows that may be among the
nearest are measured exactly, in float32 in main memory; so the answer is the one that measuring all of them gives.

A vector x that is rounded to float16 under its own scale is off by at most 2⁻¹¹ of each component (Higham, "Accuracy
and Stability of Numerical Algorithms", §2.1), and by the triangle inequality so is each block's distance from a query:
Σ_b | |q − x̂|_b − |q − x|_b | ≤ Σ_b |x̂ − x|_b ≤ 2⁻¹¹ · √blocks · |x|.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from thread_kernels.scan_exact import Packed

ROWS = 16
"""Of one program."""
NO_ROW = -1
"""In place of a row number: its distance is infinite."""
_MOST_COMPONENTS = 64
_ROUNDING = 2.0**-11 * (1 + 2.0**-8)
"""Of a component in float16. One that is subnormal there may be off by 2⁻³⁹ of the greatest beside."""
_SMALLEST = float(torch.finfo(torch.float32).tiny)


def block_distances(queries: torch.Tensor, table: Packed, rows: torch.Tensor, blocks: int) -> torch.Tensor:
    """The distance of each of float32[q, width] `queries` from the rows of `table` named in its line of `rows`.

    That is the sum, over `blocks` equal blocks of the vector, of the Euclidean distance inside the block. `rows` is
    int64[q, r], or int64[1, r] for all queries alike; NO_ROW where there are fewer. Returns float32[q, r], infinity for
    NO_ROW and for a row of NaN, one that is gone. ValueError for other shapes or types; row numbers are not checked.
    """
    (count, width), listed = queries.shape, rows.shape[1]
    if table.values.shape[1] < width or len(rows) not in (1, count) or width % blocks:
        raise ValueError(
            f"queries {list(queries.shape)}, vectors {list(table.values.shape)}, rows {list(rows.shape)} and {blocks} "
            "blocks do not match"
        )
    if queries.dtype != torch.float32 or table.values.dtype != torch.float16:
        raise ValueError(f"expected float32 queries and float16 vectors: {queries.dtype}, {table.values.dtype}")
    distances = torch.empty((count, listed), dtype=torch.float32, device=queries.device)
    if distances.numel():
        block_distances_kernel[(count * triton.cdiv(listed, ROWS),)](
            queries.contiguous(),
            table.values,
            table.scales,
            table.squares,
            rows.contiguous(),
            distances,
            listed,
            listed if len(rows) > 1 else 0,
            table.values.stride(0),
            **constants(width, blocks),
        )
    return distances


def constants(width: int, blocks: int) -> dict[str, int]:
    """The compile-time constants of the kernel, for vectors of `width` components."""
    block = width // blocks
    return {
        "WIDTH": width,
        "BLOCK": block,
        "COMPONENTS": min(triton.next_power_of_2(block), _MOST_COMPONENTS),
        "ROWS": ROWS,
    }


def errors_of(distances: torch.Tensor, table: Packed, rows: torch.Tensor, width: int, blocks: int) -> torch.Tensor:
    """float32[q, 1]: by how much `distances` may be off, at most, from those of the vectors before rounding.

    Half a unit in the last place for each of the additions, and what squares too small for float32 leave out.
    """
    is_row = distances.isfinite()
    lengths = torch.where(is_row, table.squares[rows.clamp(min=0)], 0).amax(dim=1, keepdim=True).sqrt()
    largest = torch.where(is_row, distances, 0).amax(dim=1, keepdim=True)
    lost = (width * blocks * _SMALLEST) ** 0.5
    errors: torch.Tensor = _ROUNDING * blocks**0.5 * lengths + (width + 32) * 2.0**-24 * largest + lost
    return errors


def may_be_nearest(
    distances: torch.Tensor, errors: torch.Tensor, counts: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Those of float32[q, r] `distances`, each off by float32[q, 1] `errors`, that may be among the int64[q] nearest.

    Returns int64[q, most] places in the line, in no order, and int64[q] how many of them count.
    """
    listed = distances.shape[1]
    ascending = distances.sort(dim=1, stable=True)
    last = ascending.values.gather(1, (counts[:, None] - 1).clamp(0, listed - 1))
    near = (ascending.values <= last + 2 * errors) & ascending.values.isfinite() & (counts > 0)[:, None]
    found = near.sum(dim=1)
    return ascending.indices[:, : int(found.max())], found


# Numbers that differ from call to call are not compiled in: a search would wait for the compiler.
@triton.jit(do_not_specialize=["listed", "line_stride"])  # type: ignore[untyped-decorator]
def block_distances_kernel(
    queries: tl.tensor,
    values: tl.tensor,
    scales: tl.tensor,
    squares: tl.tensor,
    rows: tl.tensor,
    distances: tl.tensor,
    listed: tl.tensor,
    line_stride: tl.tensor,
    row_stride: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    COMPONENTS: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    """One program: ROWS of the rows listed for one query, a block of BLOCK components after the other.

    Grid: queries × groups of rows in one dimension.
    """
    groups = tl.cdiv(listed, ROWS)
    query = (tl.program_id(0) // groups).to(tl.int64)
    place = (tl.program_id(0) % groups) * ROWS + tl.arange(0, ROWS)
    is_place = place < listed
    row = tl.load(rows + query * line_stride + place, mask=is_place, other=-1)
    is_row = row >= 0
    row_start = values + (row * row_stride)[:, None]
    square = tl.load(squares + row, mask=is_row, other=0.0)
    is_row = is_row & (square == square)
    scale = tl.load(scales + row, mask=is_row, other=0.0)[:, None]
    component = tl.arange(0, COMPONENTS)

    distance = tl.zeros((ROWS,), dtype=tl.float32)
    for block in range(0, WIDTH, BLOCK):
        apart = tl.zeros((ROWS, COMPONENTS), dtype=tl.float32)
        for first in range(0, BLOCK, COMPONENTS):
            inside = first + component < BLOCK
            at = block + first + component
            q = tl.load(queries + query * WIDTH + at, mask=inside, other=0.0)
            x = tl.load(row_start + at[None, :], mask=is_row[:, None] & inside[None, :], other=0.0).to(tl.float32)
            difference = x * scale - q[None, :]
            apart += difference * difference
        distance += tl.sqrt_rn(tl.sum(apart, axis=1))
    tl.store(distances + query * listed + place, tl.where(is_row, distance, float("inf")), mask=is_place)
