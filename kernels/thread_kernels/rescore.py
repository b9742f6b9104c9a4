"""Scores of given rows on the device: block distances with cosines, and the rows of the highest cosine.

`block_scores` is the formula of `blockwise.block_scores` for a whole batch. As a chain of torch operations it would
write and read the gathered rows four times over; the Triton kernel reads each row once, where it lies.

`highest_cosines` is for the vectors of relationships and predicates. Those tables are read whole, and a float32 matrix
product by torch already keeps the card as busy as it can be, so there is no kernel of its own.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from thread_kernels.blockwise import block_count

ROWS = 16
"""Of one program."""
_MOST_COMPONENTS = 64
_SCORED = 1 << 24
"""Cosines computed at a time: 64 MB of them."""
NO_ROW = -1
"""In place of a row number: its distance is infinite and its cosine 0."""


def block_scores(queries: torch.Tensor, vectors: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores of each of float32[q, width] `queries` against the rows of float[n, width] `vectors` named in its line.

    `rows` is int64[q, r], NO_ROW where there are fewer. Returns float32[q, r] distances, summed over `block_count`
    equal blocks of the Euclidean distance inside the block, and float32[q, r] cosines. A row of NaN, one that is gone,
    is infinitely far and has the cosine 0. ValueError for other shapes or types; row numbers are not checked.
    """
    (count, width), listed = queries.shape, rows.shape[1]
    if vectors.shape[1] != width or len(rows) != count:
        raise ValueError(
            f"queries {list(queries.shape)}, vectors {list(vectors.shape)} and rows {list(rows.shape)} do not match"
        )
    if queries.dtype != torch.float32 or vectors.dtype not in (torch.float32, torch.float16):
        raise ValueError(f"expected float32 queries and float32 or float16 vectors: {queries.dtype}, {vectors.dtype}")
    distances, cosines = (torch.empty((count, listed), dtype=torch.float32, device=queries.device) for _ in range(2))
    if distances.numel():
        block_scores_kernel[(count * triton.cdiv(listed, ROWS),)](
            queries.contiguous(),
            directions(queries).contiguous(),
            vectors,
            rows.contiguous(),
            distances,
            cosines,
            listed,
            vectors.stride(0),
            **constants(width),
        )
    return distances, cosines


def constants(width: int) -> dict[str, int]:
    """The compile-time constants of the kernel, for vectors of `width` components."""
    block = width // block_count(width)
    return {
        "WIDTH": width,
        "BLOCK": block,
        "COMPONENTS": min(triton.next_power_of_2(block), _MOST_COMPONENTS),
        "ROWS": ROWS,
    }


def directions(vectors: torch.Tensor) -> torch.Tensor:
    """float32[n, width] scaled to length 1, by norms taken in float64; zeros stay zeros, NaN stays NaN."""
    norms = vectors.double().norm(dim=1, keepdim=True)
    return torch.where(norms == 0, 0.0, vectors / norms).float()


def highest_cosines(
    queries: torch.Tensor, units: torch.Tensor, k: int, mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The `k` rows of float32[n, width] `units` with the highest cosine to each of float32[q, width] `queries`.

    `units` have length 1 or 0 (`directions`); rows of NaN, and those where bool[n] `mask` is false, are never found.
    Returns int64[q, k] rows, the best first, of equal ones the lower, −1 where fewer pass, and float32[q, k] cosines, 0
    there.
    """
    count = len(queries)
    asked = directions(queries)
    # The cosine above the inverted row in one number, as in `selection`, but signed: torch sorts no unsigned numbers.
    nothing = torch.iinfo(torch.int64).min
    best = torch.full((count, k), nothing, dtype=torch.int64, device=queries.device)
    step = max(1, _SCORED // max(1, count))
    for start in range(0, len(units) if k else 0, step):
        part = units[start : start + step]
        cosines = (asked @ part.T).clamp(-1, 1) + 0.0  # so that −0 is 0
        patterns = cosines.view(torch.int32).long()
        ordered = torch.where(patterns < 0, patterns ^ 0x7FFFFFFF, patterns)
        inverted = 0xFFFFFFFF - torch.arange(start, start + len(part), device=queries.device)
        passes = ~cosines.isnan()
        if mask is not None:
            passes &= mask[start : start + len(part)]
        keys = torch.where(passes, (ordered << 32) | inverted, nothing)
        best = torch.cat([best, keys], dim=1).topk(k, dim=1).values
    found = best > nothing
    high = best >> 32
    patterns = torch.where(high < 0, high ^ 0x7FFFFFFF, high).int()
    rows = 0xFFFFFFFF - (best & 0xFFFFFFFF)
    return torch.where(found, rows, NO_ROW), torch.where(found, patterns.view(torch.float32), 0.0)


_TINY, _ENLARGED = tl.constexpr(1e-30), tl.constexpr(2.0**100)


# Numbers that differ from call to call are not compiled in: a search would wait for the compiler.
@triton.jit(do_not_specialize=["listed"])  # type: ignore[untyped-decorator]
def block_scores_kernel(
    queries: tl.tensor,
    directions: tl.tensor,
    vectors: tl.tensor,
    rows: tl.tensor,
    distances: tl.tensor,
    cosines: tl.tensor,
    listed: tl.tensor,
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
    row = tl.load(rows + query * listed + place, mask=is_place, other=-1)
    is_row = row >= 0
    row_start = vectors + (row * row_stride)[:, None]
    component = tl.arange(0, COMPONENTS)

    distance = tl.zeros((ROWS,), dtype=tl.float32)
    products = tl.zeros((ROWS, COMPONENTS), dtype=tl.float32)
    squares = tl.zeros((ROWS, COMPONENTS), dtype=tl.float32)
    for block in range(0, WIDTH, BLOCK):
        apart = tl.zeros((ROWS, COMPONENTS), dtype=tl.float32)
        for first in range(0, BLOCK, COMPONENTS):
            inside = first + component < BLOCK
            at = block + first + component
            q = tl.load(queries + query * WIDTH + at, mask=inside, other=0.0)
            d = tl.load(directions + query * WIDTH + at, mask=inside, other=0.0)
            x = tl.load(row_start + at[None, :], mask=is_row[:, None] & inside[None, :], other=0.0).to(tl.float32)
            difference = x - q[None, :]
            apart += difference * difference
            products += x * d[None, :]
            squares += x * x
        distance += tl.sqrt_rn(tl.sum(apart, axis=1))
    product, square = tl.sum(products, axis=1), tl.sum(squares, axis=1)

    tiny = (square < _TINY) & is_row
    if tl.max(tiny.to(tl.int32), axis=0) > 0:
        # Squares of such components vanish in float32: the norm is taken of an enlarged copy.
        products = tl.zeros((ROWS, COMPONENTS), dtype=tl.float32)
        squares = tl.zeros((ROWS, COMPONENTS), dtype=tl.float32)
        for first in range(0, WIDTH, COMPONENTS):
            at = first + component
            inside = at < WIDTH
            d = tl.load(directions + query * WIDTH + at, mask=inside, other=0.0)
            x = tl.load(row_start + at[None, :], mask=tiny[:, None] & inside[None, :], other=0.0).to(tl.float32)
            x = x * _ENLARGED
            products += x * d[None, :]
            squares += x * x
        product = tl.where(tiny, tl.sum(products, axis=1), product)
        square = tl.where(tiny, tl.sum(squares, axis=1), square)

    is_there = is_row & (distance == distance)
    norm = tl.sqrt_rn(square)
    cosine = tl.where(norm > 0, product / tl.where(norm > 0, norm, 1.0), 0.0)
    cosine = tl.minimum(tl.maximum(cosine, -1.0), 1.0)
    out = query * listed + place
    tl.store(distances + out, tl.where(is_there, distance, float("inf")), mask=is_place)
    tl.store(cosines + out, tl.where(is_there, cosine, 0.0), mask=is_place)
