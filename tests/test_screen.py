from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest
from rich.console import Console

from thread_service.app import Starting
from thread_service.node.operations import EmbedderHealth
from thread_service.screen import CommandScreen, TerminalScreen, exposure

STARTING = Starting(
    "http://127.0.0.1:8081",
    "127.0.0.1:9090",
    "127.0.0.1",
    False,
    Path("/data/[red]x"),
    "1B4E",
    "cpu",
    "org/model",
    "no CUDA device",
    "keywords: no [such] command",
)


def shown(*healths: EmbedderHealth, terminal: bool) -> str:
    page = io.StringIO()
    screen = TerminalScreen(Console(file=page, force_terminal=terminal, highlight=False, soft_wrap=True))
    screen.starting(STARTING)
    steps = list(healths)
    asyncio.run(screen.follow(lambda: steps.pop(0) if len(steps) > 1 else steps[0]))
    return page.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_the_banner_says_where_what_and_why_and_when_it_is_ready(terminal: bool) -> None:
    page = shown(
        EmbedderHealth("m", "m@8", "downloading", fraction=0.5), EmbedderHealth("m", "m@8", "ready"), terminal=terminal
    )
    for part in (
        "http://127.0.0.1:8081/schema",
        "127.0.0.1:9090",
        "/data/[red]x",
        "1B4E",
        "cpu",
        "no CUDA device",
        "keywords: no [such] command",
        "ready",
        "m@8",
    ):
        assert part in page
    assert "warning" not in page
    assert ("\x1b" in page) == terminal


def test_a_failed_model_says_why() -> None:
    page = shown(EmbedderHealth("m", "m@8", "failed", error="no [such] model"), terminal=False)
    assert page.endswith("the model failed: no [such] model\n")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "node.example", ""])
def test_an_open_bind_beyond_loopback_is_warned_about(host: str) -> None:
    assert "THREAD_API_KEY" in str(exposure(host, is_guarded=False))
    assert exposure(host, is_guarded=True) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_is_not_warned_about(host: str) -> None:
    assert exposure(host, is_guarded=False) is None


@pytest.mark.parametrize("terminal", [False, True])
def test_a_command_shows_how_far_it_is(terminal: bool) -> None:
    page = io.StringIO()
    with CommandScreen(Console(file=page, force_terminal=terminal, width=60)) as progress:
        progress("vectors [1]")
        progress("vectors [1]", 0.5)
        progress("words")
    shown = page.getvalue()
    if terminal:
        assert "words" in shown  # drawn, and taken away at the end
    else:
        assert shown == "vectors [1]\nwords\n"
