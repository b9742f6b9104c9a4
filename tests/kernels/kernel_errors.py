"""How far a kernel may be from the reference, and the mark of tests that only a GPU is large enough for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

TOLERANCES = {"float32": 1e-6, "float16": 5e-4, "int8": 2e-2}
"""Of ‖out − reference‖ / ‖reference‖, by the type of what the kernel reads or writes."""

real_size = pytest.mark.parametrize("device", [pytest.param("cuda", marks=pytest.mark.gpu)], indirect=True)


def error(out: Any, expected: Any) -> float:
    assert np.isfinite(out).all()
    return float(np.linalg.norm(out - expected) / np.linalg.norm(expected))
