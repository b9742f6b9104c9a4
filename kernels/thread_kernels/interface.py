"""The boundary: what a table of vectors can do, whichever engine holds it.

    engine = create_engine()
    table = engine.table(width=384)
    rows = table.append(vectors)                          # float32[n, 384] -> consecutive row numbers
    mine = table.row_set()                                # a filter primitive, kept current by its owner
    mine.add(rows)
    [hits] = table.search(query[None], k=10, filters=[Filter.any_of(mine)])
    [rows] = table.candidates(query[None], k=10, filters=[None])
    scores = table.rescore(query, rows)

A row number is given once and never again. Everything goes in and comes out as NumPy arrays; where the rows live is
the engine's own business. Vectors that hold NaN or infinity, or whose squared norm is above `MAX_SQUARED_NORM`, are
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

StoredVectors = Callable[[Int64], Float32]
"""Reads float32[n, width] of int64[n] rows, which ascend and may repeat; NaN for a row that is gone for good.

The array is a new one, which whoever asked may overwrite.
"""

Compress = Literal["auto", "always"]
"""Which tables are searched by codes: those too large to be scanned exactly, or every one."""

Place = Literal["device", "pinned"]
"""Where a device's engine keeps its tables: in the memory of the device, or in main memory that the device reads."""

MAX_SQUARED_NORM = float(np.finfo(np.float32).max) / 8
"""Two vectors within this bound are at most √(max/2) apart, so no distance between them overflows float32."""


class EngineUnavailable(RuntimeError):
    """The engine asked for cannot run here; the message says what is missing and how to get it."""


class RowSet(Protocol):
    """A mutable set of row numbers of one table: a primitive that filters are made of."""

    def add(self, rows: ArrayLike) -> None:
        """Add row numbers (an integer, a range or any integer array). ValueError for a row that was never appended."""

    def discard(self, rows: ArrayLike) -> None:
        """Take row numbers out; those that are not in are ignored. ValueError for a row that was never appended."""

    def __len__(self) -> int:
        """Rows in the set, removed ones included."""

    def __contains__(self, row: object) -> bool: ...


@dataclass(frozen=True, slots=True)
class Filter:
    """A conjunction of unions of row sets: a row passes when every union holds it.

    Handles only: nothing the size of the table travels with a query. A union without members passes nothing, a filter
    without unions passes everything.
    """

    all_of: tuple[tuple[RowSet, ...], ...]

    @classmethod
    def any_of(cls, *sets: RowSet) -> Filter:
        """The rows in at least one of `sets`."""
        return cls((sets,))

    def __and__(self, other: Filter) -> Filter:
        return Filter(self.all_of + other.all_of)


@dataclass(frozen=True, slots=True)
class Hits:
    """The answer to one query, nearest first; equal distances are ordered by row number."""

    rows: Int64
    """int64[n]"""
    distances: Float32
    """float32[n], squared Euclidean distance"""


@dataclass(frozen=True, slots=True)
class Rescored:
    """Scores of given rows, in the order in which the rows were given."""

    distances: Float32
    """float32[n]: the sum, over `block_count(width)` equal blocks, of the Euclidean distance inside the block"""
    cosines: Float32
    """float32[n]: the cosine of the query and the row; 0 when either is all zeros"""


class DamagedCodes(ValueError):
    """Saved codes that cannot be used: flipped bits, another format or another width. They can be made anew."""


@dataclass(frozen=True, slots=True)
class SavedCodes:
    """What is worth keeping over a restart, so that nothing is coded twice."""

    rows: Int64
    """int64[n], ascending: the rows whose codes these are, all of them live"""
    data: bytes
    """codebook, rotation, depths and codes, with a checksum; opaque"""


@dataclass(frozen=True, slots=True)
class TableStats:
    """How a table stands, for metrics and for whoever wonders why a search took what it took."""

    rows: int
    """Rows ever appended, less those whose memory was given back."""
    dead_rows: int
    """Removed rows that still take memory."""
    coded_rows: int
    code_bytes: int
    """Of one row; 0 without codes."""
    vector_bytes: int
    """Memory of float32 vectors."""
    depth: int
    """R(10): rows by code that are measured for the best 10, all if no fewer were enough; 0 without codes."""
    crossover_rows: int
    """Passing rows up to which a search gathers them; beyond, it scans."""
    state: Literal["exact", "training", "coded", "failed"]
    trained_rows: int
    """Live rows when the codebook was trained; 0 without one."""
    training_seconds: float
    """Of the last training, calibration included."""
    gathered: int
    """Queries answered by measuring the rows that pass."""
    scanned: int
    """Queries answered by an exact scan."""
    by_code: int
    """Queries answered by codes."""


class Table(Protocol):
    """Vectors of one width, and the sets that filter them.

    One writer and any number of readers may use a table at once. A search sees one state of it, no older than the call:
    what was appended, removed, added or discarded before the search began counts.
    """

    @property
    def width(self) -> int:
        """Components of a vector."""

    @property
    def row_count(self) -> int:
        """Rows ever appended, removed ones included: the next row number."""

    @property
    def live_count(self) -> int:
        """Rows appended and not removed."""

    def append(self, vectors: ArrayLike) -> range:
        """Add float32[n, width] and return the row numbers, which are consecutive.

        ValueError, naming the first row at fault, for NaN, infinity, a norm over the bound, or another width; nothing
        is added then.
        """

    def remove(self, rows: ArrayLike) -> None:
        """Never find these rows again. Idempotent. ValueError for a row that was never appended."""

    def row_set(self) -> RowSet:
        """A new, empty row set of this table."""

    def count(self, filter: Filter) -> int:
        """Live rows that pass `filter`."""

    def search(self, queries: ArrayLike, k: int | Sequence[int], filters: Sequence[Filter | None]) -> list[Hits]:
        """The `k` live rows nearest to each of float32[q, width] that pass its filter; fewer when fewer pass.

        `k` is one number for all queries or one for each; `filters` has one entry a query. ValueError for queries that
        `append` would refuse, a negative `k`, lengths that differ, or a row set of another table.
        """

    def candidates(self, queries: ArrayLike, k: int | Sequence[int], filters: Sequence[Filter | None]) -> list[Int64]:
        """Rows to rescore for each query, in no order: the best `k` by the rescored distance are among them.

        A search without its last step, for callers that rescore anyway. ValueError as for `search`.
        """

    def rescore(self, query: ArrayLike, rows: ArrayLike) -> Rescored:
        """Exact scores of float32[width] against int64[n] rows. ValueError as for `search`.

        A removed row may be gone: its distance is infinite then and its cosine 0.
        """

    def save(self) -> SavedCodes | None:
        """The codes of the live rows; None without codes."""

    def restore(self, data: bytes, count: int) -> range:
        """Take up saved codes, in an empty table that reads its vectors from a store: rows 0 to `count` exist then.

        The rows of `SavedCodes` are numbered anew, in their order. DamagedCodes when `data` does not hold the codes of
        `count` rows of this width; ValueError when the table has rows, or keeps its own vectors.
        """

    def compact(self) -> None:
        """Give back the memory of removed rows; done in the background too once they are a fifth. Blocking."""

    def stats(self) -> TableStats:
        """How the table stands now."""

    def close(self) -> None:
        """End the work in the background. Idempotent; the table can still be read and written."""


class Engine(Protocol):
    """Makes tables on one device."""

    @property
    def name(self) -> str:
        """What the engine calls itself in logs and metrics."""

    @property
    def memory_bytes(self) -> Mapping[Place, int]:
        """What its tables take of the device's memory, and of the main memory that it reads; empty without a device."""

    @property
    def fault(self) -> str | None:
        """Why the device no longer answers, and searches are exact on the CPU instead; None while all is well."""

    def table(self, width: int, stored: StoredVectors | None = None) -> Table:
        """A new, empty table. ValueError when `width` is not positive.

        With `stored`, the table forgets the float32 vectors of rows that have codes and reads them from there: a row
        can be read from `stored` before it is appended.
        """
