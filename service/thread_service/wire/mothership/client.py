"""The membership loop: register, hold a session, and when it ends, for whatever reason, do it again.

It ends only by cancellation. No refusal, no silence and no nonsense of the peer ends it, and it never speeds up or
slows down. Heartbeats run beside it, on connections of their own, because a large message can delay what is in the
stream.
"""

from __future__ import annotations

import asyncio
import logging
import re

from thread_service import observe
from thread_service.wire.mothership.advertised import Advertised
from thread_service.wire.mothership.availability import Availability
from thread_service.wire.mothership.peer import Peer, reason
from thread_service.wire.mothership.session import Dispatch, Session
from thread_service.wire.mothership.timings import Timings
from thread_service.wire.v1.thread_pb2 import HeartbeatRequest, RegisterRequest
from thread_service.wire.v1.thread_pb2_grpc import ThreadRegistrationStub

_log = logging.getLogger(__name__)

_REPEAT_SECONDS = 600.0


class MothershipClient:
    """One membership. `availability`: what is said about storage, to a mothership; None says nothing."""

    def __init__(
        self,
        peer: Peer,
        node_id: str,
        advertised: Advertised,
        dispatch: Dispatch,
        *,
        availability: Availability | None = None,
        timings: Timings | None = None,
    ) -> None:
        self._peer = peer
        self._node_id = node_id
        self._advertised = advertised
        self._dispatch = dispatch
        self._availability = availability
        self._timings = timings or Timings()
        self._said = ("", -_REPEAT_SECONDS)

    async def run(self) -> None:
        """Until cancelled. Every connection is closed by then."""
        _log.info("joining the %s at %s:%d", self._peer.name, self._peer.host, self._peer.port)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._stay_connected())
            tasks.create_task(self._beat())
            if self._availability is not None:
                tasks.create_task(self._availability.watch())

    async def _stay_connected(self) -> None:
        while True:
            try:
                ended = await self._connect()
            except Exception as error:
                ended = reason(error)
            self._say(f"{self._peer.name} {self._peer.host}:{self._peer.port}: {ended}")
            await asyncio.sleep(self._timings.reconnect)

    async def _connect(self) -> str:
        """One attempt on one connection; returns how it ended."""
        async with self._peer.session_channel(self._timings) as channel:
            request = RegisterRequest(
                thread_id=self._node_id,
                host=await self._advertised.host_for(self._peer),
                grpc_port=self._advertised.grpc_port,
                http_port=self._advertised.http_port,
            )
            answer = await ThreadRegistrationStub(channel).Register(
                request, timeout=self._timings.register_deadline, wait_for_ready=True, metadata=self._peer.metadata
            )
            if not answer.accepted:
                return "the registration was not accepted"
            _log.info("registered with the %s as %s:%d", self._peer.name, request.host, request.grpc_port)
            if self._availability is not None:
                self._availability.registered()
            with observe.SESSION_UP.labels(self._peer.name).track_inprogress():
                session = Session(channel, self._peer, self._node_id, self._dispatch, self._timings)
                return "the session ended: " + await session.run()

    def _say(self, line: str) -> None:
        """A peer that stays away is worth a warning now and then, not every five seconds."""
        now = asyncio.get_running_loop().time()
        last, at = self._said
        # Without what is quoted in it: gRPC words the same failure now one way, now another.
        what = re.split("[\"']", line)[0]
        if what == last and now - at < _REPEAT_SECONDS:
            _log.debug("%s", line)
        else:
            _log.warning("%s", line)
            self._said = (what, now)

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            # At a steady rate, however long a call takes; what a machine that slept has missed is not made up for.
            due = max(due + self._timings.heartbeat, loop.time())
            await asyncio.sleep(due - loop.time())
            try:
                async with self._peer.short_channel() as channel:
                    await ThreadRegistrationStub(channel).Heartbeat(
                        HeartbeatRequest(thread_id=self._node_id),
                        timeout=self._timings.heartbeat_deadline,
                        metadata=self._peer.metadata,
                    )
            except Exception as error:
                _log.debug("no heartbeat to the %s: %s", self._peer.name, reason(error))
