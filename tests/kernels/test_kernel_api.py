"""The public names, the choice of an engine, and the block count."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

import thread_kernels
from thread_kernels import EngineUnavailable, block_count, create_engine, dispatch


def test_the_public_names_are_these() -> None:
    assert thread_kernels.__all__ == [
        "MAX_SQUARED_NORM",
        "Compress",
        "DamagedCodes",
        "Device",
        "Engine",
        "EngineUnavailable",
        "Filter",
        "Hits",
        "Place",
        "Rescored",
        "RowSet",
        "SavedCodes",
        "StoredVectors",
        "Table",
        "TableStats",
        "block_count",
        "create_engine",
    ]
    assert all(hasattr(thread_kernels, name) for name in thread_kernels.__all__)


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_a_machine_with_faiss_gets_the_cpu_engine(device: dispatch.Device) -> None:
    assert create_engine(device).name == "cpu"


def test_an_explicit_wish_for_cuda_is_not_quietly_answered_with_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "find_spec", lambda name: None if name in ("cupy", "triton") else object())
    with pytest.raises(EngineUnavailable, match=r"needs CuPy, Triton; type: pip install 'thread-node\[cuda13\]'"):
        create_engine("cuda")

    monkeypatch.setattr(dispatch, "find_spec", lambda name: object())
    for is_available in (lambda: False, _insufficient_driver):
        monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(is_available=is_available))
        with pytest.raises(
            EngineUnavailable, match=r"CuPy finds no CUDA device; nvidia-smi .* install NVIDIA's driver"
        ):
            create_engine("cuda")
        assert create_engine("auto").name == "cpu"


@pytest.mark.parametrize(
    ("error", "logged"),
    [
        (EngineUnavailable("no card"), ("INFO", "the CPU searches: no card")),
        (RuntimeError("exclusive mode"), ("WARNING", "the CPU searches: the CUDA engine does not start")),
    ],
)
def test_auto_says_why_the_cpu_searches_where_cuda_is_installed(
    error: Exception, logged: tuple[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*_: object) -> None:
        raise error

    monkeypatch.setattr(dispatch, "find_spec", lambda name: object())
    monkeypatch.setattr(dispatch, "_cuda", failing)
    with caplog.at_level("INFO"):
        assert create_engine("auto").name == "cpu"
    assert [(record.levelname, record.message) for record in caplog.records] == [logged]
    with pytest.raises(type(error), match=str(error)):
        create_engine("cuda")


def test_auto_says_nothing_of_cuda_where_it_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dispatch, "find_spec", lambda name: None if name == "cupy" else object())
    with caplog.at_level("INFO"):
        assert create_engine("auto").name == "cpu"
    assert caplog.records == []


def test_bits_that_only_a_gpu_would_use_are_not_quietly_left_out(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        create_engine("cpu", pq_bits=8)
        assert caplog.records == [], "the default"
        create_engine("cpu", pq_bits=12)
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert record.message == "of 12 bits a code the CPU engine uses 4; more take a GPU, with --device cuda"


def _insufficient_driver() -> bool:
    """What CuPy 13 does without a driver."""
    raise RuntimeError("cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version")


@pytest.mark.parametrize("share", [0, 1.1, float("nan")])
def test_a_share_of_the_gpu_is_over_0_up_to_1(share: float) -> None:
    with pytest.raises(ValueError, match="gpu_share is over 0 up to 1"):
        create_engine(gpu_share=share)


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_without_faiss_the_error_names_the_command(device: dispatch.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "find_spec", lambda name: None)
    with pytest.raises(EngineUnavailable, match=r"pip install 'thread-node\[cpu\]'"):
        create_engine(device)


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(ValueError, match="auto, cpu, cuda, not 'tpu'"):
        create_engine("tpu")  # type: ignore[arg-type]


def test_importing_the_package_loads_no_engine() -> None:
    """Commands that never search should not wait for FAISS, nor fail without it."""
    code = "import sys, thread_kernels, thread_kernels.reference; sys.exit('faiss' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("width", "blocks"), [(1, 1), (17, 1), (15, 15), (16, 16), (24, 12), (34, 2), (384, 16), (1000, 10), (1024, 16)]
)
def test_block_count_is_the_greatest_divisor_up_to_16(width: int, blocks: int) -> None:
    assert block_count(width) == blocks


def test_block_count_refuses_a_width_without_components() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        block_count(0)
