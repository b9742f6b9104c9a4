"""What is remembered of documents that were linked."""

from __future__ import annotations

from thread_service.node.linked import Linked


def test_the_latest_change_is_remembered() -> None:
    linked = Linked()
    linked.note([1, 2], 5)
    linked.note([2], 7)
    assert linked.newest == {1: 5, 2: 7}


def test_nothing_is_remembered_of_no_change() -> None:
    linked = Linked()
    linked.note([1], 0)
    assert linked.newest == {}


def test_what_was_noted_longest_ago_is_forgotten_first() -> None:
    linked = Linked(documents_max=2)
    linked.note([1, 2], 5)
    linked.note([1], 6)
    linked.note([3], 7)
    assert linked.newest == {1: 6, 3: 7}


def test_all_is_forgotten_once_no_change_waits() -> None:
    linked = Linked()
    linked.note([1], 5)
    newest = linked.newest
    linked.forget()
    assert newest == {}
