"""A model loaded from a folder, or the sentence that says why it cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from thread_service.models.embedder import ModelUnavailable
from thread_service.models.local import LocalEmbedder, local_embedder


def loaded(folder: Path | str, *, threads: int = 1, **options: Any) -> LocalEmbedder:
    embedder = local_embedder(str(folder), models_dir=Path("unused"), threads=threads, **options)
    embedder.load()
    return embedder


def load_error(folder: Path | str, **options: Any) -> str:
    embedder = local_embedder(str(folder), models_dir=Path("unused"), threads=1, **options)
    with pytest.raises(ModelUnavailable) as caught:
        embedder.load()
    assert embedder.status.phase == "failed"
    assert embedder.status.error == str(caught.value)
    return str(caught.value)
