"""The life of a session, row by row of the contract's table, against a scripted mothership."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import grpc
import pytest
import wire_tap
from member import ADVERTISED, FAST, NODE_ID, Answers, member
from mothership import TIMEOUT, Message, Mothership, listening

from thread_service.wire.mothership import session
from thread_service.wire.mothership.peer import Peer
from thread_service.wire.mothership.session import REQUESTS_MAX
from thread_service.wire.mothership.timings import Timings
from thread_service.wire.v1 import thread_pb2 as pb

Scenario = Callable[[], Coroutine[Any, Any, None]]
OTHER_ID = "00000000-0000-4000-8000-000000000001"


def search(text: str) -> dict[str, Any]:
    return {"search_request": pb.ThreadSearchRequest(query_text=text)}


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that happens on this side."""
    async with asyncio.timeout(TIMEOUT):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.002)


def gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def test_the_contracts_intervals_are_the_defaults() -> None:
    timings = Timings()
    assert (timings.reconnect, timings.register_deadline, timings.ping) == (5, 60, 30)
    assert (timings.heartbeat, timings.heartbeat_deadline, timings.watchdog) == (15, 10, 45)
    assert (timings.keepalive, timings.keepalive_answer) == (15, 10)


# ---------------------------------------------------------------------------------------------------- joining


def test_it_registers_and_opens_the_session_on_the_same_connection_with_a_ping() -> None:
    async def scenario() -> None:
        async with listening() as mothership, member(mothership.port):
            stream = await mothership.session()
            (registration,) = mothership.registrations
            first = stream.messages[0]
            assert (registration.request.thread_id, registration.request.host) == (NODE_ID, ADVERTISED.host)
            assert (registration.request.grpc_port, registration.request.http_port) == (19090, 18081)
            assert stream.call.peer == registration.peer
            assert first.WhichOneof("payload") == "ping"
            assert (first.thread_id, first.correlation_id) == (NODE_ID, "")

    asyncio.run(scenario())


def test_it_waits_for_a_mothership_that_is_not_up_yet(unused_port: int) -> None:
    async def scenario() -> None:
        async with member(unused_port), listening(port=unused_port) as mothership:
            await mothership.session()
            assert len(mothership.registrations) == 1

    asyncio.run(scenario())


def test_a_wildcard_is_registered_as_the_local_address_of_the_connection() -> None:
    async def scenario() -> None:
        async with listening() as mothership, member(mothership.port, advertised=replace(ADVERTISED, host="0.0.0.0")):
            await mothership.session()
            assert mothership.registrations[0].request.host == "127.0.0.1"

    asyncio.run(scenario())


def test_a_mothership_by_name_is_found() -> None:
    async def scenario() -> None:
        async with listening() as mothership, member(0, peer=Peer.mothership("localhost", mothership.port)):
            await mothership.session()

    asyncio.run(scenario())


# ---------------------------------------------------------------------------------------------------- coming back

STATUSES = (
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INTERNAL,
)


def not_accepted(mothership: Mothership) -> None:
    mothership.accepts = False


def stalled(mothership: Mothership) -> None:
    mothership.stalls_register = True


def refused(rpc: str, code: grpc.StatusCode) -> Callable[[Mothership], None]:
    def script(mothership: Mothership) -> None:
        setattr(mothership, f"refuses_{rpc}", (code, "no\n\0 \N{WATER WAVE}"))

    script.__name__ = f"{rpc} {code.name}"
    return script


@pytest.mark.parametrize(
    "script",
    [not_accepted, stalled, *(refused(rpc, code) for rpc in ("register", "session") for code in STATUSES)],
    ids=lambda script: script.__name__,
)
def test_after_any_refusal_it_registers_again_on_a_new_connection_at_a_flat_interval(
    script: Callable[[Mothership], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        mothership = Mothership()
        script(mothership)
        async with (
            listening(mothership),
            member(mothership.port, timings=replace(FAST, register_deadline=0.05 if script is stalled else 5)),
        ):
            await mothership.until(lambda: len(mothership.registrations) >= 6)
            assert len({call.peer for call in mothership.registrations}) == len(mothership.registrations)
            assert min(gaps([call.at for call in mothership.registrations])) >= FAST.reconnect
            mothership.accepts, mothership.stalls_register = True, False
            mothership.refuses_register = mothership.refuses_session = None
            await mothership.session()

    started = time.monotonic()
    asyncio.run(scenario())
    assert time.monotonic() - started < 5, "the interval grew"
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1, "one for a reason, not one for each attempt"


@pytest.mark.parametrize("code", [None, grpc.StatusCode.INTERNAL, grpc.StatusCode.RESOURCE_EXHAUSTED])
def test_any_end_of_a_session_is_followed_by_a_new_registration(code: grpc.StatusCode | None) -> None:
    async def scenario() -> None:
        async with listening() as mothership, member(mothership.port):
            first = await mothership.session()
            first.hang_up(code)
            await mothership.until(lambda: len(mothership.registrations) == 2)
            assert first.ended_at is not None
            assert mothership.registrations[1].at - first.ended_at >= FAST.reconnect * 0.9
            await mothership.session()

    asyncio.run(scenario())


def test_a_mothership_that_dies_is_joined_again_when_it_is_back(unused_port: int) -> None:
    async def scenario() -> None:
        async with member(unused_port):
            for _ in range(3):
                async with listening(port=unused_port) as mothership:
                    await mothership.session()

    asyncio.run(scenario())


def test_a_second_node_of_the_same_id_waits_for_the_slot_and_leaves_the_first_alone() -> None:
    async def scenario() -> None:
        async with listening() as mothership, member(mothership.port):
            first = await mothership.session()
            async with member(mothership.port):
                await mothership.until(lambda: len(mothership.registrations) >= 4)
                assert first.ended_at is None
                assert (await first.ask(**search("still here"))).HasField("search_response")
                first.hang_up()
                await mothership.until(lambda: mothership.live != [] and mothership.live[-1] is not first)

    asyncio.run(scenario())


# ---------------------------------------------------------------------------------------------------- staying


def test_pings_carry_the_id_and_start_with_the_response_headers() -> None:
    async def scenario() -> None:
        mothership = Mothership()
        mothership.withholds_headers = True
        async with listening(mothership), member(mothership.port, timings=replace(FAST, watchdog=0.3)):
            await mothership.until(lambda: len(mothership.streams) == 2)
            withheld = mothership.streams[0]
            assert len(withheld.pings) == 1, "pinged before the headers"
            mothership.withholds_headers = False
            await mothership.until(lambda: any(len(stream.pings) >= 5 for stream in mothership.streams))
            stream = mothership.live[-1]
            assert {(ping.thread_id, ping.correlation_id) for ping in stream.messages} == {(NODE_ID, "")}
            assert min(gaps(stream.pings)) >= FAST.ping * 0.5

    asyncio.run(scenario())


def test_heartbeats_run_on_connections_of_their_own_whether_or_not_a_session_is_up() -> None:
    async def scenario() -> None:
        mothership = Mothership()
        mothership.refuses_register = (grpc.StatusCode.UNAVAILABLE, "later")
        started = time.monotonic()
        async with listening(mothership), member(mothership.port):
            await mothership.until(lambda: len(mothership.heartbeats) >= 2)
            assert mothership.heartbeats[0].at - started >= FAST.heartbeat
            mothership.refuses_register = None
            stream = await mothership.session()
            before = len(mothership.heartbeats)
            await mothership.until(lambda: len(mothership.heartbeats) >= before + 3)
            assert {call.request.thread_id for call in mothership.heartbeats} == {NODE_ID}
            peers = [call.peer for call in mothership.heartbeats]
            assert len({*peers, stream.call.peer}) == len(peers) + 1
            assert stream.ended_at is None

    asyncio.run(scenario())


def test_the_watchdog_keeps_a_silent_session_that_can_be_written_to() -> None:
    async def scenario() -> None:
        mothership = Mothership()
        mothership.sends_pongs = False
        async with listening(mothership), member(mothership.port, timings=replace(FAST, watchdog=0.3)):
            stream = await mothership.session()
            await mothership.until(lambda: len(stream.pings) >= 20)
            assert stream.pings[-1] - stream.call.at > 3 * 0.3
            assert mothership.streams == [stream]

    asyncio.run(scenario())


@pytest.mark.parametrize("case", ["headers never come", "writes stall"])
def test_the_watchdog_drops_a_session_in_which_nothing_moves(case: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        mothership, answers = Mothership(), Answers()
        mothership.withholds_headers = case == "headers never come"
        async with listening(mothership), member(mothership.port, answers, timings=replace(FAST, watchdog=0.3)):
            await mothership.until(lambda: bool(mothership.live))
            stream = mothership.live[0]
            if case == "writes stall":
                # More than the windows and buffers of both ends take in, of text that does not compress.
                mothership.reads.clear()
                answers.tail = random.Random(1).randbytes(4 * 2**20).hex()
                for number in range(6):
                    stream.send(Message(correlation_id=str(number), **search("large")))
            await mothership.until(lambda: len(mothership.registrations) == 2)
            mothership.reads.set()

    asyncio.run(scenario())
    assert "nothing came and nothing went for 0.3 s" in caplog.text


def test_a_connection_that_answers_no_keep_alive_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        timings = replace(FAST, ping=60, heartbeat=60, keepalive=0.1, keepalive_answer=0.1, watchdog=60)
        async with (
            listening() as mothership,
            wire_tap.tapped(mothership.port) as tap,
            member(tap.port, timings=timings),
        ):
            await mothership.session()
            await until(lambda: len(tap.sent(wire_tap.PING)) >= 1)
            tap.passes.clear()
            await until(lambda: tap.connections == 2)

    asyncio.run(scenario())
    assert "ping timeout" in caplog.text


def test_the_connection_has_the_contracts_windows_and_compresses_what_it_sends() -> None:
    async def scenario() -> None:
        answers = Answers()
        answers.tail = "x" * 100_000
        async with (
            listening() as mothership,
            wire_tap.tapped(mothership.port) as tap,
            member(tap.port, answers, timings=replace(FAST, heartbeat=60)),
        ):
            stream = await mothership.session()
            answer = await stream.ask(**search("q"))
            assert len(answer.search_response.results[0].text) == 100_001
        assert tap.connections == 1
        (settings,) = tap.sent(wire_tap.SETTINGS)
        assert wire_tap.settings_of(settings)[4] == 16 * 2**20
        assert wire_tap.settings_of(settings)[5] == 2**20
        window = next(frame for frame in tap.sent(wire_tap.WINDOW_UPDATE) if frame.stream == 0)
        assert 65_535 + int.from_bytes(window.payload) == 16 * 2**20
        compressed = [frame for frame in tap.sent(wire_tap.DATA) if frame.payload[:1] == b"\1"]
        assert compressed
        assert len(compressed[-1].payload) < 10_000

    asyncio.run(scenario())


# ---------------------------------------------------------------------------------------------------- answering


@pytest.mark.parametrize("correlation_id", ["", "x" * 300, "\N{WATER WAVE}é\0", "F81D4FAE-7DEC-11D0-A765-00A0C91E6BF6"])
def test_an_answer_repeats_the_correlation_id_and_nothing_else(correlation_id: str) -> None:
    async def scenario() -> None:
        async with listening() as mothership, member(mothership.port):
            stream = await mothership.session()
            answer = await stream.ask(correlation_id, **search("q"))
            assert (answer.correlation_id, answer.thread_id) == (correlation_id, "")
            assert answer.search_response.results[0].text == "q"

    asyncio.run(scenario())


def test_answers_go_out_as_they_are_done() -> None:
    async def scenario() -> None:
        answers = Answers()
        gate = answers.hold("slow")
        async with listening() as mothership, member(mothership.port, answers):
            stream = await mothership.session()
            slow = asyncio.create_task(stream.ask("slow", **search("slow")))
            for number in range(50):
                assert (await stream.ask(**search(str(number)))).search_response.results[0].text == str(number)
            assert not slow.done()
            gate.set()
            await slow

    asyncio.run(scenario())


UNKNOWN_ARM = b"\x0a\x01c" + b"\x9a\x06\x00"  # field 99, length-delimited
NO_MESSAGES = {
    "unknown arm": UNKNOWN_ARM,
    "empty": b"",
    "only an id": Message(correlation_id="c").SerializeToString(),
    "not protobuf": b"\xff\xff\xff\xff",
    "not UTF-8": b"\x0a\x01\xff",
    "pong": Message(correlation_id="c", pong=pb.ThreadSessionPong()).SerializeToString(),
    "ping": Message(correlation_id="c", ping=pb.ThreadSessionPing()).SerializeToString(),
    "response": Message(correlation_id="c", search_response=pb.ThreadSearchResponse()).SerializeToString(),
}


@pytest.mark.parametrize("name", NO_MESSAGES)
def test_what_is_no_request_is_passed_over_and_the_stream_stays_up(name: str) -> None:
    async def scenario() -> None:
        async with listening() as mothership, member(mothership.port):
            stream = await mothership.session()
            stream.send(NO_MESSAGES[name])
            assert (await stream.ask(**search("after"))).search_response.results[0].text == "after"
            assert stream.answers("c") == []
            assert mothership.streams == [stream]

    asyncio.run(scenario())


def test_a_fault_in_one_answer_leaves_the_others_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with listening() as mothership, member(mothership.port):
            stream = await mothership.session()
            for _ in range(2 * REQUESTS_MAX):
                stream.send(Message(correlation_id="bad", **search("fail")))
            assert (await stream.ask(**search("good"))).HasField("search_response")

    asyncio.run(scenario())
    assert "a fault of the node" in caplog.text


def test_a_flood_meets_a_bound_and_every_request_is_answered_in_the_end() -> None:
    async def scenario() -> None:
        answers, count = Answers(), 3 * REQUESTS_MAX
        gate = answers.hold("wait")
        async with listening() as mothership, member(mothership.port, answers):
            stream = await mothership.session()
            for number in range(count):
                stream.send(Message(correlation_id=str(number), **search("wait")))
            await until(lambda: len(answers.asked) == REQUESTS_MAX)
            before = len(stream.pings)
            await mothership.until(lambda: len(stream.pings) >= before + 5)
            assert len(answers.asked) == REQUESTS_MAX, "read on while as many as may be were in hand"
            gate.set()
            await mothership.until(lambda: sum(1 for m in stream.messages if m.HasField("search_response")) == count)
            assert {m.correlation_id for m in stream.messages if m.HasField("search_response")} == {
                str(number) for number in range(count)
            }

    asyncio.run(scenario())


def test_large_requests_meet_a_bound_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "REQUEST_BYTES_MAX", 2 * 2**20)

    async def scenario() -> None:
        answers, text = Answers(), "x" * 600_000
        gate = answers.hold(text)
        async with listening() as mothership, member(mothership.port, answers):
            stream = await mothership.session()
            for number in range(10):
                stream.send(Message(correlation_id=str(number), **search(text)))
            await until(lambda: len(answers.asked) == 4)
            before = len(stream.pings)
            await mothership.until(lambda: len(stream.pings) >= before + 5)
            assert len(answers.asked) == 4
            gate.set()
            await mothership.until(lambda: sum(1 for m in stream.messages if m.HasField("search_response")) == 10)

    asyncio.run(scenario())


# ---------------------------------------------------------------------------------------------------- leaving


def test_leaving_is_quick_with_requests_in_hand_and_ends_the_stream() -> None:
    async def scenario() -> None:
        answers = Answers()
        answers.hold("for ever")
        async with listening() as mothership:
            async with member(mothership.port, answers):
                stream = await mothership.session()
                stream.send(Message(correlation_id="c", **search("for ever")))
                await until(lambda: len(answers.asked) == 1)
                leaving = time.monotonic()
            assert time.monotonic() - leaving < 1
            await mothership.until(lambda: stream.ended_at is not None)
            assert not [task for task in asyncio.all_tasks() if "MothershipClient" in repr(task)]

    asyncio.run(scenario())


def test_leaving_while_nobody_answers_is_quick(unused_port: int) -> None:
    async def scenario() -> None:
        async with member(unused_port):
            await asyncio.sleep(0)
            leaving = time.monotonic()
        assert time.monotonic() - leaving < 1

    asyncio.run(scenario())
