"""Whether new documents may be routed here, and telling the mothership when that changes.

It is the operator's word (`POST /v1/availability`) and the storage's: no while the disk is nearly full or the queue of
documents is full. A mothership takes every node that registers for one that has room, so a node that has none says so
again after each registration. Nothing is refused because of it: this is for routing only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from thread_service.wire.mothership.peer import Peer, reason
from thread_service.wire.mothership.timings import Timings
from thread_service.wire.v1.thread_pb2 import AvailabilityUpdateRequest
from thread_service.wire.v1.thread_pb2_grpc import ThreadRegistrationStub

_log = logging.getLogger(__name__)

HasRoom = Callable[[], Awaitable[bool]]


def storage_room(data_dir: Path, free_bytes_min: int, queue_is_full: Callable[[], Awaitable[bool]]) -> HasRoom:
    """Whether there is disk and queue for more documents."""

    async def has_room() -> bool:
        usage = await asyncio.to_thread(shutil.disk_usage, data_dir)
        return usage.free >= free_bytes_min and not await queue_is_full()

    return has_room


class Availability:
    def __init__(self, peer: Peer, node_id: str, has_room: HasRoom, timings: Timings | None = None) -> None:
        self._peer = peer
        self._node_id = node_id
        self._has_room = has_room
        self._timings = timings or Timings()
        self._is_wanted = True
        self._room = True
        # What the mothership believes; None while nobody is known to be there.
        self._believed: bool | None = None
        self._telling = asyncio.Lock()
        self._changed = asyncio.Event()

    @property
    def accepting(self) -> bool:
        return self._is_wanted and self._room

    async def set(self, accepting: bool) -> None:
        """The operator's word, sent at once."""
        self._is_wanted = accepting
        await self._tell()

    def registered(self) -> None:
        """The mothership has just taken this node for one that has room."""
        self._believed = True
        self._changed.set()

    async def watch(self) -> None:
        """Look at the storage, and tell what the mothership does not know yet, until cancelled."""
        while True:
            self._changed.clear()
            try:
                self._room = await self._has_room()
            except Exception:
                _log.exception("free storage cannot be measured")
            if self._believed is not None and self._believed != self.accepting:
                await self._tell()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._timings.storage_poll):
                    await self._changed.wait()

    async def _tell(self) -> None:
        async with self._telling:
            accepting = self.accepting
            try:
                async with self._peer.short_channel() as channel:
                    await ThreadRegistrationStub(channel).UpdateAvailability(
                        AvailabilityUpdateRequest(thread_id=self._node_id, accepting_storage=accepting),
                        timeout=self._timings.availability_deadline,
                        metadata=self._peer.metadata,
                    )
            except Exception as error:
                _log.warning("the mothership does not know accepting_storage=%s: %s", accepting, reason(error))
                return
            self._believed = accepting
            _log.info("told the mothership: accepting_storage=%s", accepting)
