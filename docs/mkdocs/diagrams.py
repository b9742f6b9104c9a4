"""Draws the Mermaid diagrams of the pages for the site, which then needs no Mermaid and no network.

    npm install --prefix DIR mermaid
    python docs/mkdocs/diagrams.py DIR/node_modules/mermaid/dist/mermaid.min.js

Needs playwright and a Chromium on the PATH. A picture is named after what it was drawn of, so the site does not build
with one that is out of date; pictures of what stands on no page any more are deleted.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from pathlib import Path

DOCS = Path(__file__).parents[1]
PICTURES = DOCS / "images" / "diagrams"
SCHEMES = {"light": ("neutral", "#ffffff"), "dark": ("dark", "#1e2129")}
"""A theme of Mermaid's for each scheme, and the page's background, on which labels stand before their edges."""

FENCE = re.compile(r"^```mermaid\n(?P<source>.*?)^```$", re.MULTILINE | re.DOTALL)

# Labels are SVG text and no HTML, which a picture in a page would not show everywhere.
_DRAW = """async ([source, theme, paper]) => {
    mermaid.initialize({
        startOnLoad: false, theme, fontFamily: "sans-serif",
        themeCSS: `.edgeLabel rect, .labelBkg { opacity: 1 !important; fill: ${paper} !important; }`,
        htmlLabels: false, flowchart: {htmlLabels: false, rankSpacing: 30, nodeSpacing: 30},
        deterministicIds: true, deterministicIDSeed: "thread",
    });
    return (await mermaid.render("diagram", source)).svg;
}"""


def picture(source: str, scheme: str) -> Path:
    """Where the picture of a diagram is."""
    return PICTURES / f"{hashlib.sha256(source.encode()).hexdigest()[:12]}-{scheme}.svg"


def title(source: str) -> str:
    """What a diagram says of itself in words, for those who do not see it."""
    found = re.search(r"^\s*accTitle: (.+)$", source, re.MULTILINE)
    if found is None:
        raise ValueError(f"a diagram needs a line `accTitle: …`:\n{source}")
    return found[1]


def sources() -> list[str]:
    return [fence["source"] for page in sorted(DOCS.glob("*.md")) for fence in FENCE.finditer(page.read_text("utf-8"))]


def main() -> None:
    from playwright.sync_api import sync_playwright

    wanted = {picture(source, scheme): (source, *look) for source in sources() for scheme, look in SCHEMES.items()}
    PICTURES.mkdir(parents=True, exist_ok=True)
    for old in set(PICTURES.iterdir()) - wanted.keys():
        old.unlink()
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=flags)
        page = browser.new_page()
        page.add_script_tag(path=sys.argv[1])
        for path, drawn in wanted.items():
            path.write_text(page.evaluate(_DRAW, list(drawn)) + "\n", encoding="utf-8")
        browser.close()


if __name__ == "__main__":
    main()
