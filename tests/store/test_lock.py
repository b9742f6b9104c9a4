"""One process per data directory, and where a node keeps its state."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from thread_service.errors import StoreFailed
from thread_service.store.directory import DataDirectory
from thread_service.store.lock import DirectoryLock

HOLD = """
import sys
from pathlib import Path
from thread_service.store.lock import DirectoryLock
lock = DirectoryLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""
ID = "0A1B2C3D-4E5F-4A6B-8C7D-9E0F1A2B3C4D"


@contextmanager
def another_process(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock at `path` until it is killed."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_second_process_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    with another_process(tmp_path / "LOCK") as process:
        with pytest.raises(StoreFailed, match=rf"in use by process {process.pid} .* since 20\d\d-\d\d-\d\dT"):
            DirectoryLock(tmp_path / "LOCK")
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        with DirectoryLock(tmp_path / "LOCK"):
            assert str(os.getpid()) in (tmp_path / "LOCK").read_text()


def test_what_the_lock_file_says_does_not_matter_when_nobody_holds_it(tmp_path: Path) -> None:
    (tmp_path / "LOCK").write_text('{"pid": 1, "host": "here"}')
    DirectoryLock(tmp_path / "LOCK").release()
    (tmp_path / "LOCK").write_bytes(b"\xff\x00" * 5_000)
    with DirectoryLock(tmp_path / "LOCK"), pytest.raises(StoreFailed, match="in use by process"):
        DirectoryLock(tmp_path / "LOCK")


def test_the_lock_file_holds_no_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/thread", "--api-key", "hunter2"])
    with DirectoryLock(tmp_path / "LOCK"):
        text = (tmp_path / "LOCK").read_text()
    assert "hunter2" not in text
    assert '"command": "thread"' in text


def test_a_fresh_directory_gets_an_id_that_stays(tmp_path: Path) -> None:
    first = DataDirectory.open(tmp_path / "new" / "data")
    assert first.node_id == str(uuid.UUID(first.node_id)).upper()
    assert first.path == tmp_path / "new" / "data" / "nodes" / first.node_id
    assert sorted(path.name for path in first.path.iterdir()) == ["FORMAT", "LOCK", "cache", "vectors"]
    assert first.path.stat().st_mode & 0o077 == 0
    with pytest.raises(StoreFailed, match=f"in use by process {os.getpid()}"):
        DataDirectory.open(tmp_path / "new" / "data")
    first.close()
    again = DataDirectory.open(tmp_path / "new" / "data")
    assert again.node_id == first.node_id
    again.close()


def test_a_given_id_wins_and_is_kept_and_a_bad_one_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    DataDirectory.open(tmp_path).close()
    given = DataDirectory.open(tmp_path, f" {ID.lower()} ")
    assert given.node_id == ID
    given.close()
    assert (tmp_path / "node-id").read_text().strip() == ID
    with caplog.at_level(logging.WARNING):
        kept = DataDirectory.open(tmp_path, "../../etc/passwd-and-a-secret")
    kept.close()
    assert kept.node_id == ID
    assert "../../etc/passwd" in caplog.text
    assert "secret" not in caplog.text


def test_an_unreadable_id_file_is_replaced_and_the_databases_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = DataDirectory.open(tmp_path, ID)
    old.database.touch()
    old.close()
    (tmp_path / "node-id").write_bytes(b"\xff\xfe nonsense")
    with caplog.at_level(logging.WARNING):
        new = DataDirectory.open(tmp_path)
    new.close()
    assert new.node_id != ID
    assert (tmp_path / "node-id").read_text().strip() == new.node_id
    assert ID in caplog.text


def test_processes_that_start_together_agree_on_one_id(tmp_path: Path) -> None:
    opened: list[DataDirectory] = []
    refused: list[str] = []
    barrier = threading.Barrier(8)

    def start() -> None:
        barrier.wait(10)
        try:
            opened.append(DataDirectory.open(tmp_path))
        except StoreFailed as error:
            refused.append(str(error))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert [directory.node_id for directory in opened] == [(tmp_path / "node-id").read_text().strip()]
    assert len(refused) == 7
    assert all("in use by" in text for text in refused)
    opened[0].close()
    assert len(list((tmp_path / "nodes").iterdir())) == 1


def test_a_newer_damaged_or_incomplete_directory_is_refused(tmp_path: Path) -> None:
    directory = DataDirectory.open(tmp_path, ID)
    directory.close()
    format_file = directory.path / "FORMAT"
    format_file.write_text("2\n")
    with pytest.raises(StoreFailed, match="newer version"):
        DataDirectory.open(tmp_path)
    format_file.write_bytes(b"\x00\xff")
    with pytest.raises(StoreFailed, match="damaged"):
        DataDirectory.open(tmp_path)
    format_file.unlink()
    directory.database.touch()
    with pytest.raises(StoreFailed, match="thread restore"):
        DataDirectory.open(tmp_path)
    directory.database.unlink()
    DataDirectory.open(tmp_path).close()


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreFailed, match=rf"{tmp_path}/file/data: cannot be used as the data directory"):
        DataDirectory.open(tmp_path / "file" / "data")
    with pytest.raises(StoreFailed, match="cannot open the lock file"):
        DirectoryLock(tmp_path / "file" / "LOCK")
