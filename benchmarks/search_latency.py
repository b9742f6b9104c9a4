"""What does a search add to embedding its query? 10,000 documents at the data set's own density of relationships.

    python benchmarks/search_latency.py --data DIR

The data set's passages come first; the rest are copies in which every name carries a word of its copy, so that each
copy has a graph of its own. A copy's vectors are the originals' plus seeded noise, so filling takes minutes; the
questions are embedded by the model itself. Embedding alone and the whole search are timed in turn, one at a time, each
with a query the cache of queries has not seen (white space is added, which no tokenizer keeps). First the store's own
caches are cold, then warm. Afterwards the phases of a search are timed apart; one that overlaps another says so.
"""

from __future__ import annotations

import os

# As the node sets them for itself: one thread a product, and no spinning between them.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import asyncio
import hashlib
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from harness import (
    MODEL,
    OWNER,
    DataSet,
    Passage,
    RememberingEmbedder,
    file_all,
    opened_node,
    parse,
    rest_soon,
    wait_for_rest,
    write_results,
)
from numpy.typing import NDArray

from thread_service.batching.embed import EmbeddingQueue
from thread_service.batching.scan import ScanQueue
from thread_service.models.embedder import Role
from thread_service.node import search as search_module
from thread_service.node.node import Node
from thread_service.node.operations import DocumentIn, EntityIn, RelationshipIn, SearchRequest
from thread_service.node.search import Searching
from thread_service.node.showing import Showing
from thread_service.node.view import View

DOCUMENTS = 10_000
ROUNDS = 3
NOISE = 0.5
"""Length of what is added to an original's unit vector: a copy has a cosine of about 0.9 with it."""
PHASES = {
    "words and names (beside the embedding)": (Searching, "_prepare"),
    "answer, everything below": (Searching, "_answer"),
    "rescore": (View, "measure"),
    "scans of passages and edges": (ScanQueue, "run"),
    "near edges, after their scans": (search_module, "near_edges"),
    "evidence": (search_module, "_evidence"),
    "joining": (View, "joining"),
    "show": (Showing, "show"),
}
_MARK = re.compile(r" copy\d+x")

Milliseconds = list[float]


class CopyingEmbedder(RememberingEmbedder):
    """The original's vector plus noise for a copy's text; everything else goes to the model."""

    def embed(self, texts: Sequence[str], role: Role) -> NDArray[np.float32]:
        if role == "query":
            return self._inner.embed(texts, role)
        originals = super().embed([_MARK.sub("", text) for text in texts], role)
        return np.stack([self._near(text, vector) for text, vector in zip(texts, originals, strict=True)])

    def _near(self, text: str, original: NDArray[np.float32]) -> NDArray[np.float32]:
        if _MARK.search(text) is None:
            return original
        seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
        noise = np.random.default_rng(seed).standard_normal(len(original), np.float32)
        vector: NDArray[np.float32] = original + NOISE * noise / np.linalg.norm(noise)
        return vector / np.linalg.norm(vector)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with corpus, queries and triples (.jsonl)")
    parser.add_argument("--model", default=MODEL, help="as `thread --embedding-model` takes it")
    parser.add_argument("--documents", type=int, default=DOCUMENTS)
    parser.add_argument("--questions", type=int, default=0, help="the first so many; 0: all")
    arguments = parse(parser, documents=400, questions=40)
    data = DataSet.read(arguments.data).part(arguments.questions, 0)
    # On the event loop that the node runs on.
    measured = uvloop.run(measure(data, CopyingEmbedder(arguments.model), arguments.documents))
    show(measured)
    warm = measured["milliseconds"]["warm"]
    path = write_results(
        "search-latency",
        {"data": data.name, "documents": arguments.documents, **measured},
        ratios={"search / embedding, warm, p50": warm["search"]["p50"] / warm["embedding"]["p50"]},
        quick=arguments.quick,
    )
    print(f"\nwritten: {path.relative_to(path.parents[2])}")


async def measure(data: DataSet, embedder: CopyingEmbedder, count: int) -> dict[str, Any]:
    rest_soon()
    async with opened_node(embedder) as opened:
        started = time.perf_counter()
        documents = [document(data.passages[at % len(data.passages)], at // len(data.passages)) for at in range(count)]
        await file_all(opened.node, documents)
        await asyncio.to_thread(wait_for_rest, opened.store)
        relationships = sum(len(filed.relationships) for filed in documents)
        print(f"filed in {time.perf_counter() - started:.0f} s, {relationships} relationships", flush=True)
        texts = [question.text for question in data.questions]
        timer = _Timer(opened.node, opened.queue)
        cold = await timer.round(texts)
        warm = [pair for _ in range(ROUNDS) for pair in await timer.round(texts)]
        phases = await timer.phases(texts)
        tables = {
            f"{purpose}@{width}": asdict(resident.table.stats())
            for (purpose, width), resident in opened.store.resident.tables.items()
        }
    stamp = embedder.stamp
    return {
        "relationships": relationships,
        "questions": len(texts),
        "rounds": ROUNDS,
        "model": "" if stamp is None else stamp.space,
        "milliseconds": {"first time": _summary(cold), "warm": _summary(warm)},
        "phases_warm": {name: _percentiles(times) for name, times in phases.items()},
        "tables": tables,
    }


class _Timer:
    """Times one thing at a time; no query text is ever used twice."""

    def __init__(self, node: Node, queue: EmbeddingQueue) -> None:
        self._node = node
        self._queue = queue
        self._asked = 0

    async def round(self, texts: Iterable[str]) -> list[tuple[float, float]]:
        """(embedding alone, whole search) of each text, in milliseconds; which comes first alternates."""
        pairs: list[tuple[float, float]] = []
        for at, text in enumerate(texts):
            if at % 2:
                whole = await self._search(text)
                alone = await self._embed(text)
            else:
                alone = await self._embed(text)
                whole = await self._search(text)
            pairs.append((alone, whole))
        return pairs

    async def phases(self, texts: Iterable[str]) -> dict[str, Milliseconds]:
        """Time in each phase of each search, repeated calls of one search added up."""
        spent = dict.fromkeys(PHASES, 0.0)
        originals: list[tuple[Any, str, Callable[..., Any]]] = []
        for name, (owner, method) in PHASES.items():
            original = getattr(owner, method)
            originals.append((owner, method, original))
            setattr(owner, method, _timed(original, name, spent))
        times: dict[str, Milliseconds] = {name: [] for name in PHASES}
        for text in texts:
            spent.update(dict.fromkeys(PHASES, 0.0))
            await self._search(text)
            for name, seconds in spent.items():
                times[name].append(1e3 * seconds)
        for owner, method, original in originals:
            setattr(owner, method, original)
        return times

    async def _embed(self, text: str) -> float:
        query = self._unseen(text)
        started = time.perf_counter()
        await self._queue.query_vector(query)
        return 1e3 * (time.perf_counter() - started)

    async def _search(self, text: str) -> float:
        request = SearchRequest(OWNER, self._unseen(text))
        started = time.perf_counter()
        await self._node.search(request)
        return 1e3 * (time.perf_counter() - started)

    def _unseen(self, text: str) -> str:
        self._asked += 1
        return text + "".join(" \t"[int(digit)] for digit in f"{self._asked:b}")


def _timed(work: Callable[..., Any], name: str, spent: dict[str, float]) -> Callable[..., Any]:
    def timed(*arguments: Any, **named: Any) -> Any:
        started = time.perf_counter()
        try:
            return work(*arguments, **named)
        finally:
            spent[name] += time.perf_counter() - started

    return timed


def document(passage: Passage, copy: int) -> DocumentIn:
    """`copy` 0 is the passage itself."""
    triples = passage.triples
    title, text = passage.title, passage.text
    if copy:
        names = {title, *(end for subject, _, object_ in triples for end in (subject, object_))}
        pattern = re.compile(
            "|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in sorted(names, key=len, reverse=True))
        )
        mark = f" copy{copy}x"
        title, text = title + mark, pattern.sub(lambda found: found[0] + mark, text)
        triples = tuple((subject + mark, predicate, object_ + mark) for subject, predicate, object_ in triples)
    ends = dict.fromkeys(end for subject, _, object_ in triples for end in (subject, object_))
    return DocumentIn(
        (f"{title}\n{text}",),
        f"{passage.passage_id}.{copy}",
        title,
        entities=tuple(EntityIn(name, "concept") for name in ends),
        relationships=tuple(RelationshipIn(*triple) for triple in triples),
    )


def _summary(pairs: Sequence[tuple[float, float]]) -> dict[str, dict[str, float]]:
    alone, whole = zip(*pairs, strict=True)
    embedding, search = _percentiles(alone), _percentiles(whole)
    return {
        "embedding": embedding,
        "search": search,
        "search − embedding": {key: round(search[key] - embedding[key], 2) for key in embedding},
    }


def _percentiles(times: Sequence[float]) -> dict[str, float]:
    p50, p95 = np.percentile(times, (50, 95))
    return {"p50": round(float(p50), 2), "p95": round(float(p95), 2)}


def show(measured: dict[str, Any]) -> None:
    for title, rows in (*measured["milliseconds"].items(), ("phases, warm", measured["phases_warm"])):
        print(f"\n{title + ' (ms)':40}{'p50':>8}{'p95':>8}")
        for name, cells in rows.items():
            print(f"{name:40}{cells['p50']:8.2f}{cells['p95']:8.2f}")


if __name__ == "__main__":
    main()
