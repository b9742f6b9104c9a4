"""Keeps the codes of a growing table: trains, catches up and trains again, in a thread beside searches and appends.

The thread lives only while there is work. It builds a new `Compressed` and swaps it in with one assignment; whoever
searches meanwhile keeps the one it began with. What has no codes yet is scanned exactly, so nothing waits for the
thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from threading import Condition, Thread

import numpy as np

from thread_kernels.blocks import Blocks
from thread_kernels.codebook import NARROWEST, Codebook, plain, principal
from thread_kernels.codes import CALIBRATED_COUNTS, Codes, Depth, calibrate
from thread_kernels.exact import Piece, floors_of, nearest
from thread_kernels.interface import Bool, Float32, Int64
from thread_kernels.membership import Membership

RETRAINING_GROWTH = 8
_RECALIBRATING_GROWTH = 2
_TAIL_ROWS, _TAIL_FRACTION = 4_096, 64
"""Rows without codes that may wait: few beside the codes to scan, many beside the cost of copying the codes."""
_TRAINING_ROWS = 16_384
_HELD_OUT_ROWS = 128
_SEED = 0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Compressed:
    """One version of codebook, codes and depth."""

    codes: Codes
    depth: Depth
    """For searches of all live rows."""
    filtered_depth: Depth
    """For searches of some of them."""
    trained_rows: int
    """Live rows when the codebook was trained."""
    calibrated_rows: int
    """Rows with codes when the depth was measured."""


class Compression:
    """The codes of the table that `blocks` and `members` make, once it has more than `above` live rows."""

    def __init__(self, blocks: Blocks, members: Membership, above: int) -> None:
        self.current: Compressed | None = None
        self.above = above
        self._blocks = blocks
        self._members = members
        self._condition = Condition()
        self._thread: Thread | None = None
        self._closed = False
        self._failure: Exception | None = None
        self._failed_rows = 0

    def wake(self) -> None:
        """Start the thread if there is work and it is not running."""
        with self._condition:
            if self._thread is None and self._next() is not None:
                self._thread = Thread(target=self._run, name="codes", daemon=True)
                self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until there is no work left; false when that took longer. RuntimeError when the last work failed."""
        with self._condition:
            done = self._condition.wait_for(lambda: self._thread is None, timeout_s)
            if self._failure is not None:
                raise RuntimeError("the codes of the table could not be made") from self._failure
            return done

    def close(self) -> None:
        """End the thread. Idempotent. What codes there are stay in use."""
        with self._condition:
            self._closed = True
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._condition:
                work = self._next()
                if work is None:
                    self._thread = None
                    self._condition.notify_all()
                    return
            try:
                compressed = work()
            except _ClosedError:
                continue
            except Exception as error:
                # Searches stay right without codes, only slower, so the table goes on; the next training is at 8
                # times the rows.
                _log.exception("no codes for a table of %d rows; it is scanned exactly", self._members.row_count)
                self._failure, self._failed_rows = error, self._members.live_count
                continue
            self._failure = None
            self.current = compressed

    def _next(self) -> Callable[[], Compressed] | None:
        live, current = self._members.live_count, self.current
        if self._closed or live <= self.above or self._blocks.width < NARROWEST:
            return None
        if self._failure is not None and live < RETRAINING_GROWTH * self._failed_rows:
            return None
        if current is None or live >= RETRAINING_GROWTH * current.trained_rows:
            return self._train
        if self._members.row_count - current.codes.rows > _TAIL_ROWS + current.codes.rows // _TAIL_FRACTION:
            return lambda: self._extend(current)
        return None

    def _train(self) -> Compressed:
        live = self._members.passing(None).rows()
        chosen = np.random.default_rng(_SEED).permutation(live)[: _HELD_OUT_ROWS + _TRAINING_ROWS]
        held_out, sample = np.sort(chosen[:_HELD_OUT_ROWS]), np.sort(chosen[_HELD_OUT_ROWS:])
        codebook = _preferred(self._blocks.vectors(sample), self._blocks.vectors(held_out))
        codes = self._caught_up(Codes.empty(codebook))
        return Compressed(codes, *self._calibrated(codes, held_out), len(live), codes.rows)

    def _extend(self, current: Compressed) -> Compressed:
        codes = self._caught_up(current.codes)
        if codes.rows < _RECALIBRATING_GROWTH * current.calibrated_rows:
            return replace(current, codes=codes)
        live = self._members.passing(None).rows()
        queries = np.sort(np.random.default_rng(_SEED).choice(live, min(len(live), _HELD_OUT_ROWS), replace=False))
        return Compressed(codes, *self._calibrated(codes, queries), current.trained_rows, codes.rows)

    def _caught_up(self, codes: Codes) -> Codes:
        return codes.extended(self._unless_closed(self._blocks.scan(codes.rows, self._members.row_count)))

    def _calibrated(self, codes: Codes, rows: Int64) -> tuple[Depth, Depth]:
        """The depths without and with a filter, `rows` being the queries.

        A filter that has nothing to do with the vectors asks for no more depth than none. One that has, such as one
        owner with one subject, makes queries look among rows that are all far away. So the second depth is measured
        with a filter that passes a quarter of the rows, those at one end of the strongest direction, and queries from
        the other half.
        """
        queries = self._blocks.vectors(rows)
        live = self._members.passing(None).mask()
        depth = self._depth(codes, queries, rows, live)

        strongest = np.linalg.svd(queries - queries.mean(axis=0), full_matrices=False)[2][0]
        everything = self._unless_closed(self._blocks.scan(0, codes.rows))
        places = np.concatenate([piece.vectors @ strongest for piece in everything])
        near_end = places < np.quantile(places, 0.25)
        if live is not None:
            near_end &= live[: codes.rows]
        far = queries @ strongest > np.median(places)
        return depth, depth.or_deeper(self._depth(codes, queries[far], rows[far], near_end))

    def _depth(self, codes: Codes, queries: Float32, rows: Int64, mask: Bool | None) -> Depth:
        pieces = self._unless_closed(self._blocks.scan(0, codes.rows, mask))
        return _measured_depth(codes, queries, rows, pieces, self._blocks.vectors, mask)

    def _unless_closed(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        for piece in pieces:
            if self._closed:
                raise _ClosedError
            yield piece


class _ClosedError(Exception):
    """The table was closed in the middle of the work."""


def _preferred(sample: Float32, held_out: Float32) -> Codebook:
    """The codebook that finds the nearest rows of the sample with the least depth."""
    norms = np.linalg.norm(sample, axis=1)
    whole = Piece(np.arange(len(sample)), sample, norms, floors_of(norms, sample.shape[1]))
    strangers = np.full(len(held_out), -1)

    def depth(codebook: Codebook) -> float:
        codes = Codes.empty(codebook).extended([whole])
        return (
            _measured_depth(codes, held_out, strangers, [whole], sample.__getitem__, None).of(CALIBRATED_COUNTS[0])
            or np.inf
        )

    return min((plain(sample), principal(sample)), key=depth)


def _measured_depth(
    codes: Codes,
    queries: Float32,
    rows: Int64,
    pieces: Iterable[Piece],
    take: Callable[[Int64], Float32],
    mask: Bool | None,
) -> Depth:
    squared_norms = np.einsum("ij,ij->i", queries, queries, dtype=np.float64)
    hits = nearest(queries, squared_norms, CALIBRATED_COUNTS[-1] + 1, pieces, take)
    truth = [each.rows[each.rows != own][: CALIBRATED_COUNTS[-1]] for each, own in zip(hits, rows, strict=True)]
    return calibrate(codes, queries, rows, truth, mask)
