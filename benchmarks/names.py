"""What do very many names cost? A million names, some of them in every document.

    python benchmarks/names.py

One owner names N things, 40 a document; as many documents again only mention them. Names are drawn by Zipf's law, 8 of
them are in every text, and so is one that nobody has named yet. Vectors are brought, so no model is needed.

- **evidence**: names in the query → activations → evidence → joining, of one search at a time; cold means that nothing
  has asked for those names since the store was opened; beside filing, that documents with all the hubs arrive all the
  time;
- **a new name** that is in every earlier text: until the next text is linked to it, until every earlier one is, and
  what searches and deposits take meanwhile. Then its removal, and one deposit that brings 10,000 names;
- **memory and start-up** against a store of the same documents where nobody has named anything.
"""

from __future__ import annotations

import os

# As the node sets them for itself: one thread a product, and no spinning between them.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from evidence_time import timed_evidence
from harness import DOCUMENTS_A_REQUEST, OWNER, NoModel, anonymous_bytes, parse, write_results
from numpy.typing import NDArray

from thread_kernels import create_engine
from thread_service.batching.embed import EmbeddingQueue
from thread_service.node.node import Node
from thread_service.node.operations import (
    DocumentIn,
    EntityIn,
    FileRequest,
    GraphRequest,
    PartitionIn,
    RemoveRequest,
    SearchRequest,
)
from thread_service.store.directory import DataDirectory
from thread_service.store.store import Store

WIDTH = 32
HUBS = 8
NAMES_A_DOCUMENT = 40
MENTIONS_A_TEXT = 8
NEW_NAME = "Late Arrival"
MANY_NAMES = 10_000
QUERIES = 300
WAITING = 2_048
SYLLABLES = [first + second for first in "bdfgklmnprstvz" for second in ("a", "e", "i", "o", "u", "an", "or")]
PAUSE = 0.05
"""Between the searches of one caller, and the deposits of another, beside other work."""
BEFORE_SECONDS = 10
SECONDS_MAX = 3_600

T = TypeVar("T")
Vector = NDArray[np.float32]
Milliseconds = list[float]


class Maker:
    """Names, documents and queries, the same ones for the same number of names."""

    def __init__(self, names: int) -> None:
        self.names = names
        self._words = _words(max(100, 2 * int(names**0.5)))
        self._random = np.random.default_rng(0)

    def name(self, rank: int) -> str:
        """The name of this rank: 0 is the commonest. Each tenth has a third word."""
        first, second = rank % len(self._words), rank // len(self._words)
        third = f" {self._words[(first + second) % len(self._words)]}" if rank % 10 == 9 else ""
        return f"{self._words[first]} {self._words[second]}{third}"

    def vector(self) -> Vector:
        vector = self._random.standard_normal(WIDTH, np.float32)
        return vector / np.linalg.norm(vector)

    def ranks(self, count: int) -> list[int]:
        """Ranks by Zipf's law: each with a probability that falls as 1 / (rank + 1)."""
        drawn = np.exp(self._random.random(count) * np.log(self.names)).astype(np.int64)
        return [int(rank) for rank in np.minimum(drawn, self.names - 1)]

    def document(self, document_id: str, text: str, names: Sequence[str] = ()) -> DocumentIn:
        entities = tuple(EntityIn(name, "thing") for name in names)
        return DocumentIn((text,), document_id, entities=entities, partitions=(PartitionIn(self.vector()),))

    def naming(self) -> Iterator[DocumentIn]:
        """Documents that name everything once, the hubs among them."""
        order = self._random.permutation(self.names)
        for start in range(0, self.names, NAMES_A_DOCUMENT):
            names = [self.name(rank) for rank in order[start : start + NAMES_A_DOCUMENT].tolist()]
            yield self.document(f"naming {start}", self.text(), names)

    def mentioning(self) -> Iterator[DocumentIn]:
        """As many documents that name nothing themselves."""
        for start in range(0, self.names, NAMES_A_DOCUMENT):
            yield self.document(f"text {start}", self.text())

    def text(self) -> str:
        mentioned = [self.name(rank) for rank in (*range(HUBS), *self.ranks(MENTIONS_A_TEXT))]
        return f"of {NEW_NAME} and " + " met with ".join(mentioned)

    def queries(self) -> dict[str, list[SearchRequest]]:
        rare = [int(rank) for rank in self._random.integers(self.names // 2, self.names, 4 * QUERIES)]
        asked = {
            "hubs": [" and ".join(self.name(hub) for hub in range(HUBS))] * QUERIES,
            "rare names": [f"{self.name(rare[at])} or {self.name(rare[-at])}" for at in range(QUERIES)],
            "one word of many names": [f"what about {self._words[at % len(self._words)]}" for at in range(QUERIES)],
            "no name": ["where were the others on that evening"] * QUERIES,
            "8,000 characters": [
                " ".join(self.name(rank) for rank in (*range(HUBS), *self.ranks(1_000)))[:8_000]
                for _ in range(QUERIES // 10)
            ],
        }
        return {
            kind: [SearchRequest(OWNER, text, query_embedding=self.vector()) for text in texts]
            for kind, texts in asked.items()
        }


def _words(count: int) -> list[str]:
    """Words of three syllables, all different."""
    size = len(SYLLABLES)
    return [
        (SYLLABLES[at % size] + SYLLABLES[at // size % size] + SYLLABLES[(at * 7 + at // size**2) % size]).title()
        for at in range(count)
    ]


class Running:
    """A node over a directory, and the clock."""

    def __init__(self, folder: Path) -> None:
        started = time.perf_counter()
        self.store = Store(DataDirectory.open(folder), create_engine("cpu"))
        self.start_seconds = time.perf_counter() - started
        self.node = Node(self.store, EmbeddingQueue(NoModel()))
        self.node.start()

    async def file(self, documents: Iterable[DocumentIn]) -> float:
        """File all; seconds until the last is searchable and linked."""
        started, waiting, batch = time.perf_counter(), 0, list[DocumentIn]()
        for document in documents:
            batch.append(document)
            if len(batch) == DOCUMENTS_A_REQUEST:
                waiting += len(batch)
                await self.node.file(FileRequest(OWNER, tuple(batch), wait=waiting >= WAITING))
                waiting, batch = waiting % WAITING, []
        await self.node.file(FileRequest(OWNER, tuple(batch), wait=True))
        return time.perf_counter() - started

    async def search(self, request: SearchRequest) -> float:
        """Milliseconds."""
        started = time.perf_counter()
        await self.node.search(request)
        return 1e3 * (time.perf_counter() - started)

    async def until(self, condition: Callable[[], bool]) -> float:
        """Seconds until it holds."""
        started = time.perf_counter()
        while not await asyncio.to_thread(condition):
            if time.perf_counter() - started > SECONDS_MAX:
                raise SystemExit("what was waited for did not happen")
            await asyncio.sleep(0.1)
        return time.perf_counter() - started

    def value(self, statement: str, *parameters: Any) -> int:
        with self.store.read() as connection:
            return int(connection.execute(statement, parameters).get or 0)

    def is_idle(self) -> bool:
        """Nothing is left to link."""
        return not self.value("SELECT (SELECT count(*) FROM relink) + count(*) FROM changed_names")

    def entity(self, name: str) -> int:
        return self.value("SELECT entity_key FROM entities WHERE name_key = ?", name.lower())

    def mentions(self, entity_key: int) -> int:
        """How many documents are linked to it by their texts."""
        return self.value("SELECT count(*) FROM mentions WHERE entity_key = ?", entity_key)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--names", type=int, default=1_000_000)
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    arguments = parse(parser, names=4_000)
    if arguments.open is not None:
        print(json.dumps(asyncio.run(open_once(arguments.open, arguments.names))))
        return
    with tempfile.TemporaryDirectory(prefix="thread-benchmark-") as folder:
        measured = asyncio.run(measure(Path(folder), arguments.names))
    named = {"names": arguments.names, **measured}
    path = write_results("names", named, ratios=ratios(measured), quick=arguments.quick)
    print(f"\nwritten: {path.relative_to(path.parents[2])}")


async def measure(folder: Path, names: int) -> dict[str, Any]:
    found: dict[str, Any] = {"filing": await fill(folder, names)}
    show("filing", found["filing"])
    found["opened"] = compare_openings(folder, names)
    show("opened", found["opened"])
    maker, running = Maker(names), Running(folder / "named")
    try:
        found["documents"] = running.store.resident.document_count
        queries = maker.queries()
        for how in ("cold", "warm"):
            found[f"evidence, {how}"] = await evidence_times(running, queries)
            show(f"evidence, {how} (ms)", found[f"evidence, {how}"])
        others = Beside(running, maker)
        found["evidence, beside filing"] = await others.run(evidence_times(running, queries), others.depositing())
        show("evidence, beside filing (ms)", found["evidence, beside filing"])
        for title, measuring in (("graph", graph_times), ("new name", new_name), ("many names", many_names)):
            found[title] = await measuring(running, maker)
            show(title, found[title])
    finally:
        running.node.close()
    return found


def ratios(measured: dict[str, Any]) -> dict[str, float]:
    return {
        f"evidence / search, {kind}": times["evidence"]["p50"] / times["search"]["p50"]
        for kind, times in measured["evidence, warm"].items()
    }


async def fill(folder: Path, names: int) -> dict[str, Any]:
    """Two stores of the same documents: in one they name things, in the other nothing."""
    maker, running = Maker(names), Running(folder / "named")
    naming = await running.file(maker.naming())
    mentioning = await running.file(maker.mentioning())
    linking = await running.until(running.is_idle)
    running.node.close()
    maker, bare = Maker(names), Running(folder / "bare")
    await bare.file(maker.document(f"naming {at}", maker.text()) for at in range(names // NAMES_A_DOCUMENT))
    await bare.file(maker.mentioning())
    bare.node.close()
    database, without = (database_bytes(folder / name) for name in ("named", "bare"))
    return {
        "names_a_second": round(names / naming),
        "mentioning_documents_a_second": round(names / NAMES_A_DOCUMENT / mentioning),
        "linking_after_filing_seconds": round(linking, 1),
        "database_bytes_a_name": round((database - without) / names, 1),
    }


def database_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("thread.db*"))


def compare_openings(folder: Path, names: int) -> dict[str, Any]:
    runs = {
        name: json.loads(
            subprocess.check_output([sys.executable, __file__, "--names", str(names), "--open", str(folder / name)])
        )
        for name in ("bare", "named")
    }
    return {
        **runs,
        "memory_bytes_a_name_at_start": memory_a_name(runs, "mb_at_start", names),
        "memory_bytes_a_name_after_queries": memory_a_name(runs, "mb_after_queries", names),
    }


def memory_a_name(runs: dict[str, Any], when: str, names: int) -> float:
    more: float = runs["named"][when] - runs["bare"][when]
    return round(more * 1e6 / names, 1)


async def open_once(folder: Path, names: int) -> dict[str, Any]:
    """Start-up and private memory, at once and after each query of every kind."""
    running = Running(folder)
    at_start = anonymous_bytes()
    for requests in Maker(names).queries().values():
        for request in requests:
            await running.search(request)
    after = anonymous_bytes()
    running.node.close()
    return {
        "start_seconds": round(running.start_seconds, 3),
        "mb_at_start": round(at_start / 1e6, 1),
        "mb_after_queries": round(after / 1e6, 1),
    }


async def evidence_times(running: Running, queries: dict[str, list[SearchRequest]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind, requests in queries.items():
        with timed_evidence() as spent:
            whole, steps = Milliseconds(), Milliseconds()
            for request in requests:
                spent[0] = 0.0
                whole.append(await running.search(request))
                steps.append(1e3 * spent[0])
        found[kind] = {"evidence": percentiles(steps), "search": percentiles(whole)}
    return found


class Beside:
    """Work that goes on beside other work until it is told to stop; what it began is finished, and counts."""

    def __init__(self, running: Running, maker: Maker) -> None:
        self.searches, self.deposits = Milliseconds(), Milliseconds()
        self._running = running
        self._maker = maker
        self._is_over = False

    async def depositing(self) -> None:
        """A new text with every hub, again and again; how long each took to be accepted."""
        while not self._is_over:
            document = self._maker.document(f"more {time.perf_counter()}", self._maker.text())
            started = time.perf_counter()
            await self._running.node.file(FileRequest(OWNER, (document,)))
            self.deposits.append(1e3 * (time.perf_counter() - started))
            await asyncio.sleep(PAUSE)

    async def searching(self) -> None:
        """One search after the other, of every kind but the very long ones, in turn."""
        kinds = [requests for kind, requests in self._maker.queries().items() if "characters" not in kind]
        for at in count():
            if self._is_over:
                return
            self.searches.append(await self._running.search(kinds[at % len(kinds)][at // len(kinds) % QUERIES]))
            await asyncio.sleep(PAUSE)

    async def run(self, work: Coroutine[Any, Any, T], *others: Coroutine[Any, Any, None]) -> T:
        tasks = [asyncio.create_task(other) for other in others]
        try:
            return await work
        finally:
            self._is_over = True
            await asyncio.gather(*tasks)


async def beside(running: Running, maker: Maker, work: Coroutine[Any, Any, T]) -> tuple[T, dict[str, Any]]:
    """Do it while one caller searches and one deposits."""
    others = Beside(running, maker)
    result = await others.run(work, others.searching(), others.depositing())
    return result, {"search_ms": percentiles(others.searches), "deposit_ms": percentiles(others.deposits)}


async def graph_times(running: Running, maker: Maker) -> dict[str, Any]:
    """The graph, asked directly, without hops."""
    common = maker.name(0).split()[0]
    found: dict[str, Any] = {}
    for kind, entity, limit in (
        ("a rare name", maker.name(maker.names - 1), 20),
        ("a word of many names", common, 20),
        ("browsing", "", 20),
    ):
        request = GraphRequest(OWNER, entity, hops=0, limit=limit, include_documents=False)
        times = Milliseconds()
        for _ in range(5):
            started = time.perf_counter()
            await running.node.graph(request)
            times.append(1e3 * (time.perf_counter() - started))
        found[kind] = percentiles(times)
    return found


async def new_name(running: Running, maker: Maker) -> dict[str, Any]:
    """A name that every text holds comes, and goes."""
    texts = running.store.resident.document_count
    _, before = await beside(running, maker, asyncio.sleep(BEFORE_SECONDS))

    async def come() -> dict[str, float]:
        started = time.perf_counter()
        await running.node.file(FileRequest(OWNER, (maker.document("new", "-", [NEW_NAME]),), wait=True))
        await running.node.file(FileRequest(OWNER, (maker.document("next", f"of {NEW_NAME} too"),), wait=True))
        next_linked = time.perf_counter() - started
        entity = running.entity(NEW_NAME)
        assert running.mentions(entity)
        await running.until(lambda: running.mentions(entity) > texts)
        return {"next_text_seconds": next_linked, "all_texts_seconds": time.perf_counter() - started}

    async def go() -> dict[str, float]:
        entity = running.entity(NEW_NAME)
        started = time.perf_counter()
        await running.node.remove(RemoveRequest(OWNER, ("new",)))
        answered = time.perf_counter() - started
        await running.until(lambda: not running.mentions(entity))
        return {"answered_seconds": answered, "unlinked_seconds": time.perf_counter() - started}

    came, meanwhile = await beside(running, maker, come())
    went, after = await beside(running, maker, go())
    return {
        "earlier_texts": texts,
        "before": before,
        "coming": rounded(came) | meanwhile,
        "going": rounded(went) | after,
    }


async def many_names(running: Running, maker: Maker) -> dict[str, Any]:
    """One document that names 10,000 things nobody has named."""
    names = [f"{maker.name(rank)} the Younger" for rank in range(MANY_NAMES)]

    async def come() -> dict[str, float]:
        started = time.perf_counter()
        await running.node.file(FileRequest(OWNER, (maker.document("many", "-", names),)))
        answered = time.perf_counter() - started
        await running.until(lambda: not running.value("SELECT count(*) FROM pending WHERE graph LIKE '%Younger%'"))
        return {"answered_seconds": answered, "named_seconds": time.perf_counter() - started}

    came, meanwhile = await beside(running, maker, come())
    return rounded(came) | meanwhile


def rounded(seconds: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 2) for name, value in seconds.items()}


def percentiles(times: Milliseconds) -> dict[str, float]:
    if not times:
        return {}
    p50, p99, most = np.percentile(times, (50, 99, 100))
    return {"p50": round(float(p50), 2), "p99": round(float(p99), 2), "max": round(float(most), 2)}


def show(title: str, found: dict[str, Any]) -> None:
    print(f"\n{title}", flush=True)
    for name, value in found.items():
        print(f"  {name:30}{value}", flush=True)


if __name__ == "__main__":
    main()
