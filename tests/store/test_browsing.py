"""Counts and browsing from sums that follow each assertion: equal to adding up, whatever was filed and removed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opened_store import Opened, opened_store

from thread_service.store import browsing, documents, graph

LINES = st.lists(
    st.tuples(
        st.sampled_from(("ann", "ben")),
        st.sampled_from(("available", "restricted")),
        st.lists(st.sampled_from(("Ada", "Ben Two", "cat 3", "Dog", "eel")), max_size=4),
        st.sampled_from(("stays", "goes", "changes access")),
    ),
    max_size=8,
)


def fill(store: Opened, lines: list[tuple[str, str, list[str], str]]) -> None:
    for number, (owner, access, names, fate) in enumerate(lines):
        edges = [(names[0], "knows", names[-1])] if names else []
        said = graph.contribution([(name, "") for name in names], edges)
        key = store.file(owner, str(number), f"text {number}", said=said, access=access)
        if fate == "goes":
            store.remove(owner, str(number))
        elif fate == "changes access":
            other = "restricted" if access == "available" else "available"
            store.write(
                lambda connection, changes, key=key, other=other: documents.set_access(
                    connection, [key], other, changes
                )
            )


def added_up(store: Opened, owner_key: int | None) -> list[tuple[int, int, str]]:
    """(entity_key, mentions, name_key) of what the caller may read, in the order of browsing."""
    found = store.rows(
        "SELECT entity_key, sum(mentions), e.name_key FROM assertions JOIN documents d USING (document_key)"
        " JOIN entities e USING (entity_key) WHERE d.owner_key = ? OR access = 'available' GROUP BY entity_key",
        (owner_key,),
    )
    return sorted(found, key=lambda row: (row[1], row[2], -row[0]), reverse=True)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(LINES)
def test_counts_and_browsing_equal_adding_up(lines: list[tuple[str, str, list[str], str]]) -> None:
    with tempfile.TemporaryDirectory() as folder, opened_store(Path(folder)) as store:
        fill(store, lines)
        for owner_key in (None, 1, 2, 77):
            expected = added_up(store, owner_key)
            keys = [key for key, _, _ in expected]
            [edges] = store.column(
                "SELECT count(DISTINCT relationship_key) FROM relationship_assertions JOIN documents d"
                " USING (document_key) WHERE d.owner_key = ? OR access = 'available'",
                (owner_key,),
            )
            with store.store.read() as connection:
                every = store.column("SELECT entity_key FROM entities")
                assert browsing.readable_counts(connection, owner_key) == (len(keys), edges)
                assert browsing.readable_among(connection, every, owner_key) == set(keys)
                counted = browsing.mention_counts(connection, every, owner_key)
                assert counted == {key: mentions for key, mentions, _ in expected}
                for limit in (1, 2, 10):
                    for looked_at in ((1,), (1, 2), (2, 8), browsing.LOOKED_AT):
                        found = browsing.most_mentioned(connection, owner_key, None, limit, looked_at)
                        assert found == keys[:limit], (owner_key, limit, looked_at)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Opened]:
    with opened_store(tmp_path) as store:
        yield store


def test_of_very_many_entities_with_as_many_mentions_the_last_names_come_first(store: Opened) -> None:
    said = graph.contribution([(f"Name {number:03}", "a" if number % 2 else "b") for number in range(50)], [])
    store.file("ann", "x", "-", said=said)
    store.file("ann", "y", "-", said=graph.contribution([("Name 007", "a")], []))
    names = dict(store.rows("SELECT entity_key, name_key FROM entities"))
    with store.store.read() as connection:
        found = browsing.most_mentioned(connection, 1, None, 3, looked_at=(4,))
        assert [names[key] for key in found] == ["name 007", "name 049", "name 048"]
        found = browsing.most_mentioned(connection, 1, frozenset({"b"}), 2, looked_at=(4,))
        assert [names[key] for key in found] == ["name 048", "name 046"]
        assert browsing.most_mentioned(connection, 1, frozenset({"none"}), 3, looked_at=(4,)) == []


def test_clearing_leaves_no_count(store: Opened) -> None:
    store.file("ann", "x", "-", said=graph.contribution([("Ada", "")], [("Ada", "knows", "Ben")]))
    store.store.clear(lambda connection: None)
    for table in ("entity_readers", "entity_counts", "relationship_counts", "entity_words", "changed_names"):
        assert store.column(f"SELECT count(*) FROM {table}") == [0], table
    store.file("ann", "x", "-", said=graph.contribution([("Ada", "")], []))
    with store.store.read() as connection:
        assert browsing.readable_counts(connection, store.column("SELECT owner_key FROM owners")[0]) == (1, 0)
