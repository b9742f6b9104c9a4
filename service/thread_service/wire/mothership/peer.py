"""Whom the node dials, and how: the address, the channel options, and the stack secret where it may be sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

import grpc.aio

from thread_service.wire.limits import MESSAGE_BYTES_MAX
from thread_service.wire.mothership.timings import Timings
from thread_service.wire.secret import SECRET_METADATA, is_loopback_name

_WINDOW_BYTES = 16 * 2**20
_FRAME_BYTES = 2**20
_REASON_CHARS_MAX = 200


@dataclass(frozen=True, slots=True)
class Peer:
    """`name` is for the log. `secret` goes with every call and to nobody else; empty: none is sent."""

    name: str
    host: str
    port: int
    secret: str = field(default="", repr=False)

    @classmethod
    def mothership(cls, host: str, port: int, secret: str = "") -> Peer:
        """The secret stays on this machine: one with a remote address is not given it."""
        return cls("mothership", host, port, secret if is_loopback_name(host) else "")

    @classmethod
    def fleet(cls, host: str, port: int) -> Peer:
        return cls("fleet", host, port)

    @property
    def target(self) -> str:
        """The address as gRPC resolves it: a literal as it is, a name by DNS."""
        host = self.host.removeprefix("[").removesuffix("]")
        try:
            version = ip_address(host).version
        except ValueError:
            return f"dns:///{host}:{self.port}"
        return f"ipv4:{host}:{self.port}" if version == 4 else f"ipv6:[{host}]:{self.port}"

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return ((SECRET_METADATA, self.secret),) if self.secret else ()

    def session_channel(self, timings: Timings) -> grpc.aio.Channel:
        """A connection of its own for a registration and the session behind it; what is sent is compressed."""
        options = [
            *_OWN_CONNECTION,
            ("grpc.keepalive_time_ms", _milliseconds(timings.keepalive)),
            ("grpc.keepalive_timeout_ms", _milliseconds(timings.keepalive_answer)),
            ("grpc.http2.ping_timeout_ms", _milliseconds(timings.keepalive_answer)),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            # Only without its own estimate of the bandwidth does gRPC take the two sizes as they are.
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
            ("grpc.http2.max_frame_size", _FRAME_BYTES),
            ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
            ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
            # The wait for a mothership that is not up yet happens inside the call: look again as often as outside it.
            ("grpc.min_reconnect_backoff_ms", _milliseconds(timings.reconnect)),
            ("grpc.max_reconnect_backoff_ms", _milliseconds(timings.reconnect)),
            ("grpc.initial_reconnect_backoff_ms", _milliseconds(timings.reconnect)),
        ]
        return grpc.aio.insecure_channel(self.target, options, grpc.Compression.Gzip)

    def short_channel(self) -> grpc.aio.Channel:
        """A connection of its own for one call."""
        return grpc.aio.insecure_channel(self.target, _OWN_CONNECTION)


# gRPC shares connections between channels of equal options, retries calls by itself, and obeys proxy variables.
_OWN_CONNECTION: list[tuple[str, Any]] = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
]


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1_000))


def reason(error: Exception) -> str:
    """Why a call failed, for the log. What the peer wrote is quoted and cut."""
    if isinstance(error, grpc.aio.AioRpcError):
        return status(error.code(), error.details())
    return ascii(error)[:_REASON_CHARS_MAX]


def status(code: grpc.StatusCode, details: str | None) -> str:
    return f"{code.name} {details[:_REASON_CHARS_MAX]!a}" if details else str(code.name)
