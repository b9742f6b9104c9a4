"""The `Coder` of the CPU engine: 4-bit codes in inverted lists of FAISS."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from thread_kernels import codebook
from thread_kernels.codebook import Codebook, plain, principal, subspace_count
from thread_kernels.codes import Codes
from thread_kernels.coding import ROWS_A_CENTROID, AnyCodebook, Maker
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

    def makers(self, sample: Float32) -> Sequence[Maker]:
        return [plain, principal] if min(sample.shape) >= 2 * subspace_count(sample.shape[1]) else [plain]

    def empty(self, codebook: AnyCodebook, *, is_trial: bool) -> Codes:
        assert isinstance(codebook, Codebook)
        return Codes.empty(codebook)

    def seconds(self, work: Callable[[], object]) -> float:
        return fastest(work)
