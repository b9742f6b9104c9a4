"""The `Coder` of the CPU engine: 4-bit codes in inverted lists of FAISS."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from thread_kernels import codebook
from thread_kernels.codebook import Codebook, plain, principal
from thread_kernels.codes import Codes
from thread_kernels.coding import ROWS_A_CENTROID, AnyCodebook
from thread_kernels.costs import fastest
from thread_kernels.interface import Float32

_TRAINING_ROWS = 16_384


class CpuCoder:
    """A `Coder`."""

    trains_at_rest = True

    def training_rows(self, live: int) -> int:
        return max(_TRAINING_ROWS, ROWS_A_CENTROID * self.list_count(live))

    def list_count(self, live: int) -> int:
        return codebook.list_count(live)

    def codebooks(self, sample: Float32, *, rows: int, bits: int) -> Iterator[AnyCodebook]:
        first = plain(sample, rows=rows, bits=bits)
        yield first
        if min(sample.shape) >= 2 * first.index.pq.M:
            yield principal(sample, rows=rows, bits=bits)

    def empty(self, codebook: AnyCodebook, *, is_trial: bool) -> Codes:
        assert isinstance(codebook, Codebook)
        return Codes.empty(codebook)

    def seconds(self, work: Callable[[], object]) -> float:
        return fastest(work)
