"""The files of the cache of codes: written whole or not at all, and believed only when nothing in them has changed."""

from __future__ import annotations

import errno
import json
import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from thread_service.store.code_cache import CachedCodes, CacheStats, CodeCache
from thread_service.store.files import OsFile


def codes(purpose: str = "model", width: int = 384, count: int = 5) -> CachedCodes:
    keys = np.arange(1, count + 1) * 10**10
    return CachedCodes(purpose, width, keys, np.arange(count, dtype=np.uint32) + 2**31, bytes(range(3 * count)))


def rows(count: int = 7) -> np.ndarray:
    return np.arange(5 * count).reshape(5, count) * 10**12


def reopened(directory: Path) -> CodeCache:
    cache = CodeCache(directory)
    cache.open()
    return cache


def same(one: CachedCodes | None, other: CachedCodes) -> bool:
    return one is not None and all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in CachedCodes.__slots__
    )


def same_rows(found: np.ndarray | None) -> bool:
    return found is not None and np.array_equal(found, rows())


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_what_was_written_is_read_back_table_by_table(tmp_path: Path) -> None:
    written = [codes(), codes("caller", 1024, 0), codes("predicate")]
    reopened(tmp_path).write(rows(), written)
    cache = reopened(tmp_path)
    assert cache.tables() == {("model", 384), ("caller", 1024), ("predicate", 384)}
    for each in written:
        assert same(cache.read(each.purpose, each.width), each)
    assert cache.read("caller", 384) is None
    assert same_rows(cache.rows())
    assert cache.stats().rows == {("model", 384): 5, ("caller", 1024): 0, ("predicate", 384): 5}
    assert time.time() - 60 < (cache.stats().written_at or 0) <= time.time()


def test_a_new_cache_takes_the_place_of_the_old_and_leftovers_go_at_the_start(tmp_path: Path) -> None:
    cache = reopened(tmp_path)
    cache.write(rows(), [codes(count=2)])
    cache.write(rows(), [codes(count=3)])
    assert names(tmp_path) == ["codes-000002"]
    (tmp_path / "codes-000007.new").mkdir()
    (tmp_path / "codes-000007.new" / "model-384.codes").touch()
    shutil.copytree(tmp_path / "codes-000002", tmp_path / "codes-000001")
    (tmp_path / "other").touch()
    cache = reopened(tmp_path)
    assert names(tmp_path) == ["codes-000002", "other"]
    assert same(cache.read("model", 384), codes(count=3))
    cache.clear()
    assert (names(tmp_path), cache.tables(), cache.read("model", 384)) == (["other"], set(), None)
    assert (cache.rows(), cache.stats()) == (None, CacheStats({}, None))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def edit(path: Path, **changed: object) -> None:
    manifest = json.loads(path.read_bytes())
    manifest |= {key: value for key, value in changed.items() if key in manifest}
    manifest["tables"][0] |= {key: value for key, value in changed.items() if key in manifest["tables"][0]}
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("rows", lambda path: flip(path, 39)),
        ("rows", lambda path: path.write_bytes(path.read_bytes()[:-8])),
        ("rows", lambda path: path.write_bytes(path.read_bytes() + bytes(40))),
        ("rows", lambda path: edit(path.with_name("manifest.json"), rows=2**60)),
        ("rows", lambda path: edit(path.with_name("manifest.json"), rows=6)),
        ("rows", lambda path: path.unlink()),
        ("model-384.codes", lambda path: flip(path, 0)),
        ("model-384.codes", lambda path: flip(path, -1)),
        ("model-384.codes", lambda path: path.write_bytes(path.read_bytes()[:-1])),
        ("model-384.codes", lambda path: path.write_bytes(b"")),
        ("model-384.codes", lambda path: path.unlink()),
        ("model-384.codes", lambda path: edit(path.with_name("manifest.json"), count=2**60)),
        ("model-384.codes", lambda path: edit(path.with_name("manifest.json"), count=4)),
        ("model-384.codes", lambda path: edit(path.with_name("manifest.json"), crc=4)),
        ("manifest.json", lambda path: flip(path, 0)),
        ("manifest.json", lambda path: edit(path, count=-1)),
        ("manifest.json", lambda path: edit(path, purpose="another")),
        ("manifest.json", lambda path: edit(path, file="../../thread.db")),
        ("manifest.json", lambda path: path.write_bytes(path.read_bytes().replace(b"model", b"\xff"))),
        ("manifest.json", lambda path: edit(path, format=1)),
        ("manifest.json", lambda path: path.write_bytes(b"")),
        ("manifest.json", lambda path: path.unlink()),
    ],
)
def test_damage_is_named_and_the_codes_are_as_if_there_were_none(
    file: str, damage: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reopened(tmp_path).write(rows(), [codes(count=7), codes("caller")])
    damage(tmp_path / "codes-000001" / file)
    cache = reopened(tmp_path)
    assert same(cache.read("model", 384), codes(count=7)) is (file == "rows")
    assert same_rows(cache.rows()) is (file == "model-384.codes")
    assert same(cache.read("caller", 384), codes("caller")) is (file != "manifest.json")
    assert f"codes-000001/{file}" in caplog.text
    cache.write(rows(), [codes()])
    assert (names(tmp_path), same(cache.read("model", 384), codes())) == (["codes-000002"], True)


def test_a_full_disk_leaves_the_old_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = reopened(tmp_path)
    cache.write(rows(), [codes(count=2)])

    def full(file: OsFile) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(OsFile, "sync", full)
        with pytest.raises(OSError, match="No space"):
            cache.write(rows(), [codes(count=3)])
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9 - 50, 50))
        with pytest.raises(OSError, match="No space"):  # the last room is left to callers
            cache.write(rows(), [codes(count=3)])
    assert names(tmp_path) == ["codes-000001"]
    assert same(reopened(tmp_path).read("model", 384), codes(count=2))


def test_a_crash_at_any_point_of_writing_leaves_the_old_cache_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").mkdir()
    cache = reopened(tmp_path / "cache")
    cache.write(rows(), [codes(count=2), codes("caller")])
    copytree = shutil.copytree
    moments: list[Path] = []

    def crash() -> None:
        moments.append(tmp_path / f"{len(moments)}")
        copytree(tmp_path / "cache", moments[-1])

    def around(call: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*arguments: object, **more: object) -> object:
            crash()
            done = call(*arguments, **more)
            crash()
            return done

        return wrapped

    for owner, name in ((Path, "rename"), (Path, "mkdir"), (OsFile, "write"), (OsFile, "sync"), (shutil, "rmtree")):
        monkeypatch.setattr(owner, name, around(getattr(owner, name)))
    cache.write(rows(), [codes(count=3), codes("caller", count=4)])
    monkeypatch.undo()
    found = []
    for moment in moments:
        left = reopened(moment)
        count = 2 if same(left.read("model", 384), codes(count=2)) else 3
        assert same(left.read("model", 384), codes(count=count))
        assert same(left.read("caller", 384), codes("caller", count={2: 5, 3: 4}[count]))
        assert same_rows(left.rows())
        assert len(names(moment)) == 1
        found.append(count)
    assert found == sorted(found)
    assert {*found} == {2, 3}


def test_a_directory_that_cannot_be_read_is_no_cache(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = reopened(tmp_path / "missing")
    assert (cache.tables(), "missing" in caplog.text) == (set(), True)
    assert caplog.records[0].levelno == logging.WARNING
