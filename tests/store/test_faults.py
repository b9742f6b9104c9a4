"""A failing disk under the database and the segments: nothing acknowledged is lost, nothing is half done."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import apsw
import numpy as np
import pytest
from faults import Faults, FaultyFiles, FaultyVfs

from thread_service.errors import StorageFull, StoreFailed, ThreadError
from thread_service.store import database as database_module
from thread_service.store import segments as segments_module
from thread_service.store.connections import is_fatal, is_full
from thread_service.store.database import Database
from thread_service.store.files import OsFile, OsFiles
from thread_service.store.segments import Location, Segments, SegmentState

SCHEMA = """
CREATE TABLE note (id INTEGER PRIMARY KEY, text TEXT NOT NULL, segment INTEGER, slot INTEGER, crc INTEGER);
CREATE TABLE segment (number INTEGER PRIMARY KEY, width INTEGER NOT NULL, slots INTEGER NOT NULL);
"""
WIDTH = 16
SEEDS = int(os.environ.get("POWER_LOSS_SEEDS", "30"))


class Disk:
    """A database and segments on a faulty disk."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.vectors = root / "vectors"
        self.vectors.mkdir()
        self.faults = Faults(root)
        self.vfs = FaultyVfs("faulty", self.faults)
        self.failures: list[StoreFailed] = []
        self.database = Database(root / "thread.db", schema=SCHEMA, vfs="faulty", on_failure=self.failures.append)
        self.segments = Segments(self.vectors, FaultyFiles(self.faults), segment_bytes=40 * WIDTH * 4)
        self.segments.open({})

    def close(self) -> None:
        self.faults.space = None
        self.segments.close()
        self.database.close()
        self.vfs.unregister()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    (tmp_path / "disk").mkdir()
    disk = Disk(tmp_path / "disk")
    yield disk
    disk.close()


def insert(text: str, location: Location | None = None, states: dict[int, SegmentState] | None = None):
    def work(connection: apsw.Connection) -> str:
        place = (location.segment, location.slot, location.crc) if location else (None, None, None)
        connection.execute("INSERT INTO note(text, segment, slot, crc) VALUES (?, ?, ?, ?)", (text, *place))
        for number, state in (states or {}).items():
            connection.execute("REPLACE INTO segment VALUES (?, ?, ?)", (number, state.width, state.slots))
        return text

    return work


def notes(database: Database) -> list[str]:
    with database.read() as connection:
        return [text for (text,) in connection.execute("SELECT text FROM note ORDER BY id")]


def vector(i: int) -> np.ndarray:
    return np.full((1, WIDTH), i, np.float32)


# ---------------------------------------------------------------------------------------------------- no space


def test_a_full_disk_fails_the_whole_commit_and_writing_resumes_when_there_is_room(disk: Disk) -> None:
    database = disk.database
    database.write(insert("before")).result(10)
    for space in (0, 0, 6_000):
        disk.faults.space = space
        with pytest.raises(StorageFull):
            database.write(insert("x" * 50_000)).result(10)
        assert notes(database) == ["before"]
    disk.faults.space = None
    assert database.write(insert("after")).result(10) == "after"
    assert notes(database) == ["before", "after"]
    assert database.failure is None
    with database.read() as connection:
        assert connection.pragma("integrity_check") == "ok"


def test_a_disk_that_fills_inside_a_write_takes_its_neighbours_back_too(disk: Disk) -> None:
    def spill(connection: apsw.Connection) -> None:
        connection.execute("INSERT INTO note(text) VALUES (?)", ("y" * 50_000,))
        with pytest.raises(apsw.FullError) as caught:
            connection.cache_flush()
        raise caught.value

    def queue(connection: apsw.Connection) -> None:
        # From the writer thread, so that the three go into the next commit together.
        futures.extend(disk.database.write(work) for work in (insert("a"), spill, insert("b")))
        disk.faults.fail("write", "-wal")

    futures: list[Future[object]] = []
    disk.database.write(queue).result(10)
    for future in futures:
        with pytest.raises(StorageFull):
            future.result(10)
    assert notes(disk.database) == []
    disk.database.write(insert("c")).result(10)
    assert notes(disk.database) == ["c"]


def test_a_full_disk_under_the_segments_shows_before_anything_is_promised(disk: Disk) -> None:
    segments = disk.segments
    kept = segments.append(vector(1))
    segments.sync()
    committed = segments.states()
    files = sorted(path.name for path in disk.vectors.iterdir())
    disk.faults.space = 100
    with pytest.raises(StorageFull):
        segments.append(np.ones((50, WIDTH), np.float32))  # fills the open segment and needs a second
    assert segments.states() == committed
    assert disk.faults.space == 100
    assert sorted(path.name for path in disk.vectors.iterdir()) == files
    disk.faults.space = None
    more = segments.append(vector(2))
    segments.sync()
    assert np.array_equal(segments.read_checked(kept + more)[:, 0], [1, 2])


def test_reserved_space_is_written_and_synced_on_a_full_disk(disk: Disk) -> None:
    disk.segments.append(vector(1))
    disk.faults.space = 0
    locations = disk.segments.append(vector(2))
    disk.segments.sync()
    assert disk.segments.read_checked(locations)[0, 0] == 2


def test_a_checkpoint_without_room_is_put_off(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "CHECKPOINT_PAGES", 1)
    disk.faults.fail("write", ".db")
    disk.database.write(insert("a")).result(10)
    disk.database.write(insert("b")).result(10)
    disk.database.maintain(lambda connection: None).result(10)
    assert disk.database.failure is None
    assert disk.faults.syncs[".db"] > 0
    assert notes(disk.database) == ["a", "b"]


# ---------------------------------------------------------------------------------------------------- failed syncs


def test_a_failed_fsync_stops_the_store_for_good_and_reads_go_on(disk: Disk) -> None:
    database = disk.database
    database.write(insert("kept")).result(10)
    disk.faults.fail("sync", "-wal")
    with pytest.raises(StoreFailed):
        database.write(insert("lost")).result(10)
    assert len(disk.failures) == 1
    synced = disk.faults.syncs["-wal"]
    for _ in range(2):
        with pytest.raises(StoreFailed, match="stopped writing"):
            database.write(insert("later"))
    assert disk.faults.syncs["-wal"] == synced
    assert len(disk.failures) == 1
    assert notes(database) == ["kept"]
    database.close()
    assert disk.faults.syncs["-wal"] == synced


def test_a_failed_fsync_of_a_checkpoint_stops_the_store(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "CHECKPOINT_PAGES", 1)
    disk.faults.fail("sync", ".db")
    assert disk.database.write(insert("kept")).result(10) == "kept"
    with pytest.raises(StoreFailed):
        disk.database.write(insert("later")).result(10)
    assert len(disk.failures) == 1
    assert notes(disk.database) == ["kept"]


def test_a_failed_fsync_of_a_segment_is_never_retried(disk: Disk) -> None:
    kept = disk.segments.append(vector(1))
    disk.segments.sync()
    disk.segments.append(vector(2))
    disk.faults.fail("sync", ".f32")
    with pytest.raises(StoreFailed, match="fsync failed"):
        disk.segments.sync()
    synced = disk.faults.syncs[".f32"]
    with pytest.raises(StoreFailed):
        disk.segments.sync()
    with pytest.raises(StoreFailed):
        disk.segments.append(vector(3))
    assert disk.faults.syncs[".f32"] == synced
    assert disk.segments.read_checked(kept)[0, 0] == 1
    disk.database.fail(StoreFailed("the segments have failed"))
    with pytest.raises(StoreFailed, match="the segments have failed"):
        disk.database.write(insert("later"))


def test_shared_memory_without_room_is_a_full_disk_and_other_io_errors_are_fatal() -> None:
    def io_error(code: int) -> apsw.IOError:
        error = apsw.IOError("disk I/O error")
        error.extendedresult = code
        return error

    assert is_full(io_error(apsw.SQLITE_IOERR_SHMSIZE))
    assert not is_fatal(io_error(apsw.SQLITE_IOERR_SHMSIZE))
    assert is_fatal(io_error(apsw.SQLITE_IOERR_READ))
    assert not is_full(io_error(apsw.SQLITE_IOERR_READ))
    assert not is_fatal(apsw.ConstraintError())


# ---------------------------------------------------------------------------------------------------- damage


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A database of which every page but the first is damaged."""
    path = tmp_path / "thread.db"
    database = Database(path, schema=SCHEMA)
    for i in range(50):
        database.write(insert(f"{i}" * 500)).result(10)
    database.close()
    with path.open("r+b") as file:
        size = file.seek(0, 2)
        for page in range(4096, size, 4096):
            file.seek(page)
            file.write(b"\xff" * 100)
    return path


def test_a_damaged_page_that_is_read_is_named_and_stops_writes(damaged: Path) -> None:
    failures: list[StoreFailed] = []
    database = Database(damaged, schema=SCHEMA, on_failure=failures.append)
    with pytest.raises(StoreFailed, match="thread verify"):
        notes(database)
    assert database.failure is not None
    assert failures == [database.failure]
    with pytest.raises(StoreFailed, match=r"has stopped writing: .*thread verify"):
        database.write(lambda connection: None)
    database.close()


def test_a_damaged_page_that_is_written_to_stops_writes(damaged: Path) -> None:
    database = Database(damaged, schema=SCHEMA)
    with pytest.raises(StoreFailed):
        database.write(insert("more")).result(10)
    assert database.failure is not None
    database.close()


# ---------------------------------------------------------------------------------------------------- power loss


def test_a_torn_frame_at_the_end_of_the_log_is_ignored(disk: Disk, tmp_path: Path) -> None:
    disk.database.write(insert("first")).result(10)
    disk.database.write(insert("second")).result(10)
    disk.faults.survivors(tmp_path / "copy")
    log = tmp_path / "copy" / "thread.db-wal"
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - 1_000)
    database = Database(tmp_path / "copy" / "thread.db", schema=SCHEMA)
    assert notes(database) == ["first"]
    database.write(insert("third")).result(10)
    assert notes(database) == ["first", "third"]
    database.close()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_power_loss_keeps_every_acknowledged_write(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors, then their rows, several in a commit, with checkpoints and new segments in between; the power goes at
    some operation; what a disk may then hold opens again with all that was acknowledged and nothing half done."""
    monkeypatch.setattr(database_module, "CHECKPOINT_PAGES", 6)
    monkeypatch.setattr(database_module, "TRUNCATE_PAGES", 12)
    monkeypatch.setattr(segments_module, "FIRST_EXTENT", 1_024)
    rng = random.Random(seed)
    (tmp_path / "disk").mkdir()
    disk = Disk(tmp_path / "disk")
    disk.faults.cut_power(rng.randint(1, 500))
    acknowledged: list[str] = []
    asked: list[str] = []
    try:
        while True:
            waiting: list[Future[str]] = []
            for _ in range(rng.randint(1, 4)):
                text = f"{len(asked)} " + "z" * rng.choice((10, 6_000))
                (location,) = disk.segments.append(vector(len(asked)))
                disk.segments.sync()
                asked.append(text)
                waiting.append(disk.database.write(insert(text, location, disk.segments.states())))
            acknowledged += [future.result(10) for future in waiting]
    except ThreadError as error:
        assert isinstance(error, StoreFailed)  # noqa: PT017
        answered = [future.result() for future in waiting if future.done() and future.exception() is None]
        acknowledged += [text for text in answered if text not in acknowledged]
        disk.database.fail(error)
    disk.close()

    disk.faults.survivors(tmp_path / "copy", None if seed == 0 else seed)
    (tmp_path / "copy" / "vectors").mkdir(parents=True, exist_ok=True)
    database = Database(tmp_path / "copy" / "thread.db", schema=SCHEMA)
    stored = notes(database)
    assert stored[: len(acknowledged)] == acknowledged
    assert stored == asked[: len(stored)]
    with database.read() as connection:
        assert connection.pragma("integrity_check") == "ok"
        states = {n: SegmentState(w, s) for n, w, s in connection.execute("SELECT * FROM segment")}
        places = [Location(*row) for row in connection.execute("SELECT segment, slot, crc FROM note ORDER BY id")]
    segments = Segments(tmp_path / "copy" / "vectors", OsFiles())
    segments.open(states)
    assert sum(state.slots for state in segments.states().values()) == len(stored)
    if places:
        assert np.array_equal(segments.read_checked(places)[:, 0], np.arange(len(stored)))
    segments.close()
    database.close()


def test_without_fallocate_zeros_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*arguments: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("os.posix_fallocate", unsupported)
    file: OsFile = OsFiles().create(tmp_path / "file")
    file.write(memoryview(b"kept"), 0)
    file.allocate(4, 200_000)
    assert file.read(300_000, 0) == b"kept" + bytes(200_000)
    file.close()
