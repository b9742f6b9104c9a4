"""When a call is made again, and after how long.

Every call of this package may be made twice: searches and look-ups change nothing, a removal removes what is still
there, and a deposit leaves the same behind however often it arrives, because a document goes by the id that the caller
gave it or by the SHA-256 of its texts. What differs is the answer to a deposit or a removal that was done although its
answer got lost: `skipped` or `replaced` instead of `new`, 0 removed instead of some.

Made again are calls answered 429 or 503, and those whose connection could not be made or broke. What took longer than
its timeout is not: the node may still be at it.
"""

from __future__ import annotations

import random

import msgspec

from thread_client.errors import NodeError

_FIRST_SECONDS = 0.25
_LONGEST_SECONDS = 8.0


class Retries(msgspec.Struct, frozen=True):
    """At most `attempts` tries in all, with pauses of `seconds` together.

    A pause is what `Retry-After` asks for, else a random one of up to 0.25 s, doubled with each try up to 8 s. Where
    what is asked for would take longer than what is left, the error is raised at once. `Retries(attempts=1)`: none.
    """

    attempts: int = 6
    seconds: float = 60.0


class Tries:
    """The tries of one call."""

    def __init__(self, retries: Retries) -> None:
        self._retries = retries
        self._done = 0
        self._paused_seconds = 0.0

    def pause_after(self, error: NodeError) -> float:
        """Seconds until the next try; raises the error when there is none."""
        self._done += 1
        if not error.may_pass or self._done >= self._retries.attempts:
            raise error
        seconds = error.retry_after_seconds
        if seconds is None:
            seconds = random.uniform(0, min(_LONGEST_SECONDS, _FIRST_SECONDS * 2 ** (self._done - 1)))
        self._paused_seconds += seconds
        if self._paused_seconds > self._retries.seconds:
            raise error
        return seconds
