"""A model on the Hugging Face Hub: the few files an embedder needs, downloaded once and then used offline.

A model that is there already is used as it is and the Hub is not asked: a filled index keeps the model it was written
by. The weights come last, so weights in the cache mean that all the settings are there too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub.utils.tqdm import tqdm

from thread_service.models.embedder import ModelUnavailable
from thread_service.models.folder import SETTINGS_FILES, find_weights
from thread_service.models.sources import Located
from thread_service.models.weights import INDEX, Format, Weights, choose_weights, shards


@dataclass(frozen=True, slots=True)
class HubModel:
    """`formats`: forms of weights that may be fetched, best first. `written_by`: the commit that wrote the index; it is
    fetched where `revision` does not say which."""

    model: str
    name: str
    revision: str | None
    cache_dir: Path
    formats: Sequence[Format] = ("onnx",)
    written_by: str | None = None

    @property
    def folders(self) -> tuple[Path, ...]:
        return (self.cache_dir,)

    def here(self) -> Located | None:
        """The revision that is wanted, else what there is: another than the index's is said, and better than none."""
        return self._cached(self.revision or self.written_by) or self._cached(self.revision)

    def _cached(self, revision: str | None) -> Located | None:
        found = huggingface_hub.try_to_load_from_cache(
            self.model, "tokenizer.json", cache_dir=self.cache_dir, revision=revision
        )
        if not isinstance(found, str):
            return None
        snapshot = Path(found).parent
        try:
            shards(find_weights((snapshot,), self.formats)[1])
        except ModelUnavailable:
            return None
        return Located((snapshot,), revision=snapshot.name)

    def locate(self, on_progress: Callable[[float], None], stopped: Callable[[], bool]) -> Located:
        return self.here() or self._download(on_progress, stopped)

    def _download(self, on_progress: Callable[[float], None], stopped: Callable[[], bool]) -> Located:
        on_progress(0.0)
        revision = self.revision or self.written_by
        try:
            listing = huggingface_hub.HfApi().model_info(self.model, revision=revision, files_metadata=True)
            sizes = {file.rfilename: file.size or 0 for file in listing.siblings or ()}
            weights = choose_weights(sizes, f"{self.model} on the Hub", self.formats)
            settings = [name for name in sizes if any(fnmatch(name, pattern) for pattern in SETTINGS_FILES)]
            parts = [part for part in (settings, *_files(weights, sizes)) if part]
            total = sum(sizes[name] for part in parts for name in part)
            before = 0
            for part in parts:
                snapshot = huggingface_hub.snapshot_download(
                    self.model,
                    revision=revision,
                    cache_dir=self.cache_dir,
                    allow_patterns=part,
                    tqdm_class=_progress_bar(before, total, on_progress, stopped),
                )
                before += sum(sizes[name] for name in part)
        except ModelUnavailable:
            raise
        except Exception as error:
            reason = str(error).strip().split("\n", 1)[0] or type(error).__name__
            raise ModelUnavailable(
                f"{self.model} could not be downloaded from the Hugging Face Hub ({reason}): "
                "check the name and the network, or name a directory that holds the model"
            ) from error
        return Located((Path(snapshot),), revision=Path(snapshot).name)


def _files(weights: Weights, names: Iterable[str]) -> tuple[list[str], list[str]]:
    """What of `names` the weights are made of: what comes first, and what shows by being there that all is."""
    if weights.format == "onnx":
        # Weights over 2 GB lie in further files beside the graph: model.onnx_data, model.onnx.data.
        return [name for name in names if name.startswith(weights.name) and name != weights.name], [weights.name]
    dense = [name for name in names if fnmatch(name, "*_Dense/model.safetensors")]
    several = weights.name == INDEX
    return dense, [name for name in names if fnmatch(name, "model-*-of-*.safetensors")] if several else [weights.name]


def _progress_bar(
    before: int, total: int, on_progress: Callable[[float], None], stopped: Callable[[], bool]
) -> type[tqdm]:
    """A silent bar for `snapshot_download`: reports the fraction of `total` bytes, of which `before` are there
    already, and ends a download that was stopped.
    """

    class ProgressBar(tqdm):
        def __init__(self, *args: Any, unit: str = "it", **kwargs: Any) -> None:
            super().__init__(*args, **(kwargs | {"disable": True}))  # type: ignore[no-untyped-call]
            self._counts_bytes = unit == "B"
            self._bytes = float(before)

        def update(self, n: float | None = 1) -> None:
            if stopped():
                raise ModelUnavailable("the download was stopped")
            if self._counts_bytes:
                self._bytes += n or 0
                on_progress(min(1.0, self._bytes / max(1, total)))

    return ProgressBar
