"""A store over a directory and short forms of writing to it, for the tests of what a store holds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import apsw
import numpy as np
from numpy.typing import NDArray

from thread_kernels import Engine, create_engine
from thread_service.store import back_links, contents, documents, graph, links, registry, vectors
from thread_service.store.changes import Changes, NewVectors
from thread_service.store.directory import DataDirectory
from thread_service.store.store import Store
from thread_service.text.ids import content_digest

T = TypeVar("T")


class Opened:
    def __init__(self, path: Path, engine: Engine | None = None, **options: Any) -> None:
        self.store = Store(DataDirectory.open(path), engine or create_engine("cpu"), **options)

    def write(self, work: Callable[[apsw.Connection, Changes], T]) -> T:
        return self.store.write(work).result(10)

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
        with self.store.read() as connection:
            return connection.execute(statement, tuple(parameters)).fetchall()

    def column(self, statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
        return [value for (value,) in self.rows(statement, parameters)]

    def file(
        self,
        owner: str,
        id: str,
        *texts: str,
        said: graph.Contribution | None = None,
        name: str | None = None,
        media_type: str = "text",
        access: str = "restricted",
        rows: NDArray[np.float32] | None = None,
    ) -> int:
        """File and index a document at once; its key. `rows`: vectors of its partitions."""

        def work(connection: apsw.Connection, changes: Changes) -> int:
            owner_key = registry.ensure_owner(connection, owner)
            digest = content_digest(media_type, texts, [None] * len(texts))
            found = contents.find(connection, digest)
            content = found[0] if found else contents.create(connection, digest, media_type, texts, [None] * len(texts))
            key = documents.create(connection, owner_key, id, documents.Said(content, name, b"", None, 1))
            documents.set_access(connection, [key], access, changes)
            if contents.mark_ready(connection, content, changes) and rows is not None:
                first, count = contents.partition_range(connection, content)
                keys = range(first, first + count)
                locations = self.store.segments.append(rows)
                self.store.segments.sync()
                vectors.record(connection, "model", rows.shape[1], keys, locations)
                changes.vectors.append(NewVectors("model", keys, rows, locations))
            graph.contribute(connection, key, said or graph.contribution([], []), changes)
            links.mark(connection, key)
            contents.refresh_readers(connection, content, changes)
            return key

        return self.write(work)

    def rename(self, owner: str, id: str, name: str | None) -> None:
        """Deposit it again, with the same texts and another name of its own."""

        def work(connection: apsw.Connection, changes: Changes) -> None:
            owner_key = registry.owner_key(connection, owner)
            assert owner_key is not None
            found = documents.find(connection, owner_key, id)
            assert found is not None
            said = documents.Said(found.content_key, name, b"", None, 2)
            documents.replace(connection, found, said, changes)
            links.mark(connection, found.document_key)

        self.write(work)

    def remove(self, owner: str, id: str) -> None:
        def work(connection: apsw.Connection, changes: Changes) -> None:
            owner_key = registry.owner_key(connection, owner)
            assert owner_key is not None
            found = documents.find(connection, owner_key, id)
            assert found is not None
            documents.remove(connection, found, changes)

        self.write(work)

    def link(self) -> list[str]:
        """Link whatever waits for it; the ids of the documents that did, in the first round."""
        first: list[str] | None = None
        while True:
            with self.store.read() as connection:
                new, round_ = links.waiting(connection, 1_000), back_links.next_round(connection, in_texts=True)
                keys = {*new, *(() if round_ is None else round_.document_keys)}
                searched = ((key, links.names_in(connection, key, by_text=True)) for key in keys)
                found = {key: names for key, names in searched if names is not None}
                ids = [
                    connection.execute("SELECT document_id FROM documents WHERE document_key = ?", (key,)).get
                    for key in keys
                ]
            first = sorted(map(str, ids)) if first is None else first
            if not new and round_ is None:
                return first

            def work(
                connection: apsw.Connection,
                changes: Changes,
                new: list[int] = new,
                round_: back_links.Round | None = round_,
                found: dict[int, links.Found] = found,
            ) -> None:
                links.link(connection, found, changes)
                links.unmark(connection, new)
                if round_ is not None:
                    back_links.done(connection, round_.progress)

            self.write(work)


@contextlib.contextmanager
def opened_store(path: Path, engine: Engine | None = None, **options: Any) -> Iterator[Opened]:
    opened = Opened(path, engine, **options)
    try:
        yield opened
    finally:
        opened.store.close()
