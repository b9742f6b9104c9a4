"""What a user would pick instead of Thread, each behind the same three steps: build, open, ask.

Stores keep texts, who owns them and their vectors; libraries keep vectors alone, and whoever uses one keeps the rest.
Each is given the same rows in the same order and writes itself to a folder.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from harness import NoModel, rest_soon, wait_for_codes, wait_for_rest
from numpy.typing import NDArray

from thread_kernels import create_engine
from thread_service.batching.embed import EmbeddingQueue
from thread_service.node.node import Node
from thread_service.node.operations import DocumentIn, FileRequest, GroupIn, PartitionIn, SearchRequest
from thread_service.store.directory import DataDirectory
from thread_service.store.store import Store

K = 10
OWNERS = 20
ROWS_A_DOCUMENT = 2
REQUESTS_IN_HAND = 256
RARE_DOCUMENTS = 1_000
_BATCH = 4_096

Vectors = NDArray[np.float32]
Mask = NDArray[np.bool_]
Which = Literal["every row", "one owner of 20", "0.1 % of rows"]
Ask = Callable[[Vectors], list[int]]
"""float32[width] → numbers of the nearest rows"""


@dataclass(frozen=True, slots=True)
class Records:
    """Rows in documents of two; each document is of one of 20 owners, each thousandth one is rare."""

    vectors: Vectors
    texts: list[str]

    def document_of(self, row: int) -> int:
        return row // ROWS_A_DOCUMENT

    def owner_of(self, row: int) -> int:
        return self.document_of(row) % OWNERS

    def is_rare(self, row: int) -> bool:
        return self.document_of(row) % RARE_DOCUMENTS == 0

    def passing(self, which: Which) -> Mask:
        documents = np.arange(len(self.vectors)) // ROWS_A_DOCUMENT
        if which == "every row":
            return np.ones(len(documents), dtype=np.bool_)
        return documents % OWNERS == 3 if which == "one owner of 20" else documents % RARE_DOCUMENTS == 0


class Peer(Protocol):
    name: str
    keeps: Literal["vectors", "vectors and texts"]
    rows_max: int
    """Beyond, building takes longer than a benchmark may."""
    by_blocks: bool
    """Whether nearest means the sum of the distances in 16 blocks of a vector, as the contract of Thread has it."""

    @property
    def version(self) -> str: ...

    def build(self, folder: Path, records: Records) -> None:
        """Everything searchable and durable in `folder`."""

    def open(self, folder: Path, records: Records) -> None: ...

    def settings(self, which: Which) -> Iterator[tuple[str, Ask]]:
        """From fast to thorough; nothing where the peer takes no filter."""


class ThreadNode:
    """The whole node but for HTTP: partitions that bring their vectors, durable when the last is searchable."""

    name, keeps, rows_max, by_blocks = "thread", "vectors and texts", 1 << 30, True

    @property
    def version(self) -> str:
        return version("thread-node")

    def build(self, folder: Path, records: Records) -> None:
        rest_soon()
        self.open(folder, records)
        asyncio.run(self._file(records))
        wait_for_codes(self._store)

    def rest(self) -> None:
        """Until it does nothing more by itself, and close."""
        wait_for_rest(self._store)
        self._node.close()

    async def _file(self, records: Records) -> None:
        """Every owner is a caller of its own; all of them together have so many requests in hand at most."""
        count, in_hand, asked = -(-len(records.vectors) // ROWS_A_DOCUMENT), asyncio.Semaphore(REQUESTS_IN_HAND), []

        async def file(request: FileRequest) -> None:
            async with in_hand:
                await self._node.file(request)

        for start in range(0, count, 64):
            by_owner: dict[tuple[int, bool], list[DocumentIn]] = {}
            for number in range(start, min(start + 64, count)):
                rows = range(number * ROWS_A_DOCUMENT, min((number + 1) * ROWS_A_DOCUMENT, len(records.vectors)))
                made = DocumentIn(
                    tuple(records.texts[row] for row in rows),
                    f"d{number}",
                    entities=(),
                    partitions=tuple(PartitionIn(records.vectors[row]) for row in rows),
                )
                by_owner.setdefault((records.owner_of(rows[0]), records.is_rare(rows[0])), []).append(made)
            for (owner, rare), documents in by_owner.items():
                group = GroupIn("rare" if rare else "all", access="available")
                asked.append(file(FileRequest(f"owner {owner}", tuple(documents), group=group, wait=True)))
        await asyncio.gather(*asked)

    def open(self, folder: Path, records: Records) -> None:
        self._store = Store(DataDirectory.open(folder), create_engine("cpu"))
        self._node = Node(self._store, EmbeddingQueue(NoModel()))
        self._node.start()
        self._loop = asyncio.new_event_loop()

    def settings(self, which: Which) -> Iterator[tuple[str, Ask]]:
        def ask(vector: Vectors) -> list[int]:
            request = SearchRequest(
                "owner 3",
                query_embedding=vector,
                scope="global" if which == "every row" else "personal",
                group_ids=("rare",) if which == "0.1 % of rows" else (),
                top_k=K,
                graph_mode="off",
                lexical=False,
            )
            answer = self._loop.run_until_complete(self._node.search(request))
            return [int(passage.text.split()[1]) for passage in answer.passages]

        yield "as calibrated", ask


class Chroma:
    name, keeps, rows_max, by_blocks = "chromadb", "vectors and texts", 50_000, False

    @property
    def version(self) -> str:
        return version("chromadb")

    def _client(self, folder: Path) -> Any:
        import chromadb

        return chromadb.PersistentClient(str(folder), chromadb.Settings(anonymized_telemetry=False))

    def build(self, folder: Path, records: Records) -> None:
        collection = self._client(folder).create_collection("rows", configuration={"hnsw": {"space": "l2"}})
        for start in range(0, len(records.vectors), _BATCH):
            rows = range(start, min(start + _BATCH, len(records.vectors)))
            collection.add(
                ids=[str(row) for row in rows],
                embeddings=records.vectors[start : rows.stop],
                documents=records.texts[start : rows.stop],
                metadatas=[{"owner": records.owner_of(row), "rare": records.is_rare(row)} for row in rows],
            )

    def open(self, folder: Path, records: Records) -> None:
        self._collection = self._client(folder).get_collection("rows")

    def settings(self, which: Which) -> Iterator[tuple[str, Ask]]:
        where = {"every row": None, "one owner of 20": {"owner": 3}, "0.1 % of rows": {"rare": True}}[which]
        for breadth in (20, 50, 100, 200, 400, 800):
            self._collection.modify(configuration={"hnsw": {"ef_search": breadth}})

            def ask(vector: Vectors) -> list[int]:
                found = self._collection.query(query_embeddings=[vector], n_results=K, where=where)
                return [int(row) for row in found["ids"][0]]

            yield f"ef_search {breadth}", ask


class Lance:
    name, keeps, rows_max, by_blocks = "lancedb", "vectors and texts", 1 << 30, False

    @property
    def version(self) -> str:
        return version("lancedb")

    def build(self, folder: Path, records: Records) -> None:
        import lancedb
        import pyarrow

        def batches() -> Iterator[Any]:
            for start in range(0, len(records.vectors), _BATCH):
                rows = range(start, min(start + _BATCH, len(records.vectors)))
                flat = pyarrow.array(records.vectors[start : rows.stop].ravel())
                yield pyarrow.record_batch(
                    {
                        "row": pyarrow.array(rows, pyarrow.int64()),
                        "vector": pyarrow.FixedSizeListArray.from_arrays(flat, records.vectors.shape[1]),
                        "text": records.texts[start : rows.stop],
                        "owner": pyarrow.array([records.owner_of(row) for row in rows], pyarrow.int32()),
                        "rare": pyarrow.array([records.is_rare(row) for row in rows], pyarrow.bool_()),
                    }
                )

        table = lancedb.connect(folder).create_table("rows", batches())
        width = records.vectors.shape[1]
        table.create_index(metric="l2", num_partitions=len(records.vectors) // 4_096 or 1, num_sub_vectors=width // 8)
        table.create_scalar_index("owner", index_type="BITMAP")
        table.create_scalar_index("rare", index_type="BITMAP")

    def open(self, folder: Path, records: Records) -> None:
        import lancedb

        self._table = lancedb.connect(folder).open_table("rows")

    def settings(self, which: Which) -> Iterator[tuple[str, Ask]]:
        where = {"every row": None, "one owner of 20": "owner = 3", "0.1 % of rows": "rare = true"}[which]
        for probes in (2, 5, 10, 20, 50):
            for factor in (2, 5, 10, 30):

                def ask(vector: Vectors, probes: int = probes, factor: int = factor) -> list[int]:
                    query = self._table.search(vector).nprobes(probes).refine_factor(factor).limit(K)
                    query = query if where is None else query.where(where, prefilter=True)
                    rows: list[int] = query.select(["row", "text", "_distance"]).to_arrow()["row"].to_pylist()
                    return rows

                yield f"nprobes {probes}, refine_factor {factor}", ask


class Qdrant:
    """Its local mode, which scans every vector in NumPy and says itself that it is for small data."""

    name, keeps, rows_max, by_blocks = "qdrant (local mode)", "vectors and texts", 20_000, False

    @property
    def version(self) -> str:
        return version("qdrant-client")

    def build(self, folder: Path, records: Records) -> None:
        from qdrant_client import QdrantClient, models

        client = QdrantClient(path=str(folder))
        vectors = models.VectorParams(size=records.vectors.shape[1], distance=models.Distance.EUCLID)
        client.create_collection("rows", vectors_config=vectors)
        for start in range(0, len(records.vectors), _BATCH):
            rows = range(start, min(start + _BATCH, len(records.vectors)))
            payloads = [
                {"owner": records.owner_of(row), "rare": records.is_rare(row), "text": records.texts[row]}
                for row in rows
            ]
            batch = models.Batch(ids=list(rows), vectors=records.vectors[start : rows.stop].tolist(), payloads=payloads)
            client.upsert("rows", batch)
        client.close()

    def open(self, folder: Path, records: Records) -> None:
        from qdrant_client import QdrantClient

        self._client = QdrantClient(path=str(folder))

    def settings(self, which: Which) -> Iterator[tuple[str, Ask]]:
        from qdrant_client import models

        wanted = {"one owner of 20": ("owner", 3), "0.1 % of rows": ("rare", True)}.get(which)
        conditions = None
        if wanted is not None:
            match = models.FieldCondition(key=wanted[0], match=models.MatchValue(value=wanted[1]))
            conditions = models.Filter(must=[match])

        def ask(vector: Vectors) -> list[int]:
            found = self._client.query_points("rows", query=vector, query_filter=conditions, limit=K)
            return [int(point.id) for point in found.points]

        yield "exact", ask


class Faiss:
    """4-bit codes in inverted lists after a PCA, the best measured again in float32."""

    name, keeps, rows_max, by_blocks = "faiss PCA,IVF,PQ4fs,refine", "vectors", 1 << 30, False

    @property
    def version(self) -> str:
        return version("faiss-cpu")

    def build(self, folder: Path, records: Records) -> None:
        import faiss

        width, lists = records.vectors.shape[1], 256
        coded = faiss.index_factory(width, f"PCA{min(256, width // 2)},IVF{lists},PQ{min(128, width // 4)}x4fs")
        sample = np.random.default_rng(0).permutation(len(records.vectors))[:20_000]
        coded.train(records.vectors[np.sort(sample)])
        index = faiss.IndexRefineFlat(coded)
        index.is_trained = True
        index.add(np.ascontiguousarray(records.vectors))
        faiss.write_index(index, str(folder / "index"))

    def open(self, folder: Path, records: Records) -> None:
        import faiss

        self._index = faiss.read_index(str(folder / "index"))
        self._records = records

    def settings(self, which: Which) -> Iterator[tuple[str, Ask]]:
        import faiss

        packed = np.packbits(self._records.passing(which), bitorder="little")
        for probes in (8, 16, 32, 64, 128, 256):
            for factor in (4, 16, 64):
                inner = faiss.SearchParametersIVF(nprobe=probes)
                if which != "every row":
                    inner.sel = faiss.IDSelectorBitmap(len(packed), faiss.swig_ptr(packed))
                transformed = faiss.SearchParametersPreTransform(index_params=inner)
                parameters = faiss.IndexRefineSearchParameters(k_factor=factor, base_index_params=transformed)

                def ask(vector: Vectors, parameters: Any = parameters) -> list[int]:
                    found: list[int] = self._index.search(vector[None], K, params=parameters)[1][0].tolist()
                    return found

                yield f"nprobe {probes}, k_factor {factor}", ask


class Hnswlib:
    name, keeps, rows_max, by_blocks = "hnswlib", "vectors", 50_000, False

    @property
    def version(self) -> str:
        return version("hnswlib")

    def build(self, folder: Path, records: Records) -> None:
        import hnswlib

        index = hnswlib.Index("l2", records.vectors.shape[1])
        index.init_index(len(records.vectors), ef_construction=200, M=16)
        index.add_items(records.vectors)
        index.save_index(str(folder / "index"))

    def open(self, folder: Path, records: Records) -> None:
        import hnswlib

        self._index = hnswlib.Index("l2", records.vectors.shape[1])
        self._index.load_index(str(folder / "index"))
        self._records = records

    def settings(self, which: Which) -> Iterator[tuple[str, Ask]]:
        mask = self._records.passing(which)
        passes = None if which == "every row" else (lambda label: mask[label])
        for breadth in (20, 50, 100, 200, 400, 800):

            def ask(vector: Vectors, breadth: int = breadth) -> list[int]:
                self._index.set_ef(breadth)
                try:
                    found = self._index.knn_query(vector[None], K, num_threads=1, filter=passes)[0][0]
                except RuntimeError:  # it met fewer than 10 that pass
                    return []
                return [int(row) for row in found]

            yield f"ef {breadth}", ask


class Usearch:
    """Half-precision vectors; it takes no filter in Python."""

    name, keeps, rows_max, by_blocks = "usearch", "vectors", 1 << 30, False

    @property
    def version(self) -> str:
        return version("usearch")

    def build(self, folder: Path, records: Records) -> None:
        from usearch.index import Index

        index = Index(ndim=records.vectors.shape[1], metric="l2sq", dtype="f16", connectivity=16)
        index.add(np.arange(len(records.vectors)), records.vectors)
        index.save(str(folder / "index"))

    def open(self, folder: Path, records: Records) -> None:
        from usearch.index import Index

        self._index = Index.restore(str(folder / "index"))

    def settings(self, which: Which) -> Iterator[tuple[str, Ask]]:
        for breadth in (20, 50, 100, 200, 400, 800) if which == "every row" else ():

            def ask(vector: Vectors, breadth: int = breadth) -> list[int]:
                self._index.expansion_search = breadth
                found: list[int] = self._index.search(vector, K).keys.tolist()
                return found

            yield f"expansion {breadth}", ask


PEERS: dict[str, Callable[[], Peer]] = {
    each.name: each  # type: ignore[misc]
    for each in (ThreadNode, Chroma, Lance, Qdrant, Faiss, Hnswlib, Usearch)
}


def timed(ask: Ask, queries: Vectors, *, fewest: int, seconds: float) -> tuple[list[list[int]], float]:
    """Answers to the queries, or to as many as fit into some seconds, and queries a second."""
    for query in queries[:10]:
        ask(query)
    found: list[list[int]] = []
    started = time.perf_counter()
    for query in queries:
        found.append(ask(query))
        if len(found) >= fewest and time.perf_counter() - started > seconds:
            break
    return found, len(found) / (time.perf_counter() - started)
