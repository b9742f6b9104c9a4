"""Product quantizer of one vector space: a rotation, inverted lists, and 4 bits a sub-space of the rotated vector.

Distances between codes are sums of table look-ups (Jégou et al., "Product Quantization for Nearest Neighbor Search",
2011), and with 16 centroids a sub-space the tables fit into registers (André et al., "Quicker ADC", 2019; FAISS calls
it fast scan). A row takes half a byte a sub-space: 48 bytes for 384 dimensions, 64 for 1024. Large tables are cut into
inverted lists, so that a search visits those near the query only; the codes do not depend on the list.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thread_kernels.coding import ITERATIONS, centroid_bits
from thread_kernels.interface import Float32
from thread_kernels.loaded_faiss import faiss, use_threads

BITS = 4
_MOST_SUBSPACES = 128
_ROWS_A_LIST = 512
_LISTS_FROM = 64
"""With fewer lists there is nothing to skip that is worth finding the nearest ones."""
_MOST_LISTS = 4_096


@dataclass(frozen=True, slots=True)
class Codebook:
    """How vectors become codes. Immutable."""

    rotation: Float32 | None
    """float32[width, dimensions] with orthonormal columns; None: vectors are coded as they are, padded with zeros."""
    index: faiss.Index
    """Trained and empty. Inverted lists, because the flat indexes of codes in FAISS take no filter."""
    width: int

    @property
    def lists(self) -> int:
        return int(self.index.nlist)

    @property
    def code_bytes(self) -> int:
        return int(self.index.pq.code_size)

    def flat_index(self) -> faiss.Index:
        """An empty index of the same codes with a single list."""
        one = faiss.IndexIVFPQFastScan(faiss.IndexFlatL2(self.index.d), self.index.d, 1, self.index.pq.M, BITS)
        one.by_residual = False
        one.quantizer.add(np.zeros((1, self.index.d), dtype=np.float32))
        faiss.copy_array_to_vector(faiss.vector_to_array(self.index.pq.centroids), one.pq.centroids)
        one.is_trained = True
        return one

    def rotate(self, vectors: Float32) -> Float32:
        """float32[n, width] as float32[n, dimensions]."""
        if self.rotation is not None:
            return vectors @ self.rotation
        if self.index.d == self.width:
            return vectors
        return np.pad(vectors, ((0, 0), (0, self.index.d - vectors.shape[1])))


def plain(sample: Float32, *, rows: int, bits: int, iterations: int = ITERATIONS) -> Codebook:
    """A codebook of float32[n, width] that spreads its bits evenly over the components, for a table of `rows` rows."""
    width = sample.shape[1]
    subspaces = subspace_count(width)
    dimensions = -(-width // subspaces) * subspaces
    index = _empty(dimensions, subspaces, rows, iterations)
    return _trained(None, sample, index, rows=rows, bits=bits)


def principal(sample: Float32, *, rows: int, bits: int, iterations: int = ITERATIONS) -> Codebook:
    """A codebook of float32[n, width] over the strongest principal components, two a sub-space.

    The strongest is paired with the weakest, so that every sub-space has one worth its bits: on clustered vectors of
    1024 components this needs a quarter of the survivors that `plain` needs, pairs of neighbours need more than
    `plain`. ValueError for vectors too narrow to have two components a sub-space.
    """
    width = sample.shape[1]
    subspaces = subspace_count(width)
    if 2 * subspaces > width:
        raise ValueError(f"vectors of {width} components have no {2 * subspaces} principal ones")
    centred = sample - sample.mean(axis=0, dtype=np.float64).astype(np.float32)
    centred /= max(float(np.abs(centred).max()), np.finfo(np.float32).tiny)  # so that no square overflows
    _, components = np.linalg.eigh(centred.T @ centred)
    strongest_first = np.arange(width - 1, width - 1 - 2 * subspaces, -1)
    paired = np.column_stack([strongest_first[:subspaces], strongest_first[: subspaces - 1 : -1]]).ravel()
    rotation = np.ascontiguousarray(components[:, paired])
    index = _empty(2 * subspaces, subspaces, rows, iterations)
    return _trained(rotation, sample, index, rows=rows, bits=bits)


def subspace_count(width: int) -> int:
    return max(1, min(_MOST_SUBSPACES, width // 4))


def list_count(rows: int) -> int:
    """A power of two of at least 512 rows a list; one for a small table."""
    lists = 1 << max(0, min(rows // _ROWS_A_LIST, _MOST_LISTS).bit_length() - 1)
    return lists if lists >= _LISTS_FROM else 1


def _empty(dimensions: int, subspaces: int, rows: int, iterations: int) -> faiss.Index:
    """Not trained yet."""
    index = faiss.IndexIVFPQFastScan(faiss.IndexFlatL2(dimensions), dimensions, list_count(rows), subspaces, BITS)
    index.by_residual = False
    index.cp.min_points_per_centroid = index.pq.cp.min_points_per_centroid = 1  # FAISS prints what it thinks too few
    index.pq.cp.niter = iterations
    return index


def _trained(rotation: Float32 | None, sample: Float32, index: faiss.Index, *, rows: int, bits: int) -> Codebook:
    codebook = Codebook(rotation, index, sample.shape[1])
    vectors = codebook.rotate(sample)
    used = centroid_bits(rows, min(bits, BITS))
    use_threads(index.nlist > 1)  # a sub-space is little to do
    if used == BITS:
        index.train(vectors)
    else:
        _train_few(index, vectors, 1 << used)
    return codebook


def _train_few(index: faiss.Index, vectors: Float32, centroids: int) -> None:
    """Train fewer centroids than a code can name; the other names stand for the first centroid and are never given."""
    coarse = faiss.Kmeans(index.d, index.nlist, min_points_per_centroid=1)
    coarse.train(vectors)
    index.quantizer.add(coarse.centroids)
    dimensions = index.d // index.pq.M
    parts = vectors.reshape(len(vectors), index.pq.M, dimensions)
    points = np.empty((index.pq.M, 1 << BITS, dimensions), dtype=np.float32)
    for subspace in range(index.pq.M):
        part = np.ascontiguousarray(parts[:, subspace])
        clusters = faiss.Kmeans(
            dimensions, centroids, min_points_per_centroid=1, niter=index.pq.cp.niter, seed=subspace
        )
        clusters.train(part)
        points[subspace, :centroids] = clusters.centroids
        points[subspace, centroids:] = clusters.centroids[0]
    faiss.copy_array_to_vector(points.ravel(), index.pq.centroids)
    index.is_trained = True
