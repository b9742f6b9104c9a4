"""An embedding model that runs in this process: where it comes from, how far loading is, and its `Encoder`."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from thread_service.errors import NotReady
from thread_service.models.embedder import ModelUnavailable, Role, Stamp, Status
from thread_service.models.encoder import Encoder
from thread_service.models.folder import ModelFolder, read_folder
from thread_service.models.hub import HubModel
from thread_service.models.sources import Directory, Packages, Source

_HUB_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/([A-Za-z0-9][\w.-]*))(?:@([\w./-]+))?", re.ASCII)


def local_embedder(spec: str, *, models_dir: Path, threads: int | None = None) -> LocalEmbedder:
    """The model that `spec` names; nothing is read before `load`. Downloads are kept in `models_dir`.

        /models/minilm, ./minilm       a directory
        org/repo, org/repo@revision    the Hugging Face Hub (an existing directory of that name wins)
        package:one+two                the files of installed packages

    `threads`: of onnxruntime; by default every core this process may use. Raises ModelUnavailable for any other `spec`.
    """
    path = Path(spec).expanduser()
    hub_name = _HUB_NAME.fullmatch(spec)
    source: Source
    if spec.startswith("package:"):
        source = Packages(spec)
    elif spec and (path.is_absolute() or spec.startswith(".") or path.is_dir()):
        source = Directory(path.resolve())
    elif hub_name is not None:
        repository, name, revision = hub_name.groups()
        source = HubModel(repository, name, revision, models_dir)
    else:
        raise ModelUnavailable(
            f"{spec!r} is neither a directory nor a model name such as org/repo or org/repo@revision"
        )
    return LocalEmbedder(spec, source, threads=threads or len(os.sched_getaffinity(0)))


@dataclass(frozen=True, slots=True)
class _Loaded:
    folder: ModelFolder
    encoder: Encoder


class LocalEmbedder:
    """See `thread_service.models.embedder.Embedder`; made by `local_embedder`."""

    def __init__(self, model: str, source: Source, *, threads: int) -> None:
        self._model = model
        self._source = source
        self._threads = threads
        self._status = Status()
        self._stamp: Stamp | None = None
        self._loaded: _Loaded | None = None
        self._closed = threading.Event()

    @property
    def model(self) -> str:
        return self._model

    @property
    def stamp(self) -> Stamp | None:
        return self._stamp

    @property
    def status(self) -> Status:
        return self._status

    def load(self) -> None:
        try:
            self._load()
        except ModelUnavailable as error:
            self._status = Status("failed", error=str(error))
            raise
        except Exception as error:
            self._status = Status("failed", error=f"{self._model} could not be loaded: {error}")
            raise ModelUnavailable(f"{self._model} could not be loaded: {error}") from error

    def embed(self, texts: Sequence[str], role: Role) -> NDArray[np.float32]:
        loaded = self._require()
        prompt = loaded.folder.prompts[role]
        return loaded.encoder.embed([prompt + text for text in texts])

    def count_tokens(self, texts: Sequence[str]) -> int:
        return self._require().encoder.count_tokens(texts)

    def close(self) -> None:
        self._closed.set()
        self._loaded = None
        self._status = Status()

    def _load(self) -> None:
        located = self._source.locate(self._note_download, self._closed.is_set)
        self._status = Status("loading")
        folder = read_folder(located.roots)
        encoder = Encoder(folder, threads=self._threads)
        revision = located.revision or _file_hash(folder.weights)
        self._stamp = Stamp(f"{self._source.name}@{encoder.width}", self._source.model, revision, encoder.width)
        self._loaded = _Loaded(folder, encoder)
        self._status = Status("ready")

    def _require(self) -> _Loaded:
        loaded = self._loaded
        if loaded is None:
            raise NotReady(str(self._status))
        return loaded

    def _note_download(self, fraction: float) -> None:
        self._status = Status("downloading", fraction=fraction)


def _file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()[:16]
