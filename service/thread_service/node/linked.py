"""Which documents were linked after which change of names: a round of back-linking need not look at them again.

Nearly every name comes with a document that holds it and that is linked, with that name, right after. In memory only:
what is lost is looked at once more.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

DOCUMENTS_MAX = 65_536


class Linked:
    """Document key → the latest change of names (`back_links.newest`) that its links take into account."""

    def __init__(self, documents_max: int = DOCUMENTS_MAX) -> None:
        self._documents_max = documents_max
        self._lock = threading.Lock()
        self._newest: dict[int, int] = {}

    @property
    def newest(self) -> Mapping[int, int]:
        """To be looked things up in."""
        return self._newest

    def note(self, document_keys: Iterable[int], newest: int) -> None:
        """Their links were written, found in a snapshot in which the latest change of names was this one (0: none)."""
        if not newest:
            return
        with self._lock:
            for key in document_keys:
                self._newest.pop(key, None)  # to the end: the one noted longest ago is forgotten first
                self._newest[key] = newest
            while len(self._newest) > self._documents_max:
                del self._newest[next(iter(self._newest))]

    def forget(self) -> None:
        """No change waits any more, and what is known says nothing of later ones."""
        with self._lock:
            self._newest.clear()
