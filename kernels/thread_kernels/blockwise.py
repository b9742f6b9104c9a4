"""The score of a row: Euclidean distances inside equal blocks of the vector, added up, and the cosine beside it."""

from __future__ import annotations

import numpy as np

from thread_kernels.interface import Float32, Rescored

_MOST_BLOCKS = 16


def block_count(width: int) -> int:
    """The greatest divisor of `width` that is at most 16. ValueError when `width` is not positive."""
    if width < 1:
        raise ValueError(f"a vector has at least 1 component, not {width}")
    return next(blocks for blocks in range(_MOST_BLOCKS, 0, -1) if width % blocks == 0)


def block_scores(query: Float32, query_norm: float, vectors: Float32, norms: Float32) -> Rescored:
    """Scores of float32[n, width] `vectors` against float32[width] `query`; `norms` and `query_norm` are Euclidean."""
    count, width = vectors.shape
    blocks = block_count(width)
    differences = (vectors - query).reshape(count, blocks, width // blocks)
    distances = np.sqrt(np.einsum("nbi,nbi->nb", differences, differences)).sum(axis=1)

    # The query is scaled to unit length before the product: products of two tiny vectors would underflow to a cosine
    # of 0.
    direction = (query / query_norm if query_norm else np.zeros(width)).astype(np.float32)
    products = vectors @ direction
    cosines = np.divide(products, norms, out=np.zeros(count, dtype=np.float32), where=norms > 0)
    return Rescored(distances, np.clip(cosines, -1, 1))
