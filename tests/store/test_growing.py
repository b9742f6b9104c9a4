"""Integers by key that grow with the keys."""

from __future__ import annotations

import numpy as np
import pytest

from thread_service.store.growing import GrowingInts


@pytest.mark.parametrize("missing", [-1, 0])
def test_what_was_never_set_is_missing_wherever_the_key_lies(missing: int) -> None:
    ints = GrowingInts(missing=missing)
    ints.set([5], 7)
    assert ints.get([4, 5, 10**9, -1, -1024]).tolist() == [missing, 7, missing, missing, missing]
    assert (ints.one(5), ints.one(6), ints.one(10**9), ints.one(-1)) == (7, missing, missing, missing)
    assert ints.get([]).tolist() == []


def test_growing_keeps_what_was_set() -> None:
    ints = GrowingInts()
    for start in (0, 900, 1_000, 5_000, 100_000):
        ints.set(range(start, start + 200), np.arange(start, start + 200) * 2)
    ints.set([3, 100_100], [-1, 1])
    ints.set([], 9)
    assert ints.get([0, 3, 1_024, 1_199, 5_000, 6_000, 100_100]).tolist() == [0, -1, 2_048, 2_398, 10_000, -1, 1]
    ints.set(4, 44)
    assert ints.get(4).tolist() == [44]
