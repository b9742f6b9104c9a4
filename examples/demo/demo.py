"""Thread's main job, shown on a small corpus: passages that answer a question, and the entities they are about.

    python examples/demo/demo.py

It starts a node on free ports, files the passages of corpus.jsonl over HTTP, asks every question of questions.jsonl,
and says for each which of plain vectors, words and graph brought the answering passages into the first five. The
corpus describes an invented harbour town, so no model can know an answer beforehand. No account and no network are
needed; the node's data is deleted at the end unless --data-dir names a place for it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from demo_node import DemoError, Node
from demo_page import (
    CHANNELS,
    NEIGHBOUR,
    TOP_K,
    Outcome,
    Question,
    Reporter,
    ranks_of,
    show_neighbourhood,
    show_question,
    show_totals,
)
from rich.console import Console
from rich.markup import escape
from rich.text import Text

HERE = Path(__file__).resolve().parent
OWNER = "demo"
BATCH = 25

Json = dict[str, Any]


def read_lines(name: str) -> list[Json]:
    return [json.loads(line) for line in (HERE / name).read_text(encoding="utf-8").splitlines()]


def file_corpus(node: Node, corpus: Sequence[Json], report: Callable[[str], None]) -> float:
    """Files every passage and waits until it can be searched. Returns the seconds taken."""
    started = time.monotonic()
    for at in range(0, len(corpus), BATCH):
        batch = corpus[at : at + BATCH]
        answer = node.post(
            "/v1/batch/embeddings",
            {
                "inputs": [passage["text"] for passage in batch],
                "document_ids": [passage["id"] for passage in batch],
                "names": [passage["name"] for passage in batch],
                "entities": [passage.get("entities") for passage in batch],
                "relationships": [passage.get("relationships") for passage in batch],
                "thread": {"owner_id": OWNER},
                "wait": True,
            },
        )
        if not answer["success"]:
            raise DemoError(f"some passages were not filed: {answer['documents']}\n{node.tail()}")
        report(f"Filed {at + len(batch)} of {len(corpus)} passages, {time.monotonic() - started:.1f} s")
    return time.monotonic() - started


def ask(node: Node, question: Question) -> tuple[Outcome, Json]:
    """Asks once in every channel. Returns where the passages were, and the answer of the default, `all`."""
    answers = {}
    # The default goes first: the node embeds the question then and remembers it for the other channels.
    for channel in reversed(CHANNELS):
        started = time.monotonic()
        thread = {"owner_id": OWNER, "top_k": TOP_K, **CHANNELS[channel]}
        answers[channel] = node.post("/v1/search", {"query": question.question, "thread": thread})
        if channel == "all":
            search_ms = 1_000 * (time.monotonic() - started)
    ranks = {channel: ranks_of(question.document_ids, answers[channel]["references"]) for channel in CHANNELS}
    return Outcome(question, ranks, search_ms), answers["all"]


@contextlib.contextmanager
def running_node(data_dir: Path | None) -> Iterator[Node]:
    """A node whose log, and data unless `data_dir` is given, live in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="thread-demo-") as folder:
        node = Node(data_dir.resolve() if data_dir else Path(folder) / "data", Path(folder) / "node.log")
        try:
            yield node
        finally:
            node.abandon()


def tell(console: Console, data_dir: Path | None) -> None:
    corpus = read_lines("corpus.jsonl")
    questions = [Question(**line) for line in read_lines("questions.jsonl")]
    names = {passage["id"]: passage["name"] for passage in corpus}
    console.print(f"[bold]Thread[/]: {len(corpus)} passages about an invented coast, {len(questions)} questions\n")
    with running_node(data_dir) as node:
        with Reporter(console) as report:
            started = time.monotonic()
            embedder = node.wait_ready(report)
            start_s = time.monotonic() - started
            file_s = file_corpus(node, corpus, report)
        described = sum("entities" in passage for passage in corpus)
        console.print(
            f"Node ready after {start_s:.1f} s with {escape(embedder['model'])}.\n"
            f"{len(corpus)} passages filed and searchable after {file_s:.1f} s ({len(corpus) / file_s:.0f} a second). "
            f"{described} came with entities and relationships; names link the rest.\n"
            f"Below, a needed passage is one the answer depends on, and – means not among the first {TOP_K}.",
            highlight=False,
        )
        outcomes = []
        for number, question in enumerate(questions, 1):
            outcome, answer = ask(node, question)
            outcomes.append(outcome)
            show_question(console, number, outcome, answer, names)
        show_totals(console, outcomes)
        show_neighbourhood(console, node.post("/v1/graph", {"thread": {"owner_id": OWNER}, "entity": NEIGHBOUR}))
        stop_s = node.stop()
    console.print()
    where = f"Its data is in {data_dir}." if data_dir else "Its data is deleted."
    console.print(Text(f"The node stopped cleanly in {stop_s:.1f} s. {where}"))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="keep the node's data here; it is deleted otherwise"
    )
    data_dir: Path | None = parser.parse_args().data_dir
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that cannot show a character gets a question mark, not a traceback.
        sys.stdout.reconfigure(errors="replace")
    console = Console(width=min(100, Console().width))
    try:
        tell(console, data_dir)
    except DemoError as error:
        console.print(Text(f"The demo failed: {error}", style="red"), soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print(Text("Stopped."))
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
