"""Which readers each of many members has, and what a change of readers changes in the set of each reader token."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thread_service.store.growing import GrowingInts

Ints = NDArray[np.int64]


class ReaderSets:
    """The readers of each member, spelled as the store does (`audience.join`).

    The spellings of all members are few and shared, so a member costs four bytes here.
    """

    def __init__(self) -> None:
        self._spellings: list[tuple[str, ...]] = [()]
        self._numbers: dict[str, int] = {"": 0}
        self._of: GrowingInts = GrowingInts(missing=0)

    def change(self, members: ArrayLike, stored: str) -> tuple[Mapping[str, Ints], Mapping[str, Ints]]:
        """Give all `members` the readers `stored`; (token → members that left, token → members that came)."""
        number = self._numbers.get(stored)
        if number is None:
            number = self._numbers[stored] = len(self._spellings)
            self._spellings.append(tuple(stored.split()))
        new = self._spellings[number]
        keys = np.atleast_1d(np.asarray(members, dtype=np.int64))
        left: dict[str, list[Ints]] = {}
        came: dict[str, list[Ints]] = {}
        old_numbers = self._of.get(keys)
        for old_number in np.unique(old_numbers).tolist():
            old = self._spellings[old_number]
            theirs = keys[old_numbers == old_number]
            for token in old:
                if token not in new:
                    left.setdefault(token, []).append(theirs)
            for token in new:
                if token not in old:
                    came.setdefault(token, []).append(theirs)
        self._of.set(keys, number)
        return _joined(left), _joined(came)

    def having(self, members: ArrayLike, any_of: Collection[str], token: str | None = None) -> NDArray[np.bool_]:
        """Which of the members have any of the tokens (and `token`, if given): bool [n]."""
        numbers, places = np.unique(self._of.get(members), return_inverse=True)
        wanted = set(any_of)
        spellings = [self._spellings[number] for number in numbers.tolist()]
        chosen = [not wanted.isdisjoint(each) and (token is None or token in each) for each in spellings]
        found: NDArray[np.bool_] = np.array(chosen, np.bool_)[places]
        return found


def _joined(parts: Mapping[str, list[Ints]]) -> dict[str, Ints]:
    return {token: np.concatenate(found) for token, found in parts.items()}
