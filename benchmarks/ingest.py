"""How much of the embedding model's speed does filing keep, and does memory stay where it is?

    python benchmarks/ingest.py --data DIR

**Rate.** The data set's passages with their relationships are filed in rounds: from the first request until everything
is searchable, links and relationships included. After each round the model embeds by itself, in lists of 256, exactly
the texts that it was asked for in that round, so whatever else the machine does meets both alike. Reported is the
node's texts a second over the model's own, and the same of processor time, which other programs disturb less.

**Memory.** 20,000 documents at the same density of relationships, with vectors made from the texts' hashes instead of
the model, which would take an hour. Private anonymous memory of the process is read every thousand documents. What a
node keeps for every row that it searches is not meant: the documents' rows and relationships are counted, and the
growth after warming up is given for each of them too.
"""

from __future__ import annotations

import os

# As the node sets them for itself: one thread a product, and no spinning between them.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import asyncio
import gc
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from harness import (
    DOCUMENTS_A_REQUEST,
    MODEL,
    OWNER,
    DataSet,
    Opened,
    anonymous_bytes,
    opened_node,
    parse,
    write_results,
)
from numpy.typing import NDArray
from search_latency import document

from thread_service.models.embedder import Embedder, Role, Stamp, Status
from thread_service.models.local import local_embedder
from thread_service.node.operations import DocumentIn, FileRequest

ROUNDS = 6
DOCUMENTS_A_ROUND = 256
TEXTS_ALONE = 256
MEMORY_DOCUMENTS = 20_000
WARM_DOCUMENTS = 5_000
STEP = 1_000
WIDTH = 384
WANTED_SHARE = 0.9

Vectors = NDArray[np.float32]


class RecordingEmbedder:
    """The model, and what it was asked for since `texts` was emptied."""

    def __init__(self, model: str) -> None:
        self.inner: Embedder = local_embedder(model, models_dir=Path(tempfile.gettempdir()))
        self.texts: list[str] = []
        self.seconds = 0.0
        """Spent in the model."""

    @property
    def model(self) -> str:
        return self.inner.model

    @property
    def stamp(self) -> Stamp | None:
        return self.inner.stamp

    @property
    def status(self) -> Status:
        return self.inner.status

    def load(self) -> None:
        self.inner.load()

    def embed(self, texts: Sequence[str], role: Role) -> Vectors:
        started = time.perf_counter()
        vectors = self.inner.embed(texts, role)
        self.seconds += time.perf_counter() - started
        self.texts += texts
        return vectors

    def count_tokens(self, texts: Sequence[str]) -> int:
        return self.inner.count_tokens(texts)

    def close(self) -> None:
        self.inner.close()


class HashEmbedder:
    """A vector of each text's own, made in no time."""

    model = "hash"
    stamp: Stamp | None = Stamp(f"hash@{WIDTH}", "hash", None, WIDTH)
    status = Status("ready")

    def load(self) -> None: ...

    def embed(self, texts: Sequence[str], role: Role) -> Vectors:
        made = [np.random.default_rng(crc32(text.encode())).standard_normal(WIDTH, np.float32) for text in texts]
        vectors: Vectors = np.stack(made)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def count_tokens(self, texts: Sequence[str]) -> int:
        return sum(len(text) // 4 for text in texts)

    def close(self) -> None: ...


class Maker:
    """The data set's passages, then copies of them in which every name carries a word of its copy."""

    def __init__(self, data: DataSet) -> None:
        self._passages = data.passages
        self._made = 0

    def documents(self, count: int) -> list[DocumentIn]:
        numbers = range(self._made, self._made + count)
        self._made += count
        size = len(self._passages)
        return [document(self._passages[number % size], number // size) for number in numbers]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with corpus, queries and triples (.jsonl)")
    parser.add_argument("--model", default=MODEL, help="as `thread --embedding-model` takes it")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="for the rate")
    parser.add_argument("--round-documents", type=int, default=DOCUMENTS_A_ROUND, help="in each round")
    parser.add_argument("--documents", type=int, default=MEMORY_DOCUMENTS, help="for the memory")
    arguments = parse(parser, rounds=2, round_documents=48, documents=0)
    data = DataSet.read(arguments.data)
    rate: dict[str, Any] = {}
    if arguments.rounds:
        rate = asyncio.run(measure_rate(data, arguments.model, arguments.rounds, arguments.round_documents))
    memory = asyncio.run(measure_memory(data, arguments.documents)) if arguments.documents else {}
    measured = {"data": data.name, "rate": rate, "memory": memory}
    shares = {"texts a second, node / model": "share", "processor time a text, model / node": "share_of_processor_time"}
    ratios = {name: rate[share] for name, share in shares.items() if rate}
    path = write_results("ingest", measured, ratios=ratios, quick=arguments.quick)
    print(f"\nwritten: {path.relative_to(path.parents[2])}")


# ---------------------------------------------------------------------------------------------- rate


async def measure_rate(data: DataSet, model: str, rounds: int, count: int) -> dict[str, Any]:
    embedder, maker = RecordingEmbedder(model), Maker(data)
    async with opened_node(embedder) as opened:
        await file(opened, maker.documents(DOCUMENTS_A_REQUEST))  # warm
        print(
            f"{'texts':>8}{'node, texts/s':>15}{'model, texts/s':>16}{'share':>8}{'of processor':>14}{'in model':>10}"
        )
        measured = [await one_round(opened, embedder, maker.documents(count)) for _ in range(rounds)]
    total = {key: sum(each[key] for each in measured) for key in measured[0]}
    share = total["alone"] / total["node"]
    print(f"\nof the model's own texts a second: {share:.1%} (wanted: {WANTED_SHARE:.0%})")
    return {
        "rounds": rounds,
        "documents_a_round": count,
        "texts": total["texts"],
        "node_texts_a_second": round(total["texts"] / total["node"], 1),
        "model_texts_a_second": round(total["texts"] / total["alone"], 1),
        "share": round(share, 4),
        "share_of_processor_time": round(total["alone_processor"] / total["node_processor"], 4),
        "each": [{key: round(value, 3) for key, value in each.items()} for each in measured],
    }


async def one_round(opened: Opened, embedder: RecordingEmbedder, documents: Sequence[DocumentIn]) -> dict[str, float]:
    embedder.texts, embedder.seconds = [], 0.0
    node, node_processor = time.perf_counter(), time.process_time()
    await file(opened, documents)
    node, node_processor = time.perf_counter() - node, time.process_time() - node_processor
    texts, in_model = embedder.texts, embedder.seconds
    alone, alone_processor = time.perf_counter(), time.process_time()
    for start in range(0, len(texts), TEXTS_ALONE):
        embedder.inner.embed(texts[start : start + TEXTS_ALONE], "document")
    alone, alone_processor = time.perf_counter() - alone, time.process_time() - alone_processor
    print(
        f"{len(texts):8,}{len(texts) / node:15.1f}{len(texts) / alone:16.1f}{alone / node:8.1%}"
        f"{alone_processor / node_processor:14.1%}{in_model / node:10.1%}",
        flush=True,
    )
    return {
        "texts": len(texts), "node": node, "node_processor": node_processor, "in_model": in_model, "alone": alone,
        "alone_processor": alone_processor,
    }  # fmt: skip


async def file(opened: Opened, documents: Sequence[DocumentIn]) -> None:
    """Hand over all, then wait until all of it is searchable, links and relationships included."""
    for start in range(0, len(documents), DOCUMENTS_A_REQUEST):
        end = start + DOCUMENTS_A_REQUEST
        part = tuple(documents[start:end])
        await opened.node.file(FileRequest(OWNER, part, wait=end >= len(documents)))


# ---------------------------------------------------------------------------------------------- memory


async def measure_memory(data: DataSet, documents: int) -> dict[str, Any]:
    maker = Maker(data)
    found: list[dict[str, float]] = []
    started = time.perf_counter()
    print(f"\n{'documents':>10}{'rows':>11}{'anonymous MB':>14}{'seconds':>9}")
    async with opened_node(HashEmbedder()) as opened:
        for done in range(STEP, documents + 1, STEP):
            await file(opened, maker.documents(STEP))
            gc.collect()
            rows = sum(resident.table.live_count for resident in opened.store.resident.tables.values())
            megabytes, seconds = anonymous_bytes() / 1e6, time.perf_counter() - started
            found.append({"documents": done, "rows": rows, "megabytes": round(megabytes, 1)})
            print(f"{done:10,}{rows:11,}{megabytes:14.1f}{seconds:9.0f}", flush=True)
    warm = next((each for each in found if each["documents"] >= WARM_DOCUMENTS), found[0])
    last = found[-1]
    growth = 1e6 * (last["megabytes"] - warm["megabytes"])
    a_row = growth / max(1, last["rows"] - warm["rows"])
    print(f"\ngrowth from {warm['documents']:,} documents on: {growth / 1e6:.1f} MB, {a_row:.0f} bytes a row")
    return {"growth_mb": round(growth / 1e6, 1), "growth_bytes_a_row": round(a_row, 1), "steps": found}


if __name__ == "__main__":
    main()
