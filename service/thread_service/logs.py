"""The log of a running node: lines of text for people, or one JSON object a line for machines.

What happens again and again and is worth counting is an `Event`: a name and a few numbers, under the same keys in
either form. Texts, queries, names and ids of callers, keys and secrets are never in it; of what was said there is the
length.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

LogFormat = Literal["text", "json"]

_TALKATIVE = ("faiss.loader", "filelock", "httpcore", "httpx", "huggingface_hub")


class Event:
    """What `event` logs, as the message of a record; written out only when somebody reads it."""

    __slots__ = ("fields", "name")

    def __init__(self, name: str, fields: Mapping[str, object]) -> None:
        self.name = name
        self.fields = fields

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{key}={value}" for key, value in self.fields.items())])


def event(log: logging.Logger, name: str, /, **fields: int | float | str) -> None:
    """Log that something happened. A float is rounded to a tenth; names of durations end with `_ms`."""
    if log.isEnabledFor(logging.INFO):
        shown = {key: round(value, 1) if isinstance(value, float) else value for key, value in fields.items()}
        log.info(Event(name, shown), stacklevel=2)


class Stopwatch:
    """Where the time of one operation goes, phase after phase, in milliseconds."""

    __slots__ = ("_last", "_started", "phases")

    def __init__(self) -> None:
        self._started = self._last = time.perf_counter()
        self.phases: dict[str, float] = {}

    def lap(self, phase: str) -> None:
        """What has passed since the last lap was (more of) this phase."""
        now = time.perf_counter()
        self.phases[phase] = self.phases.get(phase, 0.0) + (now - self._last) * 1e3
        self._last = now

    def skip(self) -> None:
        """What has passed since the last lap was waiting, and belongs to no phase."""
        self._last = time.perf_counter()

    def milliseconds(self) -> dict[str, float]:
        """As fields of an event."""
        return {f"{phase}_ms": spent for phase, spent in self.phases.items()}

    @property
    def total(self) -> float:
        return (time.perf_counter() - self._started) * 1e3


class JsonFormatter(logging.Formatter):
    """A record as one JSON object: time (RFC 3339, UTC), level, logger, then `event` and its fields, or `message`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if isinstance(record.msg, Event):
            line |= {"event": record.msg.name, **record.msg.fields}
        else:
            line["message"] = record.getMessage()
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        # In ASCII: a message may hold what UTF-8 cannot carry.
        return json.dumps(line)


def configure(level: str, form: LogFormat = "text") -> None:
    """Log to standard error, one line a record (in text its traceback follows), from `level` up."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if form == "json" else text)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # These narrate their own doings at INFO.
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))
