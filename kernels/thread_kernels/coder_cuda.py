"""The `Coder` of the CUDA engine: codes without lists, trained, made and scanned on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from thread_kernels.coding import AnyCodebook, Maker, rows_to_train
from thread_kernels.device import Residence
from thread_kernels.device_codebook import BITS, DeviceCodebook, plain, principal, subspace_count
from thread_kernels.device_codes import DeviceCodes
from thread_kernels.interface import Float32

TRAINING_ROWS = 65_536
"""At least: as many for each of 256 centroids as FAISS takes at most."""


class CudaCoder:
    """A `Coder`, of at most 2^bits centroids a sub-space. Whole vectors lie beside codes, but for those of a trial."""

    trains_at_rest = False  # the new vectors would lie beside the old ones, and take the place of what fits there now

    def __init__(self, residence: Residence, bits: int) -> None:
        self._residence = residence
        self._bits = min(bits, BITS)

    def training_rows(self, live: int) -> int:
        return max(TRAINING_ROWS, rows_to_train(live, self._bits))

    def list_count(self, live: int) -> int:
        return 1

    def makers(self, sample: Float32) -> Sequence[Maker]:
        both = [partial(plain, self._residence), partial(principal, self._residence)]
        return both if min(sample.shape) >= 2 * subspace_count(sample.shape[1]) else both[:1]

    def empty(self, codebook: AnyCodebook, *, is_trial: bool) -> DeviceCodes:
        assert isinstance(codebook, DeviceCodebook)
        if not is_trial:
            with self._residence.using() as device:
                device.costs(codebook.width, codebook.centroid_count)  # so that no search waits for it
        return DeviceCodes.empty(codebook, with_vectors=not is_trial)

    def seconds(self, work: Callable[[], object]) -> float:
        return self._residence.device.seconds(work)
