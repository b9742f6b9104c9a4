"""What the checker of the kill loop takes for legal when a node died under a clear."""

from __future__ import annotations

from typing import Any

import pytest
from ledger import Document, Effect, Ledger, Operation

OLD, NEW = (Document((text,), None, b"", ((),), "", frozenset(), None, frozenset()) for text in ("old", "new"))


@pytest.fixture
def answered() -> Ledger:
    """A deposit's answer came from a node that was being cleared, and has been killed since."""

    def right(outcome: str) -> Any:
        return lambda answer: answer == outcome

    ledger = Ledger("writer", {"a": OLD})
    ledger.begin(Operation("/", {}, Effect({"b": NEW}, right("new")), Effect({"b": NEW}, right("new"))))
    ledger.under_clear = True
    assert ledger.acknowledge("new")  # type: ignore[arg-type]
    return ledger


@pytest.mark.parametrize(
    ("found", "cleared", "outcome"),
    [
        ({"a": OLD, "b": NEW}, False, "done"),
        ({}, True, "cleared"),
        ({"b": NEW}, True, "done after a clear"),
    ],
)
def test_an_answer_under_a_clear_may_have_come_before_it_after_it_or_without_it(
    answered: Ledger, found: dict[str, Document], cleared: bool, outcome: str
) -> None:
    assert answered.settle(found, cleared=cleared) == outcome
    assert (answered.documents, answered.in_flight, answered.under_clear) == (found, None, False)


def test_what_was_answered_is_not_lost_without_a_clear(answered: Ledger) -> None:
    with pytest.raises(AssertionError, match="neither the state before nor after"):
        answered.settle({"a": OLD})
