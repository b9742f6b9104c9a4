"""What every embedding model offers, wherever it runs: load, then turn texts into unit vectors.

An `Embedder` is used by its owner threads (see `thread_service.batching.embed`): one on a GPU, else several at the same
time; only `model`, `stamp`, `status` and `count_tokens` may be asked from other threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from thread_service.errors import NotReady, ThreadError

Role = Literal["query", "document"]
"""A query and a document that answers it are prompted differently by some models."""

Phase = Literal["idle", "downloading", "loading", "ready", "failed"]


@dataclass(frozen=True, slots=True)
class Stamp:
    """Which model wrote an index.

    `space` (`all-MiniLM-L6-v2@384`: a name, "@", the width) is what a stored index is compared with; `model` names the
    model so that it can be loaded again; `revision` is a commit or the hash of a file, for information.
    """

    space: str
    model: str
    revision: str | None
    width: int


@dataclass(frozen=True, slots=True)
class Status:
    """How far loading has come. `fraction` (0 to 1) is set while downloading, `error` after a failure; `told` is what
    callers learn of that, whom the folders of this machine do not concern.
    """

    phase: Phase = "idle"
    fraction: float | None = None
    error: str | None = None
    told: str | None = None

    def __str__(self) -> str:
        """What a caller reads, such as "embedding model downloading 42%"."""
        if self.phase == "downloading" and self.fraction is not None:
            return f"embedding model downloading {int(self.fraction * 100)}%"
        if self.phase == "failed":
            return f"embedding model failed: {self.told or self.error}"
        return f"embedding model {self.phase}"


class ModelUnavailable(NotReady):
    """The model cannot be loaded: the sentence names the file or the source, and what to do."""


class EmbeddingFailed(ThreadError):
    """A loaded model gave no usable vectors for these texts."""

    slug, title = "embedding-failed", "Embedding failed"

    @property
    def for_callers(self) -> str:
        return "the embedding model gave no usable vector of this text; the node's log says why"


def name_for_callers(model: str) -> str:
    """Of a model that is a folder here the folder's own name; any other name as it is."""
    return PurePath(model).name if model.startswith(("/", ".", "~")) else model


class Embedder(Protocol):
    """An embedding model."""

    @property
    def model(self) -> str:
        """The name the model was asked for by: `org/repo`, `org/repo@revision`, a directory."""

    @property
    def stamp(self) -> Stamp | None:
        """None until the width is known, that is until the model is ready."""

    @property
    def status(self) -> Status: ...

    def load(self) -> None:
        """Load the model, blocking; `status` follows. May be called again after a failure.

        Raises ModelUnavailable.
        """

    def embed(self, texts: Sequence[str], role: Role) -> NDArray[np.float32]:
        """[n, width] vectors of unit length, blocking. Text over the model's limit is never cut off.

        Raises EmbeddingFailed; NotReady before `load` has succeeded.
        """

    def count_tokens(self, texts: Sequence[str]) -> int:
        """Tokens of all the texts together, prompts left out. Raises NotReady, EmbeddingFailed."""

    def close(self) -> None:
        """Give up the model; a download under way stops. Safe to call from any thread, and twice."""
