"""Callers of a node over HTTP: filing, searching, the graph, and all of it mixed. `make load URL=…` runs it.

Documents and queries bring vectors of their own, so it is the node that is measured and not the model. Every caller
writes over the same few documents of its own again and again: what a node keeps does not grow with the time it runs,
and memory that still does is a leak. The first fifth of the time is for warming up and is not counted; at the end the
node's memory and descriptors are shown as they were then and as they are now.

Each caller sends its next request when it has the answer to the last one. Needs nothing but locust.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import sys
from typing import Any

import gevent
import requests
from locust import FastHttpUser, between, constant, events, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment

WIDTH = 1024
DOCUMENTS = 50
"""Of one caller."""
DOCUMENTS_A_BATCH = 8
WORDS = 40
WARM_UP_SHARE = 0.2
KEY = os.environ.get("THREAD_API_KEY", "")
HEADERS = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {KEY}"} if KEY else {})

_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
_WORDS = [first + second for first in _SYLLABLES for second in _SYLLABLES]
# Some words are common and most are rare, as in any language.
_FREQUENCIES = list(itertools.accumulate(1 / rank for rank in range(1, len(_WORDS) + 1)))
_numbers = itertools.count()
_random = random.Random(0)


def text(words: int) -> str:
    return " ".join(_random.choices(_WORDS, cum_weights=_FREQUENCIES, k=words))


def name() -> str:
    return f"{_random.choice(_SYLLABLES).title()}lor {_random.choice(_SYLLABLES).title()}quist"


def vector() -> list[float]:
    """Of unit length, as short as JSON allows at the precision that counts."""
    values = [_random.gauss(0, 1) for _ in range(WIDTH)]
    length = math.sqrt(sum(value * value for value in values))
    return [round(value / length, 5) for value in values]


_VECTORS = [vector() for _ in range(64)]
"""Made once: the callers must not compete with the node for the processor."""


class Caller(FastHttpUser):
    """One owner, and what an owner does."""

    abstract = True
    wait_time = constant(0)
    connection_timeout = 60.0
    network_timeout = 60.0

    def on_start(self) -> None:
        self.owner = f"load-{next(_numbers)}"
        for first in range(0, DOCUMENTS, DOCUMENTS_A_BATCH):
            self.file(range(first, min(first + DOCUMENTS_A_BATCH, DOCUMENTS)))

    def file(self, numbers: range) -> None:
        names = [[name(), name()] for _ in numbers]
        self.send(
            "/v1/batch/embeddings",
            {
                "inputs": [text(WORDS) for _ in numbers],
                "document_ids": [f"document-{number}" for number in numbers],
                "names": [text(3) for _ in numbers],
                "entities": [[{"name": each, "kind": "person"} for each in pair] for pair in names],
                "relationships": [[{"subject": a, "predicate": "knows", "object": b}] for a, b in names],
                "partitions": [[{"embedding": _random.choice(_VECTORS)}] for _ in numbers],
                "thread": {"owner_id": self.owner},
            },
        )

    def search(self) -> None:
        query = {"query": f"{text(5)} {name()}", "query_embedding": _random.choice(_VECTORS)}
        self.send("/v1/search", query | {"thread": {"owner_id": self.owner, "top_k": 10}})

    def graph(self) -> None:
        self.send("/v1/graph", {"entity": name(), "hops": 1, "thread": {"owner_id": self.owner}})

    def send(self, path: str, body: dict[str, Any]) -> None:
        self.client.post(path, data=json.dumps(body).encode(), headers=HEADERS)


class Filing(Caller):
    @task
    def files(self) -> None:
        first = _random.randrange(DOCUMENTS - DOCUMENTS_A_BATCH)
        self.file(range(first, first + DOCUMENTS_A_BATCH))


class Searching(Caller):
    @task
    def searches(self) -> None:
        self.search()


class Graph(Caller):
    @task
    def looks(self) -> None:
        self.graph()


class Mixed(Caller):
    """As a person's assistant does: it mostly asks, and pauses."""

    wait_time = between(0.1, 0.5)

    @task(14)
    def searches(self) -> None:
        self.search()

    @task(3)
    def looks(self) -> None:
        self.graph()

    @task(3)
    def files(self) -> None:
        first = _random.randrange(DOCUMENTS)
        self.file(range(first, first + 1))


# ---------------------------------------------------------------------------------------------------- the verdict


@events.init_command_line_parser.add_listener
def add_limits(parser: LocustArgumentParser) -> None:
    parser.add_argument("--p99-ms", type=float, default=0.0, help="fail when p99 is above this many milliseconds")
    parser.add_argument("--p99-over-p50", type=float, default=0.0, help="fail when p99 is above so many times p50")


@events.test_start.add_listener
def warm_up(environment: Environment) -> None:
    """What comes before is no part of what is measured: callers file their documents, caches fill."""

    def done() -> None:
        environment.stats.reset_all()
        _seen["warm"] = _process(environment)

    if seconds := environment.parsed_options.run_time:
        gevent.spawn_later(WARM_UP_SHARE * seconds, done)


@events.test_stop.add_listener
def look_again(environment: Environment) -> None:
    _seen.update(end=_process(environment))


@events.quitting.add_listener
def judge(environment: Environment) -> None:
    total, options = environment.stats.total, environment.parsed_options
    p50, p95, p99 = (total.get_response_time_percentile(share) or 0.0 for share in (0.5, 0.95, 0.99))
    times = f"p50 {p50:g} ms, p95 {p95:g} ms, p99 {p99:g} ms"
    _verdict.append(f"{total.total_rps:.1f} requests/s, {times}, errors {total.num_failures}")
    if (warm := _seen.get("warm")) and (end := _seen.get("end")):
        memory = f"{warm[0] / 1e6:.0f} → {end[0] / 1e6:.0f} MB"
        _verdict.append(f"the node's memory {memory}, descriptors {warm[1]:.0f} → {end[1]:.0f}")
    wrong = []
    if total.num_requests == 0:
        wrong.append("no request was answered")
    if total.num_failures:
        wrong.append(f"{total.num_failures} requests failed")
    if options.p99_ms and p99 > options.p99_ms:
        wrong.append(f"p99 is {p99:g} ms, above {options.p99_ms:g}")
    if options.p99_over_p50 and p99 > options.p99_over_p50 * p50:
        wrong.append(f"p99 is {p99 / max(p50, 1):.1f} times p50, above {options.p99_over_p50:g}")
    _verdict.append("FAILED: " + "; ".join(wrong) if wrong else "passed")
    environment.process_exit_code = 1 if wrong else 0


@events.quit.add_listener
def show(exit_code: int) -> None:
    """Below locust's own tables."""
    print("\n".join(_verdict), file=sys.stderr)


_verdict: list[str] = []
_seen: dict[str, tuple[float, float] | None] = {}


def _process(environment: Environment) -> tuple[float, float] | None:
    """Resident bytes and open descriptors of the node, by its page of metrics; None where that is closed to us."""
    try:
        page = requests.get(f"{environment.host}/metrics", headers=HEADERS, timeout=10)
        page.raise_for_status()
    except requests.RequestException:
        return None
    lines = dict(line.rsplit(" ", 1) for line in page.text.splitlines() if line.startswith("process_"))
    return float(lines["process_resident_memory_bytes"]), float(lines["process_open_fds"])
