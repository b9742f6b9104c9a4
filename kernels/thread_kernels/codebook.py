"""Product quantizer of one vector space: a rotation, then 4 bits for each sub-space of the rotated vector.

Distances between codes are sums of table look-ups (Jégou et al., "Product Quantization for Nearest Neighbor Search",
2011), and with 16 centroids a sub-space the tables fit into registers (André et al., "Quicker ADC", 2019; FAISS calls
it fast scan). A row takes half a byte a sub-space: 48 bytes for 384 dimensions, 64 for 1024.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from thread_kernels.interface import Float32

# FAISS brings an OpenMP run-time of its own. Its idle threads would spin and starve other OpenMP users of the
# process; it reads this once, when it is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
import faiss

NARROWEST = 32
"""Vectors narrower than this are scanned exactly: their codes would hardly be smaller than they are."""
_MOST_SUBSPACES = 128
_BITS = 4


@dataclass(frozen=True, slots=True)
class Codebook:
    """How vectors become codes. Immutable."""

    rotation: Float32 | None
    """float32[width, dimensions] with orthonormal columns; None: vectors are coded as they are, padded with zeros."""
    index: faiss.Index
    """Trained and empty. One inverted list, because the flat indexes of codes in FAISS take no filter."""

    def rotate(self, vectors: Float32) -> Float32:
        """float32[n, width] as float32[n, dimensions]."""
        if self.rotation is not None:
            return vectors @ self.rotation
        return np.pad(vectors, ((0, 0), (0, self.index.d - vectors.shape[1])))


def plain(sample: Float32) -> Codebook:
    """A codebook of float32[n, width] that spreads its bits evenly over the components."""
    width = sample.shape[1]
    subspaces = _subspaces(width)
    return _trained(None, sample, dimensions=-(-width // subspaces) * subspaces, subspaces=subspaces)


def principal(sample: Float32) -> Codebook:
    """A codebook of float32[n, width] over the strongest principal components, two a sub-space.

    The strongest is paired with the weakest, so that every sub-space has one worth its bits: on clustered vectors of
    1024 components this needs a quarter of the survivors that `plain` needs, pairs of neighbours need more than
    `plain`.
    """
    width = sample.shape[1]
    subspaces = _subspaces(width)
    centred = sample - sample.mean(axis=0)
    _, components = np.linalg.eigh(centred.T @ centred)
    strongest_first = np.arange(width - 1, width - 1 - 2 * subspaces, -1)
    paired = np.column_stack([strongest_first[:subspaces], strongest_first[: subspaces - 1 : -1]]).ravel()
    rotation = np.ascontiguousarray(components[:, paired])
    return _trained(rotation, sample, dimensions=2 * subspaces, subspaces=subspaces)


def _subspaces(width: int) -> int:
    return min(_MOST_SUBSPACES, width // 4)


def _trained(rotation: Float32 | None, sample: Float32, *, dimensions: int, subspaces: int) -> Codebook:
    index = faiss.IndexIVFPQFastScan(faiss.IndexFlatL2(dimensions), dimensions, 1, subspaces, _BITS)
    index.by_residual = False
    codebook = Codebook(rotation, index)
    index.train(codebook.rotate(sample))
    return codebook
