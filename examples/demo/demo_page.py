"""What the demo prints: each question with its best passages, the totals, and a piece of the graph."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

TOP_K = 5
SHOWN = 3
NEIGHBOUR = "Halloran Finch"

CHANNELS: dict[str, dict[str, Any]] = {
    "vectors": {"graph_mode": "off", "lexical": False},
    "+words": {"graph_mode": "off", "lexical": True},
    "+graph": {"graph_mode": "boost", "lexical": False},
    "all": {},
}
"""What each way of searching adds to `thread` in the request; `all` is the node's default."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Question:
    question: str
    answer: str
    document_ids: list[str]
    kind: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """Ranks, from 1, of a question's passages in each channel; None is not among the first TOP_K.

    `search_ms` is the time of the default search, embedding the question included.
    """

    question: Question
    ranks: dict[str, list[int | None]]
    search_ms: float

    def recall(self, channel: str) -> float:
        return mean(rank is not None for rank in self.ranks[channel])


def ranks_of(wanted: Sequence[str], references: Sequence[Json]) -> list[int | None]:
    found = [reference["document_id"] for reference in references]
    return [found.index(each) + 1 if each in found else None for each in wanted]


def verdict(outcome: Outcome, names: dict[str, str]) -> str:
    """What words, graph and both changed against plain vectors, gains and losses alike."""
    plain = outcome.ranks["vectors"]
    said = []
    for channel in list(CHANNELS)[1:]:
        pairs = list(zip(outcome.question.document_ids, plain, outcome.ranks[channel], strict=True))
        gained = [names[each] for each, before, after in pairs if before is None and after is not None]
        lost = [names[each] for each, before, after in pairs if before is not None and after is None]
        changes = [f"{verb} {', '.join(which)}" for verb, which in (("gains", gained), ("loses", lost)) if which]
        if changes:
            said.append(f"{channel} {' and '.join(changes)}")
    return "; ".join(said)


def excerpt(text: str, question: str, answer: str, length: int) -> str:
    """The sentence to show: the one that holds the answer, else the one that shares most words with the question."""
    sentences = re.split(r"(?<=[.!?])\s+", text)
    asked = {word for word in re.findall(r"\w+", question.casefold()) if len(word) > 3}
    best = max(
        range(len(sentences)),
        key=lambda at: (answer in sentences[at], len(asked & set(re.findall(r"\w+", sentences[at].casefold())))),
    )
    shown = sentences[best]
    if len(shown) > length:
        # The answer must stay in sight in a long sentence.
        start = max(0, shown.find(answer) + len(answer) - length) if answer in shown else 0
        if start:
            shown = "… " + shown[shown.find(" ", start) + 1 :]
        if len(shown) > length:
            shown = shown[:length].rsplit(" ", 1)[0] + " …"
        return shown
    if best + 1 < len(sentences) and len(shown) + len(sentences[best + 1]) < length:
        shown += " " + sentences[best + 1]
    return shown


class Reporter:
    """One changing line on a terminal; elsewhere a line for every change."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("") if console.is_terminal else None
        self._last = ""

    def __call__(self, line: str) -> None:
        if line != self._last:
            self._last = line
            if self._status:
                self._status.update(escape(line))
            else:
                self._console.print(Text(line))

    def __enter__(self) -> Reporter:
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._status.stop()


def show_question(console: Console, number: int, outcome: Outcome, answer: Json, names: dict[str, str]) -> None:
    question = outcome.question
    console.print()
    console.rule(Text(f"{number}. {question.kind}"), align="left", style="dim")
    console.print(Text(question.question, style="bold"))
    for place, (text, reference) in enumerate(zip(answer["texts"], answer["references"], strict=True), 1):
        if place > SHOWN:
            break
        title = Text(f"{place}  {reference.get('name', reference['document_id'])}", style="cyan")
        title.append(f"   distance {reference['distance']:.3f}", style="dim")
        if reference["document_id"] in question.document_ids:
            title.append("   needed", style="green")
        shown = Text(excerpt(text, question.question, question.answer, 2 * (console.width - 8)))
        shown.highlight_regex(re.escape(question.answer), "bold green")
        # Keywords (concepts) are the node's stopgap for passages that came without entities; names say more.
        entities = [each["name"] for each in reference["entities"] if each["kind"] != "concept"]
        about = Text("about: " + ", ".join(entities), style="dim")
        for indent, line in ((2, title), (5, shown), (5, about)):
            console.print(Padding(line, (0, 0, 0, indent), expand=False))
    table = Table.grid(padding=(0, 3))
    table.add_row("Needed passage", *CHANNELS, style="dim")
    for at, each in enumerate(question.document_ids):
        table.add_row(names[each], *(rank_text(ranks[at]) for ranks in outcome.ranks.values()))
    console.print(Text.assemble("Expected answer: ", (question.answer, "bold green")))
    console.print(table)
    if changed := verdict(outcome, names):
        console.print(Text(f"Against plain vectors: {changed}", style="yellow"))


def rank_text(rank: int | None) -> Text:
    return Text("–", style="red") if rank is None else Text(str(rank), style="green")


def show_totals(console: Console, outcomes: Sequence[Outcome]) -> None:
    kinds = list(dict.fromkeys(outcome.question.kind for outcome in outcomes))
    table = Table(title=f"Recall@{TOP_K}: needed passages among the first {TOP_K}", title_justify="left")
    table.add_column("questions")
    for channel in CHANNELS:
        table.add_column(channel, justify="right")
    for kind in kinds:
        chosen = [outcome for outcome in outcomes if outcome.question.kind == kind]
        table.add_row(f"{len(chosen)} {kind}", *(percent(chosen, channel) for channel in CHANNELS))
    table.add_section()
    table.add_row(f"all {len(outcomes)}", *(percent(outcomes, channel) for channel in CHANNELS), style="bold")
    complete = {name: sum(None not in outcome.ranks[name] for outcome in outcomes) for name in CHANNELS}
    table.add_row("found every one", *(f"{count} of {len(outcomes)}" for count in complete.values()))
    console.print()
    console.print(table)
    typical_ms = median(outcome.search_ms for outcome in outcomes)
    console.print(Text("Twenty questions are a look, not a measurement; docs/benchmarks.md has those."))
    console.print(Text(f"A default search took {typical_ms:.0f} ms (median), embedding the question included."))


def percent(outcomes: Sequence[Outcome], channel: str) -> str:
    return f"{100 * mean(outcome.recall(channel) for outcome in outcomes):.1f} %"


def show_neighbourhood(console: Console, graph: Json) -> None:
    names = {entity["id"]: entity["name"] for entity in graph["entities"]}
    centre = next((entity for entity in graph["entities"] if entity["name"] == NEIGHBOUR), None)
    console.print()
    console.rule(Text(f"The graph around {NEIGHBOUR}"), align="left", style="dim")
    if centre is None:
        console.print(Text("Nothing is known of it."))
        return
    console.print(Text.assemble((NEIGHBOUR, "bold cyan"), f" ({centre['kind']})"))
    for edge in graph["relationships"]:
        ends = names.get(edge["subject_id"]), names.get(edge["object_id"])
        # One step only: an edge between two neighbours would blur the picture.
        if NEIGHBOUR in ends and None not in ends:
            console.print(Text.assemble("  ", (str(ends[0]), "cyan"), f" {edge['predicate']} ", (str(ends[1]), "cyan")))
    titles = {document["id"]: document.get("name", document["id"]) for document in graph["documents"]}
    passages = [titles.get(each, each) for each in centre["document_ids"]]
    console.print(Text(f"  in the passages {', '.join(passages)}", style="dim"))
