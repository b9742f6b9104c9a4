"""The control channel of a node: commands of its operator, who is whoever may open the socket in its directory."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from thread_service.errors import InvalidRequest, ThreadError
from thread_service.store.compaction import Compacted
from thread_service.store.verification import Progress
from thread_service.wire.control_protocol import LINE_BYTES_MAX, Answer, Problem, Request, address
from thread_service.wire.printable import printable

GRACE_SECONDS = 20
"""Time for the commands under way when the node stops."""
REQUEST_SECONDS = 10
"""Time for the line that says what is wanted."""

_log = logging.getLogger(__name__)

Command = Callable[[Mapping[str, Any], Progress], Awaitable[dict[str, Any]]]
"""What a command does with its arguments. It may report progress from any thread; its answer is what JSON can hold."""


class Commanded(Protocol):
    """What the commands need of a node."""

    async def compact(self, progress: Progress) -> Compacted: ...
    async def verify(self, *, full: bool, progress: Progress) -> dict[str, Any]: ...
    async def back_up(self, target: Path, progress: Progress) -> dict[str, Any]: ...
    async def extract(self, progress: Progress) -> dict[str, Any]: ...
    async def reembed(self, wanted: Mapping[str, Any], progress: Progress) -> dict[str, Any]: ...


def commands(node: Commanded) -> dict[str, Command]:
    """Every command a node takes, by name."""

    async def compact(arguments: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
        return dataclasses.asdict(await node.compact(progress))

    async def verify(arguments: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
        return await node.verify(full=arguments.get("full") is True, progress=progress)

    async def backup(arguments: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
        target = arguments.get("target")
        if not isinstance(target, str) or not target.startswith("/") or "\0" in target:
            raise InvalidRequest.field("target", "is the absolute path of a directory")
        return await node.back_up(Path(target), progress)

    async def extract(arguments: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
        return await node.extract(progress)

    async def reembed(arguments: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
        return await node.reembed(arguments, progress)

    return {"compact": compact, "verify": verify, "backup": backup, "extract": extract, "reembed": reembed}


async def run_control(path: Path, known: Mapping[str, Command], stop: asyncio.Event) -> None:
    """Serve commands at `path` until `stop` is set; finish those under way; return.

    The caller holds the lock of the directory: a socket that is there already was left by a crash. Where none can be
    made, that is logged, and the node runs without.
    """
    try:
        listener = _listen(path)
    except OSError as error:
        _log.warning("%s: no socket can be made here (%s): commands cannot reach this node", path, error.strerror)
        return
    serving = set[asyncio.Task[None]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        try:
            await _serve(reader, writer, known)
        finally:
            serving.discard(task)
            writer.close()

    server = await asyncio.start_unix_server(serve, sock=listener, limit=LINE_BYTES_MAX)
    try:
        await stop.wait()
    finally:
        server.close()
        path.unlink(missing_ok=True)  # noqa: ASYNC240 - one name, at the end
        if serving:
            _, late = await asyncio.wait(serving, timeout=GRACE_SECONDS)
            for task in late:
                task.cancel()


def _listen(path: Path) -> socket.socket:
    """A listening socket that only this user may open. It takes the place of an older one when it is complete."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with address(fresh) as short:
            listener.bind(short)
        fresh.chmod(0o600)
        listener.listen()
        fresh.rename(path)
    except BaseException:
        listener.close()
        raise
    return listener


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, known: Mapping[str, Command]) -> None:
    loop = asyncio.get_running_loop()

    def say(answer: Answer) -> None:
        # A caller who leaves does not end the command.
        if not writer.is_closing():
            writer.write(msgspec.json.encode(answer) + b"\n")

    def report(text: str, fraction: float | None = None, /) -> None:
        loop.call_soon_threadsafe(say, Answer(progress=printable(text), fraction=fraction))

    try:
        name, command, arguments = _chosen(await _line(reader), known)
        _log.info("command %s", name)
        try:
            result = await command(arguments, report)
        finally:
            await asyncio.sleep(0)  # what was reported is said first
        say(Answer(result=result))
    except ThreadError as error:
        say(Answer(error=Problem(error.slug, printable(str(error)))))
    except Exception:
        _log.exception("a command failed")
        say(Answer(error=Problem(ThreadError.slug, "the command failed; the node's log says why")))
    with contextlib.suppress(ConnectionError):
        await writer.drain()


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            return await reader.readline()
    except (TimeoutError, ValueError, ConnectionError):
        raise InvalidRequest("a command is one line of JSON") from None


def _chosen(line: bytes, known: Mapping[str, Command]) -> tuple[str, Command, Mapping[str, Any]]:
    try:
        request = msgspec.json.decode(line, type=Request)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"a command is one line of JSON: {error}") from None
    command = known.get(request.command)
    if command is None:
        wanted = f"{request.command[:40]!a}"
        raise InvalidRequest(f"the running node does not know the command {wanted}; it knows {', '.join(known)}")
    return request.command, command, request.arguments
