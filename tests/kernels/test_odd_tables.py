"""Tables that a codebook is not made for: of a row or two, of narrow vectors, all equal, all zeros, tiny or huge."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from coded_tables import clustered, coded, settle

from thread_kernels.codebook import plain
from thread_kernels.coding import centroid_bits
from thread_kernels.compression import CompressPolicy
from thread_kernels.engine_cpu import CpuTable

SIZES, WIDTHS = (1, 2, 15, 39, 623, 624), (1, 2, 3, 5, 17, 33)

KINDS = {
    "normal": lambda rows, width: np.random.default_rng(rows).standard_normal((rows, width), dtype=np.float32),
    "all equal": lambda rows, width: np.full((rows, width), 0.25, dtype=np.float32),
    "all zeros": lambda rows, width: np.zeros((rows, width), dtype=np.float32),
}


@pytest.mark.parametrize(
    ("rows", "bits"), [(0, 0), (1, 0), (77, 0), (78, 1), (155, 1), (156, 2), (311, 2), (312, 3), (623, 3), (624, 4)]
)
def test_the_centroids_are_the_largest_power_of_two_with_39_rows_each(rows: int, bits: int) -> None:
    assert [centroid_bits(rows, most) for most in (8, 4)] == [bits, bits]
    assert [centroid_bits(rows, most) for most in (1, 2, 3)] == [min(bits, most) for most in (1, 2, 3)]
    assert [centroid_bits(10**9, most) for most in (4, 8)] == [4, 8]


@pytest.mark.parametrize("bits", range(1, 5))
def test_a_codebook_has_no_more_centroids_than_the_rule_allows(bits: int) -> None:
    index = plain(clustered(700, 16), rows=700, bits=bits).index
    points = np.array([index.pq.centroids.at(place) for place in range(16 * 16)]).reshape(4, 16, 4)
    assert [len(np.unique(part, axis=0)) for part in points] == [2**bits] * 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", SIZES)
def test_a_small_or_narrow_table_finds_every_row_by_its_own_vector(
    kind: str, rows: int, capfd: pytest.CaptureFixture[str]
) -> None:
    for place, width in enumerate(WIDTHS if kind == "normal" else WIDTHS[::2]):
        bits = 1 + (place + 3 * SIZES.index(rows)) % 8
        vectors = KINDS[kind](rows, width)
        table = coded(vectors, bits=bits)
        picked = np.unique(np.linspace(0, rows - 1, 12).astype(int))

        found = table.search(vectors[picked], rows, [None] * len(picked))

        stats = table.stats()
        assert (stats.state, stats.coded_rows, stats.by_code) == ("coded", rows, len(picked))
        assert 0 < stats.code_bytes <= width
        assert [len(hits.rows) for hits in found] == [rows] * len(picked)
        for row, hits in zip(picked, found, strict=True):
            assert row in hits.rows[hits.distances == 0]
        table.close()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("which", "scale"), [("all", 1e-30), ("all", 5e18), ("one", 5e18)])
def test_tiny_and_huge_vectors_are_coded_without_a_failure(which: str, scale: float) -> None:
    vectors = clustered(700, 16)
    vectors[:: 1 if which == "all" else len(vectors)] *= np.float32(scale)
    table = coded(vectors)
    picked = np.arange(0, 700, 14)

    found = table.search(vectors[picked], 1, [None] * len(picked))

    assert table.stats().by_code == len(picked)
    assert np.mean([hits.distances[0] == 0 for hits in found]) >= 0.95
    table.close()


@pytest.mark.parametrize("count", [1, 3])
def test_a_table_that_grows_row_by_row_finds_each(count: int) -> None:
    """Trained at the first row, and again at 8 times as many."""
    vectors = clustered(150, 12)
    table = CpuTable(12, CompressPolicy(0, 8))
    for start in range(0, 150, count):
        table.append(vectors[start : start + count])
        for row in {0, start}:
            assert table.search(vectors[row][None], 1, [None])[0].rows.tolist() == [row]
    settle(table)
    assert table.stats().trained_rows >= 150 / 8
    table.close()


def test_the_idle_threads_of_faiss_sleep() -> None:
    """They spin otherwise, and small work on a busy machine takes ten times as long."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    shown = subprocess.run(
        [sys.executable, "-c", "import thread_kernels.engine_cpu"],
        env=environment | {"OMP_DISPLAY_ENV": "verbose"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "GOMP_SPINCOUNT = '0'" in shown.stderr
