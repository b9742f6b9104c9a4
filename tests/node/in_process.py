"""A node in process over a directory: the real store, queue and threads, with a model whose vectors can be computed.

Operations are asynchronous; `InProcess` runs each to its end, so tests read as plain calls. Filing waits until the
documents are searchable unless it is told not to.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

import apsw
import numpy as np
from numpy.typing import NDArray

from thread_kernels import create_engine
from thread_service.batching.embed import EmbeddingQueue
from thread_service.errors import NotReady
from thread_service.models.embedder import EmbeddingFailed, ModelUnavailable, Role, Stamp, Status
from thread_service.node.node import Node
from thread_service.node.operations import (
    Access,
    DocumentContent,
    DocumentIn,
    DocumentsRequest,
    EntityIn,
    Filed,
    FileRequest,
    GraphAnswer,
    GraphRequest,
    GroupIn,
    LibraryAnswer,
    LibraryRequest,
    PartitionIn,
    RelationshipIn,
    RemoveRequest,
    SearchAnswer,
    SearchRequest,
)
from thread_service.store.directory import DataDirectory
from thread_service.store.store import Store
from thread_service.text.tokens import tokens

T = TypeVar("T")
Vector = NDArray[np.float32]

WIDTH = 64
TIMEOUT = 20
ENGINE: dict[str, Any] = {"compress": os.environ.get("THREAD_COMPRESS", "auto")}
"""What the engine is made with: all tests of the node hold for tables that are searched by codes, too."""


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.002)


async def happens(condition: Callable[[], bool]) -> None:
    """`until`, for a test that runs on the event loop."""
    while not condition():  # noqa: ASYNC110 - what is waited for happens on other threads
        await asyncio.sleep(0.002)


def unit(*numbers: float, width: int = WIDTH) -> Vector:
    """The direction that starts with these numbers, zeros behind them, as a unit vector float32 [width]."""
    vector = np.zeros(width)
    vector[: len(numbers)] = numbers
    return (vector / np.linalg.norm(vector)).astype(np.float32)


class WordsEmbedder:
    """A bag of words as a unit vector: each word adds a direction of its own; `vectors` overrides it text by text.

    While `may_load` is not set the model is loading. While `open` is not set a call waits. `is_away`: calls fail with
    NotReady, as a remote model's do. Texts in `refused` fail with EmbeddingFailed.
    """

    def __init__(self, name: str = "words", width: int = WIDTH) -> None:
        self.model = name
        self.width = width
        self.stamp: Stamp | None = None
        self.status = Status("loading")
        self.vectors: dict[str, Vector] = {}
        self.refused: set[str] = set()
        self.is_away = False
        self.load_error: str | None = None
        self.embedded: list[tuple[str, Role]] = []
        self.may_load = threading.Event()
        self.may_load.set()
        self.open = threading.Event()
        self.open.set()
        self._closed = False

    def load(self) -> None:
        self.may_load.wait(TIMEOUT)
        if self._closed:
            raise ModelUnavailable("closed")
        if self.load_error is not None:
            self.status = Status("failed", error=self.load_error)
            raise ModelUnavailable(self.load_error)
        self.stamp = Stamp(f"{self.model}@{self.width}", self.model, None, self.width)
        self.status = Status("ready")

    def embed(self, texts: Sequence[str], role: Role) -> Vector:
        assert self.open.wait(TIMEOUT)
        if self.is_away:
            raise NotReady("the model is away")
        if refused := self.refused & set(texts):
            raise EmbeddingFailed(f"refused: {sorted(refused)}")
        self.embedded += [(text, role) for text in texts]
        return np.stack([self.vector(text) for text in texts])

    def vector(self, text: str) -> Vector:
        if text in self.vectors:
            return self.vectors[text]
        vector = np.zeros(self.width)
        for word in tokens(text):
            vector += np.random.default_rng(crc32(word.encode())).standard_normal(self.width)
        length = np.linalg.norm(vector)
        return (vector / length if length else np.full(self.width, self.width**-0.5)).astype(np.float32)

    def count_tokens(self, texts: Sequence[str]) -> int:
        if self.stamp is None:
            raise NotReady("the model is loading")
        return sum(len(tokens(text)) for text in texts)

    def close(self) -> None:
        self._closed = True
        self.may_load.set()
        self.open.set()

    def count(self, text: str) -> int:
        """How often the text was embedded as a document."""
        return self.embedded.count((text, "document"))


class InProcess:
    """An open node. `options` go to `Node`, `store_options` to `Store`, `engine_options` to the engine."""

    def __init__(
        self,
        path: Path,
        embedder: WordsEmbedder | None = None,
        *,
        store_options: dict[str, Any] | None = None,
        engine_options: dict[str, Any] | None = None,
        ready: bool = True,
        retry_seconds: Sequence[float] = (0.01,),
        **options: Any,
    ) -> None:
        self.path = path
        self.options = options
        self.embedder = embedder or WordsEmbedder()
        engine = create_engine("cpu", **{**ENGINE, **(engine_options or {})})
        self.store = Store(DataDirectory.open(path), engine, **(store_options or {}))
        self.queue = EmbeddingQueue(self.embedder, retry_seconds=retry_seconds)
        self.node = Node(self.store, self.queue, **options)
        self._runner = asyncio.Runner()
        self.node.start()
        if ready:
            until(lambda: self.queue.is_ready)

    def run(self, operation: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(asyncio.wait_for(operation, TIMEOUT))

    def close(self) -> None:
        self.node.close()
        self._runner.close()

    def reopened(self, embedder: WordsEmbedder | None = None, **options: Any) -> InProcess:
        """Close it and open another over the same directory."""
        self.close()
        return InProcess(self.path, embedder or WordsEmbedder(), **{**self.options, **options})

    # The operations.

    def file(
        self,
        owner: str,
        *documents: DocumentIn,
        group: GroupIn | str | None = None,
        gate: bool = False,
        wait: bool = True,
    ) -> Filed:
        into = GroupIn(group) if isinstance(group, str) else group
        return self.run(self.node.file(FileRequest(owner, documents, into, gate, wait)))

    def search(self, owner: str, query: str = "", **more: Any) -> SearchAnswer:
        return self.run(self.node.search(SearchRequest(owner, query, **more)))

    def graph(self, owner: str, entity: str = "", **more: Any) -> GraphAnswer:
        return self.run(self.node.graph(GraphRequest(owner, entity, **more)))

    def library(self, owner: str, **more: Any) -> LibraryAnswer:
        return self.run(self.node.library(LibraryRequest(owner, **more)))

    def documents(self, owner: str, *ids: str, embeddings: bool = False) -> tuple[DocumentContent, ...]:
        return self.run(self.node.documents(DocumentsRequest(owner, ids, embeddings))).documents

    def remove(self, owner: str, *ids: str) -> int:
        return self.run(self.node.remove(RemoveRequest(owner, ids)))

    # Looking inside.

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
        with self.store.read() as connection:
            return connection.execute(statement, tuple(parameters)).fetchall()

    def value(self, statement: str, parameters: Sequence[Any] = ()) -> Any:
        return self.rows(statement, parameters)[0][0]

    @property
    def is_idle(self) -> bool:
        """Nothing is left to index, to link or to embed."""
        tables = ("pending", "relink", "changed_names", "unembedded")
        return not any(self.value(f"SELECT count(*) FROM {table}") for table in tables)

    def settle(self) -> None:
        until(lambda: self.is_idle)

    def mentions(self, owner: str) -> set[tuple[str, str]]:
        """(document id, entity spelling) of the owner's links by name."""
        return set(
            self.rows(
                "SELECT document_id, (SELECT min(spelling) FROM assertions a WHERE a.entity_key = m.entity_key)"
                " FROM mentions m JOIN documents USING (document_key) JOIN owners USING (owner_key)"
                " WHERE owner_id = ?",
                (owner,),
            )
        )


@contextlib.contextmanager
def opened(path: Path, embedder: WordsEmbedder | None = None, **options: Any) -> Iterator[InProcess]:
    node = InProcess(path, embedder, **options)
    try:
        yield node
    finally:
        node.embedder.open.set()
        node.close()


# Short forms of what requests are made of.


def document(
    *texts: str,
    id: str = "",
    name: str | None = None,
    entities: Sequence[str | tuple[str, str]] | None = (),
    edges: Sequence[tuple[str, str, str]] = (),
    vectors: Sequence[Vector | None] | None = None,
    **more: Any,
) -> DocumentIn:
    """A document without keywords, unless `entities` is None."""
    return DocumentIn(
        texts,
        document_id=id,
        name=name,
        entities=None if entities is None else tuple(EntityIn(*((e,) if isinstance(e, str) else e)) for e in entities),
        relationships=tuple(RelationshipIn(*edge) for edge in edges),
        partitions=() if vectors is None else tuple(PartitionIn(vector) for vector in vectors),
        **more,
    )


def group(id: str, access: Access | None = None, **more: Any) -> GroupIn:
    return GroupIn(id, access=access, **more)


def ids(answer: SearchAnswer) -> list[str]:
    """Document ids of the passages, each once, in order."""
    return list(dict.fromkeys(passage.document_id for passage in answer.passages))


def table(connection: apsw.Connection, statement: str) -> list[Any]:
    return connection.execute(statement).fetchall()
