"""Keeps the codes of a growing table: trains, catches up, drops the dead and trains again, beside searches and appends.

The thread lives only while there is work, or will be once the table has come to rest. It builds a new `Compressed` and
swaps it in with one assignment; whoever searches meanwhile keeps the one it began with. What has no codes yet is
scanned exactly, so nothing waits for the thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from threading import Condition, Thread

import numpy as np

from thread_kernels.blocks import Blocks
from thread_kernels.coding import TRIAL_ITERATIONS, AnyCodebook, AnyCodes, Coder, Maker
from thread_kernels.exact import Piece, closest, floors_of, nearest
from thread_kernels.interface import Float32, Int64
from thread_kernels.membership import Membership, Passing
from thread_kernels.reach import CALIBRATED_COUNTS, Look, Reach, calibrate

RETRAINING_GROWTH = 4
"""A table that keeps growing is trained again at so many times the rows."""
SETTLING_GROWTH, SETTLING_SECONDS = 1.25, 30.0
"""One that has come to rest, for so long with hardly a new row, already at so many times: the farther a table has
outgrown its codebook, the deeper each search has to look. With the first codes it is the same: a table that is being
filled would soon be trained anew, and to scan as little as it holds exactly takes a millisecond or two."""
_RESTING_GROWTH = 1.01
DEAD_FRACTION, _DEAD_ROWS = 5, 256
"""The dead are dropped once they are more than one in five, and not a mere handful."""
_RECALIBRATING_GROWTH = 2
_UNCODED_ROWS = 64
"""Rows without codes that may wait: they are scanned exactly, and cost memory."""
_FRESH_ROWS, _FRESH_FRACTION = 4_096, 64
"""Rows beside the base: few beside the base to search, many beside the cost of copying the base."""
_HELD_OUT_ROWS = 128
_PICKED_ROWS = 2_000
_SEED = 0
_CLOSE_TO_EVEN = 0.2
"""Total variation between a filter's rows and all rows over the lists, up to which the filter has nothing to do with
the vectors. A filter of 2,000 random rows over 256 lists differs by 0.14."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CompressPolicy:
    """`above`: live rows up to which a table has no codes, None for never; `bits`: at most 2^bits centroids a
    sub-space."""

    above: int | None
    bits: int


@dataclass(frozen=True, slots=True)
class Compressed:
    """One version of codebook, codes and reach."""

    codes: AnyCodes
    whole: Reach
    """For searches of all live rows."""
    even: Reach
    """For searches of some of them, whose filter has nothing to do with the vectors."""
    apart: Reach
    """For searches of rows that a filter such as one owner with one subject picks: all of them may be far away."""
    trained_rows: int
    """Live rows when the codebook was trained."""
    calibrated_rows: int
    """Rows with codes when the reach was measured."""
    training_seconds: float
    coded_cost: float
    """Seconds a row of a scan of the codes."""
    gathered_cost: float
    """Seconds a row that is read and measured."""

    def look(self, k: int, passing: Passing) -> Look | None:
        """How far to look for the `k` nearest that pass; None when the codes cannot answer that many."""
        if len(passing) == passing.live_count:
            reach = self.whole
        else:
            reach = self.even if self._is_even(passing) else self.apart
        look = reach.of(k, len(passing))
        growth = self.codes.coded_rows / max(1, self.calibrated_rows)
        if look is None or growth <= 1:
            return look
        # The rows that codes may put before a near one have become more since, at most in proportion.
        return replace(look, depth=int(np.ceil(look.depth * growth)))

    def _is_even(self, passing: Passing) -> bool:
        lists = self.codes.codebook.lists
        counts = passing.spread(self.codes.list_of, lists)
        if counts is None or lists == 1 or not counts.any():
            return False
        sizes = self.codes.list_sizes
        variation = np.abs(counts / counts.sum() - sizes / sizes.sum()).sum() / 2
        return bool(variation < _CLOSE_TO_EVEN)


class Compression:
    """The codes of the table that `blocks` and `members` make as the policy says, made by `coder`."""

    def __init__(self, blocks: Blocks, members: Membership, policy: CompressPolicy, coder: Coder) -> None:
        self.current: Compressed | None = None
        self._blocks = blocks
        self._members = members
        self._policy = policy
        self._coder = coder
        self._condition = Condition()
        self._thread: Thread | None = None
        self._is_resting = False
        """The thread has no work, and waits for the table to come to rest."""
        self._closed = False
        self._failure: Exception | None = None
        self._untrained_rows = 0
        """Live rows when the last training failed; the next is at `RETRAINING_GROWTH` times as many."""
        self._postponed_rows = 0
        """Rows at which what failed otherwise is tried again."""
        self._left_dead = 0
        """Removed rows among the newest, whose memory is not given back before more have come."""

    @property
    def is_working(self) -> bool:
        return self._thread is not None and not self._is_resting

    @property
    def has_failed(self) -> bool:
        return self._failure is not None

    def wake(self) -> None:
        """Start the thread if there is work, or will be, and it is not running."""
        with self._condition:
            if self._thread is None and (self._next() is not None or self._is_unsettled()):
                self._thread = Thread(target=self._run, name="codes", daemon=True)
                self._thread.start()
            elif self._is_resting and self._next() is not None:
                self._is_resting = False  # at once: whoever waits from here on waits for this work
                self._condition.notify_all()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until there is no work left; false when that took longer. RuntimeError when the last work failed.

        What will be done once the table has come to rest is not waited for.
        """
        with self._condition:
            done = self._condition.wait_for(lambda: not self.is_working, timeout_s)
            if self._failure is not None:
                raise RuntimeError("the codes of the table could not be made") from self._failure
            return done

    def compact(self) -> None:
        """Drop the dead now, once the thread is idle."""
        with self._condition:
            self._condition.wait_for(lambda: not self.is_working)
            if not self._closed and self._members.dead_count:
                self._squeeze()

    def adopt(self, compressed: Compressed) -> None:
        """Begin with codes that were saved."""
        self.current = compressed

    def abandon(self) -> None:
        """Do without codes from now on. Idempotent."""
        self._policy = replace(self._policy, above=None)
        self.current = None

    def close(self) -> None:
        """End the thread. Idempotent. What codes there are stay in use."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._condition:
                work = self._work()
                if work is None:
                    self._thread = None
                    self._condition.notify_all()
                    return
            try:
                work()
            except _ClosedError:
                continue
            except Exception as error:
                self._note_failure(error, is_training=work == self._train)
            else:
                self._failure, self._postponed_rows = None, 0
                if work == self._train:
                    self._untrained_rows = 0

    def _note_failure(self, error: Exception, *, is_training: bool) -> None:
        """Searches stay right without codes, or with those there are, only slower, so the table goes on."""
        if is_training:
            self._untrained_rows = max(1, self._members.live_count)
            if self.current is not None:
                _log.exception("a table of %d rows keeps the codes it has", self._members.row_count)
                return
            _log.exception("no codes for a table of %d rows; it is scanned exactly", self._members.row_count)
        else:
            rows = self._members.row_count
            self._postponed_rows = rows + _FRESH_ROWS + rows // _FRESH_FRACTION
            _log.exception("no codes for the newest of %d rows; they are scanned exactly", self._members.row_count)
        self._failure = error

    def _work(self) -> Callable[[], None] | None:
        """What to do next, waiting for the table to come to rest if it is to be trained then; None for nothing."""
        work = self._next()
        while work is None and self._is_unsettled():
            rows, self._is_resting = self._members.row_count, True
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._closed or not self._is_resting, SETTLING_SECONDS)
            self._is_resting = False
            work = self._next()
            if work is None and self._members.row_count <= _RESTING_GROWTH * rows and self._is_unsettled():
                work = self._train
        return work

    def _is_unsettled(self) -> bool:
        """Whether a table at rest would be trained."""
        current, live, above = self.current, self._members.live_count, self._policy.above
        if self._closed or above is None or not self._coder.trains_at_rest:
            return False
        wanted = above + 1 if current is None else SETTLING_GROWTH * current.trained_rows
        return live >= max(wanted, RETRAINING_GROWTH * self._untrained_rows)

    def _next(self) -> Callable[[], None] | None:
        if self._closed:
            return None
        current, live, rows = self.current, self._members.live_count, self._members.row_count
        dead = self._members.dead_count - self._left_dead
        if dead >= _DEAD_ROWS and DEAD_FRACTION * dead > live + dead:
            return self._squeeze
        above = self._policy.above
        is_wanted = (
            above is not None and live > self._trained_above(above, current) and self._has_outgrown(current, live)
        )
        if is_wanted and live >= RETRAINING_GROWTH * self._untrained_rows:
            return self._train
        if current is None or rows < self._postponed_rows:
            return None
        if not current.codes.is_whole:
            return lambda: self._complete(current)
        if rows - current.codes.rows >= _UNCODED_ROWS:
            return lambda: self._catch_up(current)
        return None

    def _trained_above(self, above: int, current: Compressed | None) -> int:
        """Live rows up to which a table that is not at rest is not trained."""
        return RETRAINING_GROWTH * above if current is None and self._coder.trains_at_rest else above

    def _has_outgrown(self, current: Compressed | None, live: int) -> bool:
        if current is None:
            return True
        is_unlisted = current.codes.codebook.lists == 1 < self._coder.list_count(live)
        return is_unlisted or live >= RETRAINING_GROWTH * current.trained_rows

    def _squeeze(self) -> None:
        self._left_dead = self._members.dead_count  # if this fails, it is not tried again before more have died
        removed, current = self._members.removed(), self.current
        if current is not None:
            codes = current.codes.without(removed)
            # What comes next may be of another kind: the reach is measured again once there are twice as many as are
            # left, and where none are left, all is made anew.
            calibrated = min(current.calibrated_rows, codes.coded_rows)
            self.current = replace(current, codes=codes, calibrated_rows=calibrated) if codes.coded_rows else None
        self._members.squeezed(removed[: np.searchsorted(removed, self._blocks.squeeze(removed))])
        self._left_dead = self._members.dead_count

    def _train(self) -> None:
        started = time.monotonic()
        live = self._members.passing(None).rows()
        held_out, sample = self._sampled(live)
        codebook = _preferred(self._coder, sample, held_out[1], rows=len(live), bits=self._policy.bits)
        stop = self._members.row_count
        codes = self._coder.empty(codebook, is_trial=False).merged(self._live_pieces(0, stop), stop)
        if codes.coded_rows >= _RECALIBRATING_GROWTH * len(live):  # what came meanwhile may be of another kind
            held_out, _ = self._sampled(self._members.passing(None).rows())
        reaches, costs = self._calibrated(codes, *held_out), self._costs(codes, *held_out)
        seconds = time.monotonic() - started
        self._swap(Compressed(codes, *reaches, len(live), codes.coded_rows, seconds, *costs))
        _log.info("codes for %d rows made in %.1f s", codes.coded_rows, seconds)

    def _catch_up(self, current: Compressed) -> None:
        codes, stop = current.codes, self._members.row_count
        fresh = codes.fresh_rows + stop - codes.rows
        if fresh <= _FRESH_ROWS + codes.rows // _FRESH_FRACTION:
            codes = codes.grown(self._live_pieces(codes.rows, stop), stop)
        else:
            codes = codes.merged(self._live_pieces(codes.base_rows, stop), stop)
        if codes.coded_rows < _RECALIBRATING_GROWTH * current.calibrated_rows:
            self._swap(replace(current, codes=codes))
            return
        held_out, _ = self._sampled(self._members.passing(None).rows())
        whole, even, apart = self._calibrated(codes, *held_out)
        coded_cost, gathered_cost = self._costs(codes, *held_out)
        self._swap(
            replace(
                current,
                codes=codes,
                whole=whole,
                even=even,
                apart=apart,
                calibrated_rows=codes.coded_rows,
                coded_cost=coded_cost,
                gathered_cost=gathered_cost,
            )
        )

    def _complete(self, current: Compressed) -> None:
        self._swap(replace(current, codes=current.codes.completed(self._gather)))

    def _swap(self, compressed: Compressed) -> None:
        self.current = compressed
        self._blocks.release(compressed.codes.rows)

    def _sampled(self, live: Int64) -> tuple[tuple[Int64, Float32], Float32]:
        """Rows and vectors to ask with, and vectors to train on; a table of one row has no others to train on."""
        count = _HELD_OUT_ROWS + self._coder.training_rows(len(live))
        chosen = np.random.default_rng(_SEED).permutation(live)[:count]
        asked = min(_HELD_OUT_ROWS, max(1, len(chosen) // 8))
        held_out, sample = (self._known(np.sort(part)) for part in (chosen[:asked], chosen[asked:]))
        return held_out, sample[1] if len(sample[1]) else held_out[1]

    def _known(self, rows: Int64) -> tuple[Int64, Float32]:
        """Rows and their vectors, less those that have gone meanwhile."""
        vectors = self._blocks.view.vectors(rows)
        known = ~np.isnan(vectors[:, 0])
        return rows[known], vectors[known]

    def _live_pieces(self, start: int, stop: int) -> Iterator[Piece]:
        return self._unless_closed(self._blocks.view.scan(start, stop, self._members.passing(None).mask()))

    def _calibrated(self, codes: AnyCodes, rows: Int64, queries: Float32) -> tuple[Reach, Reach, Reach]:
        """The reach without a filter, with one that has nothing to do with the vectors, and with one that has.

        The second is measured with a random hundredth of the rows, the third with a quarter of them, those at one end
        of the strongest direction, and queries from the other half.
        """
        everything = self._members.passing(None)
        live = everything.rows()
        live = live[: np.searchsorted(live, codes.rows)]
        if len(live) < len(everything):  # no depth finds the rows that came since the codes were made
            everything = everything.only(live)
        whole = self._reach(codes, queries, rows, everything)
        if not len(live) or not len(queries):
            return whole, whole, whole

        picked = np.random.default_rng(_SEED).random(len(live)) < max(0.01, _PICKED_ROWS / len(live))
        even = whole.or_farther(self._reach(codes, queries, rows, everything.only(live[picked])))

        strongest = np.linalg.svd(queries - queries.mean(axis=0), full_matrices=False)[2][0]
        places = np.concatenate([piece.vectors @ strongest for piece in self._gather(live)])
        near_end = everything.only(live[places < np.nanquantile(places, 0.25)])
        far = queries @ strongest > np.nanmedian(places)
        if not far.any() or not len(near_end):
            return whole, even, even
        return whole, even, even.or_farther(self._reach(codes, queries[far], rows[far], near_end))

    def _costs(self, codes: AnyCodes, rows: Int64, queries: Float32) -> tuple[float, float]:
        everything, query = self._members.passing(None), queries[:1]
        scan = self._coder.seconds(lambda: codes.nearest(query, CALIBRATED_COUNTS[0], everything, 1.0))
        gather = self._coder.seconds(
            lambda: closest(query[0], rows, self._blocks.view.vectors(rows), CALIBRATED_COUNTS[0])
        )
        return scan / max(1, codes.coded_rows), gather / max(1, len(rows))

    def _reach(self, codes: AnyCodes, queries: Float32, rows: Int64, passing: Passing) -> Reach:
        pieces = self._gather(passing.rows())
        truth = _truth(queries, rows, CALIBRATED_COUNTS[-1], pieces, self._blocks.view.vectors)
        return calibrate(codes, queries, rows, truth, passing)

    def _gather(self, rows: Int64) -> Iterator[Piece]:
        return self._unless_closed(self._blocks.view.gather(rows))

    def _unless_closed(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        for piece in pieces:
            if self._closed:
                raise _ClosedError
            yield piece


class _ClosedError(Exception):
    """The table was closed in the middle of the work."""


def _preferred(coder: Coder, sample: Float32, held_out: Float32, *, rows: int, bits: int) -> AnyCodebook:
    """The codebook that finds the nearest rows of the sample with the least depth.

    A trial is for the sample alone, which needs few lists or none, and of fewer steps: it shows a kind.
    """
    makers = coder.makers(sample)
    if len(makers) == 1:
        return makers[0](sample, rows=rows, bits=bits)
    squares = np.einsum("ij,ij->i", sample, sample)
    whole = Piece(np.arange(len(sample)), sample, squares, floors_of(squares, sample.shape[1]))
    everything = Passing(len(sample), len(sample), None)
    strangers, counts = np.full(len(held_out), -1), CALIBRATED_COUNTS[:1]
    truth = _truth(held_out, strangers, counts[-1], [whole], sample.__getitem__)

    def depth(make: Maker) -> float:
        codebook = make(sample, rows=len(sample), bits=bits, iterations=TRIAL_ITERATIONS)
        codes = coder.empty(codebook, is_trial=True).merged([whole], len(sample))
        look = calibrate(codes, held_out, strangers, truth, everything, counts).of(counts[0], len(sample))
        return np.inf if look is None else look.depth

    return min(makers, key=depth)(sample, rows=rows, bits=bits)


def _truth(
    queries: Float32, rows: Int64, count: int, pieces: Iterable[Piece], take: Callable[[Int64], Float32]
) -> list[Int64]:
    """The `count` rows nearest to each query, but for itself: it is the one in `rows`, −1 for none of them."""
    squared_norms = np.einsum("ij,ij->i", queries, queries, dtype=np.float64)
    hits = nearest(queries, squared_norms, count + 1, pieces, take)
    return [each.rows[each.rows != own][:count] for each, own in zip(hits, rows, strict=True)]
