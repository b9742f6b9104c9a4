"""Names that come or go beside everything else: at once for what is filed later, behind everything for what was."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from in_process import InProcess, document, ids, opened, until
from opened_store import Opened, opened_store

from thread_service.node import back_linking
from thread_service.node.back_linking import BackLinking, _Pace
from thread_service.node.linked import Linked
from thread_service.node.work import Work
from thread_service.store import graph, links

TEXTS = 12


class Held:
    """Keeps the thread that links earlier documents from searching a text until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_reached, self._may_go_on = threading.Event(), threading.Event()
        names_in = links.names_in

        def held(*arguments: Any, **named: Any) -> links.Found | None:
            if threading.current_thread().name == "back-linking":
                self.is_reached.set()
                assert self._may_go_on.wait(20)
            return names_in(*arguments, **named)

        monkeypatch.setattr(links, "names_in", held)

    def let_go(self) -> None:
        self._may_go_on.set()

    def hold(self) -> None:
        self._may_go_on.clear()
        self.is_reached.clear()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    held = Held(monkeypatch)
    yield held
    held.let_go()


def file_texts(node: InProcess) -> None:
    node.file("ann", *(document(f"Ada Quill, {number}", id=f"t{number}") for number in range(TEXTS)))


def linked(node: InProcess) -> set[str]:
    return {id for id, name in node.mentions("ann") if name == "Ada Quill"}


EARLIER = {f"t{number}" for number in range(TEXTS)}


def test_a_new_name_is_effective_at_once_and_everything_overtakes_the_earlier_texts(
    node: InProcess, held: Held
) -> None:
    file_texts(node)
    node.file("ann", document("-", id="name", entities=["Ada Quill"]), wait=False)
    assert held.is_reached.wait(20)
    node.file("ann", document("Ada Quill once more", id="later"), wait=False)
    until(lambda: linked(node) == {"later"})
    assert set(ids(node.search("ann", "Ada Quill", top_k=20))) == {*EARLIER, "later", "name"}
    assert [entity.name for entity in node.graph("ann", "ada quill").entities] == ["Ada Quill"]
    held.let_go()
    node.settle()
    assert linked(node) == {*EARLIER, "later"}


def test_a_removed_name_is_gone_at_once_although_its_texts_are_linked_again_later(node: InProcess, held: Held) -> None:
    file_texts(node)
    held.let_go()
    node.file("ann", document("-", id="name", entities=["Ada Quill"]))
    held.hold()
    assert node.search("ann", "Ada Quill").trace.entities
    node.remove("ann", "name")
    assert held.is_reached.wait(20)
    answer = node.search("ann", "Ada Quill")
    assert answer.trace.entities == ()
    assert all(passage.entities == () for passage in answer.passages)
    assert node.graph("ann").entities == ()
    held.let_go()
    node.settle()
    assert node.value("SELECT count(*) FROM entities") == 0


def test_going_through_earlier_texts_goes_on_after_a_restart(tmp_path: Path) -> None:
    with opened_store(tmp_path) as store:
        for number in range(3):
            store.file("ann", f"t{number}", f"Ada Quill, {number}")
        store.link()
        store.file("ann", "x", "-", said=graph.contribution([("Ada Quill", "")], []))
        assert store.column("SELECT count(*) FROM changed_names") == [1]
        assert store.column("SELECT count(*) FROM mentions") == [0]
    with opened(tmp_path) as node:
        node.settle()
        assert {id for id, _ in node.mentions("ann")} == {"t0", "t1", "t2"}


def test_a_text_that_cannot_be_searched_keeps_its_links_and_the_others_are_linked(
    node: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_texts(node)
    [broken] = [key for key, id in node.rows("SELECT document_key, document_id FROM documents") if id == "t3"]
    names_in = links.names_in

    def failing(connection: Any, key: int, **named: Any) -> links.Found | None:
        if key == broken:
            raise RuntimeError("no")
        return names_in(connection, key, **named)

    monkeypatch.setattr(links, "names_in", failing)
    node.file("ann", document("-", id="name", entities=["Ada Quill"]))
    node.settle()
    assert linked(node) == EARLIER - {"t3"}


def test_a_write_that_fails_for_one_document_is_made_for_the_others(
    node: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_texts(node)
    [broken] = [key for key, id in node.rows("SELECT document_key, document_id FROM documents") if id == "t3"]
    link = links.link

    def failing(connection: Any, found: Mapping[int, links.Found], *more: Any) -> None:
        if broken in found:
            raise RuntimeError("no")
        link(connection, found, *more)

    monkeypatch.setattr(links, "link", failing)
    node.file("ann", document("-", id="name", entities=["Ada Quill"]))
    node.settle()
    assert linked(node) == EARLIER - {"t3"}


def test_a_document_that_brings_its_names_is_searched_for_them_once(
    node: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_texts(node)
    searched: list[tuple[str, str]] = []
    names_in = links.names_in

    def noting(connection: Any, key: int, **named: Any) -> links.Found | None:
        id = connection.execute("SELECT document_id FROM documents WHERE document_key = ?", (key,)).get
        searched.append((threading.current_thread().name, id))
        return names_in(connection, key, **named)

    monkeypatch.setattr(links, "names_in", noting)
    node.file("ann", document("Ada Quill wrote this.", id="name", entities=["Ada Quill"]))
    node.settle()
    assert sorted(searched) == [*sorted(("back-linking", id) for id in EARLIER), ("indexing", "name")]
    assert linked(node) == {*EARLIER, "name"}


# ---------------------------------------------------------------------------------------------------- together


class Gathering:
    """The thread alone, over a store in which one name came, while documents are said to be indexed. `is_linked`: all
    of them are known to be linked with it already."""

    def __init__(self, store: Opened, *, is_linked: bool = False) -> None:
        self.store = store
        self.is_indexing, self.is_awaited = True, False
        self.has_asked = threading.Event()
        for number in range(TEXTS):
            store.file("ann", f"t{number}", f"Ada Quill, {number}")
        store.link()
        store.file("ann", "x", "-", said=graph.contribution([("Ada Quill", "")], []))
        linked = Linked()
        if is_linked:
            [newest] = store.column("SELECT max(sequence) FROM changed_names")
            linked.note(store.column("SELECT document_key FROM documents"), newest)
        self.linking = BackLinking(
            store.store,
            Work(),
            linked,
            by_text=True,
            is_indexing=self._asked,
            is_awaited=lambda: self.is_awaited,
            progressed=lambda: None,
        )
        self.linking.start()

    def _asked(self) -> bool:
        self.has_asked.set()
        return self.is_indexing

    def waiting(self) -> int:
        [names] = self.store.column("SELECT count(*) FROM changed_names")
        return int(names)


@pytest.fixture
def gathering(tmp_path: Path) -> Iterator[Gathering]:
    with opened_store(tmp_path) as store:
        gathering = Gathering(store)
        yield gathering
        gathering.linking.stop()
        gathering.linking.join()


def test_names_come_together_until_nothing_is_indexed_any_more(gathering: Gathering) -> None:
    assert gathering.has_asked.wait(20)
    gathering.has_asked.clear()
    gathering.linking.nudge()  # another batch
    assert gathering.has_asked.wait(20)
    assert gathering.waiting() == 1
    gathering.is_indexing = False
    gathering.linking.nudge()
    until(lambda: gathering.waiting() == 0)


def test_names_that_somebody_waits_for_do_not_wait_for_others(gathering: Gathering) -> None:
    assert gathering.has_asked.wait(20)
    gathering.is_awaited = True
    gathering.linking.nudge()
    until(lambda: gathering.waiting() == 0)


def test_names_do_not_wait_for_others_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(back_linking, "GATHER_SECONDS", 0.0)
    with opened_store(tmp_path) as store:
        gathering = Gathering(store)
        until(lambda: gathering.waiting() == 0)
        gathering.linking.stop()
        gathering.linking.join()


# ---------------------------------------------------------------------------------------------------- its share


class Closing(threading.Event):
    """Notes how long somebody would have rested."""

    def __init__(self) -> None:
        super().__init__()
        self.rests: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.rests.append(timeout)
        return False


class Paced:
    """A pace of a quarter of a processor on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_awaited: bool = False) -> None:
        self.now = 100.0
        monkeypatch.setattr(back_linking, "time", SimpleNamespace(thread_time=lambda: self.now))
        self.work = SimpleNamespace(begun=0, is_busy=False)
        self.closing = Closing()
        self.pace = _Pace(cast(Work, self.work), lambda: is_awaited, 0.25, self.closing)
        self.pace.begin_slice()


def test_it_takes_a_quarter_of_a_processor_while_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    paced = Paced(monkeypatch)
    paced.work.is_busy = True
    paced.now += 0.002
    paced.pace.breathe()  # after each text
    paced.now += 0.001
    paced.pace.rest(0.003)  # and after what was written, the work of another thread included
    assert paced.closing.rests == pytest.approx([0.006, 0.012])
    assert not paced.pace.is_slice_over
    paced.now += 0.005
    assert paced.pace.is_slice_over


def test_it_rests_for_somebody_who_asked_and_was_answered_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    paced = Paced(monkeypatch)
    paced.now += 0.001
    paced.work.begun += 1
    paced.pace.breathe()
    assert paced.closing.rests == []  # nobody waits: the slice goes on
    paced.pace.rest(0.0)
    assert paced.closing.rests == pytest.approx([0.003])
    paced.now += 0.001
    paced.pace.rest(0.0)  # nobody has asked since
    assert len(paced.closing.rests) == 1


def test_a_round_in_which_all_is_linked_already_rests_for_looking_and_for_writing_it_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(back_linking, "GATHER_SECONDS", 0.0)
    rests: list[float] = []
    monkeypatch.setattr(_Pace, "rest", lambda _, elsewhere: rests.append(elsewhere))
    with opened_store(tmp_path) as store:
        gathering = Gathering(store, is_linked=True)
        until(lambda: gathering.waiting() == 0)
        gathering.linking.stop()
        gathering.linking.join()
    looking, writing = rests
    assert looking == 0.0 < writing


def test_it_writes_more_at_once_while_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    paced = Paced(monkeypatch)
    paced.now += 0.03
    assert not paced.pace.is_slice_over
    paced.work.begun += 1
    assert paced.pace.is_slice_over
    paced.pace.begin_slice()
    paced.now += 0.06
    assert paced.pace.is_slice_over


def test_a_long_document_is_not_searched_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    paced = Paced(monkeypatch)
    for _ in range(3):
        paced.work.begun += 1
        paced.now += 2 * back_linking.SLICE_SECONDS
        paced.pace.breathe()
    assert len(paced.closing.rests) == 3


def test_it_does_not_rest_when_nobody_asks_or_somebody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    idle, awaited = Paced(monkeypatch), Paced(monkeypatch, is_awaited=True)
    awaited.work.is_busy = True
    for paced in (idle, awaited):
        paced.now += 1.0
        paced.pace.breathe()
        paced.pace.rest(1.0)
        assert paced.closing.rests == []
