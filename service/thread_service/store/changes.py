"""What one committed write means for the memory of the node: filled inside the transaction, published after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from thread_service.store.segments import Location

Purpose = Literal["model", "caller", "relationship", "predicate", "next_model", "next_relationship", "next_predicate"]
"""What a vector is of. `next_…`: made by the model that the index is being embedded with anew, not searched yet."""


@dataclass(frozen=True, slots=True)
class ContentState:
    """`readers` in stored form, media type included; partitions are `first_partition` … `+ partition_count`."""

    readers: str
    first_partition: int
    partition_count: int


@dataclass(frozen=True, slots=True)
class DocumentState:
    readers: str
    content_key: int


@dataclass(frozen=True, slots=True)
class NewVectors:
    """Rows for one table: `vectors` float32 [n, width]; `subject_keys` and `locations`, one per row."""

    purpose: Purpose
    subject_keys: Sequence[int]
    vectors: NDArray[np.float32]
    locations: Sequence[Location]


@dataclass(frozen=True, slots=True)
class MovedVectors:
    """Rows of one table that lie elsewhere now, their bytes unchanged: one subject and one location per row.

    To be published before the segments they lay in are removed. A subject without a row is ignored.
    """

    purpose: Purpose
    width: int
    subject_keys: Sequence[int]
    locations: Sequence[Location]


@dataclass(slots=True)
class Changes:
    """The newest state of everything touched; None means gone.

    `lengths` are those of partitions in the index of words. `relationships` and `predicates` map to readers. `entities`
    are keys whose assertions changed, `mentions` keys whose mentions did, `linked_documents` the documents on the other
    side of either. What these come to is looked up at the end of the transaction: `listings`, the entities that each of
    the documents lists (None: they were too many), and `unasserted`, those of the entities that nobody asserts now.
    """

    contents: dict[int, ContentState | None] = field(default_factory=dict)
    documents: dict[int, DocumentState | None] = field(default_factory=dict)
    relationships: dict[int, str | None] = field(default_factory=dict)
    predicates: dict[int, str | None] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)
    vectors: list[NewVectors] = field(default_factory=list)
    moved: list[MovedVectors] = field(default_factory=list)
    entities: set[int] = field(default_factory=set)
    mentions: set[int] = field(default_factory=set)
    linked_documents: set[int] = field(default_factory=set)
    listings: Mapping[int, frozenset[int]] | None = None
    unasserted: set[int] = field(default_factory=set)
    cleared: bool = False
    abandoned: bool = False
    """The `next_…` vectors went."""
    switched: Callable[[], None] | None = None
    """The `next_…` vectors have taken the place of the others; to be called first, while the tables are locked."""
    has_free_pages: bool = False
    """So much of the database is free that it is worth giving back: brought vectors leave pages when they are filed."""

    @property
    def has_removals(self) -> bool:
        """Whether something went for good."""
        states = (*self.contents.values(), *self.relationships.values(), *self.predicates.values())
        is_anew = self.cleared or self.abandoned or self.switched is not None
        return is_anew or any(state is None for state in states)
