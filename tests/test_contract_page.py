"""`docs/contract.md` names what there is: every route, call, setting and command, and only tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from thread_service import cli
from thread_service.launch_lines import ALIASES
from thread_service.settings import VARIABLES, Settings, declarations
from thread_service.wire.http import create_app
from thread_service.wire.v1 import thread_pb2

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "contract.md").read_text(encoding="utf-8")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows() -> list[list[str]]:
    """The cells of every row of every table whose last column holds tests."""
    found: list[list[str]] = []
    inside = False
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")] if line.startswith("|") else []
        if cells and cells[-1].strip(" |") == "test":
            inside = True
        elif not cells:
            inside = False
        elif inside and not line.startswith("|---"):
            found.append(cells)
    return found


def first_cells() -> set[str]:
    """What rows are about, as far as it stands in back-ticks."""
    return {name for cells in rows() for cell in cells[:2] for name in re.findall(r"`([^`]+)`", cell)}


def test_every_test_that_is_named_exists() -> None:
    named: dict[str, set[str]] = {}
    for path, name in TEST.findall(PAGE):
        named.setdefault(path, set()).add(name)
    assert sum(map(len, named.values())) > 100
    for path, names in named.items():
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        present = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert names <= present, f"{path}: {sorted(names - present)}"
    assert PAGE.count("tests/") == len(TEST.findall(PAGE)) + 1, "something looks like a test and is none"


def test_every_rule_has_a_test() -> None:
    without = [cells[0] for cells in rows() if not TEST.search(cells[-1])]
    assert without == []
    assert len(rows()) > 150


def test_every_route_is_there() -> None:
    node: Any = None
    availability: Any = object()
    app = create_app(node, Settings(), availability=availability)
    routes = {
        f"{method} {route.path}"
        for route in app.routes
        for method in getattr(route, "methods", ())
        if method not in ("HEAD", "OPTIONS") and not route.path.startswith("/schema/")
    }
    assert routes - first_cells() == set()
    assert {name for name in first_cells() if name.startswith(("GET /", "POST /", "PUT /"))} == routes


def test_every_call_is_there() -> None:
    calls = {
        f"{service.name}/{method.name}"
        for service in thread_pb2.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert {name for name in first_cells() if re.fullmatch(r"Thread\w+/\w+", name)} == calls


def test_every_setting_and_command_is_there() -> None:
    settings = {name for setting in declarations().values() for name in (setting.flag, setting.variable)}
    wanted = settings | {*VARIABLES} | {alias.flag for alias in ALIASES} | {f"thread {name}" for name in cli.COMMANDS}
    assert wanted - first_cells() == set()
    flags = {name for name in first_cells() if name.startswith("--")}
    assert flags <= wanted, "a flag that is none"
