"""Makes the picture in the README: what a run of the demo prints, in a terminal's window.

    python docs/recording.py

Runs the demo, and needs what it needs. Of the twenty questions the picture shows the first that the graph answers
better than vectors, and it says what is left out.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "demo.svg"
WIDTH = 100
sys.path.append(str(ROOT / "examples" / "demo"))

import demo  # noqa: E402 - the demo is no package

# Black, red, green, yellow, blue, magenta, cyan, white: bright enough that dimmed ones can be read, too.
THEME = TerminalTheme(
    (27, 30, 37),
    (240, 242, 246),
    [
        (27, 30, 37), (255, 140, 130), (150, 220, 120), (240, 205, 100),
        (140, 180, 255), (220, 160, 255), (150, 230, 255), (240, 242, 246),
    ],
)  # fmt: skip

# As rich's own, without the fonts that it would fetch from a CDN: a picture in a page may load nothing.
FORMAT = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def printed() -> list[Text]:
    """The lines of a run, with their colours. Its progress, one changing line on a terminal, is left out."""
    console = Console(record=True, file=io.StringIO(), width=WIDTH, force_terminal=False)
    demo.tell(console, None)
    lines = Text.from_ansi(console.export_text(styles=True)).split("\n", allow_blank=True)
    return [line for line in lines if not re.match(r"Starting a node|Filed \d+ of", line.plain)]


def excerpt(lines: list[Text]) -> list[Text]:
    """Beginning, one question, the totals, and the end."""
    starts = [at for at, line in enumerate(lines) if re.match(r"\d+\. ", line.plain)]
    totals, graph = (
        next(at for at, line in enumerate(lines) if line.plain.startswith(words))
        for words in ("Recall@", "The graph around")
    )
    first, last = next(
        (start, stop)
        for start, stop in zip(starts, [*starts[1:], totals], strict=True)
        if any(line.plain.startswith("Against plain vectors: +graph gains") for line in lines[start:stop])
    )
    others = Text(f"… {len(starts) - 1} other questions …\n", style="dim italic")
    neighbours = Text(f"… {lines[graph].plain.rstrip('─ ')} …\n", style="dim italic")
    ending = next(line for line in lines if line.plain.startswith("The node stopped"))
    return [*lines[: starts[0]], *lines[first:last], others, *lines[totals:graph], neighbours, ending]


def main() -> None:
    shown = Console(record=True, file=io.StringIO(), width=WIDTH)
    for line in excerpt(printed()):
        shown.print(line, soft_wrap=True)
    PICTURE.write_text(shown.export_svg(title="make demo", theme=THEME, code_format=FORMAT), encoding="utf-8")


if __name__ == "__main__":
    main()
