"""The plots of `docs/benchmarks.md`, a function each: results as the benchmarks wrote them, to a figure.

`measured.py` says which results each takes and what stands beneath it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import svg
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

Results = dict[str, Any]
"""One file of `benchmarks/results`."""

WIDTH = 8.6
"""Inches; a page shows it at about 620 pixels, or as wide as it is itself."""

CHANNELS = {
    "bm25": "BM25",
    "plain": "vectors",
    "plain + words": "+ words",
    "plain + graph": "+ graph",
    "narrow": "narrow",
    "all": "all (default)",
}
GIVEN = {
    "triples": "relationships",
    "identifiers": "qualified names",
    "names": "document names",
    "keywords": "nothing (keywords)",
}
SETS = {"musique": "MuSiQue", "scifact": "SciFact", "pystdlib_code": "Python functions"}


def retrieval(*sets: Results) -> Figure:
    """Recall@5 with its interval: a panel for each set, a row for each channel, a colour for what was given."""
    figure = Figure(figsize=(WIDTH, 3.6))
    panels = figure.subplots(1, len(sets), sharey=True, squeeze=False)[0]
    named: dict[str, Any] = {}
    for axes, results in zip(panels, sets, strict=True):
        setups = [name for name in GIVEN if name in results["setups"]]
        for at, setup in enumerate(setups):
            recall = results["setups"][setup]["recall"]
            rows = [row for row, channel in enumerate(CHANNELS) if channel in recall]
            cells = [recall[channel]["@5"] for channel in CHANNELS if channel in recall]
            colour = list(GIVEN).index(setup)
            named[GIVEN[setup]] = axes.errorbar(
                [cell["mean"] for cell in cells],
                [row + 0.24 * (at - (len(setups) - 1) / 2) for row in rows],
                xerr=_whiskers(cells),
                fmt=svg.MARKERS[colour],
                color=svg.SERIES[colour],
                linewidth=1.2,
            )
        axes.set_title(f"{SETS.get(results['data'], results['data'])}\n{results['questions']} questions")
        axes.set_xlabel("recall@5, %")
        axes.grid(axis="y", visible=False)
    panels[0].set_yticks(range(len(CHANNELS)), list(CHANNELS.values()))
    panels[0].invert_yaxis()
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=len(named), title="filed with")
    return figure


def speed(filters: dict[str, dict[str, Results | None]]) -> Figure:
    """Queries a second over recall@10, a panel for each filter; up and to the right is better."""
    columns = min(2, len(filters))
    rows = -(-len(filters) // columns)
    figure = Figure(figsize=(WIDTH, 0.8 + 2.5 * rows))
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    peers = list(dict.fromkeys(peer for cells in filters.values() for peer in cells))
    named: dict[str, Any] = {}
    for axes, (which, cells) in zip(panels, filters.items(), strict=False):
        for at, peer in enumerate(peers):
            cell = cells.get(peer)
            if cell is None:
                continue
            [named[peer]] = axes.plot(
                cell["recall"],
                cell["queries_per_second"],
                linestyle="none",
                marker="*" if at == 0 else svg.MARKERS[at % len(svg.MARKERS)],
                markersize=13 if at == 0 else 7,
                color=svg.SERIES[at % len(svg.SERIES)],
                fillstyle="full" if at < len(svg.SERIES) else "none",
                clip_on=False,
            )
        lowest = min(cell["recall"] for cell in cells.values() if cell is not None)
        axes.set_xlim(min(0.98, lowest - 0.004), 1.0005)
        rates = [cell["queries_per_second"] for cell in cells.values() if cell is not None]
        _decades(axes, rates)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_title(filter_title(which))
        axes.set_xlabel("recall@10")
        axes.set_ylabel("queries a second")
    for axes in panels[len(filters) :]:
        axes.remove()
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=3)
    return figure


def by_filter(peers: dict[str, Results]) -> dict[str, dict[str, Results | None]]:
    """What `peers.py` keeps by peer, by filter."""
    filters = next(iter(peers.values()))["filters"]
    return {which: {peer: cell["filters"].get(which) for peer, cell in peers.items()} for which in filters}


def growth(results: Results) -> Figure:
    """Rate of filing, start-up and memory a row over the number of rows."""
    sizes = results["sizes"]
    figure = Figure(figsize=(WIDTH, 2.7))
    series = [
        ("rows filed a second", lambda size: size["filing"]["rows_a_second"]),
        ("start-up from the cache, s", lambda size: size["opened"]["seconds"]),
        ("private memory a row, bytes", lambda size: size.get("bytes_a_row")),
    ]
    for axes, (title, value) in zip(figure.subplots(1, 3), series, strict=True):
        points = [(size["rows"], value(size)) for size in sizes if value(size) is not None]
        axes.plot(*zip(*points, strict=True), marker="o", color=svg.SERIES[0])
        for rows, height in points:
            shown = f"{height:,.0f}" if height >= 10 else f"{height:.2f}"
            axes.annotate(
                shown, (rows, height), (0, 8), textcoords="offset points", ha="center",
                bbox={"facecolor": svg.PAPER, "edgecolor": "none", "pad": 0.5},
            )  # fmt: skip
        axes.set_xscale("log")
        axes.set_xlim(0.5 * sizes[0]["rows"], 2 * sizes[-1]["rows"])
        axes.set_ylim(0, 1.25 * max(height for _, height in points))
        axes.xaxis.set_major_formatter(FuncFormatter(_counted))
        axes.minorticks_off()
        axes.set_title(title)
        axes.set_xlabel("rows")
    return figure


def service(results: Results) -> Figure:
    """Processor time a request: frameworks alone and our front ends, then what is added to a whole search."""
    ways = ["HTTP", "gRPC", "session"]
    figure = Figure(figsize=(WIDTH, 3.0))
    alone, whole = figure.subplots(1, 2)
    for at, (label, part) in enumerate((("the framework alone", "framework"), ("Thread, answer ready", "front end"))):
        cells = [results[part][way] for way in ways]
        whiskers = [
            [cell["cpu_ms"] - cell["cpu_ms_range"][0] for cell in cells],
            [cell["cpu_ms_range"][1] - cell["cpu_ms"] for cell in cells],
        ]
        _bars(alone, at, 2, [cell["cpu_ms"] for cell in cells], label, whiskers)
    for row, way in enumerate(ways):
        wanted = results["wanted_added_cpu_ms"][way]
        alone.plot([wanted] * 2, [row - 0.42, row + 0.42], color=svg.INK, linestyle=":", linewidth=1.6,
                   label="wanted" if row == 0 else None)  # fmt: skip
    alone.set_title("With the answer ready")
    alone.set_xlabel("processor time a request, ms")
    for at, (label, part) in enumerate((("no words, no graph", "smallest"), ("every default", "defaults"))):
        _bars(whole, at, 2, [results[part][way]["added_cpu_ms"] for way in ways], label, first_colour=2)
    whole.set_title("Added to a whole search")
    whole.set_xlabel("processor time a request, ms")
    for axes in (alone, whole):
        axes.set_yticks(range(len(ways)), ways)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3, fontsize=8.5)
    return figure


def latency(results: Results) -> Figure:
    """The whole search beside embedding its query, then each step: medians, with whiskers to the 95th percentile."""
    whole = {
        "the whole search": results["milliseconds"]["warm"]["search"],
        "embedding its query alone": results["milliseconds"]["warm"]["embedding"],
    }
    steps = {name: cell for name, cell in results["phases_warm"].items() if "everything below" not in name}
    figure = Figure(figsize=(WIDTH, 3.6))
    panels = figure.subplots(2, 1, height_ratios=(len(whole), len(steps)))
    for axes, cells, colour in ((panels[0], whole, 0), (panels[1], steps, 1)):
        values = [cell["p50"] for cell in cells.values()]
        over = [cell["p95"] - cell["p50"] for cell in cells.values()]
        said = [f"{cell['p50']:.2f}, p95 {cell['p95']:.2f}" for cell in cells.values()]
        _bars(axes, 0, 1, values, None, [[0.0] * len(values), over], first_colour=colour, said=said)
        axes.set_yticks(range(len(cells)), list(cells))
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
    panels[1].set_xlabel("milliseconds: p50, whisker to p95")
    return figure


def ingest(results: Results) -> Figure:
    """The share of the model's own rate that filing keeps, round by round; memory over documents."""
    figure = Figure(figsize=(WIDTH, 2.8))
    rate, memory = figure.subplots(1, 2)
    rounds = results["rate"]["each"]
    shares = [100 * each["alone"] / each["node"] for each in rounds]
    rate.plot(range(1, len(shares) + 1), shares, marker="o", color=svg.SERIES[0])
    rate.set_ylim(0, max(105.0, *shares))
    rate.xaxis.set_major_locator(MaxNLocator(integer=True))
    rate.set_title("Filing, % of the model's own texts a second")
    rate.set_xlabel(f"round of {results['rate']['documents_a_round']} documents")
    steps = results["memory"]["steps"]
    documents = [step["documents"] for step in steps]
    memory.plot(documents, [step["megabytes"] for step in steps], marker=".", color=svg.SERIES[1])
    memory.set_ylim(bottom=0)
    memory.xaxis.set_major_locator(MaxNLocator(5))
    memory.xaxis.set_major_formatter(FuncFormatter(_counted))
    memory.set_title("Private memory, MB")
    memory.set_xlabel("documents filed")
    return figure


def soak(results: Results) -> Figure:
    """Latency while the load rises, then latency and memory while it lasts."""
    figure = Figure(figsize=(WIDTH, 2.9))
    rising, lasting, memory = figure.subplots(1, 3)
    steps, windows = results["steps"], results["soak"]
    minutes = results["size"]["minutes"]
    at = [minutes * (number + 1) / len(windows) for number in range(len(windows))]
    _latencies(rising, [step["offered_per_second"] for step in steps], steps)
    rising.set_title("Latency by load, ms")
    rising.set_xlabel("requests offered a second")
    _latencies(lasting, at, windows)
    lasting.set_title("Latency over time, ms")
    lasting.set_xlabel("minutes")
    memory.plot(at, [window["resident_mb"] for window in windows], marker=".", color=svg.SERIES[2])
    memory.set_ylim(bottom=0)
    memory.set_title("Resident memory, MB")
    memory.set_xlabel("minutes")
    return figure


def _latencies(axes: Axes, at: Sequence[float], windows: Iterable[Results]) -> None:
    cells = list(windows)
    for colour, (label, key) in enumerate((("p50", "p50_ms"), ("p99", "p99_ms"))):
        axes.plot(at, [cell[key] for cell in cells], marker=".", color=svg.SERIES[colour], label=label)
    _decades(axes, [cell[key] for cell in cells for key in ("p50_ms", "p99_ms")])
    axes.legend()


def _decades(axes: Axes, values: Sequence[float]) -> None:
    """A logarithmic scale of whole decades, each with its number."""
    axes.set_yscale("log")
    axes.set_ylim(10 ** math.floor(math.log10(0.8 * min(values))), 10 ** math.ceil(math.log10(1.2 * max(values))))
    axes.yaxis.set_major_formatter(FuncFormatter(_counted))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _bars(
    axes: Axes,
    at: int,
    groups: int,
    values: Sequence[float],
    label: str | None,
    whiskers: Sequence[Sequence[float]] | None = None,
    *,
    first_colour: int = 0,
    said: Sequence[str] = (),
) -> None:
    """One of `groups` bars in every row; behind it `said`, else its value."""
    height = 0.76 / groups
    rows = [row + height * (at - (groups - 1) / 2) for row in range(len(values))]
    axes.barh(
        rows,
        values,
        height * 0.9,
        color=svg.SERIES[first_colour + at],
        label=label,
        xerr=whiskers,
        error_kw={"ecolor": svg.INK, "elinewidth": 1.1, "capsize": 2},
    )
    ends = [value + (whiskers[1][row] if whiskers else 0.0) for row, value in enumerate(values)]
    for row, end, words in zip(rows, ends, said or [f"{value:.2f}" for value in values], strict=True):
        axes.annotate(words, (end, row), (4, 0), textcoords="offset points", va="center", fontsize=8.5)
    room = 1.25 if said else 1.16
    axes.set_xlim(0, max(room * max(ends), axes.get_xlim()[1] if at else 0.0))


def _whiskers(cells: Sequence[Results]) -> list[list[float]]:
    return [[cell["mean"] - cell["low"] for cell in cells], [cell["high"] - cell["mean"] for cell in cells]]


def _counted(value: float, _: object = None) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def filter_title(which: str) -> str:
    """`50.0% of rows` as people say it; other names of filters as they are."""
    share, found, rest = which.partition("% of rows")
    return f"{float(share):g} % of rows pass" if found and not rest else which
