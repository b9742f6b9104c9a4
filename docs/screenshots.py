"""Takes the pictures of the page that the documentation shows, of the demo's node and corpus.

    python docs/screenshots.py

Needs what `make demo` needs, playwright, and a Chromium on the PATH.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "examples" / "demo"))

import demo  # noqa: E402 - the demo is no package

SIZE = {"width": 1_120, "height": 740}
PICTURES = {
    "search-light.png": ("light", "search?q=Who+corrected+the+map+of+the+coast+that+pilots+still+quote%3F"),
    "graph-dark.png": ("dark", "graph"),
}


def main() -> None:
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with demo.running_node(None) as node, sync_playwright() as playwright:
        node.wait_ready(lambda _: None)
        demo.file_corpus(node, demo.read_lines("corpus.jsonl"), lambda _: None)
        browser = playwright.chromium.launch(executable_path=executable, args=flags)
        for name, (scheme, view) in PICTURES.items():
            context = browser.new_context(viewport=SIZE, color_scheme=scheme, reduced_motion="reduce")
            context.add_init_script(f"localStorage.setItem('thread.owner', {demo.OWNER!r})")
            page = context.new_page()
            page.goto(f"{node.url}/#{view}")
            page.locator("#passages > li, #beside li").first.wait_for()
            page.locator("#state[data-state=ready]").wait_for()
            page.screenshot(path=ROOT / "docs" / "images" / name)
        browser.close()


if __name__ == "__main__":
    main()
