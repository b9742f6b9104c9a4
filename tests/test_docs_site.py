"""The site of the documentation: what is made of the code is current, no page is missing, nothing in it is wrong."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
CONFIG = DOCS / "mkdocs" / "mkdocs.yml"


@pytest.mark.parametrize("name", ["http", "grpc"])
def test_a_page_made_of_the_code_is_what_the_code_says(name: str) -> None:
    made = runpy.run_path(str(DOCS / "mkdocs" / "reference.py"))[f"{name}_page"]()
    assert (DOCS / f"{name}.md").read_text(encoding="utf-8") == made, "run python docs/mkdocs/reference.py"


def test_every_route_call_and_type_is_in_the_reference() -> None:
    http = (DOCS / "http.md").read_text(encoding="utf-8")
    for heading in ("### GET or POST /health", "### POST /v1/search", "### PUT /v1/graph/policy", "### Problem"):
        assert f"\n{heading}\n" in http
    assert "| `query` | string | at most 100,000 characters |" in http
    grpc = (DOCS / "grpc.md").read_text(encoding="utf-8")
    proto = (DOCS.parent / "protos" / "thread" / "v1" / "thread.proto").read_text(encoding="utf-8")
    rpcs = [line.split("(")[0].split()[1] for line in proto.splitlines() if line.startswith("  rpc ")]
    numbers = [line for line in proto.splitlines() if line.startswith("  ") and " = " in line]
    assert all(f"| `{rpc}` | " in grpc for rpc in rpcs)
    assert sum(line.count(" | ") == 3 and line.startswith("| `") for line in grpc.splitlines()) == len(numbers) + len(
        rpcs
    )


def test_every_page_is_in_the_navigation() -> None:
    config = CONFIG.read_text(encoding="utf-8")
    assert [page.name for page in sorted(DOCS.glob("*.md")) if f"{page.name}\n" not in config] == []


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    if not (find_spec("mkdocs") and find_spec("material")):
        pytest.skip("the extra `docs` is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", CONFIG, "--site-dir", tmp_path]
    done = subprocess.run(
        [str(part) for part in command],
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for page in ("index.html", "assistant/index.html", "http/index.html", "benchmarks/index.html"):
        assert (tmp_path / page).exists(), page
    assert not (tmp_path / "mkdocs").exists()
    assert [page for page in tmp_path.rglob("*.html") if "```" in page.read_text(encoding="utf-8")] == []
    assert 'class="mermaid"' in (tmp_path / "concepts" / "index.html").read_text(encoding="utf-8")
