"""What a node must hold, by what it acknowledged: kept by the checker, outside the node's process.

A `Ledger` belongs to one owner with one writer, so at most one operation of it is in flight, and after a crash each
owner is either as before that operation or as after it, never in between. A clear beside it came first or last, for
every owner alike. Every request and answer is also appended to a journal file, the evidence when a check fails.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Json = dict[str, Any]
Edge = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Document:
    """`vectors` has an entry for each text: the caller's own vector, or empty where the node embeds. `entities` None:
    nothing was said about the graph. `groups`: all it is filed in, of which `group` is the newest."""

    texts: tuple[str, ...]
    name: str | None
    metadata: bytes
    vectors: tuple[tuple[float, ...], ...]
    group: str = ""
    groups: frozenset[str] = frozenset()
    entities: frozenset[str] | None = None
    edges: frozenset[Edge] = frozenset()


@dataclass(frozen=True, slots=True)
class Effect:
    """The documents that an operation leaves behind (None: no document), and whether an answer is the right one."""

    after: Mapping[str, Document | None]
    is_right: Callable[[Json], bool]

    def on(self, documents: Mapping[str, Document]) -> dict[str, Document]:
        changed = {**documents, **self.after}
        return {document_id: document for document_id, document in changed.items() if document is not None}


@dataclass(frozen=True, slots=True)
class Operation:
    """A request, what it does to the documents that are there, and what to a node that was cleared just before."""

    path: str
    body: Json
    effect: Effect
    on_nothing: Effect


class Journal:
    """One line of JSON for each event; a line is in the file before the event's consequence can happen."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._file = path.open("a", encoding="utf-8")

    def note(self, **event: Any) -> None:
        line = json.dumps({"time": round(time.time(), 4), **event})
        with self._lock:
            self._file.write(line + "\n")
            self._file.flush()

    def close(self) -> None:
        self._file.close()


@dataclass(slots=True)
class Ledger:
    """One owner's acknowledged documents, and the operation whose answer has not come, if there is one.

    `beside_clear`: a clear was acknowledged while it was in flight. `under_clear`: one was under way, and nobody knows
    whether it was done. `answer`: the operation's answer, if it came after that.
    """

    owner: str
    documents: dict[str, Document] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)
    in_flight: Operation | None = None
    beside_clear: bool = False
    under_clear: bool = False
    answer: Json | None = None

    def begin(self, operation: Operation) -> None:
        self.in_flight = operation
        self.ids |= set(operation.effect.after)
        for document in operation.effect.after.values():
            self.texts |= set(document.texts if document else ())

    def acknowledge(self, answer: Json) -> bool:
        """Whether the answer to the operation in flight is right. Beside a clear, `settle` tells what it left."""
        operation = self.in_flight
        assert operation is not None
        if self.beside_clear or self.under_clear:
            self.answer = answer
            return operation.effect.is_right(answer) or operation.on_nothing.is_right(answer)
        self.documents = operation.effect.on(self.documents)
        self.in_flight = None
        return operation.effect.is_right(answer)

    def fits(self, found: Mapping[str, Document], *, cleared: bool) -> bool:
        """Whether a node may hold this, when a clear was done beside the operation in flight, or when none was."""
        return any(shown(documents) == found for _, documents in self._possible(cleared))

    def settle(self, found: Mapping[str, Document], *, cleared: bool = False) -> str:
        """Compare with what a node holds (`groups`, `entities` and `edges` aside), and take the operation
        in flight as done or not done by what is there. Says which; raises AssertionError for anything else."""
        for outcome, documents in self._possible(cleared):
            if shown(documents) == found:
                self.documents = documents
                self.in_flight = self.answer = None
                self.beside_clear = self.under_clear = False
                return outcome
        raise AssertionError(self._differences(found))

    def _possible(self, cleared: bool) -> list[tuple[str, dict[str, Document]]]:
        operation, answer = self.in_flight, self.answer
        if operation is None:
            return [("nothing in flight", {} if cleared else self.documents)]
        if not cleared and not self.beside_clear:
            done = ("done", operation.effect.on(self.documents))
            return [done] if answer is not None else [("not done", self.documents), done]
        possible: list[tuple[str, dict[str, Document]]] = []
        if answer is None or operation.effect.is_right(answer):
            possible.append(("cleared", {}))
        if answer is None or operation.on_nothing.is_right(answer):
            possible.append(("done after a clear", operation.on_nothing.on({})))
        return possible

    def _differences(self, found: Mapping[str, Document]) -> str:
        expected = shown(self.documents)
        lines = [f"{self.owner} holds neither the state before nor after the operation in flight:"]
        for key in sorted(expected.keys() | found.keys()):
            if expected.get(key) != found.get(key):
                lines += [f"  {key}", f"    acknowledged {expected.get(key)}", f"    found        {found.get(key)}"]
        lines.append(f"  in flight: {None if self.in_flight is None else self.in_flight.body}")
        return "\n".join(lines)


def shown(documents: Mapping[str, Document]) -> dict[str, Document]:
    """What reading documents back can tell of them."""
    return {
        key: Document(document.texts, document.name, document.metadata, document.vectors, document.group)
        for key, document in documents.items()
    }
