"""The control channel: one command a connection, lines of JSON, a socket that only the owner of the directory opens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import stat
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import uvloop

from thread_service.errors import StorageFull, ThreadError
from thread_service.store.compaction import Compacted
from thread_service.wire.control import commands, run_control
from thread_service.wire.control_client import NobodyListens, ask
from thread_service.wire.control_protocol import address, socket_path

DONE = Compacted(rows=3, segments=1, bytes_before=10, bytes_after=4, left="")


class Node:
    """Answers compact with what it is given, or raises it, after two lines of progress from another thread."""

    def __init__(self, outcome: Compacted | BaseException = DONE) -> None:
        self.outcome = outcome
        self.calls = 0
        self.may_end = threading.Event()
        self.may_end.set()

    async def compact(self, progress: Callable[[str], None]) -> Compacted:
        self.calls += 1

        def work() -> Compacted:
            progress("one")
            progress("two \ud800")
            assert self.may_end.wait(10)
            if isinstance(self.outcome, BaseException):
                raise self.outcome
            return self.outcome

        return await asyncio.to_thread(work)

    async def verify(self, *, full: bool, progress: Callable[..., None]) -> dict[str, Any]:
        progress("vectors")
        progress("vectors", 0.25)
        return {"clean": True, "full": full}

    async def back_up(self, target: Path, progress: Callable[..., None]) -> dict[str, Any]:
        progress("database", 0.5)
        return {"backup": str(target)}

    async def extract(self, progress: Callable[..., None]) -> dict[str, Any]:
        progress("reading documents: 1 waits", 0.5)
        return {"extracted": 1}


async def happens(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for happens on other threads, and in the file system
        await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def serving(path: Path, node: Node) -> AsyncIterator[asyncio.Event]:
    stop = asyncio.Event()
    task = asyncio.create_task(run_control(path, commands(node), stop))
    await happens(lambda: path.is_socket() or task.done())
    try:
        yield stop
    finally:
        node.may_end.set()
        stop.set()
        await asyncio.wait_for(task, 10)


def run(scenario: Callable[[], Any]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(scenario(), 20))


async def asked(path: Path, command: str = "compact", arguments: Mapping[str, Any] = {}) -> tuple[Any, list[str]]:
    said: list[str] = []
    answer = await asyncio.to_thread(ask, path, command, arguments, lambda text, _: said.append(text))
    return answer, said


def raw(path: Path, data: bytes) -> list[Any]:
    """What comes back for these bytes, line by line."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        with address(path) as short:
            connection.connect(short)
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as lines:
            return [json.loads(line) for line in lines]


def test_a_command_reports_its_progress_and_then_its_result(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = socket_path(tmp_path)
        async with serving(path, Node()):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            answer, said = await asked(path)
            assert answer == {"rows": 3, "segments": 1, "bytes_before": 10, "bytes_after": 4, "left": ""}
            assert said == ["one", "two \\ud800"]
            lines = await asyncio.to_thread(raw, path, b'{"command":"compact","arguments":{},"new":1}\n')
            assert [*lines[0], *lines[1], *lines[2]] == ["progress", "progress", "result"]
        assert os.listdir(tmp_path) == []
        with pytest.raises(NobodyListens):
            await asked(path)

    run(scenario)


def test_a_backup_goes_where_an_absolute_path_says(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = socket_path(tmp_path)
        async with serving(path, Node()):
            answer, said = await asked(path, "backup", {"target": "/backups"})
            assert (answer, said) == ({"backup": "/backups"}, ["database"])
            for wrong in ({}, {"target": 7}, {"target": "backups"}, {"target": "/a\0b"}):
                with pytest.raises(ThreadError, match="target: is the absolute path of a directory"):
                    await asked(path, "backup", wrong)

    run(scenario)


def test_progress_may_say_how_much_is_done(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = socket_path(tmp_path)
        async with serving(path, Node()):
            said: list[Any] = []
            for full in (True, False, "yes"):
                answer = await asyncio.to_thread(
                    ask, path, "verify", {"full": full}, lambda text, fraction: said.append((text, fraction))
                )
                assert answer == {"clean": True, "full": full is True}
            assert said[:2] == [("vectors", None), ("vectors", 0.25)]

    run(scenario)


@pytest.mark.parametrize(
    ("outcome", "detail"),
    [
        (StorageFull("the disk is full; nothing was written"), "the disk is full; nothing was written"),
        (ValueError("inside"), "the command failed; the node's log says why"),
    ],
)
def test_a_command_that_fails_is_an_error_line_and_the_next_one_is_served(
    tmp_path: Path, outcome: Exception, detail: str
) -> None:
    async def scenario() -> None:
        node = Node(outcome)
        async with serving(socket_path(tmp_path), node):
            with pytest.raises(ThreadError) as refused:
                await asked(socket_path(tmp_path))
            assert str(refused.value) == detail
            node.outcome = DONE
            assert (await asked(socket_path(tmp_path)))[0]["rows"] == 3

    run(scenario)


@pytest.mark.parametrize(
    ("data", "detail"),
    [
        (
            b'{"command":"explode\xf0\x9f\x92\xa5"}\n',
            "does not know the command 'explode\\U0001f4a5'; it knows compact, verify",
        ),
        (b"\n", "one line of JSON"),
        (b"", "one line of JSON"),
        (b"GET / HTTP/1.1\r\n\r\n", "one line of JSON"),
        (b'{"command":7}\n', "one line of JSON"),
        (b"[" * 100_000 + b"\n", "one line of JSON"),
        (b"x" * (1 << 21), "one line of JSON"),
    ],
)
def test_what_is_no_command_is_refused_and_harms_nobody(tmp_path: Path, data: bytes, detail: str) -> None:
    async def scenario() -> None:
        node = Node()
        async with serving(socket_path(tmp_path), node):
            with contextlib.suppress(ConnectionError):  # a line without end is not read to its end
                [line] = await asyncio.to_thread(raw, socket_path(tmp_path), data)
                assert detail in line["error"]["detail"]
                assert line["error"]["type"] == "invalid-request"
            assert node.calls == 0
            assert (await asked(socket_path(tmp_path)))[0]["rows"] == 3

    run(scenario)


def test_a_socket_left_by_a_crash_is_replaced(tmp_path: Path) -> None:
    for name in ("control", "control.new"):
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(tmp_path / name))

    async def scenario() -> None:
        with pytest.raises(NobodyListens):
            await asked(socket_path(tmp_path))
        task = asyncio.create_task(run_control(socket_path(tmp_path), commands(Node()), stop := asyncio.Event()))
        while True:
            try:
                assert (await asked(socket_path(tmp_path)))[0]["rows"] == 3
                break
            except NobodyListens:
                await asyncio.sleep(0.001)
        stop.set()
        await task
        assert os.listdir(tmp_path) == []

    run(scenario)


def test_a_directory_with_a_long_name_is_reached_too(tmp_path: Path) -> None:
    directory = tmp_path / ("é" * 100) / ("d" * 200)
    directory.mkdir(parents=True)

    async def scenario() -> None:
        async with serving(socket_path(directory), Node()):
            assert (await asked(socket_path(directory)))[0]["rows"] == 3
        with pytest.raises(NobodyListens):
            await asked(socket_path(directory / "not there"))

    run(scenario)


def test_a_command_under_way_ends_before_the_channel_does(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node()
        node.may_end.clear()
        async with serving(socket_path(tmp_path), node) as stop:
            asking = asyncio.create_task(asked(socket_path(tmp_path)))
            await happens(lambda: node.calls)
            stop.set()
            await happens(lambda: not socket_path(tmp_path).exists())
            assert not asking.done()
            node.may_end.set()
            assert (await asking)[0]["rows"] == 3

    run(scenario)


def test_a_caller_who_leaves_does_not_end_the_command(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        node = Node()
        node.may_end.clear()
        async with serving(socket_path(tmp_path), node):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(socket_path(tmp_path)))
                connection.sendall(b'{"command":"compact"}\n')
                await happens(lambda: node.calls)
            node.may_end.set()
            assert (await asked(socket_path(tmp_path)))[0]["rows"] == 3
            assert node.calls == 2

    run(scenario)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_without_a_place_for_a_socket_the_node_runs_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        await run_control(tmp_path / "nowhere" / "control", commands(Node()), asyncio.Event())

    run(scenario)
    assert "commands cannot reach this node" in caplog.text
