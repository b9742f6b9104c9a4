"""Row sets and filters against plain sets: a remembered filter is never stale, and all its shapes agree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thread_kernels import Filter
from thread_kernels.membership import Membership, Passing

rows = st.lists(st.integers(0, 80), max_size=12)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("extend"), st.integers(0, 30)),
        st.tuples(st.sampled_from(["remove", "squeezed"]), rows),
        st.tuples(st.sampled_from(["add 0", "add 1", "add 2", "discard 0", "discard 1", "discard 2"]), rows),
    ),
    max_size=25,
)
FILTERS: list[tuple[tuple[int, ...], ...]] = [(), ((),), ((0,),), ((0, 1),), ((0,), (1,)), ((0, 2), (1, 2)), ((2,), ())]


def assert_is(passing: Passing, expected: set[int], row_count: int, live_count: int) -> None:
    """Every shape of the same rows."""
    numbers = sorted(expected)
    mask = np.isin(np.arange(row_count), numbers)
    assert (len(passing), passing.row_count, passing.live_count) == (len(expected), row_count, live_count)
    assert passing.rows().dtype == np.int64
    assert passing.rows().tolist() == numbers
    found, packed = passing.mask(), passing.packed()
    if found is None or packed is None:
        assert found is packed is None
        assert mask.all()
    else:
        np.testing.assert_array_equal(found, mask)
        np.testing.assert_array_equal(np.unpackbits(packed, count=row_count, bitorder="little"), mask)
    for offset in (0, 1):  # of another table of lists, nothing may be remembered
        list_of = ((np.arange(row_count * 2 // 3) + offset) % 3).astype(np.uint16)
        spread = passing.spread(list_of, 3)
        if found is None:
            assert spread is None
        else:
            covered = [row for row in numbers if row < len(list_of)]
            assert spread is not None
            assert spread.tolist() == np.bincount(list_of[covered], minlength=3).tolist()


@settings(max_examples=100, deadline=None)
@given(steps=steps)
def test_a_remembered_filter_is_never_stale(steps: list[tuple[str, int | list[int]]]) -> None:
    members = Membership()
    sets = [members.row_set() for _ in range(3)]
    filters = [Filter(tuple(tuple(sets[number] for number in union) for union in each)) for each in FILTERS]
    count, removed, squeezed, model = 0, set(), set(), [set(), set(), set()]
    for action, value in steps:
        if isinstance(value, int):
            assert members.extend(value) == range(count, count + value)
            count += value
        else:
            numbers = {row for row in value if row < count}
            if action == "remove":
                members.remove(list(numbers))
                removed |= numbers
            elif action == "squeezed":
                members.squeezed(np.array(sorted(numbers & removed), dtype=np.int64))
                squeezed |= numbers & removed
            else:
                name, place = action.split()
                getattr(sets[int(place)], name)(list(numbers))
                getattr(model[int(place)], "update" if name == "add" else "difference_update")(numbers)
        live = set(range(count)) - removed
        assert members.live_count == len(live)
        assert members.dead_count == len(removed - squeezed)
        assert members.removed().tolist() == sorted(removed)
        assert_is(members.passing(None), live, count, len(live))
        for each, filter in zip(FILTERS, filters, strict=True):
            expected = set(live)
            for union in each:
                expected &= set().union(*(model[number] for number in union))
            assert_is(members.passing(filter), expected, count, len(live))
        for one, other in zip(sets, model, strict=True):
            assert len(one) == len(other)
            assert all((row in one) == (row in other) for row in range(-1, count + 2))


def test_what_a_filter_gave_does_not_change_with_its_sets() -> None:
    members = Membership()
    members.extend(10)
    mine = members.row_set()
    mine.add([1, 2, 3])
    before = members.passing(Filter.any_of(mine))
    assert members.passing(Filter.any_of(mine)) is before, "nothing has changed"
    mine.discard(2)
    members.remove([3])
    members.extend(5)
    assert_is(before, {1, 2, 3}, 10, 10)
    assert_is(members.passing(Filter.any_of(mine)), {1}, 15, 14)


def test_more_filters_than_are_remembered_stay_right() -> None:
    members = Membership()
    members.extend(100)
    filters = []
    for row in range(100):
        each = members.row_set()
        each.add(row)
        filters.append(Filter.any_of(each))
    for _ in range(2):
        assert [members.passing(each).rows().tolist() for each in filters] == [[row] for row in range(100)]


def test_a_set_of_another_table_is_refused_every_time() -> None:
    members, stranger = Membership(), Membership().row_set()
    for _ in range(2):
        with pytest.raises(ValueError, match="another table"):
            members.passing(Filter.any_of(stranger))


def test_some_of_the_rows_can_be_picked_out() -> None:
    members = Membership()
    members.extend(20)
    members.remove([0])
    assert_is(members.passing(None).only(np.array([3, 5])), {3, 5}, 20, 19)
