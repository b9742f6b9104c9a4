"""A node's memberships, as its settings ask for them: of a mothership, of a second one, of both or of none."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Protocol

from thread_service.settings import Settings
from thread_service.wire.dispatch import Dispatch
from thread_service.wire.mothership.advertised import Advertised
from thread_service.wire.mothership.availability import Availability, storage_room
from thread_service.wire.mothership.client import MothershipClient
from thread_service.wire.mothership.peer import Peer
from thread_service.wire.mothership.timings import Timings
from thread_service.wire.node_protocol import Node
from thread_service.wire.secret import Stack


class Member(Node, Protocol):
    async def queue_is_full(self) -> bool: ...


class Fleet:
    """`availability` is there with a mothership only: the second one is told nothing about storage."""

    def __init__(
        self,
        settings: Settings,
        stack: Stack | None,
        node: Member,
        http_port: int,
        grpc_port: int,
        timings: Timings | None = None,
    ) -> None:
        advertised = Advertised(
            settings.advertise_host or settings.host,
            settings.advertise_grpc_port or grpc_port,
            settings.advertise_http_port or http_port,
        )
        join = partial(
            MothershipClient, node_id=node.node_id, advertised=advertised, dispatch=Dispatch(node), timings=timings
        )
        self.availability: Availability | None = None
        self._clients: list[MothershipClient] = []
        if settings.mothership_host:
            secret = stack.secret if stack else ""
            peer = Peer.mothership(settings.mothership_host, settings.mothership_grpc_port, secret)
            has_room = storage_room(settings.data_dir, int(settings.min_free_gb * 10**9), node.queue_is_full)
            self.availability = Availability(peer, node.node_id, has_room, timings)
            self._clients.append(join(peer, availability=self.availability))
        if settings.fleet_host:
            self._clients.append(join(Peer.fleet(settings.fleet_host, settings.fleet_grpc_port)))

    async def run(self, stop: asyncio.Event) -> None:
        """Be a member until `stop` is set; every session has ended then."""
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(client.run()) for client in self._clients]
            await stop.wait()
            for task in running:
                task.cancel()
