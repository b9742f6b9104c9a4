"""What the operator sees while a node starts: a banner, the model's progress, and the line that says it is ready.

Colours and a progress bar on a terminal; plain lines, one for each step, everywhere else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from ipaddress import ip_address

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from thread_service.app import Starting
from thread_service.node.operations import EmbedderHealth

_POLL_SECONDS = 0.2


class TerminalScreen:
    """Prints to `console`, which is standard output unless a test brings its own."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, soft_wrap=True)

    def starting(self, node: Starting) -> None:
        rows = (
            ("HTTP", node.url),
            ("gRPC", node.grpc_address),
            ("OpenAPI", f"{node.url}/schema"),
            ("data", str(node.data_dir)),
            ("node id", node.node_id),
            ("device", node.device),
            ("model", f"{node.model} ({node.why})"),
        )
        self.console.print("[bold]Thread[/bold]")
        for name, value in rows:
            self.console.print(f"  [dim]{name:<8}[/dim] {escape(value)}")
        if warning := exposure(node.host, node.is_guarded):
            self.console.print(f"[yellow]warning:[/yellow] {escape(warning)}")

    async def follow(self, health: Callable[[], EmbedderHealth]) -> None:
        """Show how far the model is until it is ready or has failed."""
        if self.console.is_terminal:
            with self._bar() as bar:
                task = bar.add_task("", total=1.0)
                async for now in _changes(health):
                    # Without a number the bar pulses instead of standing still.
                    bar.update(task, description=now.phase, completed=now.fraction or 0.0, total=_total(now))
        else:
            phase: str = ""
            async for now in _changes(health):
                if now.phase not in (phase, "idle"):
                    phase = now.phase
                    self.console.print(f"model {phase}")
        last = health()
        if last.phase == "ready":
            self.console.print(f"[green]ready[/green]: {escape(last.vector_space)}")
        else:
            self.console.print(f"[red]the model failed[/red]: {escape(last.error or 'no reason given')}")

    def _bar(self) -> Progress:
        return Progress(
            TextColumn("model {task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            console=self.console,
            transient=True,
        )


def exposure(host: str, is_guarded: bool) -> str | None:
    """What everybody on the network can do, when `host` is more than loopback and nothing guards it; else None."""
    try:
        loopback = ip_address(host).is_loopback
    except ValueError:
        loopback = host.lower() == "localhost"
    if loopback or is_guarded:
        return None
    return (
        f"{host} is reachable from other machines and no API key is set: whoever reaches this port can read, change "
        "and clear everything on this node; set THREAD_API_KEY or bind 127.0.0.1"
    )


def _total(health: EmbedderHealth) -> float | None:
    return None if health.fraction is None else 1.0


async def _changes(health: Callable[[], EmbedderHealth]) -> AsyncIterator[EmbedderHealth]:
    while (now := health()).phase not in ("ready", "failed"):
        yield now
        await asyncio.sleep(_POLL_SECONDS)
