"""What only a card has: its own stream, staging, and main memory that kernels read. `pytest -m gpu` runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from thread_kernels.device_cuda import CudaDevice

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def cuda(card: None) -> CudaDevice:
    from thread_kernels.device_cuda import CudaDevice

    return CudaDevice(0.1)


def test_both_libraries_work_on_one_stream_that_is_the_engines_own(cuda: CudaDevice) -> None:
    import cupy
    import torch

    default = torch.cuda.current_stream().cuda_stream
    with cuda.working():
        own = torch.cuda.current_stream().cuda_stream
        assert own == cupy.cuda.get_current_stream().ptr != default
        with cuda.working():
            assert torch.cuda.current_stream().cuda_stream == cupy.cuda.get_current_stream().ptr == own
        assert cupy.cuda.get_current_stream().ptr == own
    assert torch.cuda.current_stream().cuda_stream == default


def test_what_goes_there_comes_back(cuda: CudaDevice) -> None:
    """Of every size: nothing, many that share the staging memory and go round it, and more than it has."""
    random = np.random.default_rng(0)
    shapes = [(0,), (3, 0), (1,), (7, 13), *[(1 << 20,)] * 9, (5 << 20,), (3, 2)]
    given = [random.integers(0, 255, shape).astype(dtype) for shape in shapes for dtype in ("uint8", "float32")]
    with cuda.working():
        uploaded = [cuda.upload(values) for values in given]
        for values, array in zip(given, uploaded, strict=True):
            found = cuda.download(array)
            assert (found.dtype, found.shape) == (values.dtype, values.shape)
            np.testing.assert_array_equal(found, values)
        np.testing.assert_array_equal(cuda.download(cuda.upload(given[6])[::2, 1:]), given[6][::2, 1:])


def test_kernels_read_pinned_memory_where_it_lies(cuda: CudaDevice) -> None:
    import torch

    from thread_kernels.scan_exact import Packed, pack

    random = np.random.default_rng(0)
    vectors = random.standard_normal((3_000, 256), dtype=np.float32)
    queries, rows = vectors[:5], random.integers(-1, 3_000, (5, 100))
    with cuda.working():
        table = pack(cuda.tensor(cuda.upload(vectors)), torch.float16)
        memory = cuda.pinned((3_000, 256), np.float16)
        pinned = torch.from_numpy(memory)
        pinned.copy_(table.values)
        asked = cuda.tensor(cuda.upload(queries)), cuda.tensor(cuda.upload(rows))
        there = cuda.block_distances(asked[0], table, asked[1], 16)
        here = cuda.block_distances(asked[0], Packed(pinned, table.scales, table.squares), asked[1], 16)
        assert torch.equal(there, here)
