"""What the life of a table's codes needs of them, whoever makes them and wherever they lie.

A `Coder` makes codebooks and empty codes; `compression` keeps the codes of a growing table with it, and `reach`
measures how far a search by them has to look. `coder_cpu` codes with FAISS in main memory, `coder_cuda` on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from thread_kernels.exact import Piece
from thread_kernels.interface import Float32, Int64
from thread_kernels.membership import Passing

ROWS_A_CENTROID = 39
"""The specification's rule: the largest power of two of centroids that leaves each this many rows."""

ITERATIONS, TRIAL_ITERATIONS = 25, 5
"""Steps of k-means for a codebook, FAISS's own number, and for one that shows which kind suits a table."""


def centroid_bits(rows: int, bits: int) -> int:
    """log₂ of the centroids of a sub-space by the specification's rule for `rows` rows, at most `bits`."""
    return max(0, min(bits, (rows // ROWS_A_CENTROID).bit_length() - 1))


def rows_to_train(rows: int, bits: int) -> int:
    """Rows that give each of those centroids as many as the rule wants."""
    return ROWS_A_CENTROID << centroid_bits(rows, bits)


class AnyCodebook(Protocol):
    """How vectors become codes. Immutable."""

    @property
    def lists(self) -> int:
        """Inverted lists; 1 where every search visits every code."""

    @property
    def code_bytes(self) -> int:
        """Of one row."""

    def rotate(self, vectors: Float32) -> Float32:
        """float32[n, width] as what is coded."""


class AnyCodes(Protocol):
    """Codes of the rows below `rows`, less those that were removed when they were made. Immutable."""

    @property
    def codebook(self) -> AnyCodebook: ...

    @property
    def rows(self) -> int: ...

    @property
    def base_rows(self) -> int:
        """`merged` is given the rows from here on."""

    @property
    def fresh_rows(self) -> int:
        """Codes of rows from `base_rows` on: what `merged` costs over `grown`."""

    @property
    def coded_rows(self) -> int: ...

    @property
    def list_of(self) -> npt.NDArray[np.uint16]:
        """uint16[n]: the inverted list of row 0, 1, … below `base_rows`; empty with one list"""

    @property
    def list_sizes(self) -> Int64:
        """int64[lists]"""

    @property
    def is_whole(self) -> bool:
        """False where a restart has not brought back all that should lie beside the codes."""

    def completed(self, gather: Callable[[Int64], Iterable[Piece]]) -> Self:
        """With what was not brought back, made of what `gather` gives of int64[n] rows, which ascend."""

    def grown(self, pieces: Iterable[Piece], stop: int) -> Self:
        """With the codes of `pieces`, which are the rows from `rows` on; rows below `stop` are covered then."""

    def merged(self, pieces: Iterable[Piece], stop: int) -> Self:
        """As `grown`, all in one part again: `pieces` are the rows from `base_rows` on."""

    def without(self, rows: Int64) -> Self:
        """Less the codes of int64[n] `rows`, which ascend."""

    def lists_near(self, rotated: Float32) -> Int64:
        """int64[q, lists]: the inverted lists, nearest to each of float32[q, dimensions] first."""

    def nearest(self, queries: Float32, count: int, passing: Passing, share: float) -> list[Int64]:
        """The `count` rows that pass nearest to each of float32[q, width] by their codes, nearest first.

        `share`: the part, above 0 to 1, of the lists with a passing row that is visited.
        """


class Maker(Protocol):
    def __call__(self, sample: Float32, *, rows: int, bits: int, iterations: int = ITERATIONS) -> AnyCodebook:
        """A codebook for a table of `rows` rows, trained on float32[n, width] in so many steps of k-means."""


class Coder(Protocol):
    """Makes codes of one kind, on one device."""

    trains_at_rest: bool
    """Whether a table that has come to rest is worth training before it has grown much, and one that has not is not."""

    def training_rows(self, live: int) -> int:
        """Rows of a sample to train on, for a table of `live` rows."""

    def list_count(self, live: int) -> int:
        """Inverted lists of a codebook for a table of `live` rows."""

    def makers(self, sample: Float32) -> Sequence[Maker]:
        """What makes the codebooks that may suit vectors such as float32[n, width], the plainest first."""

    def empty(self, codebook: AnyCodebook, *, is_trial: bool) -> AnyCodes:
        """No codes yet. `codebook` is one of this coder's, which is still being chosen in a trial."""

    def seconds(self, work: Callable[[], object]) -> float:
        """What a search by codes costs, on the processor or the device that does it."""
