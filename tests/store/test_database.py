"""The journal: group commit, isolation of failing writes, order of publication, migrations, readers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import apsw
import pytest

from thread_service.errors import Busy, StoreFailed
from thread_service.store import database as module
from thread_service.store.database import Database
from thread_service.store.migrations import APPLICATION_ID, migrate

SCHEMA = """
CREATE TABLE note (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
CREATE TABLE tag (note INTEGER NOT NULL REFERENCES note(id) DEFERRABLE INITIALLY DEFERRED);
"""


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "thread.db", schema=SCHEMA)
    yield database
    database.close()


def insert(text: str):
    return lambda connection: connection.execute("INSERT INTO note(text) VALUES (?)", (text,)).connection.changes()


def notes(database: Database) -> list[str]:
    with database.read() as connection:
        return [text for (text,) in connection.execute("SELECT text FROM note ORDER BY id")]


class Gate:
    """Holds the writer thread in a write, so that others pile up behind it."""

    def __init__(self, database: Database) -> None:
        self._open = threading.Event()
        entered = threading.Event()

        def work(connection: apsw.Connection) -> None:
            entered.set()
            self._open.wait(10)

        self.future = database.write(work)
        assert entered.wait(10)

    def release(self) -> None:
        self._open.set()
        self.future.result(10)


def commits(database: Database) -> list[int]:
    """Grows by one for every commit from now on."""
    seen: list[int] = []
    database.maintain(lambda connection: connection.set_commit_hook(lambda: bool(seen.append(1)))).result(10)
    return seen


def test_everything_that_waits_goes_into_one_commit(database: Database) -> None:
    seen = commits(database)
    gate = Gate(database)
    futures = [database.write(insert(f"note {i}")) for i in range(module.WORKS_PER_COMMIT + 44)]
    gate.release()
    assert [future.result(10) for future in futures] == [1] * len(futures)
    assert notes(database) == [f"note {i}" for i in range(len(futures))]
    assert len(seen) == 3  # the gate alone, then 256, then 44


def test_a_failing_write_is_rolled_back_alone(database: Database) -> None:
    def half(connection: apsw.Connection) -> None:
        connection.execute("INSERT INTO note(text) VALUES ('half')")
        raise LookupError("changed my mind")

    gate = Gate(database)
    futures: list[Future[object]] = [
        database.write(insert("one")),
        database.write(half),
        database.write(insert("one")),
        database.write(lambda connection: connection.execute("INSERT INTO tag VALUES (404)") and None),
        database.write(insert("two")),
    ]
    gate.release()
    assert futures[0].result(10) == 1
    with pytest.raises(LookupError, match="changed my mind"):
        futures[1].result(10)
    with pytest.raises(apsw.ConstraintError, match="UNIQUE"):
        futures[2].result(10)
    with pytest.raises(apsw.ConstraintError, match="FOREIGN KEY"):
        futures[3].result(10)
    assert futures[4].result(10) == 1
    assert notes(database) == ["one", "two"]


@pytest.mark.parametrize("is_large", [False, True])
def test_a_large_write_begins_a_transaction_that_others_join(database: Database, is_large: bool) -> None:
    counted = commits(database)
    gate = Gate(database)

    def fail(connection: apsw.Connection) -> None:
        insert("lost")(connection)
        raise ValueError("no")

    before = database.write(insert("before"))
    failing = database.write(fail, is_large=is_large)
    after = database.write(insert("after"))
    gate.release()
    with pytest.raises(ValueError, match="no"):
        failing.result(10)
    assert [before.result(10), after.result(10)] == [1, 1]
    assert notes(database) == ["before", "after"]
    assert len(counted) == 1 + (2 if is_large else 1)  # the gate alone, too


def test_results_are_published_in_order_after_the_commit_and_before_the_answer(database: Database) -> None:
    published: list[tuple[str, bool, bool]] = []
    futures: dict[str, Future[str]] = {}

    def publish(text: str) -> None:
        # A reader of another connection sees the row already, and nobody has been answered.
        published.append((text, text in notes(database), futures[text].done()))

    def work(text: str):
        return lambda connection: connection.execute("INSERT INTO note(text) VALUES (?)", (text,)) and text

    gate = Gate(database)
    for text in ("a", "b", "c"):
        futures[text] = database.write(work(text), publish)
    gate.release()
    assert futures["c"].result(10) == "c"
    assert published == [("a", True, False), ("b", True, False), ("c", True, False)]


def test_a_full_queue_takes_nothing(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUEUE_LIMIT", 2)
    gate = Gate(database)
    taken = [database.write(insert("a")), database.write(insert("b"))]
    with pytest.raises(Busy):
        database.write(insert("c"))
    gate.release()
    assert [future.result(10) for future in taken] == [1, 1]
    assert notes(database) == ["a", "b"]


def test_a_write_cancelled_before_its_turn_is_not_done(database: Database) -> None:
    gate = Gate(database)
    cancelled = database.write(insert("no"))
    assert cancelled.cancel()
    kept = database.write(insert("yes"))
    gate.release()
    assert kept.result(10) == 1
    assert notes(database) == ["yes"]


def test_a_failing_publication_stops_the_store(tmp_path: Path) -> None:
    failures: list[StoreFailed] = []
    database = Database(tmp_path / "thread.db", schema=SCHEMA, on_failure=failures.append)
    gate = Gate(database)

    def publish(result: int) -> None:
        raise RuntimeError("index out of step")

    first = database.write(insert("first"))
    second = database.write(insert("second"), publish)
    third = database.write(insert("third"), publish)
    gate.release()
    assert first.result(10) == 1
    for future in (second, third):
        with pytest.raises(StoreFailed):
            future.result(10)
    with pytest.raises(StoreFailed):
        database.write(insert("fourth"))
    assert len(failures) == 1
    assert database.failure is failures[0]
    assert notes(database) == ["first", "second", "third"]
    database.close()


def test_a_write_that_ends_the_transaction_stops_the_store(database: Database) -> None:
    with pytest.raises(StoreFailed, match="ended the transaction"):
        database.write(lambda connection: connection.execute("COMMIT") and None).result(10)
    assert database.failure is not None


def test_maintenance_runs_outside_a_transaction_and_leaves_none(database: Database) -> None:
    assert database.maintain(lambda connection: connection.in_transaction).result(10) is False
    with pytest.raises(RuntimeError, match="left a transaction open"):
        database.maintain(lambda connection: connection.execute("BEGIN") and None).result(10)
    assert database.write(insert("after")).result(10) == 1


def test_close_runs_what_is_queued_and_may_be_repeated(tmp_path: Path) -> None:
    database = Database(tmp_path / "thread.db", schema=SCHEMA)
    gate = Gate(database)
    futures = [database.write(insert(f"{i}")) for i in range(300)]
    closer = threading.Thread(target=database.close)
    closer.start()
    gate.release()
    closer.join(10)
    assert all(future.result(0) == 1 for future in futures)
    database.close()
    with pytest.raises(StoreFailed, match="closed"):
        database.write(insert("late"))
    with pytest.raises(StoreFailed, match="closed"), database.read():
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thread.db"]


def test_a_read_is_one_snapshot_and_the_next_one_is_fresh(database: Database) -> None:
    database.write(insert("a")).result(10)
    with database.read() as outer:
        before = outer.execute("SELECT count(*) FROM note").get
        database.write(insert("b")).result(10)
        with database.read() as inner:
            assert inner is outer
            assert inner.execute("SELECT count(*) FROM note").get == before == 1
        with pytest.raises(apsw.ReadOnlyError):
            outer.execute("DELETE FROM note")
    unfinished = None
    with database.read() as connection:
        unfinished = connection.execute("SELECT text FROM note")
        assert next(unfinished) == ("a",)
    database.write(insert("c")).result(10)
    assert notes(database) == ["a", "b", "c"]


def test_threads_that_come_and_go_share_the_connections(database: Database) -> None:
    used: set[int] = set()

    def look() -> None:
        with database.read() as connection:
            used.add(id(connection))
            connection.execute("SELECT 1").get  # noqa: B018

    for _ in range(5):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join(10)
    assert len(used) == 1


def test_close_interrupts_a_read_that_runs(tmp_path: Path) -> None:
    database = Database(tmp_path / "thread.db", schema=SCHEMA)
    started, errors = threading.Event(), []

    def endless() -> None:
        try:
            with database.read() as connection:
                rows = connection.execute(
                    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n) SELECT i FROM n"
                )
                for _ in rows:
                    started.set()
        except StoreFailed as error:
            errors.append(str(error))

    reader = threading.Thread(target=endless)
    reader.start()
    assert started.wait(10)
    database.close()
    reader.join(10)
    assert errors == ["the store is closing"]


def test_the_log_is_copied_into_the_database_as_it_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECKPOINT_PAGES", 8)
    database = Database(tmp_path / "thread.db", schema=SCHEMA)
    for i in range(40):
        database.write(insert(f"{i} {'x' * 4_000}")).result(10)
    database.maintain(lambda connection: None).result(10)
    assert (tmp_path / "thread.db").stat().st_size > 100_000
    assert (tmp_path / "thread.db-wal").stat().st_size < 100_000
    database.close()


def test_removed_text_is_overwritten(tmp_path: Path) -> None:
    database = Database(tmp_path / "thread.db", schema=SCHEMA)
    database.write(insert("the secret of the house")).result(10)
    database.write(lambda connection: connection.execute("DELETE FROM note") and None).result(10)
    database.maintain(lambda connection: connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)).result(10)
    for path in tmp_path.iterdir():
        assert b"secret of the house" not in path.read_bytes()
    database.close()


def test_a_database_is_opened_again_and_a_newer_one_is_refused_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "thread.db"
    database = Database(path, schema=SCHEMA)
    database.write(insert("kept")).result(10)
    database.close()
    database = Database(path, schema=SCHEMA)
    assert notes(database) == ["kept"]
    database.maintain(lambda connection: connection.pragma("user_version", 5)).result(10)
    database.close()
    content = path.read_bytes()
    with pytest.raises(StoreFailed, match=r"schema version 5, this program knows 4.*upgrade"):
        Database(path, schema=SCHEMA)
    assert path.read_bytes() == content


def test_a_database_from_before_the_first_release_is_refused_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "thread.db"
    database = Database(path, schema=SCHEMA)
    database.maintain(lambda connection: connection.pragma("user_version", 1)).result(10)
    database.close()
    content = path.read_bytes()
    with pytest.raises(StoreFailed, match=r"schema version 1, from before the first release.*another --data-dir"):
        Database(path, schema=SCHEMA)
    assert path.read_bytes() == content


def test_a_migration_is_applied_whole_or_not_at_all(tmp_path: Path) -> None:
    connection = apsw.Connection(str(tmp_path / "thread.db"))
    migrate(connection, ("CREATE TABLE a(x)",))
    with pytest.raises(apsw.SQLError):
        migrate(connection, ("CREATE TABLE a(x)", "CREATE TABLE b(x); INSERT INTO nowhere VALUES (1)"))
    assert connection.pragma("user_version") == 1
    assert not connection.table_exists("main", "b")
    migrate(connection, ("CREATE TABLE a(x)", "CREATE TABLE b(x)"))
    assert connection.pragma("user_version") == 2
    assert connection.pragma("application_id") == APPLICATION_ID
    assert connection.table_exists("main", "b")
    connection.close()


def test_a_new_database_gets_the_whole_schema_or_nothing(tmp_path: Path) -> None:
    connection = apsw.Connection(str(tmp_path / "thread.db"))
    with pytest.raises(apsw.SQLError):
        migrate(connection, ("", "", "CREATE TABLE a(x); INSERT INTO nowhere VALUES (1)"))
    assert (connection.pragma("user_version"), connection.pragma("application_id")) == (0, 0)
    migrate(connection, ("", "", "CREATE TABLE a(x)"))
    assert (connection.pragma("user_version"), connection.table_exists("main", "a")) == (3, True)
    connection.close()


@pytest.mark.parametrize("content", [b"not a database at all, but long enough to be looked at" * 100, None])
def test_another_programs_file_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "thread.db"
    if content is None:
        other = apsw.Connection(str(path))
        other.execute("CREATE TABLE theirs(x)")
        other.close()
    else:
        path.write_bytes(content)
    with pytest.raises(StoreFailed, match=r"thread\.db"):
        Database(path, schema=SCHEMA)


def test_a_file_that_cannot_be_opened_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed, match=r"nowhere/thread\.db"):
        Database(tmp_path / "nowhere" / "thread.db", schema=SCHEMA)
