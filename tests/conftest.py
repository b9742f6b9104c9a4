"""What holds for all tests: kernels are interpreted, and a test leaves the log as it was."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Triton reads it when it is imported, which may be long before the first kernel; on a GPU kernels are compiled."""
    if config.option.markexpr != "gpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True)
def log_as_it_was() -> Iterator[None]:
    """The command line sets up the log of its process, which is the one that the tests run in."""
    root = logging.getLogger()
    level, handlers = root.level, [*root.handlers]
    yield
    root.setLevel(level)
    for handler in [*root.handlers]:
        if handler not in handlers:
            root.removeHandler(handler)
