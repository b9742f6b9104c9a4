"""Filters composed on the device against those of `Membership`, whatever happened to rows and sets before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thread_kernels import Filter
from thread_kernels.membership import Membership

if TYPE_CHECKING:
    from host_device import HostDevice

    from thread_kernels.device import Residence
    from thread_kernels.device_filters import DeviceFilters, ResidentSets

FILTERS: list[tuple[tuple[int, ...], ...]] = [(), ((),), ((0,),), ((0, 1),), ((0,), (1,)), ((0, 2), (1, 2)), ((2,), ())]
rows = st.lists(st.integers(0, 299), max_size=12)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("coded"), st.integers(0, 150)),
        st.tuples(st.sampled_from(["remove", "add 0", "add 1", "add 2", "discard 0", "discard 1"]), rows),
        st.tuples(st.sampled_from(["add 0 to", "add 1 to", "add 2 to"]), st.integers(1, 300)),
        st.tuples(st.just("an older search"), st.just(0)),
    ),
    max_size=20,
)

pytestmark = pytest.mark.usefixtures("host_kernels")


def residence_on_the_host(**options: int) -> tuple[Residence, HostDevice]:
    from host_device import host_device

    from thread_kernels.device import Residence

    device = host_device(**options)
    return Residence(device), device


def filters_of(residence: Residence, numbers: np.ndarray, sets: ResidentSets) -> DeviceFilters:
    from thread_kernels.device_filters import DeviceFilters

    return DeviceFilters(residence, numbers, sets)


def check(
    residence: Residence, filters: DeviceFilters, numbers: np.ndarray, members: Membership, *asked: Filter
) -> None:
    from thread_kernels.selection import EVERY_ROW, pack_mask, tile_count

    passing = [members.passing(each) for each in asked]
    with residence.using():
        bitmaps, filter_of = filters.of(passing)
    assert bitmaps.shape[1] == 4 * tile_count(len(numbers))
    beyond = ~pack_mask(np.ones(len(numbers), bool))
    for each, place in zip(passing, filter_of, strict=True):
        mask = each.mask()
        if mask is None:
            assert place == EVERY_ROW
        else:
            np.testing.assert_array_equal(bitmaps[place] & ~beyond, pack_mask(mask[numbers]))


@settings(max_examples=60, deadline=None)
@given(steps=steps, gap=st.integers(2, 9))
def test_they_are_what_the_host_composes(steps: list[tuple[str, int | list[int]]], gap: int) -> None:
    from thread_kernels.device_filters import ResidentSets

    residence, _ = residence_on_the_host()
    members = Membership(keeps_parts=True)
    members.extend(300)
    sets = [members.row_set() for _ in range(3)]
    asked = [Filter(tuple(tuple(sets[number] for number in union) for union in each)) for each in FILTERS]
    resident = ResidentSets(residence)
    have_codes = np.setdiff1d(np.arange(300), np.arange(0, 300, gap))  # the others were gone when codes were made
    versions = [have_codes[:0]]
    for action, value in steps:
        if action == "coded" and isinstance(value, int):
            versions.append(have_codes[: min(len(have_codes), len(versions[-1]) + value)])
        elif action == "an older search":
            (sets[1].discard if 251 in sets[1] else sets[1].add)([1, 251])  # a change that it is the first to meet
            older = versions[len(versions) // 2]
            check(residence, filters_of(residence, older, resident), older, members, *asked)
        elif action == "remove":
            members.remove(value)
        else:
            named = sets[int(action.split()[1])]
            rows = range(value) if isinstance(value, int) else value
            (named.discard if action.startswith("discard") else named.add)(rows)
        filters = filters_of(residence, versions[-1], resident)
        for _ in range(2):  # composed, and then remembered
            check(residence, filters, versions[-1], members, *asked)


@pytest.mark.parametrize(
    ("rows", "numbers", "places"),
    [
        ([1, 2], [0, 1, 2], [1, 2]),
        ([1, 3, 4], [0, 1, 2], [1]),
        ([0, 2, 3, 5, 9], [2, 4, 5], [0, 2]),
        ([], [2, 4], []),
        ([0, 1], [], []),
    ],
)
def test_rows_are_found_where_they_lie(rows: list[int], numbers: list[int], places: list[int]) -> None:
    from thread_kernels.device_filters import places_of

    assert places_of(np.array(rows, dtype=np.int64), np.array(numbers, dtype=np.int64)).tolist() == places


def test_a_search_that_holds_a_filter_keeps_it_while_its_sets_change() -> None:
    from thread_kernels.device_filters import ResidentSets
    from thread_kernels.selection import pack_mask

    residence, _ = residence_on_the_host()
    members = Membership(keeps_parts=True)
    members.extend(200)
    mine = members.row_set()
    mine.add(range(50))
    numbers = np.arange(200)
    filters = filters_of(residence, numbers, ResidentSets(residence))
    before = members.passing(Filter.any_of(mine))
    mine.discard(range(25))
    mine.add([199])
    members.remove([30])
    after = members.passing(Filter.any_of(mine))
    with residence.using():
        for passing in (after, before, after):
            [bitmap], _ = filters.of([passing])
            np.testing.assert_array_equal(bitmap, pack_mask(np.isin(numbers, passing.rows())))
    assert (before.rows().tolist(), len(after)) == (list(range(50)), 25)


def test_row_sets_take_bounded_memory_and_the_one_used_longest_ago_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    from thread_kernels import device_filters

    residence, device = residence_on_the_host()
    members = Membership(keeps_parts=True)
    members.extend(1_280)
    numbers = np.arange(1_280)
    bitmap_bytes = 4 * 4 * 10
    monkeypatch.setattr(device_filters, "_MOST_BYTES", 4 * bitmap_bytes)
    resident = device_filters.ResidentSets(residence)
    sets = [members.row_set() for _ in range(6)]
    for number, each in enumerate(sets):
        each.add(range(number, 1_280, 7))

    def uploads(number: int) -> int:
        filters = filters_of(residence, numbers, resident)
        before = device.counts["uploads"]
        check(residence, filters, numbers, members, Filter.any_of(sets[number]))
        return device.counts["uploads"] - before - 1  # the numbers of the filters

    assert [uploads(number) for number in (0, 1, 2)] == [1, 1, 1], (
        "the bitmap of what was removed has nothing to upload"
    )
    assert residence.used_bytes == 4 * bitmap_bytes
    assert [uploads(number) for number in (0, 3, 0, 2, 1, 0)] == [0, 1, 0, 0, 1, 0]
    assert residence.used_bytes == 4 * bitmap_bytes
    del sets[0]
    members.forget()
    assert residence.used_bytes == 3 * bitmap_bytes, "nobody can ask for it any more"


def test_without_room_the_other_row_sets_leave() -> None:
    from thread_kernels.device import OutOfRoom
    from thread_kernels.device_filters import ResidentSets

    members = Membership(keeps_parts=True)
    members.extend(1_280)
    numbers = np.arange(1_280)
    sets = [members.row_set() for _ in range(4)]
    for number, each in enumerate(sets):
        each.add(range(number, 1_280, 5))
    two_of_them, _ = residence_on_the_host(memory_bytes=2 * 160)
    resident = ResidentSets(two_of_them)
    for each in sets:
        check(two_of_them, filters_of(two_of_them, numbers, resident), numbers, members, Filter.any_of(each))

    none, _ = residence_on_the_host(memory_bytes=159)
    with pytest.raises(OutOfRoom, match="are needed on host"):
        check(none, filters_of(none, numbers, ResidentSets(none)), numbers, members, Filter.any_of(sets[0]))
