"""Codes over a restart: the same answers with rows numbered anew, and every kind of damage is noticed."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import pytest
from coded_tables import Store, clustered, coded, grow, nearest_of, only, recall, settle

from thread_kernels import DamagedCodes, SavedCodes, codebook, compression, saved_parts
from thread_kernels.compression import CompressPolicy
from thread_kernels.engine_cpu import CpuTable

WIDTH, ROWS = 48, 800
VECTORS = clustered(ROWS + 400, WIDTH)
QUERIES = clustered(150, WIDTH, seed=2)


def restored(kept: SavedCodes, store: Store) -> CpuTable:
    """Another table over the store as it is after a restart: the saved rows, in their order."""
    anew = Store(store.vectors.shape[1])
    anew.put(store.vectors[kept.rows])
    table = CpuTable(anew.vectors.shape[1], CompressPolicy(0, 8), anew)
    assert table.restore(kept.data, len(kept.rows)) == range(len(kept.rows))
    return table


@pytest.fixture
def store() -> Store:
    return Store(WIDTH)


@pytest.mark.parametrize("lists", [1, 64])
def test_a_restored_table_gives_the_same_answers(store: Store, lists: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codebook, "_ROWS_A_LIST", ROWS // lists)
    table = coded(VECTORS[:ROWS], store=store)

    def assert_same(*, dead: int) -> None:
        assert table.stats().dead_rows == dead
        kept = table.save()
        assert kept is not None
        assert kept.rows.dtype == np.int64
        other = restored(kept, store)

        assert (other.row_count, other.live_count, len(kept.rows)) == (table.live_count,) * 3
        before, after = table.stats(), other.stats()
        assert (after.state, after.coded_rows, after.dead_rows, after.vector_bytes) == ("coded", other.row_count, 0, 0)
        for name in ("code_bytes", "trained_rows", "training_seconds") + (() if dead else ("depth",)):
            assert getattr(after, name) == getattr(before, name)
        for k in (1, 10, 100):
            found, expected = (each.search(QUERIES, k, [None] * len(QUERIES)) for each in (other, table))
            rows = [kept.rows[hits.rows] for hits in found]
            assert recall(rows, nearest_of(store.vectors, QUERIES, k, kept.rows)) >= 0.97
            if not dead:  # the dead that are still in the codes change how FAISS breaks ties
                for one, hits, wanted in zip(rows, found, expected, strict=True):
                    np.testing.assert_array_equal(one, wanted.rows)
                    np.testing.assert_array_equal(hits.distances, wanted.distances)
        half = only(other, range(0, len(kept.rows), 2))
        truth = nearest_of(store.vectors, QUERIES, 10, kept.rows[::2])
        assert recall([kept.rows[hits.rows] for hits in other.search(QUERIES, 10, [half] * 150)], truth) >= 0.95
        other.close()

    assert_same(dead=0)
    grow(table, VECTORS[ROWS:], store)
    assert_same(dead=0)
    table.remove(range(1, ROWS + 400, 10))
    assert_same(dead=(ROWS + 400) // 10)
    table.compact()
    assert_same(dead=0)
    table.close()


def test_a_restored_table_lives_on(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = coded(VECTORS[:400], store=store)
    grow(table, VECTORS[400:700], store)
    table.remove(range(0, 700, 10))
    kept = table.save()
    assert kept is not None
    other = restored(kept, store)
    anew = other._blocks.view._stored
    assert isinstance(anew, Store)

    monkeypatch.setattr(compression, "_FRESH_ROWS", 100)  # so that the fresh codes become part of the base
    grow(other, VECTORS[700:1_200], anew)
    current = other.compression.current
    assert current is not None
    assert (current.codes.base_rows, current.codes.fresh_rows) == (1_130, 0)
    np.testing.assert_array_equal(current.codes.all_rows(), np.arange(1_130))
    other.remove(range(300))
    settle(other)
    assert (other.live_count, other.stats().dead_rows, other.stats().trained_rows) == (830, 0, 400)
    truth = nearest_of(anew.vectors, QUERIES, 10, np.arange(300, 1_130))
    assert recall(other.search(QUERIES, 10, [None] * 150), truth) >= 0.97

    again = other.save()
    assert again is not None
    np.testing.assert_array_equal(again.rows, np.arange(300, 1_130))
    third = restored(again, anew)
    assert recall([again.rows[hits.rows] for hits in third.search(QUERIES, 10, [None] * 150)], truth) >= 0.97
    for each in (table, other, third):
        each.close()


def test_without_codes_there_is_nothing_to_save() -> None:
    table = coded(VECTORS[:500], above=1_000)
    assert table.save() is None
    table.close()


def test_saved_codes_do_not_name_rows_removed_since(store: Store) -> None:
    table = coded(VECTORS[:ROWS], store=store)
    grow(table, VECTORS[ROWS:], store)
    table.remove([0, 7, ROWS - 1, ROWS, ROWS + 399])
    kept = table.save()
    assert kept is not None
    np.testing.assert_array_equal(kept.rows, np.setdiff1d(np.arange(ROWS + 400), [0, 7, ROWS - 1, ROWS, ROWS + 399]))
    assert table.stats().coded_rows == ROWS + 400, "saving changes nothing"
    table.close()


@pytest.fixture(scope="module")
def kept() -> SavedCodes:
    table = coded(VECTORS[:700], store=Store(WIDTH))
    kept = table.save()
    assert kept is not None
    table.close()
    return kept


def refused(data: bytes, count: int = 700, width: int = WIDTH) -> None:
    table = CpuTable(width, CompressPolicy(0, 8), Store(width))
    with pytest.raises(DamagedCodes):
        table.restore(data, count)
    assert (table.row_count, table.stats().state) == (0, "exact")


def test_any_flipped_bit_is_noticed(kept: SavedCodes) -> None:
    random = np.random.default_rng(0)
    ends = [*range(60), *range(len(kept.data) - 40, len(kept.data))]
    for place in [*ends, *random.integers(0, len(kept.data), 300).tolist()]:
        data = bytearray(kept.data)
        data[place] ^= 1 << int(random.integers(8))
        refused(bytes(data))


def test_any_truncation_is_noticed(kept: SavedCodes) -> None:
    size = len(kept.data)
    for length in {*range(80), *np.linspace(80, size - 1, 150).astype(int).tolist(), size - 8, size - 1}:
        refused(kept.data[:length])
        refused(kept.data[length + 1 :])


def signed(data: bytes) -> bytes:
    """With a right checksum, as another version would write it."""
    return data + saved_parts._LENGTH.pack(zlib.crc32(data))


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"\x00" * len(data),
        lambda data: b"\x00" * 31,
        lambda data: b"SQLite format 3\x00" * 100,
        lambda data: "codes \U0001f9f5".encode() * 50,
        lambda data: np.random.default_rng(0).bytes(len(data)),
        lambda data: data + b"\x00",
        lambda data: data + data,
        lambda data: signed(data[:-8].replace(b"thread codes 2", b"thread codes 1", 1)),
        lambda data: signed(data[:-8].replace(b"IwPf", b"IwZZ", 1)),
    ],
    ids=["empty", "zeros", "short", "foreign", "text", "noise", "longer", "twice", "other format", "other index"],
)
def test_what_are_no_codes_is_noticed(kept: SavedCodes, damage: Callable[[bytes], bytes]) -> None:
    data = damage(kept.data)
    assert data != kept.data
    refused(data)


def test_codes_of_another_width_or_another_count_are_noticed(kept: SavedCodes) -> None:
    for count in (0, 1, 699, 701):
        refused(kept.data, count)
    for width in (1, WIDTH - 1, WIDTH + 1, 2 * WIDTH):
        refused(kept.data, width=width)


def test_codes_are_restored_only_into_an_empty_table_with_a_store(kept: SavedCodes, store: Store) -> None:
    table = CpuTable(WIDTH, CompressPolicy(0, 8))
    with pytest.raises(ValueError, match="empty table that reads its vectors from a store"):
        table.restore(kept.data, 700)
    table = CpuTable(WIDTH, CompressPolicy(None, 8), store)
    grow(table, VECTORS[:1], store)
    with pytest.raises(ValueError, match="empty table that reads its vectors from a store"):
        table.restore(kept.data, 700)
    assert table.row_count == 1
