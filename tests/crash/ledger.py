"""What a node must hold, by what it acknowledged: kept by the checker, outside the node's process.

A `Ledger` belongs to one owner with one writer, so at most one operation of it is in flight, and after a crash each
owner is either as before that operation or as after it, never in between. Every request and answer is also appended to
a journal file, the evidence when a check fails.
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
class Operation:
    """A request, the documents it leaves behind (None: no document), and whether an answer is the right one."""

    path: str
    body: Json
    after: Mapping[str, Document | None]
    is_right: Callable[[Json], bool]


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
    """One owner's acknowledged documents, and the operation whose answer has not come, if there is one."""

    owner: str
    documents: dict[str, Document] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)
    in_flight: Operation | None = None

    def begin(self, operation: Operation) -> None:
        self.in_flight = operation
        self.ids |= set(operation.after)
        for document in operation.after.values():
            self.texts |= set(document.texts if document else ())

    def acknowledge(self) -> None:
        assert self.in_flight is not None
        self.documents = self._after(self.in_flight)
        self.in_flight = None

    def settle(self, found: Mapping[str, Document]) -> str:
        """Compare with what a restarted node holds (`groups`, `entities` and `edges` aside), and take the operation
        in flight as done or not done by what is there. Says which; raises AssertionError for anything else."""
        if shown(self.documents) == found:
            outcome = "nothing in flight" if self.in_flight is None else "not done"
        elif self.in_flight is not None and shown(self._after(self.in_flight)) == found:
            self.documents = self._after(self.in_flight)
            outcome = "done"
        else:
            raise AssertionError(self._differences(found))
        self.in_flight = None
        return outcome

    def _after(self, operation: Operation) -> dict[str, Document]:
        changed = {**self.documents, **operation.after}
        return {document_id: document for document_id, document in changed.items() if document is not None}

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
