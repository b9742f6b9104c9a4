"""What a restart takes from the cache of codes and what it reads anew: the answers are the same either way."""

from __future__ import annotations

import errno
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from coding_engine import CodingEngine, CodingTable
from numpy.typing import NDArray
from opened_store import Opened, opened_store
from pyroaring import BitMap

from thread_kernels import create_engine
from thread_service.errors import StoreFailed
from thread_service.store import code_cache, scrub
from thread_service.store.changes import MovedVectors
from thread_service.store.code_cache import CachedCodes
from thread_service.store.code_keeper import CodeKeeper
from thread_service.store.scrub import Scrub

WIDTH = 16
TIMEOUT = 20


@pytest.fixture(autouse=True)
def scrub_begins_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "FIRST_REST_SECONDS", 0)


def vectors(count: int, seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((count, WIDTH), np.float32)


def file(opened: Opened, number: int, count: int = 3) -> None:
    """Document `number` of owner ann (even) or ben, with `count` partitions and vectors of its own."""
    texts = [f"{number} {ordinal}" for ordinal in range(count)]
    opened.file(("ann", "ben")[number % 2], f"d{number}", *texts, rows=vectors(count, number))


def answers(opened: Opened) -> list[list[tuple[int, float]]]:
    """What each owner finds: partitions and distances, nearest first."""
    table = opened.store.resident.table("model", WIDTH)
    assert table is not None
    owners = [f"o{key}" for key in opened.column("SELECT owner_key FROM owners ORDER BY owner_id")]
    hits = [table.table.search(vectors(1, 99), 1_000, [table.filter([token])])[0] for token in owners]
    return [[*zip(table.subjects_of(each.rows).tolist(), each.distances.tolist(), strict=True)] for each in hits]


@contextmanager
def restarted(path: Path) -> Iterator[tuple[Opened, CodingEngine]]:
    engine = CodingEngine()
    with opened_store(path, engine) as opened:
        yield opened, engine


@contextmanager
def crashing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The store closes without writing the cache."""
    with monkeypatch.context() as patched:
        patched.setattr(CodeKeeper, "renew", lambda keeper: None)
        yield


def cache_of(path: Path) -> Path:
    [found] = path.glob("nodes/*/cache/codes-??????")
    return found


def test_a_restart_reads_no_vector_whose_code_is_in_the_cache(tmp_path: Path) -> None:
    with restarted(tmp_path) as (opened, engine):
        for number in range(4):
            file(opened, number)
        before = answers(opened)
        assert [len(found) for found in before] == [6, 6]
        assert engine.appended == 12
    first = cache_of(tmp_path)
    with restarted(tmp_path) as (opened, engine):
        assert (answers(opened), engine.appended) == (before, 0)
    assert cache_of(tmp_path) == first  # nothing had changed
    with restarted(tmp_path) as (opened, engine):
        file(opened, 4)
        assert [len(found) for found in answers(opened)] == [9, 6]


def test_what_was_filed_and_removed_after_the_cache_is_right_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with restarted(tmp_path) as (opened, _):
        for number in range(4):
            file(opened, number)
    with crashing(monkeypatch), restarted(tmp_path) as (opened, _):
        opened.remove("ann", "d0")
        opened.remove("ben", "d3")
        file(opened, 5, count=4)
        before = answers(opened)
        assert [len(found) for found in before] == [3, 7]
    with restarted(tmp_path) as (opened, engine):
        assert (answers(opened), engine.appended) == (before, 4)
        table = opened.store.resident.table("model", WIDTH)
        assert table is not None
        assert table.table.live_count == 10
    with restarted(tmp_path) as (opened, engine):
        assert (answers(opened), engine.appended) == (before, 0)  # the cache was renewed
        table = opened.store.resident.table("model", WIDTH)
        assert table is not None
        assert table.table.row_count == 10


@pytest.mark.parametrize("damage", ["flipped", "codes", "unexpected", "foreign", "gone"])
def test_a_cache_that_cannot_be_used_is_made_anew(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with restarted(tmp_path / "here") as (opened, _):
        for number in range(4):
            file(opened, number)
        before = answers(opened)
    with restarted(tmp_path / "there") as (opened, _):
        for number in range(10, 14):
            file(opened, number)
    cache = cache_of(tmp_path / "here")
    [codes] = cache.glob("*.codes")
    if damage == "flipped":
        data = bytearray(codes.read_bytes())
        data[-1] ^= 4
        codes.write_bytes(data)
    elif damage == "codes":  # whole as a file, but of another engine
        kept = code_cache.CodeCache(cache.parent)
        kept.open()
        known = kept.read("model", WIDTH)
        assert known is not None
        other = CachedCodes("model", WIDTH, known.vector_keys, known.crcs, b"another engine's")
        kept.write(np.empty((5, 0), np.int64), [other])
    elif damage == "unexpected":

        def restore(table: CodingTable, data: bytes, count: int) -> range:
            monkeypatch.undo()
            raise TypeError("a header of another version")

        monkeypatch.setattr(CodingTable, "restore", restore)
    elif damage == "foreign":
        shutil.rmtree(cache)
        shutil.copytree(cache_of(tmp_path / "there"), cache)
    else:
        shutil.rmtree(cache.parent)
    with restarted(tmp_path / "here") as (opened, engine):
        assert (answers(opened), engine.appended) == (before, 12)
    assert damage == "gone" or "anew" in caplog.text
    with restarted(tmp_path / "here") as (opened, engine):
        assert (answers(opened), engine.appended) == (before, 0)


def test_moved_rows_are_found_where_they_are_now(tmp_path: Path) -> None:
    with restarted(tmp_path) as (opened, _):
        for number in range(4):
            file(opened, number)
        before = answers(opened)
        store = opened.store
        with store.appending() as segments:
            old = opened.rows("SELECT vector_key, subject_key, segment, slot FROM vectors ORDER BY vector_key DESC")
            segments.seal(1)
            rows = segments.read(1, np.array([slot for *_, slot in old]))
            copies = segments.append(rows)
            segments.sync()

            def move(connection, changes) -> None:
                connection.execute("INSERT INTO segments VALUES (?, ?, ?)", (copies[0].segment, WIDTH, len(copies)))
                for (key, *_), copy in zip(old, copies, strict=True):
                    statement = "UPDATE vectors SET segment = ?, slot = ? WHERE vector_key = ?"
                    connection.execute(statement, (copy.segment, copy.slot, key))
                connection.execute("DELETE FROM segments WHERE segment = 1")
                subjects = [subject for _, subject, *_ in old]
                changes.moved.append(MovedVectors("model", WIDTH, [*subjects, 10**6], [*copies, copies[0]]))
                changes.moved.append(MovedVectors("caller", WIDTH, subjects, copies))  # there is no such table

            opened.write(move)
            segments.remove(1)
        assert answers(opened) == before
    with restarted(tmp_path) as (opened, engine):
        assert (answers(opened), engine.appended) == (before, 0)


def test_the_cache_is_written_while_serving_when_a_quarter_more_is_coded_or_trained_anew(tmp_path: Path) -> None:
    def sequence() -> int:
        found = sorted(tmp_path.glob("nodes/*/cache/codes-??????"))
        return int(found[-1].name[-6:]) if found else 0

    with restarted(tmp_path) as (opened, engine):
        keeper = opened.store._keeper
        written: list[int] = []

        def look() -> None:
            keeper.look()
            written.append(sequence())

        look()  # nothing is coded
        file(opened, 0, count=8)
        look()
        file(opened, 1, count=1)
        look()
        file(opened, 2, count=1)
        look()  # ten of eight
        engine.trainings += 1
        look()
        opened.store.clear(lambda connection: None)
        look()
        file(opened, 3)
        look()
    assert written == [0, 1, 1, 2, 3, 0, 1]


def test_as_many_rows_filed_as_were_removed_leave_no_code_of_those_in_the_cache(tmp_path: Path) -> None:
    def coded(opened: Opened) -> None:
        table = opened.store.resident.table("model", WIDTH)
        assert table is not None
        table.table.compression.wait(TIMEOUT)
        opened.store.compact(lambda *_: None)

    with opened_store(tmp_path, create_engine("cpu", compress="always")) as opened:
        for number in range(4):
            file(opened, number, count=64)
        coded(opened)
        opened.remove("ann", "d0")
        file(opened, 4, count=64)
        coded(opened)
        cached = opened.store._cache.read("model", WIDTH)
        left = opened.column("SELECT vector_key FROM vectors ORDER BY vector_key")
    assert cached is not None
    assert cached.vector_keys.tolist() == left == [*range(65, 321)]


def test_a_full_disk_costs_the_cache_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with restarted(tmp_path) as (opened, _):
        file(opened, 0)
        with monkeypatch.context() as patched:
            patched.setattr(code_cache, "_write_file", lambda path, parts: fail())
            opened.store._keeper.look()
            opened.store._keeper.look()
        file(opened, 1)
        before = answers(opened)
    [told] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "No space" in told.getMessage()
    with restarted(tmp_path) as (opened, engine):
        assert (answers(opened), engine.appended) == (before, 0)


def fail() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def flip_vector(path: Path, slot: int) -> None:
    [segment] = path.glob("nodes/*/vectors/*.f32")
    data = bytearray(segment.read_bytes())
    data[slot * WIDTH * 4 + 5] ^= 1
    segment.write_bytes(data)


def test_damage_that_the_start_did_not_meet_is_met_by_the_scrub(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with restarted(tmp_path) as (opened, _):
        for number in range(4):
            file(opened, number)
    flip_vector(tmp_path, 7)
    with restarted(tmp_path) as (opened, engine):
        assert engine.appended == 0
        store = opened.store
        store._scrub._thread.join(TIMEOUT)
        assert "row 7 of segment 1 is damaged" in str(store.database.failure)
        assert "thread restore" in str(store.database.failure)
        with pytest.raises(StoreFailed, match="row 7 of segment 1"):
            file(opened, 4)
        assert answers(opened)  # reading goes on
    assert "row 7 of segment 1 is damaged" in caplog.text
    shutil.rmtree(cache_of(tmp_path))
    with pytest.raises(StoreFailed, match="row 7 of segment 1"), restarted(tmp_path):
        pass


def test_the_scrub_checks_what_was_not_read_and_looks_up_again_what_has_moved(tmp_path: Path) -> None:
    with restarted(tmp_path) as (opened, _):
        for number in range(4):
            file(opened, number)
        store = opened.store
        keys = opened.column("SELECT vector_key FROM vectors")
        read: list[int] = []
        actual = store.segments.read_checked

        def read_checked(locations):
            if not read:
                read.append(-1)
                raise KeyError(1)  # removed since it was looked up
            read.extend(location.slot for location in locations)
            return actual(locations)

        store.segments.read_checked = read_checked  # type: ignore[method-assign]
        checking = Scrub(
            store.read,
            store.segments,
            checked=BitMap(keys[:5]),
            last_vector_key=keys[-2],
            on_damage=store.database.fail,
        )
        checking.start()
        checking._thread.join(TIMEOUT)
        checking.close()
        assert read == [-1, *range(5, 11)]
        assert store.database.failure is None


def test_the_engine_takes_up_its_own_codes(tmp_path: Path) -> None:
    engine = create_engine("cpu", compress="always")
    with opened_store(tmp_path, engine) as opened:
        for number in range(8):
            file(opened, number, count=100)
        table = opened.store.resident.table("model", WIDTH)
        assert table is not None
        table.table.compression.wait(TIMEOUT)
        before = answers(opened)
        opened.remove("ann", "d0")
    with opened_store(tmp_path, engine) as opened:
        table = opened.store.resident.table("model", WIDTH)
        assert table is not None
        stats = table.table.stats()
        assert stats.coded_rows > 0
        assert stats.vector_bytes < 4 * WIDTH * 800
        gone = {*range(1, 101)}
        assert answers(opened) == [[each for each in found if each[0] not in gone] for found in before]


def test_codes_that_are_newer_than_the_database_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with restarted(tmp_path / "here") as (opened, _):
        file(opened, 0)
    shutil.copytree(tmp_path / "here", tmp_path / "older")
    with restarted(tmp_path / "here") as (opened, _):
        for number in range(1, 4):
            file(opened, number)
    # The older database goes on by itself and gives the same keys to other vectors.
    with crashing(monkeypatch), restarted(tmp_path / "older") as (opened, _):
        file(opened, 5)
        before = answers(opened)
    newer, older = cache_of(tmp_path / "here"), cache_of(tmp_path / "older")
    shutil.rmtree(older)
    shutil.copytree(newer, older)
    with restarted(tmp_path / "older") as (opened, engine):
        assert (answers(opened), engine.appended) == (before, 3)
    with restarted(tmp_path / "older") as (opened, engine):
        assert (answers(opened), engine.appended) == (before, 0)


def test_a_stop_gives_back_what_the_segments_have_ahead_and_filing_goes_on_after_it(tmp_path: Path) -> None:
    with opened_store(tmp_path) as opened:
        file(opened, 0)
        [segment] = opened.store.path.glob("vectors/*.f32")
        assert segment.stat().st_size > 3 * WIDTH * 4
    assert segment.stat().st_size == 3 * WIDTH * 4
    with opened_store(tmp_path) as opened:
        file(opened, 1)
        assert [len(found) for found in answers(opened)] == [3, 3]
    assert segment.stat().st_size == 6 * WIDTH * 4
