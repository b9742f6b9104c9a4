"""What the operator sees while a node starts: a banner, the model's progress, and the line that says it is ready; and
how far another command is.

Colours and a progress bar on a terminal; plain lines, one for each step, everywhere else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from ipaddress import ip_address
from types import TracebackType
from typing import Self

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
            ("entities", node.extraction),
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


class CommandScreen:
    """How far a command is, on standard error: a bar on a terminal, a line for each step everywhere else."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task("", total=None)

    def __call__(self, text: str, fraction: float | None = None, /) -> None:
        """`fraction` None: another step, of which it is not known (yet) how long it takes."""
        if self._console.is_terminal:
            total = None if fraction is None else 1.0
            self._bar.update(self._task, description=text, completed=fraction or 0.0, total=total)
        elif fraction is None:
            self._console.print(text, markup=False)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._bar.stop()


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
