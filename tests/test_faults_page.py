"""`docs/faults.md` gives every fault a guard and a test, and both exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROWS = [
    [cell.strip() for cell in line.strip("| ").split(" | ")]
    for line in (ROOT / "docs" / "faults.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| fault ")
]
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_every_fault_has_a_test_that_exists() -> None:
    assert len(ROWS) > 15
    for fault, *_, tests in ROWS:
        named = TEST.findall(tests)
        assert named, fault
        for path, name in named:
            tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
            assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{path}::{name}"


def test_every_fault_has_a_guard_in_a_file_that_exists() -> None:
    for fault, _, guard, _ in ROWS:
        files = re.findall(r"`([\w/]+\.py)`", guard)
        assert files, fault
        assert [file for file in files if not (_package(file) / file).exists()] == [], fault


def _package(file: str) -> Path:
    return ROOT / ("kernels" if file.startswith("thread_kernels/") else "service/thread_service")
