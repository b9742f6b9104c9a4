"""Vector arithmetic behind one boundary: tables of rows, filters, exact and compressed search, rescoring.

`interface` is the boundary and the place to start; `create_engine` gives an implementation of it, `reference` has the
plain one that all are tested against. NumPy at the edge; no files, no sockets.
"""

from thread_kernels.blockwise import block_count
from thread_kernels.dispatch import Device, create_engine
from thread_kernels.interface import (
    MAX_SQUARED_NORM,
    Compress,
    DamagedCodes,
    Engine,
    EngineUnavailable,
    Filter,
    Hits,
    Place,
    Rescored,
    RowSet,
    SavedCodes,
    StoredVectors,
    Table,
    TableStats,
)

__all__ = [
    "MAX_SQUARED_NORM",
    "Compress",
    "DamagedCodes",
    "Device",
    "Engine",
    "EngineUnavailable",
    "Filter",
    "Hits",
    "Place",
    "Rescored",
    "RowSet",
    "SavedCodes",
    "StoredVectors",
    "Table",
    "TableStats",
    "block_count",
    "create_engine",
]
