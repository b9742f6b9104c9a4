"""Restoring and checking backups: what is half restored never passes for a node, and what is damaged is named."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from backups import assert_held, back_up, fill, filled_store, silent
from faults import Faults, FaultyFiles
from opened_store import Opened, opened_store

from thread_service.errors import StoreFailed
from thread_service.store import backup
from thread_service.store.directory import DataDirectory
from thread_service.store.files import OsFiles


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    with filled_store(tmp_path / "data") as opened:
        yield opened


class Interrupted(OsFiles):
    """Ends like a kill would, before the operation of this number."""

    def __init__(self, operations: int) -> None:
        self.left = operations

    def __getattribute__(self, name: str) -> Any:
        if name in ("create", "open", "remove", "rename", "sync_directory"):
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
        return super().__getattribute__(name)


def test_a_crash_at_any_point_of_a_restore_leaves_what_does_not_open(opened: Opened, tmp_path: Path) -> None:
    node_id = opened.store.node_id
    back_up(opened, tmp_path / "backups")
    refused = 0
    said = set[str]()
    for operations in range(200):
        target = tmp_path / "restored"
        shutil.rmtree(target, ignore_errors=True)
        try:
            backup.restore(tmp_path / "backups", target, silent, files=Interrupted(operations))
        except KeyboardInterrupt:
            try:
                DataDirectory.open_existing(target, node_id).close()
            except StoreFailed as error:
                said.add(str(error).partition(": ")[2])
                refused += 1
                backup.restore(tmp_path / "backups", target, silent)
            else:
                # Before the first byte was there, or after the last one was.
                is_whole = (target / "nodes" / node_id / "thread.db").exists()
                assert refused > 20 if is_whole else refused == 0
                if not is_whole:
                    continue
        else:
            break
        assert_held(target, 10)
    assert refused > 20
    assert said == {"its restore did not finish; run `thread restore` again"}


def test_a_power_loss_during_a_restore_leaves_what_does_not_open(opened: Opened, tmp_path: Path) -> None:
    node_id = opened.store.node_id
    back_up(opened, tmp_path / "backups")
    for operations in range(3, 200, 3):
        root, after = tmp_path / "restored", tmp_path / "after"
        for old in (root, after):
            shutil.rmtree(old, ignore_errors=True)
        faults = Faults(root)
        faults.cut_power(operations)
        try:
            backup.restore(tmp_path / "backups", root, silent, files=FaultyFiles(faults))
        except StoreFailed:
            assert not faults.powered
        (after / "nodes" / node_id).mkdir(parents=True)
        faults.survivors(after, operations)
        if (after / "nodes" / node_id / "FORMAT").exists():
            (after / "nodes" / node_id / "cache").mkdir()
            assert_held(after, 10)
        elif (after / "node-id").exists():
            with pytest.raises(StoreFailed, match="its restore did not finish"):
                DataDirectory.open(after)
        if faults.powered:
            break
    assert faults.powered


# ---------------------------------------------------------------------------------------------------- restoring


def flip(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 4]))


def test_a_damaged_backup_is_not_restored_and_verify_names_the_file(opened: Opened, tmp_path: Path) -> None:
    taken = Path(back_up(opened, tmp_path / "backups")["backup"])
    whole = tmp_path / "whole"
    shutil.copytree(taken, whole)
    for name, what in (
        ("vectors/000003.f32", "its SHA-256 does not fit"),
        ("thread.db", "its SHA-256 does not fit"),
    ):
        shutil.rmtree(taken)
        shutil.copytree(whole, taken)
        flip(taken / name)
        report = backup.check(taken, full=False, progress=silent)
        assert {(d["check"], d["file"]) for d in report["damage"] if d["check"] == "files"} == {("files", name)}
        shutil.rmtree(tmp_path / "restored", ignore_errors=True)
        with pytest.raises(StoreFailed, match=what):
            backup.restore(taken, tmp_path / "restored", silent)
        with pytest.raises(StoreFailed, match="its restore did not finish"):
            DataDirectory.open(tmp_path / "restored")
    shutil.copy(whole / "thread.db", taken / "thread.db")
    (taken / "vectors" / "000001.f32").unlink()
    assert "files: vectors/000001.f32 is missing" in [
        damage["sentence"] for damage in backup.check(taken, full=False, progress=silent)["damage"]
    ]
    with pytest.raises(StoreFailed, match=r"000001\.f32 is missing: the backup is damaged"):
        backup.restore(taken, tmp_path / "again", silent)


def test_damage_that_was_backed_up_is_restored_and_told(opened: Opened, tmp_path: Path) -> None:
    flip(opened.store.directory.vectors / "000001.f32")
    back_up(opened, tmp_path / "backups")
    done = backup.restore(tmp_path / "backups", tmp_path / "restored", silent)
    assert [damage["segment"] for damage in done["verified"]["damage"]] == [1]
    DataDirectory.open(tmp_path / "restored").close()


def test_what_is_no_backup_or_no_empty_directory_is_refused(opened: Opened, tmp_path: Path) -> None:
    taken = Path(back_up(opened, tmp_path / "backups")["backup"])
    target = tmp_path / "target"
    with pytest.raises(StoreFailed, match="holds no complete backup"):
        backup.restore(tmp_path / "nowhere", target, silent)
    target.mkdir()
    (target / "notes.txt").write_text("mine")
    with pytest.raises(StoreFailed, match="is not empty"):
        backup.restore(taken, target, silent)
    assert os.listdir(target) == ["notes.txt"]
    with pytest.raises(StoreFailed, match="is not empty"):
        backup.restore(taken, tmp_path / "data", silent)

    backup.restore(taken, tmp_path / "restored", silent)
    with pytest.raises(StoreFailed, match="is not empty"):
        backup.restore(taken, tmp_path / "restored", silent)

    said = json.loads((taken / "manifest.json").read_text())
    for change, why in (
        ({"format": 2}, "written by a newer version"),
        ({"schema": 99}, "taken by a newer version"),
        ({"node_id": "../../elsewhere"}, "is damaged"),
        ({"counts": {"documents": "ten"}}, "is damaged"),
    ):
        (taken / "manifest.json").write_text(json.dumps({**said, **change}))
        with pytest.raises(StoreFailed, match=why):
            backup.restore(taken, tmp_path / "fresh", silent)
    (taken / "manifest.json").write_bytes(b"\xff[" * 1_000)
    with pytest.raises(StoreFailed, match="is damaged"):
        backup.restore(taken, tmp_path / "fresh", silent)
    assert not (tmp_path / "fresh").exists()


def test_the_newest_backup_of_a_directory_is_taken_unless_it_has_several_nodes(opened: Opened, tmp_path: Path) -> None:
    back_up(opened, tmp_path / "backups")
    fill(opened, range(10, 12))
    back_up(opened, tmp_path / "backups")
    backup.restore(tmp_path / "backups", tmp_path / "restored", silent)
    assert_held(tmp_path / "restored", 12)
    with opened_store(tmp_path / "other") as other:
        back_up(other, tmp_path / "backups")
    with pytest.raises(StoreFailed, match="backups of several nodes"):
        backup.restore(tmp_path / "backups", tmp_path / "more", silent)


def test_counts_that_are_not_what_was_backed_up_are_named(opened: Opened, tmp_path: Path) -> None:
    taken = Path(back_up(opened, tmp_path / "backups")["backup"])
    said = json.loads((taken / "manifest.json").read_text())
    said["counts"]["documents"] = 11
    (taken / "manifest.json").write_text(json.dumps(said))
    report = backup.check(taken, full=False, progress=silent)
    assert [damage["sentence"] for damage in report["damage"]] == [
        "manifest: documents has 10 rows, and 11 were backed up"
    ]
    assert report["checks"]["files"] == {"examined": 4, "damaged": 0}
