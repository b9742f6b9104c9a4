"""Names of a query and entities named alike: what is found, and what bounds the work of very many names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opened_store import Opened, opened_store

from thread_service.store import graph, lookup, neighbourhood
from thread_service.text.stop_words import STOP_WORDS

NAMES = ("ada", "ada quill", "quill", "ada quill hall", "the", "the quill", "of the", "hall of ada", "b" * 20)


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    with opened_store(tmp_path_factory.mktemp("named")) as store:
        store.file("ann", "x", "-", said=graph.contribution([(name, "") for name in NAMES], []))
        yield store


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(("ada", "quill", "hall", "of", "the", "x", "b" * 20)), max_size=9), st.integers(1, 4))
def test_every_name_that_is_a_run_of_the_words_is_found(named: Opened, words: list[str], longest: int) -> None:
    runs = {
        " ".join(words[start:end])
        for start in range(len(words))
        for end in range(start + 1, min(start + longest, len(words)) + 1)
        if not STOP_WORDS.issuperset(words[start:end])
    }
    with named.store.read() as connection:
        found = lookup.entities_named_in(connection, words, longest, 100)
    assert sorted(name for name, _ in found) == sorted(runs & set(NAMES))


def test_of_more_names_than_the_limit_the_longest_are_found(named: Opened) -> None:
    words = ["ada", "quill", "hall", "of", "ada"]
    with named.store.read() as connection:
        found = [name for name, _ in lookup.entities_named_in(connection, words, 16, 2)]
    assert set(found) == {"ada quill hall", "hall of ada"}


def test_a_word_in_very_many_names_is_left_out_beside_a_rarer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbourhood, "ALIKE_MAX", 3)
    with opened_store(tmp_path) as store:
        names = [*(f"House {number}" for number in range(5)), "Rare House", "Rare"]
        store.file("ann", "x", "-", said=graph.contribution([(name, "") for name in names], []))
        spelled = dict(store.rows("SELECT entity_key, spelling FROM assertions"))

        def found(text: str) -> list[str]:
            with store.store.read() as connection:
                return [spelled[key] for key in neighbourhood.named_like(connection, text, 1, None, 10)]

        assert found("rare house") == ["Rare House", "Rare"]
        assert found("house") == ["House 0", "House 1", "House 2"]  # the oldest of very many
        assert found("House 4") == ["House 4"]  # by its whole name
