"""The threads of the operations: a bound on what waits for them, and nothing left of who leaves."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from threading import Event

import pytest
from in_process import TIMEOUT, InProcess, until

from thread_service.errors import Busy, NotReady
from thread_service.node.work import WAITING_SECONDS_MAX, Work


def test_more_work_than_may_wait_is_refused_and_there_is_room_again_when_some_is_done() -> None:
    async def scenario() -> None:
        work, go = Work(unfinished_max=3), Event()
        try:
            started = [work.start(lambda: go.wait(60)) for _ in range(3)]
            with pytest.raises(Busy, match="3 operations already wait"):
                work.start(lambda: True)
            go.set()
            assert await asyncio.gather(*started) == [True] * 3
            assert await work.run(lambda: "room") == "room"
        finally:
            go.set()
            work.close()

    asyncio.run(scenario())


def test_work_that_fails_or_is_given_up_leaves_its_room() -> None:
    async def scenario() -> None:
        work, go = Work(unfinished_max=2), Event()
        try:
            with pytest.raises(ZeroDivisionError):
                await work.run(lambda: 1 // 0)
            given_up = work.start(lambda: go.wait(60))
            given_up.cancel()
            go.set()
            assert await work.run(lambda: "still here") == "still here"
            assert [await work.run(lambda each=each: each) for each in range(5)] == list(range(5))
        finally:
            go.set()
            work.close()

    asyncio.run(scenario())


def test_while_the_next_piece_waits_for_too_long_new_ones_are_refused_and_only_what_was_begun_goes_on() -> None:
    async def scenario() -> None:
        now = [0.0]
        work, go = Work(clock=lambda: now[0]), Event()
        try:
            running = [work.start(lambda: go.wait(60)) for _ in range(32)]  # as many as there are threads, or more
            given_up, waiting = work.start(lambda: True), work.start(lambda: True)
            now[0] = WAITING_SECONDS_MAX
            more = work.start(lambda: True)
            now[0] += 1
            with pytest.raises(Busy, match="operations wait 6 seconds for their turn") as refusal:
                work.start(lambda: True)
            assert refusal.value.retry_after_seconds == 6
            ended = work.start(lambda: "ended", refusable=False)
            given_up.cancel()
            go.set()
            await asyncio.gather(*running, waiting, more)
            assert await ended == "ended"
            now[0] += 60
            assert await work.run(lambda: "room") == "room"
        finally:
            go.set()
            work.close()

    asyncio.run(scenario())


def test_work_after_the_end_is_refused_as_not_ready() -> None:
    async def scenario() -> None:
        work = Work()
        work.close()
        with pytest.raises(NotReady, match="shutting down"):
            await work.run(lambda: 1)

    asyncio.run(scenario())


def test_the_query_of_a_search_that_is_refused_does_not_reach_the_model(
    node: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise Busy("too much waits", retry_after_seconds=1)

    node.embedder.open.clear()
    in_hand = node.queue.submit(["in hand"], "document")
    until(lambda: node.queue.stats().waiting_documents == 0)
    with monkeypatch.context() as patch:
        patch.setattr(Work, "begin", refuse)
        with pytest.raises(Busy, match="too much waits"):
            node.search("ann", "refused")
    node.embedder.open.set()
    in_hand.result(TIMEOUT)
    node.search("ann", "taken")
    assert node.embedder.embedded == [("in hand", "document"), ("taken", "query")]


@pytest.mark.parametrize("last", [0, 1])
def test_what_follows_begins_when_the_last_of_what_it_waits_for_has_ended(last: int) -> None:
    async def scenario() -> None:
        work = Work()
        awaited: list[Future[int]] = [Future(), Future()]
        try:
            answer = work.start_after(awaited, lambda: sum(each.result() for each in awaited))
            awaited[1 - last].set_result(1)
            assert work.begun == 0
            awaited[last].set_result(10)
            assert await answer == 11
            assert await work.start_after(awaited, lambda: "all had ended before") == "all had ended before"
            with pytest.raises(ZeroDivisionError):
                await work.start_after(awaited, lambda: 1 // 0)
            assert work.begun == 3
        finally:
            work.close()

    asyncio.run(scenario())


def test_what_follows_fails_at_once_with_what_it_waits_for_and_is_not_begun() -> None:
    async def scenario() -> None:
        work = Work()
        failing: Future[int] = Future()
        never: Future[int] = Future()
        try:
            answer = work.start_after([failing, never], lambda: 1)
            failing.set_exception(NotReady("no model"))
            with pytest.raises(NotReady, match="no model"):
                await answer
            never.set_exception(Busy("too late to matter", retry_after_seconds=1))
            assert work.begun == 0
        finally:
            work.close()

    asyncio.run(scenario())


def test_what_follows_is_not_begun_once_nobody_waits_or_the_node_stops() -> None:
    async def scenario() -> None:
        work = Work()
        given_up, late = Future[int](), Future[int]()
        seen: list[str] = []
        first = work.start_after([given_up], lambda: seen.append("given up"))
        first.cancel()
        await asyncio.sleep(0)
        given_up.set_result(1)
        second = work.start_after([late], lambda: seen.append("late"))
        work.close()
        late.set_result(1)
        with pytest.raises(NotReady, match="shutting down"):
            await second
        assert seen == []

    asyncio.run(scenario())
