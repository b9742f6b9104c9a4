"""The best rows of each query of a batch, whichever kernel scores them: the bounds, and the keys that beat them.

    best = best_rows(scan, keep=256, launch=launch)

A launch puts what beats a query's bound into the query's buffer; here the bounds are chosen. A bound is the 64th best
key among one 64th of the tiles, so about 4,096 rows beat it and fit into 8,192 slots. A sample that is itself too large
for the slots gets its bound from a sparser one, by the same kernel. The bound only saves work: when too many or too few
rows beat it, another one is tried, and the result is exact under the kernel's scores whatever the sample said.

A key is the score, as an unsigned integer of the same order, above the inverted row number: larger is better, no two
are equal, and equal scores go to the lower row. A NaN is no score and has no key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from thread_kernels.interface import Bool, Int64

TILE_ROWS = 128
EVERY_ROW, NO_ROW = -1, -2
NO_BOUND = np.uint64(0x007FFFFF << 32)
"""Below every key of a score that is not NaN."""

_MOST_ROWS = 1 << 31
_SAMPLING = 64
_SLOTS = 8_192
_SLOTS_PER_KEPT = 16
"""So that few of the best keys meet in a slot, and an overflowing buffer gives a good bound for the next scan."""

Array = Any
"""A NumPy or CuPy array, as the launch takes them."""


class AnyScan(Protocol):
    """What a launch reads, of which only this is known here."""

    @property
    def queries(self) -> int: ...

    @property
    def rows(self) -> int: ...

    @property
    def filter_of(self) -> Array:
        """int32[queries]: the number of the query's filter, EVERY_ROW or NO_ROW. Other numbers are not checked."""

    def check(self) -> None:
        """ValueError for arrays of another shape or type than the kernel reads."""

    def filtered_by(self, filter_of: Array) -> Self:
        """The same scan with another `filter_of`."""


@dataclass(frozen=True, slots=True)
class Best:
    """The best rows of each query, best first; of equal scores the lower row. Arrays of the kind that the scan held."""

    rows: Array
    """int64[queries, keep]; −1 past `counts`"""
    scores: Array
    """float32[queries, keep]; −inf past `counts`"""
    counts: Array
    """int64[queries]: less than `keep` when fewer pass the filter"""

    @classmethod
    def joined(cls, parts: Sequence[Best], arrays: Any) -> Best:
        """Of the queries of all `parts`, of which there is at least one; they have the same `keep`."""
        if len(parts) == 1:
            return parts[0]
        names = ("rows", "scores", "counts")
        return cls(*(arrays.concatenate([getattr(part, name) for part in parts]) for name in names))


S = TypeVar("S", bound=AnyScan)
S_contra = TypeVar("S_contra", bound=AnyScan, contravariant=True)


class Launch(Protocol[S_contra]):
    """Runs a kernel once over every `tile_stride`-th tile.

    Puts the keys above uint64[queries] `bounds` into uint64[queries, slots] `keys`, in any order, and their number into
    uint32[queries] `counts`; both are zeros before. When there are more keys than slots, the best of those that fall
    to a slot stays.
    """

    def __call__(self, scan: S_contra, bounds: Array, tile_stride: int, keys: Array, counts: Array) -> None: ...


def tile_count(rows: int) -> int:
    return -(-rows // TILE_ROWS)


def scanned_tiles(rows: int, tile_stride: int) -> int:
    return -(-tile_count(rows) // tile_stride)


def pack_mask(mask: Bool) -> npt.NDArray[np.uint32]:
    """bool[n] as uint32[4 × tiles]: bit i of word w for row 32 w + i, zeros after the last row."""
    padded = np.zeros(tile_count(len(mask)) * TILE_ROWS, dtype=np.bool_)
    padded[: len(mask)] = mask
    return np.packbits(padded, bitorder="little").view("<u4")


def word_masks(rows: Int64) -> npt.NDArray[np.uint32]:
    """uint32[2, w] of int64[n] rows, which ascend and differ: the words of `pack_mask` they are in, and their bits
    there."""
    words = rows >> 5
    bits = np.uint32(1) << (rows & 31).astype(np.uint32)
    starts = np.flatnonzero(np.diff(words, prepend=-1))
    if not len(starts):
        return np.zeros((2, 0), dtype=np.uint32)
    return np.stack([words[starts].astype(np.uint32), np.bitwise_or.reduceat(bits, starts)])


def check_arrays(arrays: Mapping[str, Array], expected: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
    """ValueError naming the first of `arrays` that is not contiguous, or not of the type and shape expected."""
    for name, (dtype, shape) in expected.items():
        array = arrays[name]
        found = str(array.dtype).removeprefix("torch.")
        contiguous = array.flags.c_contiguous if hasattr(array, "flags") else array.is_contiguous()
        if found != dtype or tuple(array.shape) != shape or not contiguous:
            raise ValueError(f"{name}: expected a contiguous {dtype}{list(shape)}, got {found}{list(array.shape)}")


def best_rows(scan: S, keep: int, launch: Launch[S], arrays: Any = np) -> Best:
    """The `keep` best rows of each query that pass its filter. `arrays` is the module of the arrays: numpy or cupy.

    ValueError for a scan of other arrays than its kernel reads, too many rows, or a negative `keep`.
    """
    scan.check()
    if keep < 0 or not 0 <= scan.rows <= _MOST_ROWS:
        raise ValueError(f"keep {keep} and rows {scan.rows} are at least 0, and rows at most {_MOST_ROWS}")
    if not (keep and scan.rows and scan.queries):
        return _decoded(arrays.zeros((scan.queries, keep), dtype=np.uint64), arrays)

    slots = max(keep, min(max(_SLOTS, _SLOTS_PER_KEPT * keep), tile_count(scan.rows) * TILE_ROWS))
    rank = slots // 2 // _SAMPLING
    bounds = arrays.full(scan.queries, NO_BOUND, dtype=np.uint64)
    sample = arrays.zeros((scan.queries, 0), dtype=np.uint64)
    stride = 1
    while scanned_tiles(scan.rows, stride) * TILE_ROWS > slots:
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
        unsettled = scan.filtered_by(arrays.where(again, scan.filter_of, np.int32(NO_ROW)))
        new_keys, new_counts = _launched(unsettled, bounds, 1, slots, launch, arrays)
        keys, counts = arrays.where(again[:, None], new_keys, keys), arrays.where(again, new_counts, counts)


def _launched(scan: S, bounds: Array, stride: int, slots: int, launch: Launch[S], arrays: Any) -> tuple[Array, Array]:
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
