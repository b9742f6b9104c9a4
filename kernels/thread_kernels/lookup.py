"""Look-up tables for asymmetric distances: what each centroid of each sub-space adds to the score of a row.

    T[q, m, k] = mean over k' of |y − c[m, k']|² − |y − c[m, k]|²,  y = sub-space m of query q

Larger is nearer. The sum over m of the entries that a row's codes select is −|query − decoded row|² but for a constant
of the query, so it orders rows as the distance does (Jégou et al., "Product Quantization for Nearest Neighbor Search",
2011, §III; the mean is taken out so that float16 spends its digits on the differences).

    T = 2 y · c′ − o,  c′ = c − mean of c,  o = |c|² − mean of |c|²

is what is computed; c′ and o belong to the codebook. Each query has its own power of two as a scale: entries, and sums
of all of them, then fit into float16 whatever the length of the vectors, and no digit is lost.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from numpy.typing import ArrayLike

from thread_kernels.scan_lut import CODES, SUBSPACES

TILE = {"QUERIES": 16, "CENTROIDS": 128, "COMPONENTS": 16}
"""Of one program; the compiler takes no product with an edge under 16."""
_LARGEST_EXPONENT = 15
"""Sums stay below 2¹⁵; float16 reaches to 65,504."""
_EXPONENTS = 120
"""Scales are from 2⁻¹²⁰ to 2¹²⁰, which float32 holds; only distances no float16 could tell apart need more."""


@dataclass(frozen=True, slots=True)
class Centroids:
    """A codebook, resident and prepared for look-ups. Immutable."""

    centred: torch.Tensor
    """float32[subspaces, k, components], c′"""
    offsets: torch.Tensor
    """float32[subspaces, k], o"""
    reach: torch.Tensor
    """float64[subspaces, 2]: the greatest |c′| and the greatest |o|"""

    @classmethod
    def prepare(cls, centroids: ArrayLike, device: str) -> Centroids:
        """From float32[subspaces, k, components] of a codebook."""
        exact = torch.as_tensor(centroids, dtype=torch.float64)
        squares = (exact * exact).sum(dim=2)
        centred = exact - exact.mean(dim=1, keepdim=True)
        offsets = squares - squares.mean(dim=1, keepdim=True)
        reach = torch.stack([centred.norm(dim=2).amax(dim=1), offsets.abs().amax(dim=1)], dim=1)
        return cls(centred.float().contiguous().to(device), offsets.float().contiguous().to(device), reach.to(device))

    def scales(self, queries: torch.Tensor) -> torch.Tensor:
        """float32[q]: the power of two by which the entries of each of float32[q, width] are multiplied."""
        subspaces, _, components = self.centred.shape
        lengths = queries.view(-1, subspaces, components).double().norm(dim=2)
        longest, largest = self.reach.unbind(dim=1)
        _, exponents = torch.frexp((2 * lengths * longest + largest).sum(dim=1))
        return torch.ldexp(
            torch.ones_like(exponents, dtype=torch.float32),
            (_LARGEST_EXPONENT - exponents).clamp(-_EXPONENTS, _EXPONENTS),
        )


def new_pairs(queries: int, device: str) -> torch.Tensor:
    """float16[pairs, codes, words, 2]: room for the tables of so many queries, as `scan_lut` reads them.

    The words of sub-spaces that a codebook does not have stay zero.
    """
    return torch.zeros((-(-queries // 2), CODES, SUBSPACES, 2), dtype=torch.float16, device=device)


def fill_pairs(queries: torch.Tensor, centroids: Centroids, pairs: torch.Tensor) -> None:
    """Write the scaled tables of float32[q, width] into `pairs`, two queries to a word.

    ValueError when the codebook or the queries are too many for it.
    """
    subspaces, codes, _ = centroids.centred.shape
    if subspaces > SUBSPACES or codes > CODES:
        raise ValueError(f"{subspaces} sub-spaces of {codes} centroids; the scan takes {SUBSPACES} of {CODES} at most")
    if len(queries) > 2 * len(pairs):
        raise ValueError(f"{len(queries)} queries do not fit into {len(pairs)} pairs")
    # Word 16 s + g holds sub-space 4 g + s: seen as [pair, lane, g, s, code].
    _fill(queries, centroids, pairs.view(-1, CODES, 4, SUBSPACES // 4, 2).permute(0, 4, 3, 2, 1))


def tables(queries: torch.Tensor, centroids: Centroids) -> torch.Tensor:
    """float32[q, subspaces, k]: the scaled tables of float32[q, width], plainly laid out."""
    subspaces, codes, _ = centroids.centred.shape
    pairs, groups = -(-len(queries) // 2), -(-subspaces // 4)
    out = torch.empty((pairs, 2, groups, 4, codes), dtype=torch.float32, device=queries.device)
    _fill(queries, centroids, out)
    return out.view(2 * pairs, 4 * groups, codes)[: len(queries), :subspaces]


def _fill(queries: torch.Tensor, centroids: Centroids, out: torch.Tensor) -> None:
    """Write into `out`[query // 2, query % 2, sub-space // 4, sub-space % 4, code], of any strides and float type."""
    subspaces, codes, components = centroids.centred.shape
    if queries.dtype != torch.float32 or queries.ndim != 2 or queries.shape[1] != subspaces * components:
        raise ValueError(
            f"expected float32[q, {subspaces * components}], got {queries.dtype} of shape {list(queries.shape)}"
        )
    if not len(queries):
        return
    queries = queries.contiguous()
    grid = (subspaces, triton.cdiv(len(queries), TILE["QUERIES"]), triton.cdiv(codes, TILE["CENTROIDS"]))
    lookup_kernel[grid](
        queries,
        centroids.centred,
        centroids.offsets,
        centroids.scales(queries),
        out,
        len(queries),
        codes,
        *out.stride(),
        **TILE,
        WIDTH=components,
    )


# Numbers that differ from call to call are not compiled in: a search would wait for the compiler.
@triton.jit(do_not_specialize=["query_count"])  # type: ignore[untyped-decorator]
def lookup_kernel(
    queries: tl.tensor,
    centred: tl.tensor,
    offsets: tl.tensor,
    scales: tl.tensor,
    out: tl.tensor,
    query_count: tl.tensor,
    code_count: tl.tensor,
    pair_stride: tl.tensor,
    lane_stride: tl.tensor,
    group_stride: tl.tensor,
    place_stride: tl.tensor,
    code_stride: tl.tensor,
    QUERIES: tl.constexpr,
    CENTROIDS: tl.constexpr,
    COMPONENTS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """One program: QUERIES × CENTROIDS entries of one sub-space of WIDTH components, COMPONENTS of them at a time.

    Grid: (sub-spaces, query tiles, centroid tiles).
    """
    subspace, subspaces = tl.program_id(0), tl.num_programs(0)
    query = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES)
    code = tl.program_id(2) * CENTROIDS + tl.arange(0, CENTROIDS)
    is_query, is_code = query < query_count, code < code_count

    query_start = queries + ((query * subspaces + subspace) * WIDTH)[:, None]
    code_start = centred + ((subspace * code_count + code) * WIDTH)[None, :]
    products = tl.zeros((QUERIES, CENTROIDS), dtype=tl.float32)
    for first in range(0, WIDTH, COMPONENTS):
        component = first + tl.arange(0, COMPONENTS)
        inside = component < WIDTH
        y = tl.load(query_start + component[None, :], mask=is_query[:, None] & inside[None, :], other=0.0)
        c = tl.load(code_start + component[:, None], mask=is_code[None, :] & inside[:, None], other=0.0)
        products = tl.dot(y, c, products, input_precision="ieee")

    offset = tl.load(offsets + subspace * code_count + code, mask=is_code, other=0.0)
    scale = tl.load(scales + query, mask=is_query, other=0.0)
    entries = (2 * products - offset[None, :]) * scale[:, None]
    place = (query // 2) * pair_stride + (query % 2) * lane_stride
    place += (subspace // 4) * group_stride + (subspace % 4) * place_stride
    tl.store(
        out + place[:, None] + (code * code_stride)[None, :],
        entries.to(out.dtype.element_ty),
        mask=is_query[:, None] & is_code[None, :],
    )
