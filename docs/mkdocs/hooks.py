"""What the site needs beside the pages: the benchmarks' page, and words for links to what the site does not hold.

The pages are written to be read in the repository too, where such links work.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_ROOT = Path(__file__).parents[2]
_BENCHMARKS = "benchmarks.md"
_LINK = re.compile(r"(?<!!)\[(?P<words>[^\]]*)\]\((?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")

_MARKED_FENCE = re.compile(r"^(```\w+) [^`\n]+$", re.MULTILINE)
"""What tests need to know of a block of commands stands behind its language, where Markdown on GitHub lets it stand."""


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    text = (_ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    files.append(File.generated(config, _BENCHMARKS, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    folder = _ROOT / "benchmarks" if page.file.src_uri == _BENCHMARKS else _ROOT / "docs"

    def moved(link: re.Match[str]) -> str:
        target = link["target"]
        if re.match(r"[a-z]+:", target):
            return link[0]
        path = (folder / target).resolve()
        if path == _ROOT / "benchmarks" / "README.md":
            return f"[{link['words']}]({_BENCHMARKS}{link['anchor'] or ''})"
        if path.is_relative_to(_ROOT / "docs") and path.suffix in (".md", ".png"):
            return f"[{link['words']}]({path.relative_to(_ROOT / 'docs')}{link['anchor'] or ''})"
        if path.exists():
            return f"{link['words']} (`{path.relative_to(_ROOT)}`)"
        return link[0]

    return _LINK.sub(moved, _MARKED_FENCE.sub(r"\1", markdown))
