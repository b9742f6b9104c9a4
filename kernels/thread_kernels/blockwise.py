"""The score of a row: Euclidean distances inside equal blocks of the vector, added up, and the cosine beside it."""

from __future__ import annotations

import numpy as np

from thread_kernels.interface import Float32, Rescored

_MOST_BLOCKS = 16
_TINY = 1e-30


def block_count(width: int) -> int:
    """The greatest divisor of `width` that is at most 16. ValueError when `width` is not positive."""
    if width < 1:
        raise ValueError(f"a vector has at least 1 component, not {width}")
    return next(blocks for blocks in range(_MOST_BLOCKS, 0, -1) if width % blocks == 0)


def block_scores(query: Float32, query_norm: float, vectors: Float32) -> Rescored:
    """Scores of float32[n, width] `vectors` against float32[width] `query`, whose Euclidean norm is `query_norm`.

    A row of NaN, one that is gone, is infinitely far and has the cosine 0. `vectors` is overwritten: it would be twice
    the memory traffic to leave it.
    """
    count, width = vectors.shape
    blocks = block_count(width)
    # Both are scaled to unit length one after the other: products of two tiny vectors would underflow to a cosine of 0.
    direction = (query / query_norm if query_norm else np.zeros(width)).astype(np.float32)
    norms = _norms(vectors)
    cosines = np.divide(vectors @ direction, norms, out=np.zeros(count, dtype=np.float32), where=norms > 0)

    vectors -= query
    differences = vectors.reshape(count, blocks, width // blocks)
    distances = np.sqrt(np.einsum("nbi,nbi->nb", differences, differences)).sum(axis=1)
    gone = np.isnan(distances)
    if gone.any():
        distances[gone], cosines[gone] = np.inf, 0
    return Rescored(distances, np.clip(cosines, -1, 1))


def _norms(vectors: Float32) -> Float32:
    """Euclidean norms; those whose squares are nearly 0 in float32 are taken in float64."""
    squares = np.einsum("ni,ni->n", vectors, vectors)
    norms: Float32 = np.sqrt(squares)
    tiny = (squares < _TINY).nonzero()[0]
    if len(tiny):
        norms[tiny] = np.linalg.norm(vectors[tiny].astype(np.float64), axis=1)
    return norms
