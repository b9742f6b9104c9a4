"""What reads documents and what it finds in them, whichever model does it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from thread_service.errors import ThreadError
from thread_service.text.policy import Policy


@dataclass(frozen=True, slots=True)
class Entity:
    """`kind` is one of the policy's, or `concept`."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class Relationship:
    """`subject` and `object` index the entities. `predicate` is the policy's canonical one."""

    subject: int
    predicate: str
    object: int


@dataclass(frozen=True, slots=True)
class Found:
    entities: tuple[Entity, ...] = ()
    relationships: tuple[Relationship, ...] = ()


class ExtractionFailed(ThreadError):
    """A model that answers gave no usable answer about this document."""

    slug, title = "extraction-failed", "Extraction failed"


@dataclass(frozen=True, slots=True)
class ExtractionStats:
    """Counts since the start: replies that could be used and that could not, requests without a reply."""

    answered: int = 0
    invalid: int = 0
    failed: int = 0


class Extractor(Protocol):
    """What reads documents. Thread-safe."""

    @property
    def slots(self) -> int:
        """How many documents may be read at a time, as things are now."""

    @property
    def stats(self) -> ExtractionStats: ...

    def start(self) -> None: ...

    def pause(self) -> float:
        """Seconds until it is worth asking."""

    def complaint(self) -> str:
        """Why it cannot be asked for longer than a moment, as a sentence; empty when it can."""

    def extract(self, texts: Sequence[str], policy: Policy) -> Found:
        """What the texts of one document say; blocking, for minutes. Raises ExtractionFailed, NotReady."""

    def close(self) -> None:
        """Begin nothing more; what is being read comes to nothing. Safe from any thread, and twice."""
