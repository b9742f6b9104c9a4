"""When the next request to a hosted model may go out: a pause that all its callers share, longer after each failure.

What one caller learns of an overload, the others need not ask.
"""

from __future__ import annotations

import math
import random
import threading
import time

from thread_service.errors import NotReady
from thread_service.models.http_api import Away

FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 20.0


class Turn:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._not_before = 0.0
        self._failures = 0
        self._complaint = ""

    def pause(self) -> float:
        """Seconds until the next request may go out; none is left when it is not positive."""
        return self._not_before - time.monotonic()

    @property
    def complaint(self) -> str:
        """Why the next request has to wait, or had to last."""
        return self._complaint

    @property
    def is_failing(self) -> bool:
        """Whether the last request failed."""
        return self._failures > 0

    def hold(self, seconds: float, complaint: str) -> None:
        with self._lock:
            self._complaint = complaint
            self._not_before = max(self._not_before, time.monotonic() + seconds)

    def failed(self, error: Away) -> None:
        """Pause for as long as the provider asks, else twice as long as the last time, less up to a half."""
        with self._lock:
            doubled = FIRST_PAUSE_SECONDS * 2.0 ** min(self._failures, 16)
            self._failures += 1
        backed_off = min(doubled, LONGEST_PAUSE_SECONDS) * random.uniform(0.5, 1)
        self.hold(backed_off if error.retry_after is None else error.retry_after, str(error))

    def succeeded(self) -> None:
        with self._lock:
            self._failures = 0

    def release(self) -> None:
        """The provider is well: nobody need wait for what others have met."""
        with self._lock:
            self._failures = 0
            self._not_before = 0.0

    def not_ready(self) -> NotReady:
        """The last complaint, with the time to come back."""
        return NotReady(self._complaint, retry_after_seconds=max(1, math.ceil(self.pause())))
