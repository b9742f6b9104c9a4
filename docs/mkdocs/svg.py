"""A plot as an SVG that is the same on every machine and can be read on light and on dark pages.

Everything is drawn in the light colours of `PALETTE`; in the file they become variables that a media query turns dark.
The picture brings its own background, so it can be read where the page is dark and the system is not.
"""

from __future__ import annotations

import io
import re

import matplotlib as mpl
from matplotlib.figure import Figure

PALETTE = {
    "paper": ("#fcfcfd", "#1b1e25"),
    "ink": ("#1f2430", "#e6e8ee"),
    "faint": ("#5c6474", "#a7aebb"),
    "grid": ("#dde0e6", "#343a46"),
    "blue": ("#2459b8", "#7fabff"),
    "orange": ("#b9500b", "#ffa763"),
    "green": ("#177252", "#5cd0a0"),
    "purple": ("#7436cf", "#bfa3ff"),
    "pink": ("#b3175a", "#ff92c2"),
    "teal": ("#0c6a83", "#63cbe2"),
}
"""What each colour is on light and on dark paper; every light one is used once."""

PAPER, INK, FAINT, GRID = (PALETTE[name][0] for name in ("paper", "ink", "faint", "grid"))
SERIES = [PALETTE[name][0] for name in ("blue", "orange", "green", "purple", "pink", "teal")]
MARKERS = "oDs^vP"

STYLE = {
    "svg.hashsalt": "thread",
    "svg.fonttype": "none",
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.prop_cycle": mpl.cycler(color=SERIES),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.facecolor": PAPER,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": GRID,
    "figure.facecolor": PAPER,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.h_pad": 0.09,
    "figure.constrained_layout.w_pad": 0.09,
    "legend.frameon": False,
    "lines.markersize": 5,
}


def style() -> mpl.RcParams:
    """Matplotlib's own defaults and `STYLE`, whatever the reader's matplotlibrc says."""
    settings = mpl.RcParams(mpl.rcParamsDefault)
    settings.update(STYLE)
    return settings


def svg(figure: Figure, about: str) -> str:
    """The figure as a file's text; `about` says in words what it shows."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Title": about})
    text = buffer.getvalue()
    for name, (light, _) in PALETTE.items():
        text = text.replace(light, f"var(--{name})")
    light_ones, dark_ones = (" ".join(f"--{name}: {pair[at]};" for name, pair in PALETTE.items()) for at in (0, 1))
    sheet = f"<style>:root {{ {light_ones} }} @media (prefers-color-scheme: dark) {{ :root {{ {dark_ones} }} }}</style>"
    return re.sub(r"(<svg [^>]*>)", rf"\1\n {sheet}", text, count=1)
