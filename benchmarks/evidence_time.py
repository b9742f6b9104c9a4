"""How long the evidence step of a search takes: names in the query → activations → evidence → joining."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from thread_service.node import search as search_module
from thread_service.node.view import View
from thread_service.search import evidence

EVIDENCE = (
    (search_module, "named_entities"),
    (search_module, "_near_documents"),
    (search_module, "_evidence"),
    (View, "joining"),
    (evidence, "by_content"),
)


@contextmanager
def timed_evidence() -> Iterator[list[float]]:
    """[seconds spent in the evidence step], to be set to zero before a search."""
    spent = [0.0]

    def timed(work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            started = time.perf_counter()
            try:
                return work(*arguments, **named)
            finally:
                spent[0] += time.perf_counter() - started

        return run

    originals = [(owner, name, getattr(owner, name)) for owner, name in EVIDENCE]
    for owner, name, original in originals:
        setattr(owner, name, timed(original))
    try:
        yield spent
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)
