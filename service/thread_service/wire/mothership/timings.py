"""Every interval of a membership, in seconds. The defaults are the contract's; tests bring shorter ones."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    reconnect: float = 5.0
    """From the end of one attempt, whatever its reason, to the next: flat, for ever."""

    register_deadline: float = 60.0
    ping: float = 30.0
    """Between pings in the stream, counted from its response headers."""

    heartbeat: float = 15.0
    heartbeat_deadline: float = 10.0
    watchdog: float = 45.0
    """A session in which for so long nothing arrived and no queued message left is given up."""

    keepalive: float = 15.0
    """Silence on a connection after which an HTTP/2 PING is sent, with or without calls under way."""

    keepalive_answer: float = 10.0
    availability_deadline: float = 10.0
    storage_poll: float = 5.0
    """How often free disk and queue are looked at."""
