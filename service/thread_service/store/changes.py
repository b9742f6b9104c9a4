"""What one committed write means for the memory of the node: filled inside the transaction, published after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Purpose = Literal["model", "caller", "relationship", "predicate"]


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
    """Rows for one table: `vectors` float32 [n, width], `subject_keys` one per row."""

    purpose: Purpose
    subject_keys: Sequence[int]
    vectors: NDArray[np.float32]


@dataclass(slots=True)
class Changes:
    """The newest state of everything touched; None means gone.

    `relationships` and `predicates` map to readers. `entities` and `linked_documents` are keys whose links changed.
    """

    contents: dict[int, ContentState | None] = field(default_factory=dict)
    documents: dict[int, DocumentState | None] = field(default_factory=dict)
    relationships: dict[int, str | None] = field(default_factory=dict)
    predicates: dict[int, str | None] = field(default_factory=dict)
    vectors: list[NewVectors] = field(default_factory=list)
    entities: set[int] = field(default_factory=set)
    linked_documents: set[int] = field(default_factory=set)
    cleared: bool = False
