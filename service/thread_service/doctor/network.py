"""Ports, who can reach them, and the mothership's address. Nobody is called and no name is looked up."""

from __future__ import annotations

import contextlib
import os
import re
from ipaddress import ip_address
from pathlib import Path

from thread_service.doctor.result import Result, info, ok, problem, warning
from thread_service.doctor.running import running_node
from thread_service.settings import Settings, SettingsError

_LISTENING = "0A"
_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")


def http_port(settings: Settings) -> Result:
    return _port(settings, settings.port, "--port")


def grpc_port(settings: Settings) -> Result:
    if settings.grpc_port == settings.port != 0:
        return problem(f"port {settings.port} is the HTTP port too", "give another --grpc-port")
    return _port(settings, settings.grpc_port, "--grpc-port")


def _port(settings: Settings, port: int, flag: str) -> Result:
    from thread_service.wire.server import ListenError, listen

    try:
        for listener in listen(settings.host, port, flag):
            listener.close()
    except ListenError as error:
        node, holder = running_node(settings), _listener(port)
        if node is not None and holder == node.pid:
            return ok(f"{port} on {settings.host}, taken by the node that runs here")
        what, _, remedy = str(error).partition("; ")
        by = "" if holder is None else f" by {_process(holder)}"
        return problem(what + by, remedy or f"give another {flag}")
    return ok(f"{port} on {settings.host} is free" if port else "any free one")


def _listener(port: int) -> int | None:
    """The process that listens on a TCP port, if it can be told: one of this user, or any to root."""
    inodes = set[str]()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                columns = line.split()
                if columns[3] == _LISTENING and int(columns[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{columns[9]}]")
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(os.readlink(descriptor) in inodes for descriptor in (process / "fd").iterdir()):
                return int(process.name)
    return None


def _process(pid: int) -> str:
    try:
        return f"process {pid} ({Path(f'/proc/{pid}/comm').read_text().strip()})"
    except OSError:
        return f"process {pid}"


def exposure(settings: Settings) -> Result:
    """Who can reach the node, and what it asks of them."""
    from thread_service.screen import exposure as exposed
    from thread_service.wire.secret import load_stack

    try:
        stack = load_stack(os.environ)
    except SettingsError as error:
        return problem(str(error), "put it right: a stack's node does not start without its secret")
    open_to = exposed(settings.host, is_guarded=stack is not None or bool(settings.api_key))
    if open_to is not None:
        what, _, remedy = open_to.rpartition("; ")
        return warning(what, remedy)
    guards = [name for name, is_set in (("the stack's secret", stack), ("an API key", settings.api_key)) if is_set]
    return ok(f"{settings.host}, " + (" and ".join(guards) + " asked of callers" if guards else "this machine only"))


def mothership(settings: Settings) -> Result:
    return _peer(settings, settings.mothership_host, settings.mothership_grpc_port, "--mothership-host")


def fleet(settings: Settings) -> Result:
    return _peer(settings, settings.fleet_host, settings.fleet_grpc_port, "--fleet-host")


def _peer(settings: Settings, host: str, port: int, flag: str) -> Result:
    from thread_service.wire.mothership.peer import Peer

    if not host:
        return info("none")
    if not _is_host(host):
        return problem(f"{host!a} is neither an IP address nor a host name", f"give another {flag}")
    target = Peer.fleet(host, port).target
    if _is_loopback(settings.advertise_host or settings.host) and not _is_loopback(host):
        own = settings.advertise_host or settings.host
        return warning(f"{target} would be told to reach this node at {own}", "give --advertise-host and --host")
    return ok(target)


def _is_host(host: str) -> bool:
    inner = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    with contextlib.suppress(ValueError):
        ip_address(inner)
        return True
    return inner == host and len(host) <= 253 and all(map(_NAME.fullmatch, host.removesuffix(".").split(".")))


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
