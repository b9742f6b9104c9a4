from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

# As the node sets it before torch is loaded: threads that wait would spin.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
from tiny_model import write_model


@pytest.fixture
def model_folder(tmp_path: Path) -> Callable[..., Path]:
    """Writes a tiny model into a folder of the test's own; see `write_model`."""

    def write(name: str = "tiny", **settings: Any) -> Path:
        return write_model(tmp_path / name, **settings)

    return write
