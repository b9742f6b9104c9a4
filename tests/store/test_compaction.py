"""Compaction: what lives stays bit for bit, what was removed is nowhere on the disk, and nothing is ever half done."""

from __future__ import annotations

import logging
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import apsw
import numpy as np
import pytest
from faults import Faults, FaultyFiles, FaultyVfs
from numpy.typing import NDArray
from opened_store import Opened, opened_store

from thread_service.errors import NotReady, StorageFull, StoreFailed
from thread_service.store import compaction, compactor, connections, contents, graph, rebuild
from thread_service.store.changes import Changes
from thread_service.store.code_cache import CachedCodes, CodeCache
from thread_service.store.compaction import Compacted, compact
from thread_service.store.directory import DataDirectory
from thread_service.store.disk import Disk
from thread_service.store.segments import Location
from thread_service.store.stored_rows import by_table, snapshot

WIDTH = 16


def vector(number: int, width: int = WIDTH) -> NDArray[np.float32]:
    return np.random.default_rng(number).standard_normal((1, width), dtype=np.float32)


def text(number: int) -> str:
    """A text that shares no word with another."""
    letters = np.random.default_rng(number).choice([*"bcdfghjklmnpqrtvwxz"], (3, 12))
    return " ".join("".join(word) for word in letters)


def fill(opened: Opened, numbers: range, width: int = WIDTH) -> None:
    for number in numbers:
        opened.file("ann", f"doc {number}", text(number), name=f"Name{text(number)[:9]}", rows=vector(number, width))


def remove(opened: Opened, numbers: list[int] | range) -> None:
    for number in numbers:
        opened.remove("ann", f"doc {number}")


def stored(disk: Disk) -> dict[str, bytes]:
    """The vector of every document, checked and bit for bit."""
    statement = (
        "SELECT text, segment, slot, crc FROM vectors JOIN partitions ON partition_key = subject_key"
        " WHERE purpose = 'model' ORDER BY vector_key"
    )
    with disk.read() as connection:
        found = connection.execute(statement).fetchall()
        assert connection.pragma("integrity_check") == "ok"
        assert connection.pragma("foreign_key_check") is None
    return {row[0]: disk.segments.read_checked([Location(*row[1:])]).tobytes() for row in found}


def expected(numbers: list[int] | range, width: int = WIDTH) -> dict[str, bytes]:
    return {text(number): vector(number, width).tobytes() for number in numbers}


def nearest(opened: Opened, number: int, width: int = WIDTH) -> tuple[int, float]:
    """The subject nearest to the vector of a document, and its distance, through the memory."""
    table = opened.store.resident.table("model", width)
    assert table is not None
    [hits] = table.table.search(vector(number, width), 1, [None])
    return int(table.subjects_of(hits.rows)[0]), float(hits.distances[0])


def on_disk(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file())


def files(opened: Opened) -> list[str]:
    return sorted(path.name for path in opened.store.directory.vectors.iterdir())


def run(disk: Disk, *, every: bool = True, go_on: Callable[[], None] = lambda: None) -> Compacted:
    return compact(disk, every=every, progress=lambda _: None, go_on=go_on)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    with opened_store(tmp_path / "data") as opened:
        yield opened


def test_live_rows_move_bit_for_bit_and_the_segment_goes(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "MOVE_ROWS", 7)
    fill(opened, range(40))
    fill(opened, range(100, 104), width=32)
    remove(opened, range(0, 40, 2))
    said: list[str] = []
    done = opened.store.compact(said.append)
    assert (done.rows, done.segments, done.left) == (20, 1, "")
    assert done.bytes_after < done.bytes_before
    assert said[0] == "segment 1: 20 of 40 rows were removed, 20 move"
    assert files(opened) == ["000002.f32", "000003.f32"]
    assert opened.rows("SELECT segment, width, slots FROM segments") == [(2, 32, 4), (3, WIDTH, 20)]
    kept = expected(range(1, 40, 2)) | expected(range(100, 104), 32)
    assert stored(opened.store) == kept
    subjects = [nearest(opened, number) for number in range(1, 40, 2)]
    assert [distance for _, distance in subjects] == [0.0] * 20
    fill(opened, range(40, 42))
    kept |= expected(range(40, 42))
    assert stored(opened.store) == kept
    opened.store.compact(said.append)
    idle = opened.store.compact(said.append)
    assert (idle.rows, idle.segments, idle.bytes_before) == (0, 0, idle.bytes_after)

    opened.store.close()
    with opened_store(opened.store.path.parents[1]) as restarted:
        assert stored(restarted.store) == kept
        assert [nearest(restarted, number) for number in range(1, 40, 2)] == subjects


def test_nothing_removed_is_on_the_disk_after_a_compaction(opened: Opened) -> None:
    # Enough that rows move between the pages of the database while others go.
    said = {}
    for number in range(150):
        name = f"Person{text(10_000 + number)[:12]}"
        said[number] = graph.contribution([(name, "person")], [(name, "knows", "Everybody")])
        opened.file("ann", f"doc {number}", text(number), said=said[number], name=name, rows=vector(number))
    opened.link()
    gone = sorted(np.random.default_rng(1).choice(150, 30, replace=False).tolist())
    remove(opened, gone)
    # Appended and never committed: its content was removed before it was indexed.
    lost = vector(500)
    with opened.store.appending() as segments:
        segments.append(lost)
        segments.sync()
    opened.store.compact(lambda _: None)

    data = on_disk(opened.store.path)
    for number in gone:
        assert vector(number).tobytes() not in data
        for word in text(number).split():
            assert word[4:].encode() not in data
        assert text(10_000 + number)[4:12].encode() not in data
    assert lost.tobytes() not in data
    live = next(number for number in range(150) if number not in gone)
    assert vector(live).tobytes() in data
    assert text(live).encode() in data
    word = text(live).split()[1]
    assert opened.column("SELECT count(*) FROM words WHERE words MATCH ?", (f'"{word}"',)) == [1]
    assert opened.column("SELECT count(*) FROM words WHERE words MATCH ?", (f'"{text(gone[0]).split()[1]}"',)) == [0]


def test_automatically_only_segments_with_more_than_a_fifth_of_dead_rows_are_emptied(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened.store.segments, "_segment_bytes", 10 * WIDTH * 4)
    fill(opened, range(25))
    remove(opened, [0, 1, 10])
    with opened.store.read() as connection:
        assert not compaction.is_due(connection)
    remove(opened, [2])
    with opened.store.read() as connection:
        assert compaction.is_due(connection)
    done = run(opened.store, every=False)
    assert (done.rows, done.segments) == (3, 1)
    assert opened.rows("SELECT segment, slots FROM segments") == [(2, 10), (3, 10), (4, 2)]
    assert stored(opened.store) == expected([*range(3, 10), *range(11, 25)])


def test_removing_enough_starts_a_compaction_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compactor, "REST_SECONDS", 0.0)
    with caplog.at_level(logging.INFO, "thread_service"), opened_store(tmp_path) as opened:
        fill(opened, range(10))
        remove(opened, range(3))
        deadline = time.monotonic() + 10
        while "compacted: removed rows: 3" not in caplog.text:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        assert files(opened) == ["000002.f32"]
        assert stored(opened.store) == expected(range(3, 10))


def test_the_pages_of_brought_vectors_that_were_filed_are_given_back_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compactor, "REST_SECONDS", 0.0)
    monkeypatch.setattr(compaction, "FREE_PAGES", 0)
    with opened_store(tmp_path) as opened:
        rows = np.random.default_rng(0).standard_normal((200, 1024), dtype=np.float32)
        key = opened.write(lambda c, _: contents.create(c, b"x", "text", [f"text {n}" for n in range(200)], [*rows]))
        [pages] = opened.column("SELECT page_count FROM pragma_page_count")
        assert pages * 4096 > rows.nbytes
        opened.write(lambda c, changes: contents.mark_ready(c, key, changes))
        deadline = time.monotonic() + 10
        while opened.column("SELECT page_count FROM pragma_page_count")[0] > pages / 2:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        assert opened.column("SELECT freelist_count FROM pragma_freelist_count") == [0]


def test_a_search_during_a_compaction_gives_right_answers(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "MOVE_ROWS", 3)
    fill(opened, range(30))
    before = {number: nearest(opened, number) for number in range(1, 30, 2)}
    done, wrong, rounds = threading.Event(), list[object](), [0]

    def look() -> None:
        while not done.is_set() or not rounds[0]:
            found = {number: nearest(opened, number) for number in before}
            rows = opened.store.resident.tables["model", WIDTH].table.rescore(vector(1)[0], np.arange(30))
            if found != before or rows.distances[1] != 0:
                wrong.append(found)
            rounds[0] += 1

    reader = threading.Thread(target=look)
    reader.start()
    for gone in range(0, 30, 6):
        remove(opened, range(gone, gone + 6, 2))
        opened.store.compact(lambda _: None)
    done.set()
    reader.join(20)
    assert not wrong
    assert stored(opened.store) == expected(range(1, 30, 2))


def test_a_row_removed_while_it_is_copied_stays_removed(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(opened, range(6))
    remove(opened, [0])
    sync = opened.store.segments.sync

    def sync_late() -> None:
        sync()
        monkeypatch.undo()
        remove(opened, [3])

    monkeypatch.setattr(opened.store.segments, "sync", sync_late)
    assert run(opened.store).rows == 2
    assert stored(opened.store) == expected([1, 2, 4, 5])
    assert opened.rows("SELECT segment, slots FROM segments") == [(2, 5)]
    assert run(opened.store).rows == 1
    assert vector(3).tobytes() not in on_disk(opened.store.path)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_clear_beside_a_compaction_leaves_nothing_but_what_is_filed_afterwards(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr(compaction, "MOVE_ROWS", 2)
    fill(opened, range(6))
    remove(opened, [0])
    steps = iter(range(1, 100))

    def clear() -> None:
        if next(steps) == step:
            opened.store.clear(lambda connection: None)
            fill(opened, range(50, 52))

    run(opened.store, go_on=clear)
    assert stored(opened.store) == expected(range(50, 52))
    assert opened.rows("SELECT count(*) FROM segments") == [(1,)]
    assert len(files(opened)) == 1


def test_a_compaction_ends_early_when_the_store_closes(opened: Opened) -> None:
    fill(opened, range(6))
    remove(opened, [0])
    opened.store.stop_compacting()
    with pytest.raises(NotReady, match="stopping"):
        opened.store.compact(lambda _: None)
    assert stored(opened.store) == expected(range(1, 6))


# ---------------------------------------------------------------------------------------------------- a bad disk


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))


def test_a_damaged_row_is_named_and_nothing_is_half_done(tmp_path: Path) -> None:
    with opened_store(tmp_path) as opened:
        fill(opened, range(6))
        remove(opened, [0])
        damaged = opened.store.directory.vectors / "000001.f32"
        flip(damaged, 4 * WIDTH * 3)
        with pytest.raises(StoreFailed, match="row 3 of segment 1 is damaged"):
            opened.store.compact(lambda _: None)
        assert opened.store.database.failure is not None
    flip(damaged, 4 * WIDTH * 3)
    with opened_store(tmp_path) as opened:
        assert files(opened) == ["000001.f32"]
        assert stored(opened.store) == expected(range(1, 6))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[tuple[Opened, Faults]]:
    faults = Faults(tmp_path / "disk")
    vfs = FaultyVfs("compaction-disk", faults)
    try:
        with opened_store(tmp_path / "disk", vfs="compaction-disk", files=FaultyFiles(faults)) as opened:
            yield opened, faults
            faults.space = None
    finally:
        vfs.unregister()


def test_on_a_full_disk_nothing_moves_and_with_room_it_is_done(disk: tuple[Opened, Faults]) -> None:
    opened, faults = disk
    fill(opened, range(40), width=1024)
    remove(opened, range(20))
    faults.space = 10_000
    with pytest.raises(StorageFull):
        opened.store.compact(lambda _: None)
    assert stored(opened.store) == expected(range(20, 40), 1024)
    assert files(opened) == ["000001.f32"]
    assert nearest(opened, 30, 1024)[1] == 0
    faults.space = None
    assert opened.store.compact(lambda _: None).rows == 20
    assert stored(opened.store) == expected(range(20, 40), 1024)
    assert files(opened) != ["000001.f32"]


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_the_power_may_go_at_any_point_of_a_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int | None
) -> None:
    monkeypatch.setattr(compaction, "MOVE_ROWS", 5)
    with opened_store(tmp_path / "whole") as whole:
        fill(whole, range(12))
        remove(whole, range(0, 12, 3))
    kept = expected([number for number in range(12) if number % 3])
    outcomes = set()
    for operations in range(2 + (seed or 0), 1_000, 9):
        root, copy = tmp_path / f"{operations}", tmp_path / f"{operations}-copy"
        shutil.copytree(tmp_path / "whole", root)
        faults = Faults(root)
        vfs = FaultyVfs("compaction-power", faults)
        disk = Disk(DataDirectory.open(root), vfs="compaction-power", files=FaultyFiles(faults))
        faults.cut_power(operations)
        try:
            run(disk)
        except StoreFailed:
            assert not faults.powered
        disk.close()
        vfs.unregister()
        if faults.powered:
            break
        shutil.copytree(root, copy, ignore=shutil.ignore_patterns("thread.db*", "*.f32"))
        faults.survivors(copy, seed)
        disk = Disk(DataDirectory.open(copy))
        assert stored(disk) == kept
        present = sorted(path.name for path in disk.directory.vectors.iterdir())
        outcomes.add((*present,))
        run(disk)
        assert stored(disk) == kept
        disk.close()
    assert {("000001.f32",), ("000001.f32", "000002.f32"), ("000002.f32",)} <= outcomes


# ---------------------------------------------------------------------------------------------------- the database


def test_copies_that_sqlite_leaves_in_its_pages_go_with_the_rebuilding(opened: Opened) -> None:
    rng = random.Random(2)
    live, gone = list[tuple[int, str]](), list[str]()

    def work(connection: apsw.Connection, changes: Changes) -> None:
        for _ in range(200):
            word = "".join(rng.choices("bcdfghjkmnpq", k=20))
            connection.execute(
                "INSERT INTO partitions (content_key, ordinal, text, brought) VALUES (1, ?, ?, 0)",
                (10 + len(live) + len(gone), word * rng.choice((1, 5, 40, 400))),
            )
            live.append((connection.last_insert_rowid(), word))
        for at in sorted(rng.sample(range(len(live)), 120), reverse=True):
            key, word = live.pop(at)
            gone.append(word)
            connection.execute("DELETE FROM partitions WHERE partition_key = ?", (key,))

    def move_log(connection: apsw.Connection) -> None:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    fill(opened, range(1))
    for _ in range(9):
        opened.write(work)
    opened.store.database.maintain(move_log).result(10)
    data = on_disk(opened.store.path)
    if not any(word.encode() in data for word in gone):
        pytest.skip("this SQLite leaves no copies in its pages here")
    opened.store.compact(lambda _: None)
    data = on_disk(opened.store.path)
    assert not any(word.encode() in data for word in gone)
    assert all(word.encode() in data for _, word in live)


def test_without_room_the_database_is_left_as_it_is_and_that_is_said(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(opened, range(5))
    remove(opened, [0])
    monkeypatch.setattr(rebuild.shutil, "disk_usage", lambda _: SimpleNamespace(free=5_000_000))
    monkeypatch.setattr(rebuild, "COPIES", 1_000)
    done = opened.store.compact(lambda _: None)
    assert done.rows == 1
    assert "was not rebuilt" in done.left
    assert "5 MB are free" in done.left
    monkeypatch.undo()
    assert opened.store.compact(lambda _: None).left == ""


def test_a_log_that_somebody_reads_is_not_emptied_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "BUSY_MILLISECONDS", 1)
    with opened_store(tmp_path) as opened:
        fill(opened, range(5))
        with opened.store.read() as connection:
            connection.execute("SELECT count(*) FROM documents").fetchall()
            done: list[Compacted] = []
            other = threading.Thread(target=lambda: done.append(opened.store.compact(lambda _: None)))
            other.start()
            other.join(20)
        assert "is being read" in done[0].left
        assert opened.store.compact(lambda _: None).left == ""
        assert opened.store.directory.database.with_name("thread.db-wal").stat().st_size == 0


def test_the_copy_of_the_database_is_made_in_the_nodes_own_directory(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []
    original = rebuild._temporary_files_in

    def spy(connection, directory):
        used.append(str(directory))
        return original(connection, directory)

    monkeypatch.setattr(rebuild, "_temporary_files_in", spy)
    opened.store.compact(lambda _: None)
    assert used == [str(opened.store.path)]

    def settings(connection):
        return connection.pragma("temp_store_directory"), connection.pragma("temp_store")

    assert opened.store.database.maintain(settings).result(10) == (None, 2)


# ---------------------------------------------------------------------------------------------------- without a node


def test_a_directory_without_a_node_is_compacted_without_its_memory(tmp_path: Path) -> None:
    with opened_store(tmp_path) as opened:
        fill(opened, range(10))
        with opened.store.read() as connection:
            everything = snapshot(connection)
        rows = by_table(everything)["model", WIDTH]
        node_id = opened.store.node_id
        remove(opened, [0])
    directory = DataDirectory.open(tmp_path, node_id)
    cache = CodeCache(directory.cache)
    disk = Disk(directory)
    for last, kept in ((10, False), (10, True)):
        live = slice(0 if not kept else 1, last)
        some = rows[live]
        codes = CachedCodes("model", WIDTH, some.vector_keys, some.crcs.astype(np.uint32), b"codes")
        cache.write(everything, [codes])
        done = run(disk)
        assert (done.rows, done.segments) == ((0, 0) if kept else (1, 1))
        assert bool([*directory.cache.iterdir()]) is kept
    disk.close()
    with opened_store(tmp_path) as opened:
        assert stored(opened.store) == expected(range(1, 10))
    shutil.rmtree(tmp_path)


def test_free_pages_for_which_there_is_no_room_are_left_alone_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks = threading.Semaphore(0)
    original = compactor.Compactor._look

    def look(self: compactor.Compactor) -> None:
        original(self)
        looks.release()

    monkeypatch.setattr(compactor.Compactor, "_look", look)
    monkeypatch.setattr(compactor, "REST_SECONDS", 0.0)
    monkeypatch.setattr(compaction, "FREE_PAGES", 0)
    monkeypatch.setattr(rebuild.shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000))
    with caplog.at_level(logging.WARNING, "thread_service"), opened_store(tmp_path) as opened:
        rows = np.random.default_rng(0).standard_normal((200, 1024), dtype=np.float32)
        key = opened.write(lambda c, _: contents.create(c, b"x", "text", [f"text {n}" for n in range(200)], [*rows]))
        opened.write(lambda c, changes: contents.mark_ready(c, key, changes))
        [free] = opened.column("SELECT freelist_count FROM pragma_freelist_count")
        assert free > 200
        while "free" not in caplog.text:
            assert looks.acquire(timeout=10)
        for number in range(3):  # every write finds the pages free, and has it look
            opened.write(lambda c, _, n=number: contents.create(c, bytes([n]), "text", ["more"], [None]))
            assert looks.acquire(timeout=10)
        assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1
