"""Codes of vectors: for each sub-space the centroid nearest to the vector's part, by a Triton kernel.

    code[n, m] = argmin over k of |x[n, m] − c[m, k]|²,  of equal ones the lower

(Jégou et al., "Product Quantization for Nearest Neighbor Search", 2011, §II). What is compared is y · z − |z|² / 2,
where y = x − μ, z = c − μ and μ is the mean centroid of the sub-space: it falls as the distance rises, and the mean is
taken out so that float32 spends its digits on the differences.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

TILE = {"ROWS": 64, "CENTROIDS": 128, "COMPONENTS": 16}
"""Of one program; the compiler takes no product with an edge under 16."""
MOST_CENTROIDS = 1 << 16


def encode(vectors: torch.Tensor, centroids: torch.Tensor) -> torch.Tensor:
    """uint8[n, subspaces] codes of float32[n, width] by float32[subspaces, k, width / subspaces]; uint16 for k > 256.

    ValueError for another type or width, no centroid, or more of them than a code can tell apart.
    """
    subspaces, count, components = centroids.shape
    if vectors.dtype != torch.float32 or vectors.ndim != 2 or vectors.shape[1] != subspaces * components:
        raise ValueError(
            f"expected float32[n, {subspaces * components}], got {vectors.dtype} of shape {list(vectors.shape)}"
        )
    if not 1 <= count <= MOST_CENTROIDS:
        raise ValueError(f"{count} centroids a sub-space; a code tells 1 to {MOST_CENTROIDS} apart")
    dtype = torch.uint8 if count <= 256 else torch.uint16
    codes = torch.empty((len(vectors), subspaces), dtype=dtype, device=vectors.device)
    if not codes.numel():
        return codes
    means = centroids.double().mean(dim=1).float()
    centred = centroids.double() - means[:, None]
    # Sub-spaces vary fastest: those of the same rows run together and share the lines of memory.
    grid = (subspaces * triton.cdiv(len(vectors), TILE["ROWS"]),)
    encode_kernel[grid](
        vectors.contiguous(),
        means.contiguous(),
        centred.float().contiguous(),
        (centred.square().sum(dim=2) / 2).float().contiguous(),
        codes,
        len(vectors),
        subspaces,
        **TILE,
        WIDTH=components,
        CODES=count,
    )
    return codes


# Numbers that differ from call to call are not compiled in: a search would wait for the compiler.
@triton.jit(do_not_specialize=["row_count"])  # type: ignore[untyped-decorator]
def encode_kernel(
    vectors: tl.tensor,
    means: tl.tensor,
    centred: tl.tensor,
    halves: tl.tensor,
    codes: tl.tensor,
    row_count: tl.tensor,
    subspaces: tl.tensor,
    ROWS: tl.constexpr,
    CENTROIDS: tl.constexpr,
    COMPONENTS: tl.constexpr,
    WIDTH: tl.constexpr,
    CODES: tl.constexpr,
) -> None:
    """One program: the codes of ROWS rows in one of the sub-spaces, which have WIDTH components and CODES centroids.

    Grid: sub-spaces × row tiles in one dimension.
    """
    subspace = tl.program_id(0) % subspaces
    row = (tl.program_id(0) // subspaces) * ROWS + tl.arange(0, ROWS)
    is_row = row < row_count
    row_start = vectors + ((row.to(tl.int64) * subspaces + subspace) * WIDTH)[:, None]

    nearest = tl.zeros((ROWS,), dtype=tl.int32)
    best = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    for first_code in range(0, CODES, CENTROIDS):
        code = first_code + tl.arange(0, CENTROIDS)
        is_code = code < CODES
        code_start = centred + ((subspace * CODES + code) * WIDTH)[None, :]
        products = tl.zeros((ROWS, CENTROIDS), dtype=tl.float32)
        for first in range(0, WIDTH, COMPONENTS):
            component = first + tl.arange(0, COMPONENTS)
            inside = component < WIDTH
            mean = tl.load(means + subspace * WIDTH + component, mask=inside, other=0.0)
            y = tl.load(row_start + component[None, :], mask=is_row[:, None] & inside[None, :], other=0.0)
            z = tl.load(code_start + component[:, None], mask=is_code[None, :] & inside[:, None], other=0.0)
            products = tl.dot(y - mean[None, :], z, products, input_precision="ieee")
        half = tl.load(halves + subspace * CODES + code, mask=is_code, other=float("inf"))
        scores = products - half[None, :]
        score, index = tl.max(scores, axis=1, return_indices=True, return_indices_tie_break_left=True)
        nearer = score > best
        best = tl.where(nearer, score, best)
        nearest = tl.where(nearer, first_code + index, nearest)
    tl.store(codes + row.to(tl.int64) * subspaces + subspace, nearest.to(codes.dtype.element_ty), mask=is_row)
