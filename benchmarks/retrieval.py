"""Do words and graph find what vectors miss? Recall of plain vectors, BM25, each channel added, a gate, all at once.

    python benchmarks/retrieval.py --data DIR

The corpus is filed through a node in this process in several set-ups, all with the same embedder: `triples`, the graph
the data set brings; `names`, titles as document names and links by name only; `identifiers`, for code, each passage
with its qualified name as its entity; `keywords`, what the node finds in a text nobody described. Code is filed and
searched as code, where the graph's part is the agreement of identifiers in every mode but `off`. Recall is the mean
over questions of relevant passages found ÷ relevant passages; intervals are 95 % bootstrap percentiles over questions,
of differences paired by question.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from harness import (
    MODEL,
    OWNER,
    DataSet,
    Opened,
    Passage,
    RememberingEmbedder,
    file_all,
    opened_node,
    parse,
    write_results,
)
from numpy.typing import NDArray

from thread_service.node.operations import DocumentIn, EntityIn, GraphMode, MediaType, RelationshipIn, SearchRequest
from thread_service.store import registry, scope, sql
from thread_service.store.words import WordIndex

Setup = Literal["triples", "names", "identifiers", "keywords"]
Recalls = NDArray[np.float64]

CUTS = (2, 5, 10, 20)
RESAMPLES = 10_000
SEARCHES: dict[str, tuple[GraphMode, bool]] = {
    "plain": ("off", False),
    "plain + words": ("off", True),
    "plain + graph": ("boost", False),
    "narrow": ("narrow", False),
    "all": ("boost", True),
}
DIFFERENCES = (("all", "plain"), ("plain + words", "plain"), ("plain + graph", "plain"), ("narrow", "plain"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with corpus.jsonl and queries.jsonl")
    parser.add_argument("--model", default=MODEL, help="as `thread --embedding-model` takes it")
    parser.add_argument("--questions", type=int, default=0, help="the first so many; 0: all")
    parser.add_argument("--passages", type=int, default=0, help="so many, those that answer first; 0: all")
    arguments = parse(parser, questions=40, passages=240)
    data = DataSet.read(arguments.data).part(arguments.questions, arguments.passages)
    embedder = RememberingEmbedder(arguments.model)
    setups: list[Setup] = ["triples", "names", "keywords"] if data.has_triples else ["names", "keywords"]
    if data.media_type == "code":
        setups = ["identifiers", "keywords"]
    measured: dict[str, Any] = {}
    for setup in setups:
        measured[setup] = asyncio.run(measure(data, setup, embedder))
        show(setup, measured[setup])
    stamp = embedder.stamp
    path = write_results(
        f"retrieval-{data.name}" if arguments.model == MODEL else f"model-{Path(arguments.model).name}-{data.name}",
        {
            "data": data.name,
            "passages": len(data.passages),
            "questions": len(data.questions),
            "model": "" if stamp is None else stamp.space,
            "setups": measured,
        },
        ratios={
            f"recall@5, {run} / plain, {setup}": of(run, found) / of("plain", found)
            for setup, found in measured.items()
            for run in ("all", "plain + words", "narrow")
        },
        quick=arguments.quick,
    )
    print(f"\nwritten: {path.relative_to(path.parents[2])}")


def of(run: str, found: dict[str, Any]) -> float:
    share: float = found["recall"][run]["@5"]["mean"]
    return share


async def measure(data: DataSet, setup: Setup, embedder: RememberingEmbedder) -> dict[str, Any]:
    async with opened_node(embedder) as opened:
        started = time.perf_counter()
        await file_all(opened.node, [document(passage, setup, data.media_type) for passage in data.passages])
        print(f"{setup}: {len(data.passages)} passages filed in {time.perf_counter() - started:.0f} s", flush=True)
        words = words_alone(opened)
        media_type = None if data.media_type == "text" else data.media_type
        runs: dict[str, list[list[str]]] = {"bm25": [words(question.text) for question in data.questions]}
        for run, (graph_mode, lexical) in SEARCHES.items():
            runs[run] = [
                [
                    passage.document_id
                    for passage in (
                        await opened.node.search(
                            SearchRequest(
                                OWNER,
                                question.text,
                                top_k=max(CUTS),
                                media_type=media_type,
                                graph_mode=graph_mode,
                                lexical=lexical,
                            )
                        )
                    ).passages
                ]
                for question in data.questions
            ]
    recalls = {run: recall(found, data) for run, found in runs.items()}
    return {
        "recall": {
            run: {f"@{cut}": interval(found[:, at]) for at, cut in enumerate(CUTS)} for run, found in recalls.items()
        },
        "difference": {
            f"{run} − {base}": {
                f"@{cut}": interval(recalls[run][:, at] - recalls[base][:, at]) for at, cut in enumerate(CUTS)
            }
            for run, base in DIFFERENCES
        },
    }


def document(passage: Passage, setup: Setup, media_type: MediaType = "text") -> DocumentIn:
    filed = DocumentIn((passage.whole,), passage.passage_id, media_type=media_type)
    if setup == "keywords":
        return filed
    if setup == "names":
        return replace(filed, name=passage.title, entities=())
    if setup == "identifiers":
        return replace(filed, entities=(EntityIn(passage.passage_id, "function"),))
    ends = dict.fromkeys(end for subject, _, object_ in passage.triples for end in (subject, object_))
    return replace(
        filed,
        name=passage.title,
        entities=tuple(EntityIn(name, "concept") for name in ends),
        relationships=tuple(RelationshipIn(*triple) for triple in passage.triples),
    )


def words_alone(opened: Opened) -> Callable[[str], list[str]]:
    """BM25 as the node computes it, and nothing else: question → document ids, best first."""
    index = WordIndex()

    def best(question: str) -> list[str]:
        with opened.store.read() as connection:
            readers = scope.own(registry.owner_key(connection, OWNER))
            scores = index.best(connection, opened.store.resident, question, readers, None, max(CUTS))
            ids = "SELECT document_id FROM partitions JOIN documents USING (content_key) WHERE partition_key = ?"
            return [sql.value(connection, ids, (key,)) for key in sorted(scores, key=lambda key: (-scores[key], key))]

    return best


def recall(found: list[list[str]], data: DataSet) -> Recalls:
    """[questions, cuts] of found relevant ÷ relevant."""
    return np.array(
        [
            [len(question.relevant.intersection(ids[:cut])) / len(question.relevant) for cut in CUTS]
            for question, ids in zip(data.questions, found, strict=True)
        ]
    )


def interval(values: NDArray[np.float64]) -> dict[str, float]:
    """Mean and 95 % bootstrap interval, in percent. The same resamples for every run."""
    picks = np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.percentile(values[picks].mean(axis=1), (2.5, 97.5))
    return {"mean": _percent(values.mean()), "low": _percent(low), "high": _percent(high)}


def _percent(share: float) -> float:
    return round(100 * float(share), 1)


def show(setup: Setup, measured: dict[str, Any]) -> None:
    for title in ("recall", "difference"):
        print(f"\n{setup + ': ' + title:34}" + "".join(f"{f'@{cut}':>22}" for cut in CUTS))
        for run, cells in measured[title].items():
            sign = "+" if title == "difference" else ""
            row = (
                f"{cell['mean']:{sign}.1f} [{cell['low']:{sign}.1f}, {cell['high']:{sign}.1f}]"
                for cell in cells.values()
            )
            print(f"{run:34}" + "".join(f"{text:>22}" for text in row))
    print(flush=True)


if __name__ == "__main__":
    main()
