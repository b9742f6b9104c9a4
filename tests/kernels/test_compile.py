"""Compiling every kernel ahead of time: what is printed, and what makes it fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from thread_kernels import compile as ahead_of_time
from thread_kernels.compile import KERNELS, Resources, compile_cuda, main

SPILLING = """
extern "C" __global__ void __launch_bounds__(1024, 2) greedy(float* out) {
    float kept[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) kept[i] = out[i * 1024 + threadIdx.x];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 64; ++i) out[i * 1024 + threadIdx.x] = kept[63 - i] * kept[i];
}
"""
FITTING = 'extern "C" __global__ void modest(float* out) { out[threadIdx.x] *= 2; }'
BROKEN = 'extern "C" __global__ void broken() { undeclared(); }'


@pytest.fixture(autouse=True)
def _interpreter_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """`main` turns Triton's interpreter off for its process, which is that of the other tests here."""
    monkeypatch.setenv("TRITON_INTERPRET", os.environ.get("TRITON_INTERPRET", ""))


def kernel(monkeypatch: pytest.MonkeyPatch, folder: Path, source: str, shared: int = 0) -> None:
    """Make `source` the only kernel that there is to compile."""
    pytest.importorskip("cuda.core", reason="cuda-core is not installed")
    path = folder / "kernel.cu"
    path.write_text(source)
    monkeypatch.setattr(ahead_of_time, "KERNELS", {"probe": lambda arch: compile_cuda(path, {}, shared, arch)})


def test_every_kernel_fits_every_architecture() -> None:
    for module in ("cuda.core", "torch"):
        pytest.importorskip(module, reason=f"{module} is not installed")
    command = [sys.executable, "-m", "thread_kernels.compile", "--arch", "80", "86", "89", "90"]
    # Whoever runs the tests of Triton's kernels may have asked for its interpreter.
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[:2] for line in lines] == [[name, f"sm_{arch}"] for name in KERNELS for arch in (80, 86, 89, 90)]
    for _, _, registers, count, spills, spilled, shared, size in lines:
        assert (registers, spills, shared) == ("registers", "spills", "shared")
        assert 0 < int(count) <= 255
        assert int(spilled) == 0
        assert int(size) <= 99 * 1024


def test_a_kernel_that_fits_passes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel(monkeypatch, tmp_path, FITTING, shared=99 * 1024)
    assert main(["--arch", "86", "90"]) == 0
    printed = capsys.readouterr()
    assert [line.split()[:2] for line in printed.out.splitlines()] == [["probe", "sm_86"], ["probe", "sm_90"]]
    assert printed.out.count("spills 0 shared 101376") == 2
    assert not printed.err


def test_spills_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernel(monkeypatch, tmp_path, SPILLING)
    assert main(["--arch", "80"]) == 1
    printed = capsys.readouterr()
    assert "probe sm_80 registers 32 spills " in printed.out
    assert "bytes of registers are spilled to memory" in printed.err


def test_more_shared_memory_than_a_block_may_have_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel(monkeypatch, tmp_path, FITTING, shared=100 * 1024)
    assert main(["--arch", "80", "86", "90"]) == 1
    assert capsys.readouterr().err == "probe sm_86: 102400 bytes of shared memory; a block may have 101376\n"


def test_an_error_of_the_compiler_fails_and_is_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel(monkeypatch, tmp_path, BROKEN)
    assert main(["--arch", "80"]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith("probe sm_80: does not compile\n")
    assert "undeclared" in printed.err
    assert not printed.out


@pytest.mark.parametrize("arguments", [["--arch", "70"], ["--arch"], ["--arch", "sm_80"]])
def test_an_architecture_that_is_not_known_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert "--arch" in capsys.readouterr().err


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    monkeypatch.setattr(ahead_of_time, "KERNELS", {"scan_lut": KERNELS["scan_lut"]})
    with pytest.raises(SystemExit) as left:
        main(["--arch", "80"])
    assert left.value.code == 2
    assert "pip install 'thread-node[dev]'" in capsys.readouterr().err


def test_what_only_a_gpu_or_a_compiler_needs_is_loaded_when_it_is_used() -> None:
    code = (
        "import sys, thread_kernels, thread_kernels.compile, thread_kernels.scan_lut;"
        "sys.exit(bool({'torch', 'triton', 'cupy', 'cuda'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_the_report_of_the_assembler_is_read() -> None:
    log = """
ptxas info    : Function properties for k
ptxas         .     8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 8 bytes cumulative stack size
"""
    assert Resources.read(log, shared=5) == Resources(registers=64, spills=16, shared=5)
