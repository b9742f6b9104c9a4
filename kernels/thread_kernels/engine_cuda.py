"""The CUDA engine: one launch for a whole batch, whatever its filters and counts; distances exact as on the CPU.

    gather, scan   few rows pass, or the table is small: exactly, in main memory, where that takes less than a launch;
                   more that pass, on the device, while that takes less than a scan
    codes          a large table: the device orders the rows by their codes, or by whole vectors when queries are
                   many

Of what is gathered or ordered on the device, the float16 vectors rule out what cannot be among the nearest (`rescore`);
what is left, and the rows not coded yet, is measured in float32. Codes, row sets and as many float16 vectors as there
is room for lie on the device, the others in main memory that it reads; float32 vectors in main memory or the store.
A batch for which the device has no memory is tried in halves and then scanned in main memory, as one is that fails
otherwise; so is everything once the device is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from thread_kernels import saved_cuda
from thread_kernels.blockwise import block_count
from thread_kernels.coded_table import Asked, CodedTable, candidate_count, codes_above, queries_of
from thread_kernels.coder_cuda import CudaCoder
from thread_kernels.compression import Compressed, CompressPolicy
from thread_kernels.device import Device, DeviceFailed, DeviceLost, OutOfRoom, Residence
from thread_kernels.device_codes import DeviceCodes
from thread_kernels.exact import closest, measured
from thread_kernels.inputs import as_counts, as_vectors
from thread_kernels.interface import (
    Compress,
    DamagedCodes,
    Filter,
    Float32,
    Float64,
    Hits,
    Int64,
    Place,
    SavedCodes,
    StoredVectors,
)
from thread_kernels.membership import Passing
from thread_kernels.working_memory import working_bytes

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Group:
    """Queries of one filter that are answered by codes."""

    members: Sequence[int]
    asked: Asked
    compressed: Compressed
    depth: int
    wanted: int
    """At least the nearest so many must be found."""


class _Query(NamedTuple):
    """One query of a scan."""

    vector: Float32
    depth: int
    wanted: int
    passing: Passing


class CudaTable(CodedTable):
    """A `Table` on the device of `residence`."""

    def __init__(
        self, width: int, policy: CompressPolicy, residence: Residence, stored: StoredVectors | None = None
    ) -> None:
        super().__init__(width, policy, CudaCoder(residence, policy.bits), stored, composes_filters=True)
        self._residence = residence
        if policy.above is not None:
            residence.reserve(working_bytes(width, policy.bits))

    def search(self, queries: ArrayLike, k: int | Sequence[int], filters: Sequence[Filter | None]) -> list[Hits]:
        vectors, squared_norms = as_vectors(queries, self.width, name="query")
        counts = as_counts(k, len(vectors), len(filters))
        hits = []
        listed = self._listed(vectors, squared_norms, counts, filters, lambda most: most, blocks=1)
        for query, count, (rows, is_exact) in zip(vectors, counts, listed, strict=True):
            take = self._blocks.view.vectors
            if is_exact:  # as many as there are ties
                hits.append(measured(query, rows, take, count))
            else:
                ascending = np.sort(rows)
                hits.append(closest(query, ascending, take(ascending), count))
        return hits

    def candidates(self, queries: ArrayLike, k: int | Sequence[int], filters: Sequence[Filter | None]) -> list[Int64]:
        vectors, squared_norms = as_vectors(queries, self.width, name="query")
        counts = as_counts(k, len(vectors), len(filters))
        blocks = block_count(self.width)
        listed = self._listed(vectors, squared_norms, counts, filters, candidate_count, blocks=blocks)
        return [rows if count else rows[:0] for (rows, _), count in zip(listed, counts, strict=True)]

    def compact(self) -> None:
        self._do_without_a_lost_device()
        super().compact()

    def save(self) -> SavedCodes | None:
        current = self.compression.current
        try:
            return None if current is None else saved_cuda.save(current, self._members.removed())
        except (DeviceFailed, OutOfRoom) as error:
            _log.warning("the codes are not saved: %s", error)
            return None

    def restore(self, data: bytes, count: int) -> range:
        self._check_restorable()
        try:
            rows = self._restored(saved_cuda.load(self._residence, data, count, self.width), count)
        except (DeviceFailed, OutOfRoom) as error:
            raise DamagedCodes(f"the saved codes cannot be loaded: {error}") from error
        self.compression.wake()
        return rows

    def _listed(
        self,
        vectors: Float32,
        squared_norms: Float64,
        counts: Sequence[int],
        filters: Sequence[Filter | None],
        wanted_for: Callable[[int], int],
        *,
        blocks: int,
    ) -> list[tuple[Int64, bool]]:
        """For each query rows among which are its nearest, `wanted_for` its count; and whether they are so exactly.

        What the device rules out, it does by the distance summed over `blocks`.
        """
        self._do_without_a_lost_device()
        compressed = self.compression.current  # before the filters, so that every row with a code is one they know
        view = self._blocks.view
        found: dict[int, tuple[Int64, bool]] = {}
        coded: list[_Group] = []
        for each, members in queries_of(filters).items():
            most = max(counts[query] for query in members)
            wanted = wanted_for(most)
            passing = self._members.passing(each)
            asked = Asked(vectors[members], squared_norms[members], passing, compressed, view)
            if wanted > most and len(passing) <= wanted and not self._is_always_coded:
                self._plans["gather"] += len(members)
                found.update(dict.fromkeys(members, (passing.rows(), True)))
                continue
            plan, look = self._plan(asked, most)
            if look is None or compressed is None:
                self._plans[plan] += len(members)
                found.update(zip(members, ((rows, True) for rows in self._exact(asked, wanted, plan)), strict=True))
                continue
            group = _Group(members, asked, compressed, max(look.depth, wanted), wanted)
            if self._pays_to_gather(group):
                self._plans["gather"] += len(members)
                found.update(zip(members, self._gathered(group, blocks), strict=True))
            else:
                self._plans["codes"] += len(members)
                coded.append(group)
        for group, answers in zip(coded, self._by_code(coded, blocks), strict=True):
            found.update(zip(group.members, answers, strict=True))
        return [found[query] for query in range(len(vectors))]

    def _do_without_a_lost_device(self) -> None:
        if self._residence.fault is not None:
            self.compression.abandon()

    def _pays_to_gather(self, group: _Group) -> bool:
        codes = group.compressed.codes
        assert isinstance(codes, DeviceCodes)
        if self._is_always_coded:
            return False
        try:
            return len(group.asked.passing) <= codes.gather_up_to(len(group.members))
        except (DeviceFailed, OutOfRoom):
            return False  # what comes next finds out by itself

    def _gathered(self, group: _Group, blocks: int) -> list[tuple[Int64, bool]]:
        """The answers of one group, from the vectors on the device of all rows that pass."""
        codes, asked = group.compressed.codes, group.asked
        assert isinstance(codes, DeviceCodes)
        rows = asked.passing.rows()
        try:
            near = codes.gather(asked.queries, group.wanted, rows[: np.searchsorted(rows, codes.rows)], blocks)
        except (DeviceFailed, OutOfRoom):
            return [(each, True) for each in self._exact(asked, group.wanted, "gather")]
        beside = self._beside(asked, group.compressed, group.wanted, near)
        return [(np.sort(each), True) for each in beside]

    def _by_code(self, groups: Sequence[_Group], blocks: int) -> list[list[tuple[Int64, bool]]]:
        """The answers of each group, all from one scan."""
        if not groups:
            return []
        codes = groups[0].compressed.codes
        assert isinstance(codes, DeviceCodes)
        queries = [
            _Query(vector, group.depth, group.wanted, group.asked.passing)
            for group in groups
            for vector in group.asked.queries
        ]
        scanned = iter(self._scanned(codes, queries, blocks, groups[0].compressed.gathered_cost))
        answers = []
        for group in groups:
            rows = [next(scanned) for _ in group.members]
            if any(each is None for each in rows):
                exact = self._exact(group.asked, group.wanted, "scan")
                answers.append([(each, True) for each in exact])
            else:
                by_code = [each for each in rows if each is not None]
                beside = self._beside(group.asked, group.compressed, group.wanted, by_code)
                answers.append([(each, False) for each in beside])
        return answers

    def _scanned(
        self, codes: DeviceCodes, queries: Sequence[_Query], blocks: int, row_seconds: float
    ) -> list[Int64 | None]:
        """The rows that the device puts first; None where it cannot say."""
        try:
            vectors, depths, wanted, passing = zip(*queries, strict=True)
            return list(codes.search(np.stack(vectors), depths, wanted, passing, blocks, row_seconds))
        except DeviceLost:
            self.compression.abandon()
            return [None] * len(queries)
        except DeviceFailed as error:
            _log.error("%d queries are scanned in main memory, which takes far longer: %s", len(queries), error)
            return [None] * len(queries)
        except OutOfRoom as error:
            if len(queries) == 1:
                _log.warning("a query is scanned in main memory, which takes far longer: %s", error)
                return [None]
            half = len(queries) // 2
            parts = queries[:half], queries[half:]
            return [rows for part in parts for rows in self._scanned(codes, part, blocks, row_seconds)]


class CudaEngine:
    """An `Engine` on one device."""

    name = "cuda"

    def __init__(self, device: Device, compress: Compress = "auto", pq_bits: int = 8) -> None:
        self.residence = Residence(device)
        self._compress = compress
        self._bits = pq_bits

    @property
    def memory_bytes(self) -> Mapping[Place, int]:
        return {"device": self.residence.used_bytes, "pinned": self.residence.pinned_bytes}

    @property
    def fault(self) -> str | None:
        return self.residence.fault

    def table(self, width: int, stored: StoredVectors | None = None) -> CudaTable:
        policy = CompressPolicy(codes_above(width, self._compress), self._bits)
        return CudaTable(width, policy, self.residence, stored)
