"""An embedding model that runs in this process: where it comes from, how far loading is, and its `Encoder`."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from thread_service.errors import NotReady
from thread_service.models.device import Device, device_for, formats_for
from thread_service.models.embedder import ModelUnavailable, Role, Stamp, Status, name_for_callers
from thread_service.models.encoder import Encoder, Forward
from thread_service.models.folder import ModelFolder, find_weights, read_folder
from thread_service.models.hub import HubModel
from thread_service.models.onnx_model import OnnxModel
from thread_service.models.sources import Directory, Packages, Source
from thread_service.models.weights import Format

_HUB_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/([A-Za-z0-9][\w.-]*))(?:@([\w./-]+))?", re.ASCII)


def local_embedder(
    spec: str,
    *,
    models_dir: Path,
    threads: int | None = None,
    wish: Literal["auto", "cpu", "cuda"] = "cpu",
    width: int | None = None,
    stored: Stamp | None = None,
) -> LocalEmbedder:
    """The model that `spec` names, as in `source_of`; nothing is loaded before `load`.

    `threads`: on a CPU; by default every core this process may use. `wish`: the device. `width`: components that
    are kept of a vector. `stored`: what the index was written with; where that is this model, its width and revision
    are kept to.
    """
    device = device_for(wish)
    source = source_of(spec, models_dir, formats_for(device))
    threads = threads or len(os.sched_getaffinity(0))
    same = stored if stored is not None and stored.model == source.model else None
    if same is not None and isinstance(source, HubModel):
        source = dataclasses.replace(source, written_by=same.revision)
    stored_width = None if same is None else same.width
    return LocalEmbedder(spec, source, threads=threads, device=device, width=width, stored_width=stored_width)


def source_of(spec: str, models_dir: Path, formats: Sequence[Format]) -> Source:
    """Where the files of the model that `spec` names are. Downloads are kept in `models_dir`.

        /models/minilm, ./minilm       a directory
        org/repo, org/repo@revision    the Hugging Face Hub (an existing directory of that name wins)
        package:one+two                the files of installed packages

    Raises ModelUnavailable for any other `spec`.
    """
    path = Path(spec).expanduser()
    hub_name = _HUB_NAME.fullmatch(spec)
    if spec.startswith("package:"):
        return Packages(spec)
    if spec and (path.is_absolute() or spec.startswith(".") or path.is_dir()):
        return Directory(path.resolve())
    if hub_name is not None:
        repository, name, revision = hub_name.groups()
        return HubModel(repository, name, revision, models_dir, formats)
    raise ModelUnavailable(f"{spec!r} is neither a directory nor a model name such as org/repo or org/repo@revision")


@dataclass(frozen=True, slots=True)
class _Loaded:
    folder: ModelFolder
    encoder: Encoder


class LocalEmbedder:
    """See `thread_service.models.embedder.Embedder`; made by `local_embedder`."""

    def __init__(
        self, model: str, source: Source, *, threads: int, device: Device, width: int | None, stored_width: int | None
    ) -> None:
        self._model = model
        self._source = source
        self._threads = threads
        self._device = device
        self._width = width
        self._stored_width = stored_width
        self._status = Status()
        self._stamp: Stamp | None = None
        self._loaded: _Loaded | None = None
        self._closed = threading.Event()

    @property
    def model(self) -> str:
        return self._model

    @property
    def source(self) -> Source:
        return self._source

    @property
    def stamp(self) -> Stamp | None:
        return self._stamp

    @property
    def status(self) -> Status:
        return self._status

    @property
    def device(self) -> Device:
        """Where it runs, as far as can be told before it is loaded: ONNX runs on the CPU."""
        try:
            found = self._source.here()
            if found is not None and find_weights(found.roots, formats_for(self._device))[0] == "onnx":
                return "cpu"
        except ModelUnavailable:
            pass
        return self._device

    def width_by_files(self) -> int | None:
        """Of its vectors, without loading it; None where the files do not say, or are not here yet.

        Raises ModelUnavailable.
        """
        found = self._source.here()
        if found is None:
            return None
        folder = read_folder(found.roots, formats_for(self._device))
        whole = folder.whole_width
        return None if whole is None else folder.width(whole, self._width, self._stored_width)

    def load(self) -> None:
        try:
            self._load()
        except ModelUnavailable as error:
            self._fail(str(error))
            raise
        except Exception as error:
            self._fail(reason := f"{self._model} could not be loaded: {error}")
            raise ModelUnavailable(reason) from error

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
        folder = read_folder(located.roots, formats_for(self._device))
        encoder = Encoder(folder, lambda: self._open(folder), asked=self._width, stored=self._stored_width)
        revision = located.revision or _hash_of([*folder.files, *(dense.weights for dense in folder.dense)])
        self._stamp = Stamp(f"{self._source.name}@{encoder.width}", self._source.model, revision, encoder.width)
        self._loaded = _Loaded(folder, encoder)
        self._status = Status("ready")

    def _fail(self, reason: str) -> None:
        told = reason.replace(self._model, name_for_callers(self._model))
        for folder in self._source.folders:
            told = told.replace(str(folder), folder.name)
        self._status = Status("failed", error=reason, told=told)

    def _open(self, folder: ModelFolder) -> Forward:
        if folder.format == "onnx":
            return OnnxModel(folder, threads=self._threads)
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch's threads read it once; they would spin in waiting
        # Only now: importing torch and transformers takes seconds, which a model in ONNX form need not wait for.
        from thread_service.models.torch_model import TorchModel

        return TorchModel(folder, self._device, threads=self._threads)

    def _require(self) -> _Loaded:
        loaded = self._loaded
        if loaded is None:
            raise NotReady(str(self._status))
        return loaded

    def _note_download(self, fraction: float) -> None:
        self._status = Status("downloading", fraction=fraction)


def _hash_of(files: Sequence[Path]) -> str:
    total = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                total.update(block)
    return "sha256:" + total.hexdigest()[:16]
