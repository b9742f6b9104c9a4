"""What the site needs beside the pages: how the benchmarks are run, pictures of the diagrams, and words for links to
what the site does not hold.

The pages are written to be read in the repository too, where such links work and diagrams are drawn.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.append(str(Path(__file__).parent))

import diagrams

_ROOT = Path(__file__).parents[2]
_BENCHMARKS = _ROOT / "benchmarks" / "README.md"
_MEASURING = "measuring.md"
_LINK = re.compile(r"(?<!!)\[(?P<words>[^\]]*)\]\((?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")

_MARKED_FENCE = re.compile(r"^(```\w+) [^`\n]+$", re.MULTILINE)
"""What tests need to know of a block of commands stands behind its language, where Markdown on GitHub lets it stand."""


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, _MEASURING, content=_BENCHMARKS.read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    folder = _BENCHMARKS.parent if page.file.src_uri == _MEASURING else _ROOT / "docs"

    def moved(link: re.Match[str]) -> str:
        target = link["target"]
        if re.match(r"[a-z]+:", target):
            return link[0]
        path = (folder / target).resolve()
        if path == _BENCHMARKS:
            return f"[{link['words']}]({_MEASURING}{link['anchor'] or ''})"
        if path.is_relative_to(_ROOT / "docs") and path.suffix in (".md", ".png"):
            return f"[{link['words']}]({path.relative_to(_ROOT / 'docs')}{link['anchor'] or ''})"
        if path.exists():
            return f"{link['words']} (`{path.relative_to(_ROOT)}`)"
        return link[0]

    return _LINK.sub(moved, _MARKED_FENCE.sub(r"\1", diagrams.FENCE.sub(_picture, markdown)))


def _picture(fence: re.Match[str]) -> str:
    """The diagram as it was drawn for light and for dark pages; the theme shows one of the two."""
    source = fence["source"]
    shown = []
    for scheme in diagrams.SCHEMES:
        path = diagrams.picture(source, scheme)
        if not path.exists():
            raise PluginError(f"a diagram has changed and was not drawn again: see {diagrams.__file__}\n{source}")
        shown.append(f"![{diagrams.title(source)}]({path.relative_to(_ROOT / 'docs')}#only-{scheme})")
    return "\n".join(shown)
