"""The bound on what one session may hold in memory, whatever the peer sends."""

from __future__ import annotations

import asyncio


class InFlight:
    """Requests from their arrival until their answer has left, and the bytes of both.

    There is room while there are fewer than `requests_max` requests and they hold fewer than `bytes_max` bytes, so
    the most in memory is `bytes_max` and the messages that cross it. One task waits for room: the one that reads.
    """

    def __init__(self, requests_max: int, bytes_max: int) -> None:
        self._requests_max = requests_max
        self._bytes_max = bytes_max
        self._requests = 0
        self._bytes = 0
        self._changed = asyncio.Event()

    async def room(self) -> None:
        while self._requests >= self._requests_max or self._bytes >= self._bytes_max:
            self._changed.clear()
            await self._changed.wait()

    def enter(self, size: int) -> None:
        self._requests += 1
        self._bytes += size

    def grow(self, size: int) -> None:
        self._bytes += size

    def leave(self, size: int) -> None:
        self._requests -= 1
        self._bytes -= size
        self._changed.set()
