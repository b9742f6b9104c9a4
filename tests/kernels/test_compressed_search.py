"""Large tables on a CPU: recall of the compressed scan, and that making the codes disturbs nobody."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event, Thread

import numpy as np
import pytest

from thread_kernels import Filter, Hits, compression
from thread_kernels.codes import Codes, Depth
from thread_kernels.engine_cpu import CpuTable

WIDTH = 128
ROWS = 20_000


def clustered(rows: int, width: int = WIDTH, seed: int = 1) -> np.ndarray:
    """x = normalise(z·B + 0.3·g) with 128 normals z scaled by rank^-0.5: the spectrum of text embeddings."""
    basis = np.random.default_rng(0).standard_normal((128, width))
    random = np.random.default_rng(seed)
    latent = random.standard_normal((rows, 128)) * np.arange(1, 129) ** -0.5
    vectors = latent @ basis + 0.3 * random.standard_normal((rows, width))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


VECTORS = clustered(ROWS)
QUERIES = clustered(100, seed=2)
FEW = clustered(4_000, 48)
FEW_QUERIES = clustered(100, 48, seed=2)


@pytest.fixture(scope="module")
def compressed() -> Iterator[CpuTable]:
    table = CpuTable(WIDTH, compress_above=ROWS // 2)
    table.append(VECTORS)
    assert table.compression.wait(timeout_s=120)
    yield table
    table.close()


def exact(vectors: np.ndarray, queries: np.ndarray, k: int, rows: np.ndarray) -> list[np.ndarray]:
    distances = (vectors[rows] ** 2).sum(axis=1) - 2 * queries @ vectors[rows].T
    return [rows[order] for order in np.argsort(distances, axis=1)[:, :k]]


def recall(found: list[Hits], truth: list[np.ndarray]) -> float:
    return float(np.mean([np.isin(rows, hits.rows).mean() for hits, rows in zip(found, truth, strict=True)]))


@pytest.fixture
def code_scans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for every scan of codes."""
    scans: list[int] = []
    original = Codes.nearest

    def nearest(codes: Codes, queries: np.ndarray, count: int, mask: np.ndarray | None) -> list[np.ndarray]:
        scans.append(count)
        return original(codes, queries, count, mask)

    monkeypatch.setattr(Codes, "nearest", nearest)
    return scans


@pytest.mark.parametrize("k", [1, 10, 100, 400])
def test_recall_without_a_filter(compressed: CpuTable, k: int, code_scans: list[int]) -> None:
    found = compressed.search(QUERIES, k, [None] * len(QUERIES))
    assert recall(found, exact(VECTORS, QUERIES, k, np.arange(ROWS))) >= 0.97
    assert code_scans


@pytest.mark.parametrize("k", [10, 100])
@pytest.mark.parametrize("passing", ["half", "one side", "one cluster"])
def test_recall_with_a_filter(compressed: CpuTable, k: int, passing: str, code_scans: list[int]) -> None:
    basis = np.random.default_rng(0).standard_normal((128, WIDTH))
    queries = QUERIES[QUERIES @ basis[0] > 0]  # all of them far from the rows of one side
    rows = {
        "half": np.arange(0, ROWS, 2),
        "one side": np.sort(np.argsort(VECTORS @ basis[0])[: ROWS // 4]),
        "one cluster": np.sort(np.argsort(-VECTORS @ VECTORS[7])[: ROWS // 2]),
    }[passing]
    members = compressed.row_set()
    members.add(rows)

    found = compressed.search(queries, k, [Filter.any_of(members)] * len(queries))

    assert recall(found, exact(VECTORS, queries, k, rows)) >= 0.95
    assert all(np.isin(hits.rows, rows).all() for hits in found)
    current = compressed.compression.current
    assert code_scans == [current.filtered_depth.of(k)]
    assert code_scans[0] >= current.depth.of(k)


def test_a_narrow_filter_is_answered_exactly(compressed: CpuTable, code_scans: list[int]) -> None:
    rows = np.arange(0, ROWS, 97)
    members = compressed.row_set()
    members.add(rows)
    found = compressed.search(QUERIES, 10, [Filter.any_of(members)] * len(QUERIES))
    for hits, expected in zip(found, exact(VECTORS, QUERIES, 10, rows), strict=True):
        np.testing.assert_array_equal(hits.rows, expected)
    assert not code_scans


def test_distances_are_exact_and_ascend(compressed: CpuTable) -> None:
    for hits, query in zip(compressed.search(QUERIES, 50, [None] * 100), QUERIES, strict=True):
        expected = ((VECTORS[hits.rows].astype(np.float64) - query) ** 2).sum(axis=1)
        np.testing.assert_allclose(hits.distances, expected, rtol=1e-6)
        assert (np.diff(hits.distances) >= 0).all()


def test_rows_after_the_codes_are_found_and_removed_ones_are_not(code_scans: list[int]) -> None:
    table = CpuTable(48, compress_above=1_000)
    table.append(FEW)
    assert table.compression.wait(timeout_s=120)
    code_scans.clear()

    new = table.append(FEW_QUERIES)
    table.remove([3, new[5]])

    hits = table.search(np.concatenate([FEW_QUERIES, FEW[2:4]]), 10, [None] * 102)
    assert code_scans
    assert [each.rows[0] for each in hits[:5]] == list(new[:5])
    assert not hits[0].distances[0]
    assert not any(np.isin(each.rows, [3, new[5]]).any() for each in hits)
    assert hits[100].rows[0] == 2
    table.close()


def test_searches_and_appends_go_on_exactly_while_the_codebook_is_trained(
    monkeypatch: pytest.MonkeyPatch, code_scans: list[int]
) -> None:
    started, finish = Event(), Event()

    def slow(sample: np.ndarray) -> compression.Codebook:
        started.set()
        assert finish.wait(60)
        return original(sample)

    original = compression.plain
    monkeypatch.setattr(compression, "plain", slow)
    table = CpuTable(48, compress_above=1_000)
    table.append(FEW[:3_900])
    assert started.wait(60)

    assert not table.compression.wait(timeout_s=0)
    table.append(FEW[3_900:])
    found = table.search(FEW_QUERIES, 10, [None] * len(FEW_QUERIES))
    for hits, expected in zip(found, exact(FEW, FEW_QUERIES, 10, np.arange(4_000)), strict=True):
        np.testing.assert_array_equal(hits.rows, expected)
    assert not code_scans

    finish.set()
    assert table.compression.wait(timeout_s=120)
    code_scans.clear()
    table.search(FEW_QUERIES[:1], 10, [None])
    assert code_scans
    table.close()


def test_a_growing_table_catches_up_calibrates_again_and_trains_again() -> None:
    table = CpuTable(32, compress_above=1_000)
    vectors = clustered(12_000, 32)

    def grow(rows: int) -> compression.Compressed:
        table.append(vectors[table.row_count : rows])
        assert table.compression.wait(timeout_s=120)
        assert table.compression.current is not None
        return table.compression.current

    first = grow(1_500)
    assert (first.codes.rows, first.trained_rows, first.calibrated_rows) == (1_500, 1_500, 1_500)
    assert grow(2_000) is first
    second = grow(7_000)
    assert second.codes.codebook is first.codes.codebook
    assert (second.codes.rows, second.trained_rows, second.calibrated_rows) == (7_000, 1_500, 7_000)
    third = grow(12_000)
    assert third.codes.codebook is not first.codes.codebook
    assert (third.codes.rows, third.trained_rows) == (12_000, 12_000)

    queries = clustered(100, 32, seed=2)
    found = table.search(queries, 10, [None] * 100)
    assert recall(found, exact(vectors[:12_000], queries, 10, np.arange(12_000))) >= 0.97
    table.close()


@pytest.mark.parametrize(
    "vectors",
    [np.random.default_rng(0).standard_normal((6_000, 64), dtype=np.float32), np.ones((6_000, 64), dtype=np.float32)],
    ids=["noise", "all equal"],
)
def test_vectors_that_codes_cannot_tell_apart_are_still_found(vectors: np.ndarray) -> None:
    table = CpuTable(64, compress_above=1_000)
    table.append(vectors)
    assert table.compression.wait(timeout_s=120)
    queries = np.random.default_rng(1).standard_normal((100, 64), dtype=np.float32)

    found = table.search(queries, 10, [None] * 100)

    if vectors.std():
        assert recall(found, exact(vectors, queries, 10, np.arange(6_000))) >= 0.97
    else:
        assert all(hits.rows.tolist() == list(range(10)) for hits in found)
    table.close()


def test_a_small_or_narrow_or_shrunken_table_is_scanned_exactly(code_scans: list[int]) -> None:
    small, narrow, shrunken = CpuTable(48), CpuTable(31, 1_000), CpuTable(48, 3_999)
    small.append(FEW)
    narrow.append(FEW[:, :31])
    shrunken.append(FEW)
    assert shrunken.compression.wait(timeout_s=120)
    code_scans.clear()
    shrunken.remove([0])
    for table in (small, narrow, shrunken):
        assert table.compression.wait(timeout_s=120)
        table.search(FEW_QUERIES[:, : table.width], 10, [None] * 100)
        table.close()
    assert not code_scans


def test_a_failed_training_is_reported_and_searches_stay_exact(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(sample: np.ndarray) -> compression.Codebook:
        raise MemoryError("no room")

    monkeypatch.setattr(compression, "plain", broken)
    table = CpuTable(48, compress_above=1_000)
    table.append(FEW[:2_000])

    with pytest.raises(RuntimeError, match="codes of the table"):
        table.compression.wait(timeout_s=120)
    table.append(FEW[2_000:3_000])
    found = table.search(FEW_QUERIES, 10, [None] * 100)

    for hits, expected in zip(found, exact(FEW, FEW_QUERIES, 10, np.arange(3_000)), strict=True):
        np.testing.assert_array_equal(hits.rows, expected)
    assert [record.message for record in caplog.records] == ["no codes for a table of 2000 rows; it is scanned exactly"]


def test_closing_ends_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    started, finish = Event(), Event()
    original = compression.plain

    def slow(sample: np.ndarray) -> compression.Codebook:
        started.set()
        assert finish.wait(60)
        return original(sample)

    monkeypatch.setattr(compression, "plain", slow)
    table = CpuTable(48, compress_above=1_000)
    table.append(FEW[:2_000])
    assert started.wait(60)

    closer = Thread(target=table.close)
    closer.start()
    finish.set()
    closer.join(60)

    assert not closer.is_alive()
    table.close()
    table.append(FEW[2_000:])
    assert table.compression.wait(timeout_s=0)
    assert len(table.search(FEW_QUERIES[:1], 10, [None])[0].rows) == 10


def test_a_depth_grows_with_k_and_ends_where_the_codes_do() -> None:
    whole = Depth(((10, 40), (100, 250), (1_000, 1_600)))
    assert [whole.of(k) for k in (0, 1, 10, 100, 1_000, 2_000)] == [40, 40, 40, 250, 1_600, 3_200]
    assert 40 < whole.of(50) < 250
    assert Depth(((10, 40),)).of(10) == 40
    assert Depth(((10, 40),)).of(11) is None
    assert Depth(()).of(1) is None


def test_the_deeper_of_two_depths_answers_what_both_answer() -> None:
    one, two = Depth(((10, 40), (100, 250), (1_000, 1_600))), Depth(((10, 90), (100, 200)))
    assert one.or_deeper(two) == two.or_deeper(one) == Depth(((10, 90), (100, 250)))
