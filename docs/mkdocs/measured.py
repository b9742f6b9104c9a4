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
import tables
from matplotlib.figure import Figure

DOCS = Path(__file__).parents[1]
PAGE = DOCS / "benchmarks.md"
PICTURES = DOCS / "images" / "benchmarks"
RESULTS = DOCS.parent / "benchmarks" / "results"

Results = plots.Results
Draw = Callable[..., Figure]
Tables = Callable[..., Iterable[str]]

_BLOCK = re.compile(r"(<!-- measured: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """`files`: patterns of names in `benchmarks/results`. With `together` one picture and table show all of them,
    else each file has its own. `about` says what is seen, with units; {names} stand for what the results hold, {file}
    for the file's name. `missing` is said where there is no file."""

    files: tuple[str, ...]
    about: str
    tables: Tables
    draw: Draw | None = None
    together: bool = False
    missing: str = "No results yet: `benchmarks/results/{file}.json` is not there."


BLOCKS = {
    "retrieval": Block(
        ("retrieval-musique", "retrieval-scifact", "retrieval-pystdlib_code", "retrieval-*"),
        "Recall@5 in per cent by what ranks, with 95 % bootstrap intervals over questions; in the table recall@5 "
        "(and @10).",
        tables.retrieval,
        plots.retrieval,
        together=True,
    ),
    "models": Block(
        ("model-*",),
        "The same with another model: recall@5 (and @10) in per cent.",
        tables.retrieval,
    ),
    "latency": Block(
        ("search-latency",),
        "One search at a time over {documents:,} documents with {relationships:,} relationships, in milliseconds.",
        tables.latency,
        plots.latency,
    ),
    "embed": Block(
        ("embed-*",),
        "{texts:,} texts of {tokens:,} tokens through {model} on torch {torch}, {device}: as the node embeds them, and "
        "the network of transformers alone on the same batches.",
        tables.embed,
    ),
    "profile": Block(
        ("profile-search", "profile-deposit"),
        "Share of the node's processor time by layer, of a search and of a deposit, sampled by py-spy.",
        tables.profile,
        together=True,
    ),
    "scan": Block(
        ("scan-cpu*",),
        "{rows:,} clustered vectors of {width:,} components, one query at a time. Every peer with its fastest setting "
        "whose recall is at least the engine's. Up and to the right is better.",
        tables.scan,
        lambda results: plots.speed(results["filters"]),
    ),
    "peers": Block(
        ("peers-*",),
        "{rows:,} {vectors} vectors of {width:,} components, one query at a time; every peer with its fastest setting "
        "that finds enough, else with the one that finds most. Up and to the right is better.",
        tables.peers,
        lambda results: plots.speed(plots.by_filter(results["peers"])),
    ),
    "recall": Block(
        ("recall", "recall-always"),
        "Recall@10 (@100 where k = 100) against exact search, {queries} queries, by what is searched and `--compress`; "
        "in brackets queries a second.",
        tables.recall,
        together=True,
    ),
    "growth": Block(
        ("growth",),
        "One store, {width:,} components a row, {partitions_a_document} rows a document that bring their vectors.",
        tables.growth,
        plots.growth,
    ),
    "ingest": Block(
        ("ingest",),
        "Filing the passages of {data} with their relationships, beside the model alone on the same texts.",
        tables.ingest,
        plots.ingest,
    ),
    "service": Block(
        ("service",),
        "Processor time of the server, user and system, in milliseconds a request; whiskers from the least to the most "
        "of {rounds} rounds.",
        tables.service,
        plots.service,
    ),
    "http-servers": Block(
        ("http-servers",),
        "{requests:,} requests of {callers} callers before the same ready answer, medians of three rounds.",
        tables.servers,
    ),
    "soak": Block(
        ("soak",),
        "Searches, deposits and removals over HTTP, mixed, at a steady rate of arrival.",
        tables.soak,
        plots.soak,
    ),
    "owners": Block(
        ("owners",),
        "A small owner among {owners:,}, {rows:,} rows of {width} components in all; medians in milliseconds.",
        tables.owners,
    ),
    "words": Block(("words",), "Look-ups of words among {partitions:,} passages, in milliseconds.", tables.words),
    "extraction": Block(
        ("extraction-*",),
        "What is found in {sentences:,} sentences of Text2KGBench, beside its gold.",
        tables.extraction,
    ),
    "others": Block(
        ("*",),
        "`{file}.json`: what a run on another machine should find again.",
        tables.ratios,
        missing="Nothing: all results are above.",
    ),
}
"""In the order of the page. A file belongs to the first that its name fits."""


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
    before = list(BLOCKS)[: list(BLOCKS).index(name)]
    taken = {path for other in before for path in _paths(BLOCKS[other], folder)}
    paths = [path for path in _paths(block, folder) if path not in taken]
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}
    if not found:
        return [block.missing.format(file=block.files[0])]
    groups = {name: list(found.values())} if block.together else {stem: [each] for stem, each in found.items()}
    lines: list[str] = []
    for stem, results in groups.items():
        about = block.about.format(**results[0], file=stem)
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
