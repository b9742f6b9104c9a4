"""Which engine serves this device. An explicit wish that cannot be met is an error, never a silent fallback."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal, get_args

from thread_kernels.interface import Compress, Engine, EngineUnavailable

Device = Literal["auto", "cpu", "cuda"]

MOST_BITS = 16
"""Of a code in one sub-space."""


def create_engine(device: Device = "auto", *, compress: Compress = "auto", pq_bits: int = 8) -> Engine:
    """The engine for `device`; "auto" takes the best that runs here.

    `pq_bits`: at most 2^bits centroids a sub-space. EngineUnavailable when it cannot run here; ValueError for another
    name or number of bits.
    """
    if device not in get_args(Device):
        raise ValueError(f"device is one of {', '.join(get_args(Device))}, not {device!r}")
    if compress not in get_args(Compress):
        raise ValueError(f"compress is one of {', '.join(get_args(Compress))}, not {compress!r}")
    if not 1 <= pq_bits <= MOST_BITS:
        raise ValueError(f"pq_bits is 1 to {MOST_BITS}, not {pq_bits}")
    if device == "cuda":
        raise EngineUnavailable(
            "this version has no CUDA engine, so no package or driver would help; the device cpu (or auto) works here"
        )
    if find_spec("faiss") is None:
        raise EngineUnavailable(
            "the CPU engine needs FAISS, which is not installed; type: pip install 'thread-node[cpu]'"
        )
    from thread_kernels.engine_cpu import CpuEngine  # FAISS is an optional dependency and takes a while to load

    return CpuEngine(compress, pq_bits)
