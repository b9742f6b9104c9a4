"""The codebook of the GPU: a rotation and up to 65,536 centroids in each of up to 64 sub-spaces, all resident.

Codes take a byte a sub-space, or two for more than 256 centroids (Jégou et al., "Product Quantization for Nearest
Neighbor Search", 2011). Vectors are scaled by a power of two before, so that float32 overflows nowhere, whatever their
length.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from thread_kernels.clustering import train_centroids
from thread_kernels.coding import ITERATIONS, centroid_bits
from thread_kernels.device import Residence
from thread_kernels.device_rows import CodeLayout
from thread_kernels.interface import Float32
from thread_kernels.lookup import Centroids
from thread_kernels.scan_lut import CODES, SUBSPACES
from thread_kernels.selection import Array

BITS = 16
"""At most."""
_COMPONENTS = 4
"""Principal components a sub-space."""
_LARGEST_EXPONENT = 100
_LARGEST = 1e30
"""Of a scaled component: its products with centroids, which are at most 1, stay finite in float32."""
_FEWEST_QUERIES = 64
UPLOADED_BYTES = 64 << 20
_ONE_VECTOR = 1e-5
"""Relative spread of centroids that differ by rounding only."""
_SEED = 0


@dataclass(frozen=True, slots=True)
class DeviceCodebook:
    """Immutable, but for the room for tables of queries."""

    residence: Residence
    width: int
    exponent: int
    """Vectors are multiplied by 2^−exponent."""
    rotation: torch.Tensor | None
    """float32[width, dimensions] with orthonormal columns; None: vectors are coded as they are, padded with zeros."""
    centroids: torch.Tensor
    """float32[subspaces, k, components]"""
    prepared: Centroids
    _tables: list[Array] = field(default_factory=list)
    """The last is float16[pairs, 256, 64, 2]: room for tables that is used again. Words beyond `subspaces` are zero."""

    @classmethod
    def of(
        cls, residence: Residence, width: int, exponent: int, rotation: torch.Tensor | None, centroids: torch.Tensor
    ) -> DeviceCodebook:
        """Prepared for look-ups, once."""
        prepared = Centroids.prepare(centroids, residence.device.torch_name)
        for tensor in (rotation, centroids, prepared.centred, prepared.offsets):
            if tensor is not None:
                residence.count(tensor)
        return cls(residence, width, exponent, rotation, centroids, prepared)

    @property
    def lists(self) -> int:
        return 1

    @property
    def code_bytes(self) -> int:
        """Room is taken for all sub-spaces that the scan reads."""
        return self.layout.code_bytes

    @property
    def subspaces(self) -> int:
        return self.centroids.shape[0]

    @property
    def centroid_count(self) -> int:
        """Of each sub-space."""
        return self.centroids.shape[1]

    @property
    def layout(self) -> CodeLayout:
        return CodeLayout.of(self.subspaces, self.centroid_count)

    @property
    def is_wide(self) -> bool:
        """Whether codes take two bytes a sub-space, which another scan reads than codes of one."""
        return self.layout.dtype is np.uint16

    def rotate(self, vectors: Float32) -> Float32:
        with self.residence.using() as device:
            rotated: Float32 = self.rotated(device.tensor(device.upload(vectors))).cpu().numpy()
        return rotated

    def rotated(self, vectors: torch.Tensor) -> torch.Tensor:
        """float32[n, width] on the device as float32[n, dimensions]."""
        return _rotated(vectors, self.exponent, self.rotation, self.centroids.shape[0] * self.centroids.shape[2])

    def encode(self, vectors: torch.Tensor) -> Array:
        """uint8[n, subspaces], uint16 where codes are wide, of float32[n, width], all on the device."""
        device = self.residence.device
        codes = device.encode(self.rotated(vectors), self.centroids)
        # By way of signed integers: DLPack knows the others in recent versions only.
        return device.array(codes.view(torch.int16)).view(np.uint16) if self.is_wide else device.array(codes)

    def tables(self, queries: torch.Tensor) -> Array:
        """float16[pairs, 256, 64, 2] for float32[q, width] on the device; overwritten by the next call. For who
        uses the device, and codes of one byte."""
        device = self.residence.device
        pairs = -(-len(queries) // 2)
        if not self._tables or len(self._tables[-1]) < pairs:
            room = max(pairs, _FEWEST_QUERIES // 2)
            self._tables[:] = [self.residence.room((room, CODES, SUBSPACES, 2), np.float16, is_for_queries=True)]
        tables = self._tables[-1][:pairs]
        device.fill_pairs(self.rotated(queries), self.prepared, device.tensor(tables))
        return tables

    def wide_tables(self, queries: torch.Tensor) -> torch.Tensor:
        """float32[q, subspaces, k] for float32[q, width] on the device. For who uses the device."""
        return self.residence.device.tables(self.rotated(queries), self.prepared)


def plain(
    residence: Residence, sample: Float32, *, rows: int, bits: int, iterations: int = ITERATIONS
) -> DeviceCodebook:
    """A codebook of float32[n, width] that spreads its bits evenly over the components, for a table of `rows` rows."""
    subspaces = subspace_count(sample.shape[1])
    return _trained(residence, sample, None, subspaces, -(-sample.shape[1] // subspaces), rows, bits, iterations)


def principal(
    residence: Residence, sample: Float32, *, rows: int, bits: int, iterations: int = ITERATIONS
) -> DeviceCodebook:
    """A codebook of float32[n, width] over the strongest principal components, 4 a sub-space.

    They are dealt out forth and back, so that every sub-space has its part of the strong ones.
    """
    width = sample.shape[1]
    subspaces = subspace_count(width)
    components = min(_COMPONENTS, width // subspaces)
    centred = sample - sample.mean(axis=0, dtype=np.float64).astype(np.float32)
    centred /= max(float(np.abs(centred).max()), np.finfo(np.float32).tiny)  # so that no square overflows
    _, vectors = np.linalg.eigh(centred.T @ centred)
    strongest_first = np.arange(width - 1, width - 1 - components * subspaces, -1)
    dealt = strongest_first.reshape(components, subspaces)
    dealt[1::2] = dealt[1::2, ::-1]
    rotation = np.ascontiguousarray(vectors[:, dealt.T.ravel()], dtype=np.float32)
    return _trained(residence, sample, rotation, subspaces, components, rows, bits, iterations)


def rows_uploaded(width: int) -> int:
    """Vectors that go to the device at a time: coding takes some 4 times as much beside them, and searches wait."""
    return max(1, UPLOADED_BYTES // (4 * width))


def subspace_count(width: int) -> int:
    return max(1, min(SUBSPACES, width // _COMPONENTS))


def _trained(
    residence: Residence,
    sample: Float32,
    rotation: Float32 | None,
    subspaces: int,
    components: int,
    rows: int,
    bits: int,
    iterations: int,
) -> DeviceCodebook:
    largest = np.frexp(np.abs(sample).max(initial=0.0))[1]
    exponent = int(np.clip(largest, -_LARGEST_EXPONENT, _LARGEST_EXPONENT))
    count = min(1 << centroid_bits(rows, min(bits, BITS)), len(sample))
    turn = residence.using_for_a_piece
    with turn() as device:
        device.give_back()  # what searches took and libraries keep for the next: training takes much, and needs it
        turned = None if rotation is None else device.tensor(device.upload(rotation))
        vectors = torch.empty((len(sample), subspaces * components), device=device.torch_name)
    step = rows_uploaded(sample.shape[1])
    for start in range(0, len(sample), step):  # what is beside it is small then
        part = slice(start, start + step)
        with turn() as device:
            vectors[part] = _rotated(device.tensor(device.upload(sample[part])), exponent, turned, vectors.shape[1])
    centroids = train_centroids(vectors, subspaces, count, seed=_SEED, iterations=iterations, turn=turn)
    with turn() as device:
        centroids = _told_apart(centroids, vectors)
        del vectors
        device.give_back()
        return DeviceCodebook.of(residence, sample.shape[1], exponent, turned, centroids)


def _rotated(vectors: torch.Tensor, exponent: int, rotation: torch.Tensor | None, dimensions: int) -> torch.Tensor:
    scaled = (vectors * 2.0**-exponent).clamp(-_LARGEST, _LARGEST)
    if rotation is not None:
        return scaled @ rotation
    return torch.nn.functional.pad(scaled, (0, dimensions - vectors.shape[1])).contiguous()


def _told_apart(centroids: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
    """`centroids`, spread at random when the whole sample is one vector: other rows may come, and would all get the
    same code."""
    size = float(sample.square().mean().sqrt()) or 1.0
    if float((centroids - centroids[:, :1]).abs().max()) > _ONE_VECTOR * size:
        return centroids
    spread = torch.randn(centroids.shape, generator=torch.Generator().manual_seed(_SEED))
    return centroids + size * spread.to(centroids.device)
