"""Vector segments: what comes back, what the start accepts, what is refused."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from thread_service.errors import StoreFailed
from thread_service.store.files import OsFiles
from thread_service.store.segments import FIRST_EXTENT, Segments, SegmentState

RNG = np.random.default_rng(7)


def rows(count: int, width: int = 4) -> np.ndarray:
    return RNG.standard_normal((count, width), dtype=np.float32)


def opened(directory: Path, committed: dict[int, SegmentState] | None = None, segment_bytes: int = 1 << 30) -> Segments:
    segments = Segments(directory, OsFiles(), segment_bytes=segment_bytes)
    segments.open(committed or {})
    return segments


def test_rows_come_back_bit_for_bit_from_any_place(tmp_path: Path) -> None:
    segments = opened(tmp_path)
    wanted = rows(50)
    wanted[3] = np.array([0x7FC00001, 0xFF800000, 0x80000000, 1], np.uint32).view(np.float32)  # NaN payload, -inf, -0
    locations = segments.append(wanted[:20]) + segments.append(wanted[20:])
    segments.sync()
    order = [49, 3, 4, 5, 3, 0]
    found = segments.read(1, np.array([locations[i].slot for i in order]))
    checked = segments.read_checked([locations[i] for i in order])
    assert found.dtype == checked.dtype == np.float32
    assert found.tobytes() == checked.tobytes() == wanted[order].tobytes()
    segments.close()


def test_a_full_segment_is_followed_by_the_next(tmp_path: Path) -> None:
    segments = opened(tmp_path, segment_bytes=100)  # 6 rows of 16 bytes
    wanted = rows(15)
    locations = segments.append(wanted[:5]) + segments.append(wanted[5:])
    segments.sync()
    assert segments.states() == {1: SegmentState(4, 6), 2: SegmentState(4, 6), 3: SegmentState(4, 3)}
    assert [(x.segment, x.slot) for x in locations[5:8]] == [(1, 5), (2, 0), (2, 1)]
    assert [(tmp_path / f"{n:06}.f32").stat().st_size for n in (1, 2, 3)] == [96, 96, 96]
    assert np.array_equal(segments.read_checked(locations[::-1]), wanted[::-1])
    segments.close()


def test_each_width_has_its_own_segment(tmp_path: Path) -> None:
    segments = opened(tmp_path)
    four, eight = segments.append(rows(2, 4)), segments.append(rows(2, 8))
    assert {x.segment for x in four} == {1}
    assert {x.segment for x in eight} == {2}
    assert [x.segment for x in segments.append(rows(1, 4))] == [1]
    with pytest.raises(ValueError, match="one width"):
        segments.read_checked(four + eight)
    with pytest.raises(ValueError, match="shape"):
        segments.append(np.zeros(4, np.float32))
    assert segments.append(np.empty((0, 4), np.float32)) == []
    segments.close()


def test_space_is_reserved_ahead_in_doubling_extents(tmp_path: Path) -> None:
    segments = opened(tmp_path)
    sizes = []
    for _ in range(5):
        segments.append(rows(FIRST_EXTENT // 4096 - 1, 1024))
        sizes.append((tmp_path / "000001.f32").stat().st_size // FIRST_EXTENT)
    assert sizes == [1, 2, 4, 4, 8]
    segments.close()


def test_reading_goes_on_while_the_segment_grows(tmp_path: Path) -> None:
    segments = opened(tmp_path)
    first = rows(1, 1024)
    segments.append(first)
    wrong: list[int] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            last = segments.states()[1].slots - 1
            found = segments.read(1, np.array([0, last]))
            if not np.array_equal(found[0], first[0]) or found[1].any() != found[0].any():
                wrong.append(last)

    reader = threading.Thread(target=look)
    reader.start()
    for _ in range(300):
        segments.append(rows(8, 1024))
    done.set()
    reader.join(10)
    assert wrong == []
    segments.close()


def test_a_start_takes_up_the_committed_rows_and_writes_over_the_rest(tmp_path: Path) -> None:
    segments = opened(tmp_path)
    wanted = rows(3)
    kept = segments.append(wanted[:2])
    committed = segments.states()
    segments.append(rows(5))  # its transaction never came
    segments.append(rows(5, 8))
    segments.sync()
    segments.close()
    (tmp_path / "notes.txt").touch()

    again = opened(tmp_path, committed)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000001.f32", "notes.txt"]
    with pytest.raises(IndexError):
        again.read(1, np.array([2]))
    more = again.append(wanted[2:])
    assert [(x.segment, x.slot) for x in more] == [(1, 2)]
    assert np.array_equal(again.read_checked(kept + more), wanted)
    again.close()


def test_a_missing_or_short_segment_is_refused_by_name(tmp_path: Path) -> None:
    segments = opened(tmp_path)
    segments.append(rows(4))
    segments.sync()
    committed = segments.states()
    segments.close()
    path = tmp_path / "000001.f32"
    with path.open("r+b") as file:
        file.truncate(4 * 16 - 1)
    with pytest.raises(StoreFailed, match=r"000001\.f32 is damaged.*thread restore"):
        opened(tmp_path, committed)
    path.unlink()
    with pytest.raises(StoreFailed, match=r"000001\.f32 is missing.*thread restore"):
        opened(tmp_path, committed)


def test_a_flipped_bit_names_segment_and_row(tmp_path: Path) -> None:
    segments = opened(tmp_path, segment_bytes=160)
    locations = segments.append(rows(25))
    segments.sync()
    with (tmp_path / "000002.f32").open("r+b") as file:
        file.seek(3 * 16 + 5)
        byte = file.read(1)[0]
        file.seek(3 * 16 + 5)
        file.write(bytes([byte ^ 0x10]))
    with pytest.raises(StoreFailed, match="row 3 of segment 2 is damaged"):
        segments.read_checked(locations)
    undamaged = [x for x in locations if (x.segment, x.slot) != (2, 3)]
    assert len(segments.read_checked(undamaged)) == 24
    segments.close()


def test_rolled_back_rows_are_forgotten_and_their_place_is_used_again(tmp_path: Path) -> None:
    segments = opened(tmp_path, segment_bytes=96)
    wanted = rows(6)
    kept = segments.append(wanted[:4])
    segments.sync()
    committed = segments.states()
    segments.append(rows(9))
    segments.append(rows(1, 8))
    segments.rollback(committed)
    assert segments.states() == committed
    assert [path.name for path in tmp_path.iterdir()] == ["000001.f32"]
    more = segments.append(wanted[4:])
    segments.sync()
    assert [(x.segment, x.slot) for x in more] == [(1, 4), (1, 5)]
    assert np.array_equal(segments.read_checked(kept + more), wanted)
    segments.close()


def test_a_sealed_segment_takes_no_more_and_a_removed_one_is_gone(tmp_path: Path) -> None:
    segments = opened(tmp_path)
    old = segments.append(rows(3))
    segments.seal(1)
    assert (tmp_path / "000001.f32").stat().st_size == 3 * 16
    wanted = segments.read_checked(old)
    new = segments.append(wanted)
    segments.sync()
    assert {x.segment for x in new} == {2}
    segments.remove(1)
    assert segments.states() == {2: SegmentState(4, 3)}
    with pytest.raises(KeyError):
        segments.read(1, np.array([0]))
    with pytest.raises(KeyError):
        segments.read_checked(old)
    assert np.array_equal(segments.read(2, np.arange(3)), wanted)
    segments.clear()
    assert list(tmp_path.iterdir()) == []
    assert [x.segment for x in segments.append(rows(1))] == [3]  # a number is never used again
    segments.close()


def test_trimming_gives_unused_space_back_and_appending_goes_on(tmp_path: Path) -> None:
    segments = opened(tmp_path)
    wanted = rows(5)
    kept = segments.append(wanted[:2])
    committed = segments.states()
    lost = rows(1)
    segments.append(lost)
    segments.rollback(committed)
    assert lost.tobytes() in (tmp_path / "000001.f32").read_bytes()
    segments.trim()
    assert (tmp_path / "000001.f32").read_bytes() == wanted[:2].tobytes()
    kept += segments.append(wanted[2:])
    segments.sync()
    assert [(x.segment, x.slot) for x in kept] == [(1, slot) for slot in range(5)]
    assert np.array_equal(segments.read_checked(kept), wanted)
    segments.close()


def test_a_sealed_segment_is_not_opened_again_by_a_rollback(tmp_path: Path) -> None:
    segments = opened(tmp_path)
    segments.append(rows(3))
    segments.seal(1)
    segments.append(rows(2))
    segments.rollback({1: SegmentState(4, 2), 2: SegmentState(4, 1)})  # a row of each was never committed
    assert segments.states() == {1: SegmentState(4, 2), 2: SegmentState(4, 1)}
    assert [(x.segment, x.slot) for x in segments.append(rows(1))] == [(2, 1)]
    segments.close()


def test_slots_outside_the_segment_are_an_error(tmp_path: Path) -> None:
    segments = opened(tmp_path)
    segments.append(rows(2))
    for slot in (-1, 2, 1 << 40):
        with pytest.raises(IndexError):
            segments.read(1, np.array([0, slot]))
    assert segments.read(1, np.empty(0, np.int64)).shape == (0, 4)
    segments.close()
