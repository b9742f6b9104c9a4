from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The disk that fails on request belongs to the tests of the store.
sys.path.append(str(Path(__file__).parents[1] / "store"))

from in_process import InProcess, WordsEmbedder, opened


@pytest.fixture
def embedder() -> WordsEmbedder:
    return WordsEmbedder()


@pytest.fixture
def node(tmp_path: Path, embedder: WordsEmbedder) -> Iterator[InProcess]:
    with opened(tmp_path / "data", embedder) as node:
        yield node
