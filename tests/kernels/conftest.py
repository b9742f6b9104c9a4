"""`engine`: every engine under test, one after the other. `device`: where Triton's kernels run, with `torch` ready."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import host_scan
import pytest
from engines import BY_CODE, EXACT, TestedEngine

from thread_kernels import EngineUnavailable, create_engine


def _marked(name: str) -> object:
    return pytest.param(name, marks=pytest.mark.gpu) if name in ("cuda", "cuda by code") else name


@pytest.fixture(params=[_marked(name) for name in (*EXACT, *BY_CODE)])
def engine(request: pytest.FixtureRequest) -> Iterator[TestedEngine]:
    if request.param.endswith("on the host"):
        request.getfixturevalue("host_kernels")
    elif request.param.startswith("cuda"):
        request.getfixturevalue("card")
    tested = TestedEngine(request.param)
    yield tested
    tested.close()


@pytest.fixture(scope="session")
def interpreter() -> Iterator[None]:
    """Triton reads this when it is imported, and each kernel when its module is."""
    with pytest.MonkeyPatch.context() as patch:
        if "triton" not in sys.modules:
            patch.setenv("TRITON_INTERPRET", "1")
        yield


@pytest.fixture(scope="session")
def host_kernels(interpreter: None) -> None:
    """What the CUDA engine needs to run without a GPU."""
    for package in ("torch", "triton"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    if host_scan.COMPILER is None:
        pytest.skip("no g++ to compile the kernel for the CPU")


@pytest.fixture(scope="session")
def card() -> None:
    """A GPU that the CUDA engine runs on."""
    try:
        create_engine("cuda")
    except EngineUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """ "cpu" is Triton's interpreter. A process interprets all kernels or compiles all of them."""
    name: str = request.param
    if name == "cpu":
        request.getfixturevalue("interpreter")
    torch = pytest.importorskip("torch", reason="torch is not installed")
    triton = pytest.importorskip("triton", reason="Triton is not installed")
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    from thread_kernels.lookup import lookup_kernel

    if isinstance(lookup_kernel, triton.JITFunction) == (name == "cpu"):
        pytest.skip("a process either interprets Triton's kernels or compiles them; run `pytest -m gpu` by itself")
    return name


@pytest.fixture
def torch(device: str) -> ModuleType:
    import torch

    return torch
