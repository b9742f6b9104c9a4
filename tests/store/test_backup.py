"""Backups: whole or none, of one moment, and no byte copied twice."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from backups import WIDTH, assert_held, back_up, fill, filled_store, silent
from faults import Faults, FaultyFiles, FaultyVfs
from opened_store import Opened, opened_store

from thread_service import cli
from thread_service.errors import NotReady, StorageFull, StoreFailed
from thread_service.store import backup
from thread_service.store.backup import Source
from thread_service.store.backup import manifest as manifests
from thread_service.store.backup.taking import _Taking
from thread_service.store.directory import DataDirectory, existing_node
from thread_service.store.files import OsFiles


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    with filled_store(tmp_path / "data") as opened:
        yield opened


def source(opened: Opened, **more: Any) -> Source:
    store = opened.store
    return Source(store.node_id, store.path, store.read, store.segments.is_full, **more)


def files_of(path: Path) -> dict[str, os.stat_result]:
    return {str(file.relative_to(path)): file.stat() for file in sorted(path.rglob("*")) if file.is_file()}


# ---------------------------------------------------------------------------------------------------- taking


def test_a_restored_backup_is_the_node_of_that_moment(opened: Opened, tmp_path: Path) -> None:
    said = list[tuple[str, float | None]]()
    taken = opened.store.back_up(tmp_path / "backups", lambda text, fraction=None, /: said.append((text, fraction)))
    assert taken["counts"]["documents"] == taken["counts"]["vectors"] == 10
    assert [text for text, fraction in said if fraction is None] == ["database", "vectors"]
    fill(opened, range(10, 14))
    opened.remove("ann", "doc 3")

    done = backup.restore(Path(taken["backup"]), tmp_path / "restored", silent)
    assert done["verified"]["clean"]
    assert done["node_id"] == opened.store.node_id == existing_node(tmp_path / "restored")
    assert_held(tmp_path / "restored", 10)
    [node] = (tmp_path / "restored" / "nodes").iterdir()
    for path in (tmp_path / "restored", node, *node.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


def test_full_segments_are_linked_and_what_a_backup_has_is_not_copied_again(opened: Opened, tmp_path: Path) -> None:
    first = back_up(opened, tmp_path / "backups")
    assert (first["segments"], first["linked"]) == (3, 2)
    second = back_up(opened, tmp_path / "backups")
    database = (Path(second["backup"]) / "thread.db").stat().st_size
    assert (second["segments"], second["linked"], second["copied_bytes"]) == (3, 3, database)

    fill(opened, range(10, 13))
    third = back_up(opened, tmp_path / "backups")
    assert (third["segments"], third["linked"]) == (4, 3)
    shutil.rmtree(first["backup"])
    shutil.rmtree(opened.store.directory.vectors)
    for taken, count in ((second, 10), (third, 13)):
        backup.restore(Path(taken["backup"]), tmp_path / f"of {count}", silent)
        assert_held(tmp_path / f"of {count}", count)


def test_what_is_written_after_a_restore_does_not_reach_the_backup(opened: Opened, tmp_path: Path) -> None:
    back_up(opened, tmp_path / "backups")
    backup.restore(tmp_path / "backups", tmp_path / "restored", silent)
    with opened_store(tmp_path / "restored") as restored:
        fill(restored, range(10, 20))
        restored.remove("ann", "doc 1")
        restored.store.compact(silent)
    assert backup.check(tmp_path / "backups", full=True, progress=silent)["clean"]


def test_without_links_everything_is_copied(opened: Opened, tmp_path: Path) -> None:
    class Unlinkable(OsFiles):
        def link(self, source: Path, target: Path) -> None:
            raise OSError(1, "not permitted")

    for _ in range(2):
        taken = backup.take(source(opened), tmp_path / "backups", silent, files=Unlinkable())
        assert (taken["linked"], taken["copied_bytes"]) == (0, taken["bytes"])
    assert backup.check(tmp_path / "backups", full=False, progress=silent)["clean"]


def test_a_directory_at_rest_is_backed_up_and_not_changed(opened: Opened, tmp_path: Path) -> None:
    data, node_id = tmp_path / "data", opened.store.node_id
    opened.store.close()
    before = files_of(data)
    directory = DataDirectory.open_existing(data, node_id)
    with backup.source_at_rest(directory) as at_rest:
        backup.take(at_rest, tmp_path / "backups", silent)
    directory.close()
    changed = {name for name, stat in files_of(data).items() if before[name].st_mtime_ns != stat.st_mtime_ns}
    assert changed <= {f"nodes/{node_id}/LOCK"}
    backup.restore(tmp_path / "backups", tmp_path / "restored", silent)
    assert_held(tmp_path / "restored", 10)


def test_what_is_cleared_while_it_is_backed_up_is_in_the_backup_or_not(opened: Opened, tmp_path: Path) -> None:
    steps = list[str]()

    def clear_once(text: str, fraction: float | None = None, /) -> None:
        if fraction is None:
            steps.append(text)
            if steps == ["database", "vectors"]:
                opened.store.clear(lambda connection: None)
                fill(opened, range(2))

    opened.store.back_up(tmp_path / "backups", clear_once)
    assert steps == ["database", "vectors"] * 2
    backup.restore(tmp_path / "backups", tmp_path / "restored", silent)
    assert_held(tmp_path / "restored", 2)


def test_a_segment_that_is_shorter_than_its_rows_is_not_backed_up(opened: Opened, tmp_path: Path) -> None:
    with (opened.store.directory.vectors / "000003.f32").open("r+b") as file:
        file.truncate(WIDTH * 4)
    with pytest.raises(StoreFailed, match=r"000003\.f32 is damaged: it has 64 bytes of 128; run `thread verify`"):
        back_up(opened, tmp_path / "backups")
    assert os.listdir(tmp_path / "backups") == ["LOCK"]
    assert opened.store.database.failure is None


def damage_a_table(data_dir: Path) -> None:
    """The root page of the documents' own tree, which nothing reads that counts them: there is an index for that."""
    [path] = data_dir.glob("nodes/*/thread.db")
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        page = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'documents'").get
        size = connection.pragma("page_size")
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        kind = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([kind ^ 4]))


def test_a_backup_of_a_damaged_database_is_set_aside_and_the_one_before_is_restored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with filled_store(tmp_path / "data") as opened:
        sound = back_up(opened, tmp_path / "backups")
        assert sound["damage"] == []
    damage_a_table(tmp_path / "data")
    assert cli.main(["backup", str(tmp_path / "backups"), "--data-dir", str(tmp_path / "data"), "--json"]) == 1
    aside = json.loads(capsys.readouterr().out)
    assert aside["damage"][0].startswith("database: documents ")
    assert Path(aside["backup"]).name.endswith("Z-quarantined")
    assert Path(aside["backup"]) > Path(sound["backup"])

    assert manifests.find(tmp_path / "backups") == Path(sound["backup"])
    assert backup.check(tmp_path / "backups", full=True, progress=silent)["clean"]
    assert backup.restore(tmp_path / "backups", tmp_path / "restored", silent)["verified"]["clean"]
    assert_held(tmp_path / "restored", 10)
    named = backup.restore(Path(aside["backup"]), tmp_path / "named", silent)
    assert "documents" in {damage.get("table") for damage in named["verified"]["damage"]}

    # What a crash has left of one goes like any other.
    (Path(aside["backup"]) / "manifest.json").unlink()
    with opened_store(tmp_path / "restored") as opened:
        back_up(opened, tmp_path / "backups")
    assert not Path(aside["backup"]).exists()

    assert cli.main(["backup", str(tmp_path / "more"), "--data-dir", str(tmp_path / "data")]) == 1
    assert "this backup is set aside" in capsys.readouterr().out
    with pytest.raises(StoreFailed, match="holds no complete backup"):
        manifests.find(tmp_path / "more")


def test_a_copy_that_its_own_disk_damages_is_set_aside_and_the_node_writes_on(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    copying = _Taking._copy_database

    def damaging(taking: _Taking, connection: apsw.Connection) -> None:
        copying(taking, connection)
        with (taking.place / "thread.db").open("r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * 100)

    monkeypatch.setattr(_Taking, "_copy_database", damaging)
    taken = back_up(opened, tmp_path / "backups")
    assert taken["damage"]
    assert "is set aside, its database is damaged" in caplog.text
    fill(opened, range(10, 12))
    monkeypatch.undo()
    back_up(opened, tmp_path / "backups")
    backup.restore(tmp_path / "backups", tmp_path / "restored", silent)
    assert_held(tmp_path / "restored", 12)


def test_two_backups_into_one_directory_do_not_mix(opened: Opened, tmp_path: Path) -> None:
    refused = list[str]()

    def another(text: str, fraction: float | None = None, /) -> None:
        if fraction is None:
            with pytest.raises(StoreFailed) as error:
                backup.take(source(opened), tmp_path / "backups", silent)
            refused.append(str(error.value))

    backup.take(source(opened), tmp_path / "backups", another)
    assert len(refused) == 2
    assert "is in use by process" in refused[0]
    assert len(manifests.complete(tmp_path / "backups")) == 1


# ---------------------------------------------------------------------------------------------------- crashes


def test_a_full_disk_of_backups_leaves_none_and_the_node_writes_on(opened: Opened, tmp_path: Path) -> None:
    faults = Faults(tmp_path / "backups")
    vfs = FaultyVfs("full-backup", faults)
    for suffix in (".db", ".f32", ".new"):
        faults.fail("write", suffix)
        with pytest.raises(StorageFull, match="the disk is full"):
            backup.take(source(opened), tmp_path / "backups", silent, files=FaultyFiles(faults), vfs="full-backup")
        assert os.listdir(tmp_path / "backups") == ["LOCK"]
    vfs.unregister()
    fill(opened, range(10, 12))
    back_up(opened, tmp_path / "backups")
    backup.restore(tmp_path / "backups", tmp_path / "restored", silent)
    assert_held(tmp_path / "restored", 12)


def test_a_node_that_stops_ends_its_backup_and_leaves_nothing_of_it(opened: Opened, tmp_path: Path) -> None:
    def stop(text: str, fraction: float | None = None, /) -> None:
        if text == "vectors":
            opened.store.stop_verifying()

    with pytest.raises(NotReady, match="The node is stopping"):
        opened.store.back_up(tmp_path / "backups", stop)
    assert os.listdir(tmp_path / "backups") == ["LOCK"]


@pytest.mark.parametrize("seed", [None, 1])
def test_a_crash_at_any_point_of_a_backup_leaves_none_that_looks_complete(
    opened: Opened, tmp_path: Path, seed: int | None
) -> None:
    back_up(opened, tmp_path / "one")
    [name] = manifests.complete(tmp_path / "one")
    fill(opened, range(10, 13))
    outcomes = set[int]()
    for operations in range(1 + (seed or 0), 200, 3):
        root, after = tmp_path / "backups", tmp_path / "after"
        for old in (root, after):
            shutil.rmtree(old, ignore_errors=True)
        shutil.copytree(tmp_path / "one", root)
        faults = Faults(root)
        vfs = FaultyVfs("backup-power", faults)
        faults.cut_power(operations)
        try:
            backup.take(source(opened), root, silent, files=FaultyFiles(faults), vfs="backup-power")
        except StoreFailed:
            assert not faults.powered
        vfs.unregister()
        shutil.copytree(tmp_path / "one", after)
        faults.survivors(after, seed)
        found = manifests.complete(after)
        outcomes.add(len(found))
        for path in found:
            # A link made before the crash is not in the copy of what survived.
            assert backup.check(path, full=False, progress=silent)["clean"], operations
        if faults.powered:
            break
        # The next backup is whole, and removes what was left.
        taken = back_up(opened, after)
        assert backup.check(Path(taken["backup"]), full=False, progress=silent)["clean"]
        assert len(manifests.complete(after)) == len(found) + 1
        assert manifests.unfinished(after) == []
    assert name.name in os.listdir(after)
    assert outcomes == {1, 2}
