"""A TCP proxy that lists the HTTP/2 frames passing through it, and can stop passing them on."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 4, 6, 8
ACK = 1


@dataclass(frozen=True)
class Frame:
    at: float
    connection: int
    from_client: bool
    kind: int
    flags: int
    stream: int
    payload: bytes


class WireTap:
    def __init__(self, port: int) -> None:
        self.frames: list[Frame] = []
        self.connections = 0
        self.passes = asyncio.Event()
        self.passes.set()
        self.port = 0
        self._to = port

    def sent(self, kind: int, connection: int = 0) -> list[Frame]:
        """Frames of the client, acknowledgements left out."""
        return [
            f
            for f in self.frames
            if f.from_client and f.kind == kind and f.connection == connection and not f.flags & ACK
        ]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number, self.connections = self.connections, self.connections + 1
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._to)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pump(reader, up_writer, number, from_client=True))
                tasks.create_task(self._pump(up_reader, writer, number, from_client=False))
        except* (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            for end in (writer, up_writer):
                end.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int, *, from_client: bool
    ) -> None:
        if from_client:
            writer.write(await reader.readexactly(len(PREFACE)))
        while True:
            head = await reader.readexactly(9)
            payload = await reader.readexactly(int.from_bytes(head[:3]))
            stream = int.from_bytes(head[5:]) & 0x7FFFFFFF
            self.frames.append(Frame(time.monotonic(), number, from_client, head[3], head[4], stream, payload))
            await self.passes.wait()
            writer.write(head + payload)
            await writer.drain()


@contextlib.asynccontextmanager
async def tapped(port: int) -> AsyncIterator[WireTap]:
    tap = WireTap(port)
    server = await asyncio.start_server(tap._accept, "127.0.0.1", 0)
    tap.port = server.sockets[0].getsockname()[1]
    async with server:
        yield tap
        tap.passes.set()
        server.close_clients() if hasattr(server, "close_clients") else None


def settings_of(frame: Frame) -> dict[int, int]:
    """A SETTINGS frame's pairs: 4 is the initial stream window, 5 the largest frame."""
    return {
        int.from_bytes(frame.payload[at : at + 2]): int.from_bytes(frame.payload[at + 2 : at + 6])
        for at in range(0, len(frame.payload), 6)
    }
