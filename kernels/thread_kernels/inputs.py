"""What every engine accepts, checked in one place and refused in the same words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from thread_kernels.interface import MAX_SQUARED_NORM, Float32, Float64, Int64


def as_width(width: int) -> int:
    if width < 1:
        raise ValueError(f"a vector has at least 1 component, not {width}")
    return width


def as_vectors(values: ArrayLike, width: int, *, name: str = "row") -> tuple[Float32, Float64]:
    """`values` as C-contiguous float32[n, width] with the squared norms float64[n].

    ValueError for another shape and, naming the first `name` at fault, for NaN, infinity or a squared norm above
    `MAX_SQUARED_NORM`.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        vectors = np.ascontiguousarray(values, dtype=np.float32)
    if vectors.ndim != 2 or vectors.shape[1] != width:
        raise ValueError(f"expected vectors of shape [n, {width}], got {list(vectors.shape)}")
    squared_norms = np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64)
    # A sum of squares is finite exactly when every component is, so one comparison finds NaN, infinity and overflow.
    refused = ~(squared_norms <= MAX_SQUARED_NORM)
    if refused.any():
        first = int(refused.argmax())
        if np.isfinite(vectors[first]).all():
            raise ValueError(f"{name} {first}: the squared norm is above {MAX_SQUARED_NORM:.3g}")
        raise ValueError(f"{name} {first}: NaN or infinity in the vector")
    return vectors, squared_norms


def as_rows(rows: ArrayLike, row_count: int) -> Int64:
    """`rows` as int64[n]. ValueError when one is not an integer or was never appended."""
    if isinstance(rows, range):
        numbers = np.arange(rows.start, rows.stop, rows.step)
    else:
        numbers = np.atleast_1d(np.asarray(rows))
    if numbers.size == 0:
        return np.empty(0, dtype=np.int64)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise ValueError(f"row numbers are integers in one dimension, not {numbers.dtype} of shape {numbers.shape}")
    lowest, highest = int(numbers.min()), int(numbers.max())
    if lowest < 0 or highest >= row_count:
        raise ValueError(f"row {lowest if lowest < 0 else highest} was never appended ({row_count} rows were)")
    return numbers.astype(np.int64, copy=False)


def as_counts(k: int | Sequence[int], queries: int, filters: int) -> list[int]:
    """One `k` a query. ValueError when a count is negative or `k` or the filters are not one a query."""
    counts = [k] * queries if isinstance(k, int) else [int(each) for each in k]
    if len(counts) != queries or filters != queries:
        raise ValueError(f"{queries} queries need as many filters and counts, got {filters} and {len(counts)}")
    if any(each < 0 for each in counts):
        raise ValueError(f"k is at least 0, not {min(counts)}")
    return counts
