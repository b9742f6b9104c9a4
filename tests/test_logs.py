"""The log: one line a record, of text or of JSON, and nothing written that nobody reads."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import datetime

import pytest

from thread_service import logs
from thread_service.logs import Event, Stopwatch, event

log = logging.getLogger("thread_service.test")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    quiet = {name: logging.getLogger(name).level for name in ("httpx", "filelock")}
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
    for name, before in quiet.items():
        logging.getLogger(name).setLevel(before)


Page = pytest.CaptureFixture[str]


def test_an_event_is_a_line_of_text(capsys: Page) -> None:
    logs.configure("info")
    event(log, "search", total_ms=12.345, results=10, mode="boost")
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith(" INFO thread_service.test: search total_ms=12.3 results=10 mode=boost")


def test_or_one_json_object_with_the_same_fields(capsys: Page) -> None:
    logs.configure("info", "json")
    event(log, "search", total_ms=12.345, results=10, mode="boost")
    log.warning("two\nlines of %s", "\ud800🙂")
    try:
        raise ValueError("inside")
    except ValueError:
        log.exception("it failed")
    first, second, third = map(json.loads, capsys.readouterr().err.splitlines())
    assert datetime.fromisoformat(first.pop("time")).utcoffset() is not None
    assert first == {
        "level": "info", "logger": "thread_service.test", "event": "search",
        "total_ms": 12.3, "results": 10, "mode": "boost",
    }  # fmt: skip
    assert (second["level"], second["message"]) == ("warning", "two\nlines of \ud800🙂")
    assert third["traceback"].endswith("ValueError: inside")


def test_below_the_level_nothing_is_written_out(capsys: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    logs.configure("warning", "json")
    monkeypatch.setattr(Event, "__init__", lambda *_: pytest.fail("made for nobody"))
    event(log, "search", total_ms=1.0)
    assert capsys.readouterr().err == ""


def test_libraries_do_not_narrate_and_debug_shows_the_rest(capsys: Page) -> None:
    logs.configure("debug")
    logging.getLogger("httpx").info("GET …")
    log.debug("ours")
    assert [line.rpartition(": ")[2] for line in capsys.readouterr().err.splitlines()] == ["ours"]


def test_a_stopwatch_adds_up_the_laps_of_a_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 1.0, 3.0, 4.0, 4.5, 9.0])
    monkeypatch.setattr(logs.time, "perf_counter", lambda: next(now))
    watch = Stopwatch()
    watch.lap("scan")
    watch.lap("show")
    watch.skip()
    watch.lap("scan")
    assert watch.milliseconds() == {"scan_ms": 1500.0, "show_ms": 2000.0}
    assert watch.total == 9000.0
