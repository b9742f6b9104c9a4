"""How far a search by codes looks, between and beyond what was measured."""

from __future__ import annotations

import pytest

from thread_kernels.reach import Look, Reach

WHOLE = Reach(((10, 40, 0.1), (100, 250, 0.2), (1_000, 1_600, 0.4)), 5_000)


def test_the_depth_grows_with_k_and_is_never_less_than_k() -> None:
    looks = [WHOLE.of(k, 5_000) for k in (0, 1, 10, 50, 100, 1_000, 2_000, 100_000)]
    depths = [look.depth for look in looks if look]
    assert depths == sorted(depths)
    assert (depths[:3], depths[4:7]) == ([40, 40, 40], [250, 1_600, 3_200])
    assert 40 < depths[3] < 250
    assert Reach(((10, 10, 1.0), (100, 20, 1.0)), 30).of(40, 30) == Look(40, 1.0)


def test_the_share_of_the_lists_grows_with_k_up_to_all_of_them() -> None:
    shares = [look.share for k in (1, 10, 50, 100, 1_000, 2_000, 10_000) if (look := WHOLE.of(k, 5_000))]
    assert shares == sorted(shares)
    assert shares[0] == shares[1] == pytest.approx(0.1)
    assert shares[3:] == pytest.approx([0.2, 0.4, 0.8, 1.0])


def test_the_nearest_of_fewer_rows_are_looked_for_in_more_lists() -> None:
    assert WHOLE.of(10, 6_000) == WHOLE.of(10, 5_000)
    assert WHOLE.of(10, 500) == Look(40, 0.2)
    assert WHOLE.of(10, 50) == Look(40, 0.4)
    assert WHOLE.of(10, 10) == Look(40, 1.0)
    assert Reach(((10, 40, 0.1),), 5_000).of(10, 500) == Look(40, 1.0)


def test_counts_beyond_those_that_the_codes_could_answer_are_left_to_exact_search() -> None:
    some = Reach(((10, 40, 0.1),), 100)
    assert some.of(10, 100) == Look(40, 0.1)
    assert some.of(11, 100) is None
    assert Reach((), 100).of(1, 100) is None


def test_the_farther_of_two_answers_what_both_answer() -> None:
    other = Reach(((10, 90, 0.3), (100, 200, 0.1)), 300)
    assert WHOLE.or_farther(other) == Reach(((10, 90, 0.3), (100, 250, 0.2)), 300)
    assert other.or_farther(WHOLE) == Reach(((10, 90, 0.3), (100, 250, 0.2)), 5_000)
