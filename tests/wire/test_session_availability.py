"""What a mothership is told about storage, and when."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from fake_node import NODE_ID, FakeNode
from litestar.testing import TestClient
from member import FAST, member
from mothership import Mothership, listening

from thread_service.settings import Settings
from thread_service.wire.http import create_app
from thread_service.wire.mothership.availability import Availability, storage_room
from thread_service.wire.mothership.peer import Peer


class Storage:
    def __init__(self) -> None:
        self.room = True

    async def has_room(self) -> bool:
        return self.room

    def availability(self, mothership: Mothership) -> Availability:
        return Availability(Peer.mothership("127.0.0.1", mothership.port), NODE_ID, self.has_room, FAST)


def told(mothership: Mothership) -> list[bool]:
    return [call.request.accepting_storage for call in mothership.availability]


def test_nothing_is_said_while_the_mothership_is_right() -> None:
    async def scenario() -> None:
        async with listening() as mothership, member(mothership.port, availability=Storage().availability(mothership)):
            stream = await mothership.session()
            await mothership.until(lambda: len(stream.pings) >= 5)
        assert told(mothership) == []

    asyncio.run(scenario())


def test_a_threshold_is_told_when_it_is_crossed_either_way() -> None:
    async def scenario() -> None:
        storage = Storage()
        async with listening() as mothership:
            async with member(mothership.port, availability=storage.availability(mothership)):
                stream = await mothership.session()
                for crossings, room in enumerate((False, True, False), 1):
                    storage.room = room
                    await mothership.until(lambda n=crossings: len(mothership.availability) == n)
                pings = len(stream.pings)
                await mothership.until(lambda: len(stream.pings) >= pings + 5)
            assert told(mothership) == [False, True, False]
            calls = mothership.availability
            assert {call.request.thread_id for call in calls} == {NODE_ID}
            assert len({stream.call.peer, *(call.peer for call in calls)}) == 4, "not on connections of their own"

    asyncio.run(scenario())


def test_a_node_without_room_says_so_again_after_every_registration() -> None:
    async def scenario() -> None:
        storage = Storage()
        storage.room = False
        async with listening() as mothership, member(mothership.port, availability=storage.availability(mothership)):
            for registrations in (1, 2, 3):
                await mothership.until(lambda n=registrations: len(mothership.availability) == n)
                assert len(mothership.registrations) == registrations
                (await mothership.session()).hang_up()
                await mothership.until(lambda n=registrations: len(mothership.registrations) > n)
        assert set(told(mothership)) == {False}

    asyncio.run(scenario())


def test_what_was_not_heard_is_said_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        storage, mothership = Storage(), Mothership()
        mothership.refuses_availability = (grpc.StatusCode.UNAVAILABLE, "later")
        async with listening(mothership), member(mothership.port, availability=storage.availability(mothership)):
            stream = await mothership.session()
            storage.room = False
            await mothership.until(lambda: len(mothership.availability) >= 3)
            mothership.refuses_availability = None
            heard = len(mothership.availability)
            await mothership.until(lambda: len(mothership.availability) > heard)
            assert stream.ended_at is None

    asyncio.run(scenario())
    assert "does not know accepting_storage=False: UNAVAILABLE 'later'" in caplog.text


def test_the_operators_word_is_forwarded_at_once_and_kept() -> None:
    async def scenario() -> None:
        storage = Storage()
        async with listening() as mothership:
            availability = storage.availability(mothership)
            app = httpx.ASGITransport(create_app(FakeNode(), Settings(), availability=availability))
            async with (
                member(mothership.port, availability=availability),
                httpx.AsyncClient(transport=app, base_url="http://node") as http,
            ):
                stream = await mothership.session()
                for method in ("POST", "GET"):
                    answer = await http.request(method, "/v1/availability", json={"accepting_storage": False})
                    assert (answer.status_code, answer.json()) == (200, {"accepted": True})
                assert told(mothership) == [False, False]
                stream.hang_up()
                await mothership.until(lambda: len(mothership.availability) == 3)
                await http.post("/v1/availability", json={"accepting_storage": True})
                assert told(mothership) == [False, False, False, True]
                storage.room = False
                await mothership.until(lambda: len(mothership.availability) == 5)
                await http.post("/v1/availability", json={"accepting_storage": True})
                assert told(mothership)[4:] == [False, False], "an operator's yes makes no room"

    asyncio.run(scenario())


def test_an_unreachable_mothership_is_no_error_of_the_caller(unused_port: int) -> None:
    async def scenario() -> None:
        availability = Availability(Peer.mothership("127.0.0.1", unused_port), NODE_ID, Storage().has_room, FAST)
        app = httpx.ASGITransport(create_app(FakeNode(), Settings(), availability=availability))
        async with httpx.AsyncClient(transport=app, base_url="http://node") as http:
            answer = await http.post("/v1/availability", json={"accepting_storage": False})
            assert answer.json() == {"accepted": True}

    asyncio.run(scenario())


@pytest.mark.parametrize("method", ["POST", "GET"])
@pytest.mark.parametrize("body", [{}, {"accepting_storage": "no"}, {"accepting_storage": None}, []])
def test_a_word_that_is_none_is_refused(method: str, body: Any) -> None:
    availability = Availability(Peer.mothership("127.0.0.1", 1), NODE_ID, Storage().has_room)
    with TestClient(create_app(FakeNode(), Settings(), availability=availability)) as client:
        answer = client.request(method, "/v1/availability", json=body)
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")


def test_a_node_on_its_own_has_no_such_route(client: TestClient[Any]) -> None:
    assert client.post("/v1/availability", json={"accepting_storage": True}).status_code == 404


@pytest.mark.parametrize(
    ("free_bytes_min", "is_full", "has_room"), [(0, False, True), (0, True, False), (2**62, False, False)]
)
def test_room_is_free_disk_and_a_queue_that_is_not_full(
    tmp_path: Path, free_bytes_min: int, is_full: bool, has_room: bool
) -> None:
    async def queue_is_full() -> bool:
        return is_full

    assert asyncio.run(storage_room(tmp_path, free_bytes_min, queue_is_full)()) is has_room
