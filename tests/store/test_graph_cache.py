"""The graph in memory: it follows every commit, and stays within its bytes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opened_store import Opened, opened_store

from thread_service.store import graph
from thread_service.store.changes import Changes
from thread_service.store.graph_cache import LISTED_MAX, GraphCache, Link, Standing, listed

TEXTS = ("Ada Quill wrote", "Orrin Vale and Ada Quill Hall", "nothing")
SAID = (None, ("Ada Quill",), ("Ada Quill Hall", "Orrin Vale"), ("ada", "Orrin Vale"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Opened]:
    with opened_store(tmp_path) as store:
        yield store


def said(*names: str) -> graph.Contribution:
    return graph.contribution([(name, "") for name in names], [])


def seen(store: Opened, cache: GraphCache) -> tuple[dict[int, list[int]], dict[int, set[Link]], dict[int, str]]:
    """What the cache says now: documents of each entity, entities of each document, and names."""
    entities = store.column("SELECT entity_key FROM entities")
    documents = store.column("SELECT document_key FROM documents")
    version = cache.version()
    with store.store.read() as connection:
        links = cache.at(connection, version)
        return (
            {key: list(found) for key, found in links.documents_of(entities).items()},
            {key: set(found) for key, found in links.entities_of(documents).items()},
            {key: name.spelling for key, name in links.names(entities, 1).items()},
        )


STEP = st.one_of(
    st.tuples(
        st.just("file"),
        st.sampled_from(("ann", "ben")),
        st.sampled_from("abc"),
        st.sampled_from(TEXTS),
        st.sampled_from(SAID),
    ),
    st.tuples(st.just("remove"), st.sampled_from(("ann", "ben")), st.sampled_from("abc")),
    st.tuples(st.just("link")),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEP, max_size=12))
def test_what_is_cached_is_what_would_be_read_after_every_commit(steps: list[tuple[str, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder, opened_store(Path(folder)) as store:
        filed: set[tuple[str, str]] = set()
        for kind, *about in steps:
            if kind == "link":
                store.link()
            elif kind == "file" and (about[0], about[1]) not in filed:
                owner, id, text, names = about
                filed.add((owner, id))
                store.file(owner, id, text, said=None if names is None else said(*names))
            elif kind == "remove" and (about[0], about[1]) in filed:
                filed.remove((about[0], about[1]))
                store.remove(about[0], about[1])
            assert seen(store, store.store.resident.graph) == seen(store, GraphCache())


def test_a_set_follows_commits_and_is_not_read_again(store: Opened) -> None:
    store.file("ann", "a", "-", said=said("Ada Quill"))
    store.link()
    cache = store.store.resident.graph
    [entity] = store.column("SELECT entity_key FROM entities")
    assert seen(store, cache)[0] == {entity: [1]}
    for id in ("b", "c"):
        store.file("ann", id, "Ada Quill wrote")
    store.link()
    kept = cache.documents_of.peek(entity)
    assert kept is not None
    assert list(kept) == [1, 2, 3]
    store.remove("ann", "b")
    assert list(cache.documents_of.peek(entity) or ()) == [1, 3]


def test_a_set_that_was_read_while_others_wrote_is_brought_up_to_date(store: Opened) -> None:
    store.file("ann", "a", "-", said=said("Ada Quill"))
    store.link()
    cache = store.store.resident.graph
    [entity] = store.column("SELECT entity_key FROM entities")
    version = cache.version()
    with store.store.read() as old, ThreadPoolExecutor(1) as another:
        old.execute("SELECT count(*) FROM documents").fetchall()  # the snapshot begins
        another.submit(store.file, "ann", "b", "Ada Quill wrote").result()
        another.submit(store.link).result()
        assert list(cache.at(old, version).documents_of([entity])[entity]) == [1]
    assert list(cache.documents_of.peek(entity) or ()) == [1, 2]


def test_a_commit_of_very_many_documents_lets_the_sets_be_read_again(
    store: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thread_service.store.graph_cache.COMMIT_DOCUMENTS_MAX", 1)
    for id in ("a", "b"):
        store.file("ann", id, "-", said=said("Ada Quill"))
    [entity] = store.column("SELECT entity_key FROM entities")
    cache = store.store.resident.graph
    assert seen(store, cache)[0] == {entity: [1, 2]}

    def both(connection: apsw.Connection, changes: Changes) -> None:
        graph.retract(connection, 1, changes)
        graph.contribute(connection, 1, said("Orrin Vale"), changes)
        graph.retract(connection, 2, changes)
        graph.contribute(connection, 2, said("Ada Quill"), changes)

    store.write(both)
    assert cache.documents_of.peek(entity) is None
    assert seen(store, cache) == seen(store, GraphCache())


def test_all_that_is_kept_stays_within_its_bytes_the_last_used_first(store: Opened) -> None:
    for number in range(40):
        store.file("ann", str(number), "-", said=said(*(f"Name {number} {other}" for other in range(3)), "Hub Name"))
    cache = GraphCache(sets_bytes=4_000, links_bytes=4_000, names_bytes=4_000)
    everything = seen(store, cache)
    assert everything == seen(store, GraphCache())
    kept = (cache.documents_of, cache.entities_of, cache.names)
    assert all(0 < part.bytes <= 4_000 for part in kept)
    first, *_, last = everything[0]
    assert cache.documents_of.peek(last) is not None
    assert cache.documents_of.peek(first) is None
    cache.clear()
    assert [part.bytes for part in kept] == [0, 0, 0]


def test_a_document_that_says_very_much_lists_what_it_says_most_surely() -> None:
    links = [Link(key, Standing.KEYWORD) for key in range(1, LISTED_MAX + 1)]
    assert len(listed(links)) == LISTED_MAX
    links += [Link(900, Standing.OWN_NAME), Link(800, Standing.MENTIONED)]
    assert listed(links)[:3] == [900, 800, 1]
    assert len(listed(links)) == LISTED_MAX
    assert listed([*links, Link(700, Standing.GIVEN)])[:3] == [700, 900, 1]
