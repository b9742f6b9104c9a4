"""Where other machines reach this node: what it registers."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from ipaddress import ip_address

from thread_service.wire.mothership.peer import Peer


@dataclass(frozen=True, slots=True)
class Advertised:
    """`host` as it was given; a wildcard stands for the local address of the connection to whoever asks.

    Two nodes must not advertise the same (host, gRPC port): a mothership takes the second for the first, moved.
    """

    host: str
    grpc_port: int
    http_port: int

    async def host_for(self, peer: Peer) -> str:
        """Raises `OSError` when the peer's name does not resolve or no route leads there."""
        if not _is_wildcard(self.host):
            return self.host
        found = await asyncio.get_running_loop().getaddrinfo(
            peer.host.strip("[]"), peer.port, type=socket.SOCK_DGRAM, proto=socket.IPPROTO_UDP
        )
        family, _, _, _, address = found[0]
        # Connecting a datagram socket sends nothing: it only chooses the route, and with it the local address.
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])


def _is_wildcard(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False
