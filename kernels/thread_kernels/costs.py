"""What a row costs on this machine, measured: the crossover between gathering rows and scanning them all."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from thread_kernels.blocks import Blocks
from thread_kernels.exact import shortlist
from thread_kernels.inputs import as_vectors

_ROWS, _GATHERED = 4_096, 512
_TIMES = 5


@dataclass(frozen=True, slots=True)
class RowCosts:
    """Seconds a row."""

    scanned: float
    """Measured where it lies."""
    gathered: float
    """Copied out of its place and measured."""


@cache
def row_costs(width: int) -> RowCosts:
    """Of rows in memory; measured once a width, in some ten milliseconds."""
    random = np.random.default_rng(0)
    blocks = Blocks(width)
    rows, squared_norms = as_vectors(random.random((_ROWS, width), dtype=np.float32), width)
    blocks.write(rows, squared_norms)
    picked = np.sort(random.permutation(_ROWS)[:_GATHERED])
    query, squared_norm = rows[:1], squared_norms[:1]
    return RowCosts(
        fastest(lambda: shortlist(query, squared_norm, 1, blocks.view.scan(0, _ROWS))) / _ROWS,
        fastest(lambda: shortlist(query, squared_norm, 1, blocks.view.gather(picked))) / _GATHERED,
    )


def fastest(work: Callable[[], object]) -> float:
    """Seconds of processor time of `work`: the best of a few, because the first one also pays for its memory.

    Time on the processor, so that a busy machine measures the same crossover as an idle one.
    """
    seconds = []
    for _ in range(_TIMES):
        started = time.thread_time()
        work()
        seconds.append(time.thread_time() - started)
    return min(seconds)
