"""The site of the documentation: what is made of the code and of measurements is current, no page is missing, nothing
in it is wrong, and it needs no network."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from thread_client import answers

DOCS = Path(__file__).parents[1] / "docs"
CONFIG = DOCS / "mkdocs" / "mkdocs.yml"
LOADED = re.compile(r"""(?:src|href|poster)=["']?(https?:[^"' >]+)|url\(["']?(https?:[^"')]+)|@import""")
"""What a page or a picture would fetch from elsewhere, links that somebody clicks on among it."""


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of docs/mkdocs/measured.py."""
    pytest.importorskip("matplotlib", reason="the extra `dev` is not installed")
    monkeypatch.syspath_prepend(str(DOCS / "mkdocs"))
    return runpy.run_path(str(DOCS / "mkdocs" / "measured.py"))


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


def test_the_python_page_lists_every_field_of_what_comes_back() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", (DOCS / "python.md").read_text(encoding="utf-8"), re.MULTILINE)
    types = {name: fields for name, fields in rows if isinstance(getattr(answers, name, None), type)}
    wire_only = {"TraceAnswer", "SearchAnswer"}  # what a search is read from
    structs = {
        name for name, kind in vars(answers).items() if isinstance(kind, type) and kind.__module__ == answers.__name__
    }
    assert types.keys() == structs - wire_only
    for name, shown in types.items():
        for field in getattr(answers, name).__struct_fields__:
            assert f"`{field}`" in shown, (name, field)


def test_every_page_is_in_the_navigation() -> None:
    config = CONFIG.read_text(encoding="utf-8")
    assert [page.name for page in sorted(DOCS.glob("*.md")) if f"{page.name}\n" not in config] == []


def test_the_page_of_benchmarks_shows_the_results_that_are_there(measured: dict[str, Any]) -> None:
    text = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    made, pictures = measured["page"](text)
    shown = {path.name: path.read_text(encoding="utf-8") for path in (DOCS / "images" / "benchmarks").iterdir()}
    assert (made, pictures) == (text, shown), "run python docs/mkdocs/measured.py"
    assert re.findall(r"<!-- measured: ([\w-]+) -->", text) == list(measured["BLOCKS"])
    assert all(f"(images/benchmarks/{name})" in text for name in pictures)


def test_results_that_are_missing_are_said_to_be_and_those_that_come_are_shown(
    measured: dict[str, Any], tmp_path: Path
) -> None:
    text = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    without, pictures = measured["page"](text, tmp_path)
    assert pictures == {}
    assert without.count("No results yet") == len(measured["BLOCKS"]) - 1
    assert without.count("Nothing: all results are above.") == 1
    machine = {"cpu": "A processor", "cores": 3, "python": "3.11.7", "versions": {"numpy": "2.0.0"}}
    about = {"date": "2026-01-02", "machine": machine}
    window = {"seconds": 6.0, "offered_per_second": 40.0, "answered_per_second": 39.5, "p50_ms": 12.5, "p99_ms": 80.25}
    window |= {"statuses": {"200": 240}, "refused_p99_ms": 0.0, "resident_mb": 321.5, "descriptors": 77}
    found = {"fast": {"setting": "", "recall": 0.97, "queries_per_second": 123.4}, "blind": None}
    came = {
        "soak": {"size": {"minutes": 5.0}, "capacity_per_second": 41.5, "steps": [window], "soak": [window, window]}
        | {"above": window | {"refused_p99_ms": 7.5}, "wrong": []},
        "peers-clustered-500": {"vectors": "clustered", "rows": 500, "width": 64}
        | {"peers": {name: {"version": "1.2", "keeps": "vectors", "rows": 500, "filed_rows_per_second": 4_321}
           | {"disk_over_payload": 1.25, "first_answer_seconds": 0.5, "private_memory_mb": 12}
           | {"filters": {"every row": cell}} for name, cell in found.items()}},
        "ingest": {"data": "musique"}
        | {"rate": {"documents_a_round": 8, "each": [{"alone": 1.0, "node": 1.25}], "share": 0.8}
           | {"node_texts_a_second": 80.0, "model_texts_a_second": 100.0, "share_of_processor_time": 0.75}}
        | {"memory": {"growth_mb": 1.5, "growth_bytes_a_row": 15.5}
           | {"steps": [{"documents": 1_000, "megabytes": 200.5}, {"documents": 2_000, "megabytes": 202.0}]}},
    }  # fmt: skip
    came["names"] = {"ratios": {"evidence / search, hubs": 0.125}}
    for name, results in came.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(about | results))
    made, pictures = measured["page"](text, tmp_path)
    assert pictures.keys() == {f"{name}.svg" for name in came if name != "names"}
    assert made.count("No results yet") == len(measured["BLOCKS"]) - len(came)
    assert made.count("A processor, 3 cores, Python 3.11.7, numpy 2.0.0; 2026-01-02.") == len(came)
    assert "| resident memory, MB | 321.5 → 321.5 |" in made
    assert "| blind 1.2 | vectors | 500 | 4,321 | 1.25 | 0.5 | 12 | cannot be asked |" in made
    assert "| evidence / search, hubs | 0.125 |" in made
    assert "| share kept | 80.0 % |" in made


def test_a_plot_has_colours_for_light_and_for_dark_pages(measured: dict[str, Any]) -> None:
    palette = measured["svg"].PALETTE
    assert len({light for light, _ in palette.values()}) == len(palette)
    for at in (0, 1):
        paper = luminance(palette["paper"][at])
        for name in palette.keys() - {"paper", "grid"}:
            lighter, darker = sorted((paper, luminance(palette[name][at])), reverse=True)
            assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (name, at)
    _, pictures = measured["page"]((DOCS / "benchmarks.md").read_text(encoding="utf-8"))
    for name, picture in pictures.items():
        style, _, drawn = picture.partition("</style>")
        assert "prefers-color-scheme: dark" in style
        assert "var(--ink)" in drawn, name
        assert set(re.findall(r"#[0-9a-fA-F]{6}\b", drawn)) == set(), f"{name}: a colour that does not follow the page"


def luminance(colour: str) -> float:
    """Relative luminance, as WCAG 2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_every_diagram_has_its_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    names = runpy.run_path(str(DOCS / "mkdocs" / "diagrams.py"))
    drawn = names["sources"]()
    assert len(drawn) >= 5
    wanted = {names["picture"](source, scheme) for source in drawn for scheme in names["SCHEMES"]}
    assert set(names["PICTURES"].iterdir()) == wanted, "run python docs/mkdocs/diagrams.py"
    assert all(names["title"](source) for source in drawn)


def test_no_picture_needs_the_network() -> None:
    pictures = sorted((DOCS / "images").rglob("*.svg"))
    assert len(pictures) > 10
    for picture in pictures:
        assert LOADED.search(picture.read_text(encoding="utf-8")) is None, picture
        assert picture.stat().st_size < 200_000, picture


def test_the_readme_is_one_screen_that_leads_to_every_page_through_the_front() -> None:
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 60
    front = (DOCS / "index.md").read_text(encoding="utf-8")
    assert "(docs/index.md)" in readme
    assert [page.name for page in sorted(DOCS.glob("*.md")) if f"({page.name}" not in front] == ["index.md"]
    assert [link for link in re.findall(r"\]\(([^):]+)\)", readme) if not (DOCS.parent / link).exists()] == []


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
    for page in ("index.html", "assistant.html", "http.html", "benchmarks.html", "measuring.html"):
        assert (tmp_path / page).exists(), page
    assert not (tmp_path / "mkdocs").exists()
    assert [page for page in tmp_path.rglob("*.html") if "```" in page.read_text(encoding="utf-8")] == []
    concepts = (tmp_path / "concepts.html").read_text(encoding="utf-8")
    assert concepts.count("#only-light") == concepts.count("#only-dark") == 3
    for page in tmp_path.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        # Links of the text may lead elsewhere; nothing that the browser fetches by itself does.
        fetched = re.findall(r"<(?:script|img|iframe|link)\b[^>]*>", text)
        assert [tag for tag in fetched if LOADED.search(tag)] == [], page
        assert 'class="mermaid"' not in text, f"{page}: the theme fetches Mermaid from a CDN"
