"""What work on a device takes for a moment beside what lies there, reckoned from the shapes of its largest steps.

The engine leaves as much of its share of the memory free, so that the share bounds all it takes. Searches come between
the pieces of a training or of coding, and torch, which trains and codes, and CuPy, which searches, each keep what they
took for the next time; before and after a training all of it is given back.
"""

from __future__ import annotations

from thread_kernels import clustering, scan_exact, scan_lut, scan_wide
from thread_kernels.coder_cuda import TRAINING_ROWS
from thread_kernels.device import FOR_QUERIES_BYTES
from thread_kernels.device_codebook import UPLOADED_BYTES
from thread_kernels.reach import DEEPEST

_KEYS = 128 * 16 * DEEPEST
"""Of the largest launch: that which measures how deep searches must look, for 128 queries with 16 slots a row."""


def working_bytes(width: int, bits: int) -> int:
    """For tables of `width` components and at most 2^bits centroids a sub-space.

    Not for a sample of more than 65,536 rows, which codes of 11 bits and more want: without memory for it, the table
    has no codes. Nor for a batch that takes more than the largest launch here: it is tried in halves.
    """
    # The sample in float32, and again less its mean; for a chunk of it distances, and members as bool and as float32.
    trained = 2 * 4 * width * TRAINING_ROWS + 9 * clustering.WORKING_BYTES // 4
    # What is uploaded, scaled, clamped and turned; then packed, at 30 bytes a component.
    coded = 4 * UPLOADED_BYTES + 30 * width * scan_exact.ROWS_PACKED
    # The keys of the sample, of this launch and of one more, each unsorted and sorted.
    searched = 6 * 8 * _KEYS
    wide = scan_wide.TABLE_BYTES if 1 << bits > scan_lut.CODES else 0
    return max(trained, coded) + searched + wide + FOR_QUERIES_BYTES
