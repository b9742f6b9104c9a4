"""What does a lookup of words cost? A million partitions whose words follow Zipf's law, and all sorts of callers.

    python benchmarks/words.py

Documents of 16 partitions bring their vectors, so no model is needed. Half of everything is available to all, one in
twenty is code. A lookup is what a search asks of the index of words: the best 200 partitions by BM25 of those that the
caller may read. It is asked for single words, band by band of how many partitions hold them, and for questions of
eight words, six of them drawn as texts are and two from all words alike. Every set of lookups starts with nothing
remembered of how frequent words are.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness import DOCUMENTS_A_REQUEST, NoModel, parse, write_results
from numpy.typing import NDArray

from thread_kernels import create_engine
from thread_service.batching.embed import EmbeddingQueue
from thread_service.node.node import Node
from thread_service.node.operations import Access, DocumentIn, FileRequest, GroupIn, MediaType, PartitionIn
from thread_service.node.search import LEXICAL_ROWS
from thread_service.store import audience, registry, scope, sql
from thread_service.store.directory import DataDirectory
from thread_service.store.store import Store
from thread_service.store.words import WordIndex

WIDTH = 16
REQUESTS_WAITING = 32
PARTITIONS = 16
WORDS = (10, 40)
"""Of a partition: any number between."""
VOCABULARY = 300_000
SMALL_DOCUMENTS = 20
MIDDLE_SHARE = 0.01
CODE_SHARE = 0.05
LOOKUPS = 400
WANTED_MS = 10.0

Floats = NDArray[np.float64]


class Maker:
    """Documents and queries, the same ones for the same size."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)
        self._made = 0

    def document(self, media_type: MediaType) -> DocumentIn:
        self._made += 1
        texts = [self.text(int(words)) for words in self._random.integers(*WORDS, size=PARTITIONS)]
        vectors = self._random.standard_normal((PARTITIONS, WIDTH), np.float32)
        brought = tuple(PartitionIn(vector) for vector in vectors)
        return DocumentIn(tuple(texts), f"d{self._made}", entities=(), partitions=brought, media_type=media_type)

    def text(self, words: int) -> str:
        ranks = np.exp(self._random.random(words) * np.log(VOCABULARY)).astype(np.int64)
        return " ".join(word(rank) for rank in ranks.tolist())

    def question(self) -> str:
        rare = self._random.integers(1, VOCABULARY, 2)
        return " ".join([self.text(6), *(word(rank) for rank in rare.tolist())])

    def chance(self) -> float:
        return float(self._random.random())

    def among(self, first: int, last: int) -> str:
        """A word whose rank is in the range."""
        return word(int(self._random.integers(first, last)))


def word(rank: int) -> str:
    """The word of this rank, from 1, the commonest. (Made of consonants that no stemmer changes.)"""
    letters = "bcdfghjkmnpqrtvwxz"
    found = ""
    while rank:
        rank, digit = divmod(rank, len(letters))
        found += letters[digit]
    return f"q{found}q"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--partitions", type=int, default=1_000_000)
    parser.add_argument("--lookups", type=int, default=LOOKUPS, help="of each kind")
    arguments = parse(parser, partitions=30_000, lookups=100)
    with tempfile.TemporaryDirectory(prefix="thread-benchmark-") as folder:
        store = Store(DataDirectory.open(Path(folder)), create_engine("cpu"))
        node = Node(store, EmbeddingQueue(NoModel()))
        node.start()
        try:
            maker = Maker()
            seconds = asyncio.run(fill(node, maker, arguments.partitions))
            print(f"{arguments.partitions:,} partitions filed in {seconds:.0f} s", flush=True)
            lookups = [*measure(store, maker, arguments.lookups)]
        finally:
            node.close()
    slowest = max(cell["p99"] for cell in lookups)
    print(f"\nslowest p99: {slowest} ms (wanted: under {WANTED_MS:g})")
    path = write_results(
        "words",
        {
            "partitions": arguments.partitions,
            "filing_seconds": round(seconds, 1),
            "lookups_of_each_kind": arguments.lookups,
            "slowest_p99": slowest,
            "milliseconds": lookups,
        },
        ratios=ratios(lookups),
        quick=arguments.quick,
    )
    print(f"written: {path.relative_to(path.parents[2])}")


def ratios(lookups: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Of medians; the caller of 20 documents pays least."""
    p50 = {(cell["query"], cell["caller"], cell["media"]): cell["p50"] for cell in lookups}
    least = p50["question", "20 documents", None]
    return {
        f"question, {caller} / 20 documents": p50["question", caller, None] / least
        for caller in ("a hundredth", "half and more", "global")
    }


async def fill(node: Node, maker: Maker, partitions: int) -> float:
    """Everything is filed in the order small, large, small, middle, large: no owner has the newest for itself."""
    started = time.perf_counter()
    documents = partitions // PARTITIONS - SMALL_DOCUMENTS
    middle = int(documents * MIDDLE_SHARE)
    await file(node, maker, "small", SMALL_DOCUMENTS // 2)
    await file(node, maker, "large", documents // 2 - middle)
    await file(node, maker, "small", SMALL_DOCUMENTS - SMALL_DOCUMENTS // 2)
    await file(node, maker, "middle", middle)
    await file(node, maker, "large", documents - documents // 2)
    return time.perf_counter() - started


async def file(node: Node, maker: Maker, owner: str, documents: int) -> None:
    """A large owner's documents are available every other time, those of the others are not."""
    for start in range(0, documents, DOCUMENTS_A_REQUEST):
        count = min(DOCUMENTS_A_REQUEST, documents - start)
        access: Access = "available" if owner == "large" and start // DOCUMENTS_A_REQUEST % 2 else "restricted"
        made = tuple(maker.document("code" if maker.chance() < CODE_SHARE else "text") for _ in range(count))
        number = start // DOCUMENTS_A_REQUEST
        wait = start + count >= documents or number % REQUESTS_WAITING == REQUESTS_WAITING - 1
        await node.file(FileRequest(owner, made, GroupIn(access, access=access), wait=wait))


def measure(store: Store, maker: Maker, lookups: int) -> Iterator[dict[str, Any]]:
    queries = {
        "question": [maker.question() for _ in range(lookups)],
        "word in 100 to 1,000": words_in(store, maker, 100, 1_000, lookups),
        "word in 1,000 to 5,000": words_in(store, maker, 1_000, 5_000, lookups),
        "word in 5,000 to 50,000": words_in(store, maker, 5_000, 50_000, lookups),
        "word in more": words_in(store, maker, 50_000, 10**9, lookups),
        "four frequent words": together(words_in(store, maker, 5_000, 50_000, 4 * lookups), lookups),
    }  # fmt: skip
    print(f"\n{'milliseconds':26}{'caller':16}{'media':8}{'p50':>8}{'p99':>8}{'most':>8}{'found':>8}")
    for kind, texts in queries.items():
        for caller, readers in callers(store).items():
            for media in (None, "code") if texts else ():
                times, found = look_up(store, texts, readers, media)
                p50, p99, most = (round(float(each), 2) for each in np.percentile(times, (50, 99, 100)))
                print(f"{kind:26}{caller:16}{media or 'any':8}{p50:8}{p99:8}{most:8}{found:8.0f}", flush=True)
                yield {
                    "query": kind, "caller": caller, "media": media, "p50": p50, "p99": p99, "most": most,
                    "found": round(found, 1),
                }  # fmt: skip


def callers(store: Store) -> dict[str, tuple[str, ...]]:
    with store.read() as connection:
        small, middle, large = (registry.owner_key(connection, owner) for owner in ("small", "middle", "large"))
    return {
        "20 documents": scope.own(small),
        "a hundredth": scope.own(middle),
        "half and more": scope.own(large),
        "global": scope.readable(small),
    }


def look_up(store: Store, texts: Sequence[str], readers: Sequence[str], media: str | None) -> tuple[Floats, float]:
    """Milliseconds of each lookup, and how many partitions it found in the mean."""
    index, token = WordIndex(), None if media is None else audience.media(media)
    times, found = np.empty(len(texts)), 0
    for place, text in enumerate(texts):
        with store.read() as connection:
            connection.execute("SELECT 1 FROM owners LIMIT 1").fetchall()  # the snapshot is taken
            started = time.perf_counter()
            best = index.best(connection, store.resident, text, readers, token, LEXICAL_ROWS)
            times[place] = 1e3 * (time.perf_counter() - started)
        found += len(best)
    return times, found / len(texts)


def words_in(store: Store, maker: Maker, fewest: int, most: int, count: int) -> list[str]:
    """Words that between so many partitions hold; none when there are no such words."""
    ranks = [rank_held_by(store, partitions) for partitions in (most, fewest)]
    first, last = (max(1, rank) for rank in ranks)
    return [maker.among(first, last) for _ in range(count)] if last > first else []


def together(words: Sequence[str], count: int) -> list[str]:
    """So many queries of all the words."""
    return [" ".join(words[start::count]) for start in range(count)] if words else []


def rank_held_by(store: Store, partitions: int) -> int:
    """The rank from which on no word is in as many partitions, roughly: they become rarer from rank to rank."""
    low, high = 1, VOCABULARY
    with store.read() as connection:
        while low < high:
            middle = (low + high) // 2
            held = sql.value(connection, "SELECT count(*) FROM words WHERE words MATCH ?", (f"body : {word(middle)}",))
            low, high = (middle + 1, high) if held >= partitions else (low, middle)
    return low


if __name__ == "__main__":
    main()
