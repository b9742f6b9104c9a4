"""Serving an ASGI application over HTTP until the process is asked to stop.

The address is taken first, with `listen`, so that a port in use is known before a model is loaded.
"""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
from typing import Any, cast

import uvicorn

from thread_service.wire.connections import Connections

GRACE_SECONDS = 20
"""Time for the requests under way when a server stops."""
_BACKLOG = 2_048


class ListenError(OSError):
    """The address cannot be taken. `str(error)` is one line: which address, why, and what to do."""


def listen(host: str, port: int, flag: str = "--port") -> list[socket.socket]:
    """Sockets that listen on every address `host` stands for. Port 0 takes a free one for all.

    `flag` is named in the remedy of an error.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise ListenError(f"{host[:80]!a} is not an address of this machine; give another --host") from None
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            listener = socket.socket(family, kind, protocol)
            sockets.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind((address[0], port or sockets[0].getsockname()[1], *address[2:]))
            # Not only bound: as long as nobody listens, another could still take the port.
            listener.listen(_BACKLOG)
    except OSError as error:
        for listener in sockets:
            listener.close()
        raise ListenError(_why(host, port, error, flag)) from None
    return sockets


def _why(host: str, port: int, error: OSError, flag: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is already in use; stop what uses it or give another {flag}"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} needs privileges this user lacks; give a {flag} above 1023"
    return f"cannot listen on port {port} of {host} ({error.strerror}); give another --host or {flag}"


async def run_http(
    app: Any, sockets: list[socket.socket], stop: asyncio.Event, connections: Connections | None = None
) -> None:
    """Serve `app` on `sockets` until `stop` is set, by a SIGTERM or SIGINT too; finish the requests under way; return.

    Requests still running after 20 seconds are cancelled; a second signal ends the wait at once. The handlers of both
    signals are the event loop's while this runs, and the default ones again afterwards.
    """
    connections = connections or Connections()
    config = uvicorn.Config(
        app,
        http=cast("type[asyncio.Protocol]", connections.protocol),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    server = uvicorn.Server(config)
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        server.force_exit = stop.is_set()
        stop.set()

    async def watch() -> None:
        await stop.wait()
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    beside = [asyncio.create_task(watch()), asyncio.create_task(connections.sweep())]
    try:
        # serve() would raise the signal once more after the shutdown, which would end the process before the store
        # is closed.
        await server._serve(sockets)
    finally:
        for task in beside:
            task.cancel()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
