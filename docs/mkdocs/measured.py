"""Fills `docs/benchmarks.md` with what `benchmarks/results` holds: plots, tables, and the machine they are from.

    python docs/mkdocs/measured.py

What stands between `<!-- measured: NAME -->` and `<!-- end -->` is made anew, the pictures in `docs/images/benchmarks`
too; everything else on the page is written by hand. What has no results yet says so. `tests/test_docs_site.py` compares
page and pictures with the results.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import plots
import svg
from matplotlib.figure import Figure

DOCS = Path(__file__).parents[1]
PAGE = DOCS / "benchmarks.md"
PICTURES = DOCS / "images" / "benchmarks"
RESULTS = DOCS.parent / "benchmarks" / "results"

Results = plots.Results
Draw = Callable[..., Figure]
Tables = Callable[..., Iterable[str]]

_BLOCK = re.compile(r"(<!-- measured: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

# ---------------------------------------------------------------------------------------------------- tables


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Lines of a Markdown table; every column but the first is numbers."""
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    return lines + [f"| {' | '.join(str(cell) for cell in row)} |" for row in rows]


def retrieval(*sets: Results) -> list[str]:
    channels = plots.CHANNELS
    rows = []
    for results in sets:
        name = f"{plots.SETS.get(results['data'], results['data'])}, {results['questions']}"
        for setup in (each for each in plots.GIVEN if each in results["setups"]):
            found = results["setups"][setup]
            cells = [
                f"{found['recall'][channel]['@5']['mean']} ({found['recall'][channel]['@10']['mean']})"
                if channel in found["recall"]
                else ""
                for channel in channels
            ]
            gain = found["difference"]["all − plain"]["@5"]
            rows.append([name, plots.GIVEN[setup], *cells, f"{gain['mean']:+} [{gain['low']}, {gain['high']}]"])
            name = ""
    return table(["set, questions", "filed with", *channels.values(), "all − vectors @5"], rows)


def scan(results: Results) -> list[str]:
    rows = [
        [plots.filter_title(which), peer, cell["setting"], cell["recall"], f"{cell['queries_per_second']:,}"]
        for which, cells in results["filters"].items()
        for peer, cell in cells.items()
    ]
    return table(["rows", "", "setting", "recall@10", "queries a second"], rows)


def peers(results: Results) -> list[str]:
    rows = []
    for peer, cell in results["peers"].items():
        rates = [
            f"{found['queries_per_second']:,} ({found['recall']})" if found else "cannot be asked"
            for found in cell["filters"].values()
        ]
        about = [f"{cell['rows']:,}", f"{cell['filed_rows_per_second']:,}", cell["disk_over_payload"]]
        about += [cell["first_answer_seconds"], f"{cell['private_memory_mb']:,}"]
        rows.append([f"{peer} {cell['version']}".strip(), cell["keeps"], *about, *rates])
    filters = next(iter(results["peers"].values()))["filters"]
    head = ["", "keeps", "rows", "filed, rows/s", "disk ÷ payload", "first answer, s", "private MB"]
    return table([*head, *(f"{which}: queries/s (recall@10)" for which in filters)], rows)


def recall(*files: Results) -> list[str]:
    kinds = [(results, kind) for results in files for kind in ("clustered", "sentences") if kind in results]
    rows = [
        [case, *(f"{cells[kind]['cases'][case]['recall']:.3f} ({cells[kind]['cases'][case]['queries_per_second']:,})"
                 for cells, kind in kinds)]
        for case in files[0]["clustered"]["cases"]
    ]  # fmt: skip
    head = [
        f"{kind}, {results[kind]['rows']:,} × {results[kind]['width']:,}, `{results['compress']}`"
        for results, kind in kinds
    ]
    return table(["rows that pass", *head], rows)


def growth(results: Results) -> list[str]:
    rows = [
        [
            f"{size['rows']:,}",
            f"{size['filing']['rows_a_second']:,.0f}",
            size["filing"]["coding_after_filing_seconds"],
            f"{size['opened']['seconds']:.2f}",
            size["opened"]["anonymous_mb"],
            f"{size['bytes_a_row']:.0f}" if "bytes_a_row" in size else "",
        ]
        for size in results["sizes"]
    ]
    head = ["rows", "filed, rows/s", "coded after, s", "start-up from the cache, s", "private MB", "bytes a row"]
    return table(head, rows)


def service(results: Results) -> list[str]:
    parts = {"framework": "the framework alone", "front end": "front end, answer ready"}
    parts |= {"smallest": "search, no words or graph", "defaults": "search, every default"}
    rows = [
        [words, way, f"{cell['cpu_ms']:.2f}", f"{cell['requests_per_second']:,}", cell["p50_ms"], cell["p99_ms"]]
        for part, words in parts.items()
        for way, cell in results[part].items()
    ]
    return table(["", "by", "processor time, ms", "requests a second", "p50, ms", "p99, ms"], rows)


def servers(results: Results) -> list[str]:
    rows = [
        [name, cell["cpu_ms"], f"{cell['requests_per_second']:,}", cell["p50_ms"], cell["p99_ms"]]
        for name, cell in results["servers"].items()
    ]
    return table(["server", "processor time, ms", "requests a second", "p50, ms", "p99, ms"], rows)


def latency(results: Results) -> list[str]:
    rows = [
        [f"{turn}: {what}", cell["p50"], cell["p95"]]
        for turn, cells in results["milliseconds"].items()
        for what, cell in cells.items()
    ]
    return table(["", "p50, ms", "p95, ms"], rows)


def ingest(results: Results) -> list[str]:
    rate, memory = results["rate"], results["memory"]
    rows = [
        ["texts a second, filed", f"{rate['node_texts_a_second']:,}"],
        ["texts a second, the model alone", f"{rate['model_texts_a_second']:,}"],
        ["share kept", f"{100 * rate['share']:.1f} %"],
        ["share of processor time", f"{100 * rate['share_of_processor_time']:.1f} %"],
        [f"memory grown until {memory['steps'][-1]['documents']:,} documents, MB", memory["growth_mb"]],
        ["bytes a row", memory["growth_bytes_a_row"]],
    ]
    return table(["", ""], rows)


def soak(results: Results) -> list[str]:
    windows, above = results["soak"], results["above"]
    rows = [
        ["capacity: mixed requests a second that were held", results["capacity_per_second"]],
        ["p99 in the first and in the last window, ms", f"{windows[0]['p99_ms']} → {windows[-1]['p99_ms']}"],
        ["resident memory, MB", f"{windows[0]['resident_mb']} → {windows[-1]['resident_mb']}"],
        ["file descriptors", f"{windows[0]['descriptors']} → {windows[-1]['descriptors']}"],
        ["above capacity: offered a second", above["offered_per_second"]],
        ["above capacity: answered a second", above["answered_per_second"]],
        ["above capacity: p99 of a refusal (429), ms", above["refused_p99_ms"]],
        ["what went wrong", "; ".join(results["wrong"]) or "nothing"],
    ]
    return table(["", ""], rows)


def owners(results: Results) -> list[str]:
    """Whatever is measured of an owner, a column each."""
    measured = [key for key in results["owner"][0] if key not in ("rank", "rows")]
    rows = [[f"{each['rows']:,}", *(each[key] for key in measured)] for each in results["owner"]]
    return table(["the owner's rows", *(key.replace("_", " ") for key in measured)], rows)


def words(results: Results) -> list[str]:
    rows = [
        [each["query"], each["caller"], each["media"] or "any", each["p50"], each["p99"], each["found"]]
        for each in results["milliseconds"]
    ]
    return table(["looked up", "caller", "media type", "p50, ms", "p99, ms", "found"], rows)


def extraction(results: Results) -> list[str]:
    rows = []
    for name, cell in results["runs"].items():
        scores = [f"{cell[what][score]:.3f}" for what in ("entities", "triples") for score in _SCORES]
        rows.append([name, *scores, cell["unusable_sentences"]])
    head = [f"{what}: {score}" for what in ("entities", "triples") for score in _SCORES]
    return table(["read by", *head, "unusable"], rows)


_SCORES = ("precision", "recall", "f1")

# ---------------------------------------------------------------------------------------------------- blocks


@dataclass(frozen=True, slots=True)
class Block:
    """`files`: patterns of names in `benchmarks/results`. With `together` one picture and table show all of them,
    else each file has its own. `about` says what is seen, with units; {names} stand for what the results hold."""

    files: tuple[str, ...]
    about: str
    tables: Tables
    draw: Draw | None = None
    together: bool = False


BLOCKS = {
    "retrieval": Block(
        ("retrieval-musique", "retrieval-scifact", "retrieval-pystdlib_code", "retrieval-*"),
        "Recall@5 in per cent by what ranks, with 95 % bootstrap intervals over questions; in the table recall@5 "
        "(and @10).",
        retrieval,
        plots.retrieval,
        together=True,
    ),
    "latency": Block(
        ("search-latency",),
        "One search at a time over {documents:,} documents with {relationships:,} relationships, in milliseconds.",
        latency,
        plots.latency,
    ),
    "scan": Block(
        ("scan-cpu*",),
        "{rows:,} clustered vectors of {width:,} components, one query at a time. Every peer with its fastest setting "
        "whose recall is at least the engine's. Up and to the right is better.",
        scan,
        lambda results: plots.speed(results["filters"]),
    ),
    "peers": Block(
        ("peers-*",),
        "{rows:,} {vectors} vectors of {width:,} components, one query at a time; every peer with its fastest setting "
        "that finds enough, else with the one that finds most. Up and to the right is better.",
        peers,
        lambda results: plots.speed(plots.by_filter(results["peers"])),
    ),
    "recall": Block(
        ("recall", "recall-always"),
        "Recall@10 (@100 where k = 100) against exact search, {queries} queries, by what is searched and `--compress`; "
        "in brackets queries a second.",
        recall,
        together=True,
    ),
    "growth": Block(
        ("growth",),
        "One store, {width:,} components a row, {partitions_a_document} rows a document that bring their vectors.",
        growth,
        plots.growth,
    ),
    "ingest": Block(
        ("ingest",),
        "Filing the passages of {data} with their relationships, beside the model alone on the same texts.",
        ingest,
        plots.ingest,
    ),
    "service": Block(
        ("service",),
        "Processor time of the server, user and system, in milliseconds a request; whiskers from the least to the most "
        "of {rounds} rounds.",
        service,
        plots.service,
    ),
    "http-servers": Block(
        ("http-servers",),
        "{requests:,} requests of {callers} callers before the same ready answer, medians of three rounds.",
        servers,
    ),
    "soak": Block(
        ("soak",),
        "Searches, deposits and removals, mixed, on three ways in, at a steady rate of arrival.",
        soak,
        plots.soak,
    ),
    "owners": Block(
        ("owners",),
        "A small owner among {owners:,}, {rows:,} rows of {width} components in all; medians in milliseconds.",
        owners,
    ),
    "words": Block(("words",), "Look-ups of words among {partitions:,} passages, in milliseconds.", words),
    "extraction": Block(
        ("extraction-*",), "What is found in {sentences:,} sentences of Text2KGBench, beside its gold.", extraction
    ),
}


def page(text: str, folder: Path = RESULTS) -> tuple[str, dict[str, str]]:
    """The page with its blocks made anew, and the pictures by the names of their files."""
    pictures: dict[str, str] = {}

    def filled(block: re.Match[str]) -> str:
        lines = "\n".join(_filled(block["name"], folder, pictures))
        return f"{block[1]}\n{lines}\n\n{block[3]}"

    with mpl.rc_context(rc=svg.style()):
        return _BLOCK.sub(filled, text), pictures


def _filled(name: str, folder: Path, pictures: dict[str, str]) -> list[str]:
    block = BLOCKS[name]
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in _paths(block, folder)}
    if not found:
        return [f"No results yet: `benchmarks/results/{block.files[0]}.json` is not there."]
    groups = {name: list(found.values())} if block.together else {stem: [each] for stem, each in found.items()}
    lines: list[str] = []
    for stem, results in groups.items():
        about = block.about.format(**results[0])
        if block.draw is not None:
            pictures[f"{stem}.svg"] = svg.svg(block.draw(*results), about)
            lines += [f"![{about}](images/benchmarks/{stem}.svg)", ""]
        lines += [f"*{about} {_machines(results)}*", ""]
        numbers = [*block.tables(*results), ""]
        if block.draw is not None:
            numbers = ['<details markdown="1"><summary>The numbers</summary>', "", *numbers, "</details>", ""]
        lines += numbers
    return lines[:-1]


def _paths(block: Block, folder: Path) -> list[Path]:
    """In the order of the patterns, each once."""
    return list(dict.fromkeys(path for pattern in block.files for path in sorted(folder.glob(f"{pattern}.json"))))


def _machines(results: Sequence[Results]) -> str:
    """Where and with what it was measured, for all of `results` at once if that was the same."""
    said = []
    for each in results:
        machine: dict[str, Any] = each["machine"]
        versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
        model = f"{each['model']}; " if "model" in each else ""
        python = f"Python {machine['python']}"
        said.append(f"{model}{machine['cpu']}, {machine['cores']} cores, {python}, {versions}; {each['date']}.")
    return " ".join(dict.fromkeys(said))


def main() -> None:
    text, pictures = page(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(text, encoding="utf-8")
    PICTURES.mkdir(parents=True, exist_ok=True)
    for old in PICTURES.glob("*.svg"):
        old.unlink()
    for name, picture in pictures.items():
        (PICTURES / name).write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
