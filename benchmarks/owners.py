"""What does a small owner pay for the others? A thousand owners of very different sizes in one node.

    python benchmarks/owners.py

Sizes follow Zipf's law: the largest owner has a seventh of everything, the smallest a few documents. Documents of four
partitions bring their vectors, so no model is needed.

- **filing**: the same documents go into a node with a thousand owners and into one with a single owner, in turn;
- **scan**: the engine's candidates among an owner's rows, as a search asks for them, beside an exact scan of the same
  rows by NumPy, which reads them where they lie (through the memory map of the segment) and multiplies, in turn; for
  comparison, the same product over a copy in memory, which no node has of rows that it keeps codes of;
- **search**: the whole of it, words included, beside the same search in a node that holds this owner alone, in turn.
"""

from __future__ import annotations

import os

# As the node sets them for itself: one thread a product, and no spinning between them.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import asyncio
import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from harness import NoModel, parse, rest_soon, wait_for_rest, write_results
from numpy.typing import NDArray

from thread_kernels import create_engine
from thread_service.batching.embed import EmbeddingQueue
from thread_service.node.node import Node
from thread_service.node.operations import DocumentIn, FileRequest, PartitionIn, SearchRequest
from thread_service.store import registry, scope, sql
from thread_service.store.directory import DataDirectory
from thread_service.store.store import Store

OWNERS = 1_000
PARTITIONS = 4
DOCUMENTS_A_REQUEST = 16
WIDTH = 384
LATENT = 64
WORDS = 20
QUERY_WORDS = 6
VOCABULARY = 50_000
K = 10
SAMPLED = (1.0, 0.9, 0.5, 0.1, 0.03, 0.007, 0.001)
"""Owners that are searched for, by rank: 1 is the smallest of all."""
ROUNDS = 60
FILED_IN_TURN = 40
"""Requests to either node before it is the other's turn."""
WANTED = 2.0

Vectors = NDArray[np.float32]
Milliseconds = dict[str, float]


class Maker:
    """Documents and who files them, the same ones for the same number of rows."""

    def __init__(self, rows: int) -> None:
        self._random = np.random.default_rng(0)
        self._basis = self._random.standard_normal((LATENT, WIDTH), np.float32)
        self._made = 0
        shares = 1 / np.arange(1, OWNERS + 1)
        self._left = np.maximum(2, rows / PARTITIONS * shares / shares.sum()).astype(np.int64)
        self.documents = int(self._left.sum())

    def requests(self) -> Iterator[tuple[int, list[DocumentIn]]]:
        """(owner by rank, its documents): owners take turns by chance, larger ones more often."""
        while self._left.any():
            owner = int(self._random.choice(OWNERS, p=self._left / self._left.sum()))
            count = min(DOCUMENTS_A_REQUEST, int(self._left[owner]))
            self._left[owner] -= count
            yield owner, [self._document() for _ in range(count)]

    def vectors(self, count: int) -> Vectors:
        latent = self._random.standard_normal((count, LATENT), np.float32)
        vectors: Vectors = latent @ self._basis + self._random.standard_normal((count, WIDTH), np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors

    def text(self, words: int = WORDS) -> str:
        ranks = np.exp(self._random.random(words) * np.log(VOCABULARY)).astype(np.int64)
        return " ".join(f"word{rank:x}" for rank in ranks.tolist())

    def _document(self) -> DocumentIn:
        self._made += 1
        brought = tuple(PartitionIn(vector) for vector in self.vectors(PARTITIONS))
        texts = tuple(self.text() for _ in range(PARTITIONS))
        return DocumentIn(texts, f"d{self._made}", entities=(), partitions=brought)


class Opened:
    """A node on an empty temporary directory."""

    def __init__(self, folder: str) -> None:
        self.store = Store(DataDirectory.open(Path(folder)), create_engine("cpu"))
        self.node = Node(self.store, EmbeddingQueue(NoModel()))
        self.node.start()


@contextlib.contextmanager
def opened() -> Iterator[Opened]:
    with tempfile.TemporaryDirectory(prefix="thread-benchmark-") as folder:
        found = Opened(folder)
        try:
            yield found
        finally:
            found.node.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    arguments = parse(parser, rows=10_000)
    rest_soon()
    with asyncio.Runner() as runner, opened() as shared:
        maker = Maker(arguments.rows)
        print(f"{maker.documents * PARTITIONS:,} rows of {WIDTH} components, {OWNERS:,} owners")
        filed: dict[int, list[DocumentIn]] = {}
        with opened() as single:
            filing = runner.run(file_in_turn(maker, shared, single, filed))
        wait_for_rest(shared.store)
        searching = [runner.run(search_in_turn(maker, shared, owner, filed[owner])) for owner in sampled()]
    show(searching)
    path = write_results(
        "owners",
        {"owners": OWNERS, "rows": maker.documents * PARTITIONS, "width": WIDTH, "filing": filing, "owner": searching},
        ratios={
            "rows filed a second, a thousand owners / one": filing["a thousand owners"] / filing["one owner"],
            "scan / exact scan, median": float(np.median([each["scan"] / each["exact"] for each in searching])),
            "search / alone, median": float(np.median([each["search"] / each["search_alone"] for each in searching])),
        },
        quick=arguments.quick,
    )
    print(f"written: {path.relative_to(path.parents[2])}")


def sampled() -> list[int]:
    return [max(0, round(OWNERS * share) - 1) for share in SAMPLED]


# ---------------------------------------------------------------------------------------------- filing


async def file_in_turn(
    maker: Maker, shared: Opened, single: Opened, filed: dict[int, list[DocumentIn]]
) -> dict[str, float]:
    """Rows a second into either node; `filed` gets what the sampled owners filed."""
    spent = {"a thousand owners": 0.0, "one owner": 0.0}
    wanted, part = set(sampled()), []
    for owner, documents in maker.requests():
        if owner in wanted:
            filed.setdefault(owner, []).extend(documents)
        part.append((owner, documents))
        if len(part) == FILED_IN_TURN:
            await both(part, shared, single, spent)
            part = []
    await both(part, shared, single, spent)
    rates = {name: round(maker.documents * PARTITIONS / seconds, 1) for name, seconds in spent.items()}
    print("rows filed a second: " + ", ".join(f"{name} {rate:,.0f}" for name, rate in rates.items()), flush=True)
    return rates


async def both(
    requests: Sequence[tuple[int, list[DocumentIn]]], shared: Opened, single: Opened, spent: dict[str, float]
) -> None:
    for opened, name in ((shared, "a thousand owners"), (single, "one owner")):
        started = time.perf_counter()
        await file(opened, [(f"owner {rank}" if opened is shared else "one", made) for rank, made in requests])
        spent[name] += time.perf_counter() - started


async def file(opened: Opened, requests: Sequence[tuple[str, list[DocumentIn]]]) -> None:
    """Hand over all, then wait until the last, and so every one, is searchable."""
    for at, (owner, documents) in enumerate(requests):
        await opened.node.file(FileRequest(owner, tuple(documents), wait=at == len(requests) - 1))


# ---------------------------------------------------------------------------------------------- searching


async def search_in_turn(maker: Maker, shared: Opened, owner: int, documents: Sequence[DocumentIn]) -> dict[str, Any]:
    rows = np.stack([part.embedding for made in documents for part in made.partitions if part.embedding is not None])
    ask_engine = scan_of(shared.store, f"owner {owner}")
    read = reader_of(shared.store, f"owner {owner}")
    times: dict[str, list[float]] = {name: [] for name in ("scan", "exact", "in_memory", "search", "search_alone")}
    with opened() as alone:
        await file(alone, [("one", list(documents))])
        for _ in range(ROUNDS):
            vector, text = maker.vectors(1)[0], maker.text(QUERY_WORDS)
            times["scan"].append(timed(partial(ask_engine, vector)))
            times["exact"].append(timed(partial(read_and_scan, read, vector)))
            times["in_memory"].append(timed(partial(nearest, rows, vector)))
            for name, opened_, who in (("search", shared, f"owner {owner}"), ("search_alone", alone, "one")):
                started = time.perf_counter()
                await opened_.node.search(SearchRequest(who, text, query_embedding=vector))
                times[name].append(1e3 * (time.perf_counter() - started))
    medians = {name: round(float(np.median(each)), 3) for name, each in times.items()}
    return {"rank": owner + 1, "rows": len(rows), **medians}


def scan_of(store: Store, owner_id: str) -> Callable[[Vectors], Any]:
    """What a search asks of the engine for this owner, the filter included."""
    with store.read() as connection:
        tokens = scope.own(registry.owner_key(connection, owner_id))
    resident = store.resident.table("caller", WIDTH)
    assert resident is not None

    def ask(vector: Vectors) -> Any:
        return resident.table.candidates(vector[None], K, [resident.filter(tokens)])

    return ask


def reader_of(store: Store, owner_id: str) -> Callable[[], Vectors]:
    """Reads all vectors of the owner."""
    with store.read() as connection:
        places = sql.rows(
            connection,
            "SELECT segment, slot FROM vectors JOIN partitions ON subject_key = partition_key"
            " JOIN documents USING (content_key) JOIN owners USING (owner_key) WHERE owner_id = ? ORDER BY 1, 2",
            (owner_id,),
        )
    slots = {number: np.array([slot for segment, slot in places if segment == number]) for number, _ in places}
    return lambda: np.concatenate([store.segments.read(segment, each) for segment, each in slots.items()])


def read_and_scan(read: Callable[[], Vectors], vector: Vectors) -> NDArray[np.int64]:
    return nearest(read(), vector)


def nearest(rows: Vectors, vector: Vectors) -> NDArray[np.int64]:
    """The nearest of unit vectors."""
    scores = rows @ vector
    count = min(K, len(rows))
    best = np.argpartition(-scores, count - 1)[:count]
    return best[np.argsort(-scores[best])]


def timed(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - started)


def show(searching: Sequence[dict[str, Any]]) -> None:
    print(f"\n{'milliseconds':>12}{'rows':>9}{'scan':>9}{'exact':>9}{'ratio':>8}{'in memory':>11}", end="")
    print(f"{'search':>10}{'alone':>9}{'ratio':>8}")
    for each in searching:
        print(
            f"{'owner ' + str(each['rank']):>12}{each['rows']:9,}{each['scan']:9.3f}{each['exact']:9.3f}"
            f"{each['scan'] / each['exact']:8.2f}{each['in_memory']:11.3f}"
            f"{each['search']:10.2f}{each['search_alone']:9.2f}{each['search'] / each['search_alone']:8.2f}"
        )
    for name, beside in (("scan", "exact"), ("search", "search_alone")):
        print(f"largest ratio, {name}: {max(each[name] / each[beside] for each in searching):.2f} (wanted: {WANTED:g})")


if __name__ == "__main__":
    main()
