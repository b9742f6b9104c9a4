"""The codes of a CPU table as bytes, to outlive the process: its rotation, base and fresh codes.

The row numbers inside are those of the table that saved them; `load` numbers the rows anew, 0, 1, … in their order.
"""

from __future__ import annotations

import numpy as np

from thread_kernels import saved_parts
from thread_kernels.codebook import BITS, Codebook
from thread_kernels.codes import Codes, ids_of
from thread_kernels.compression import Compressed
from thread_kernels.interface import DamagedCodes, Int64, SavedCodes
from thread_kernels.loaded_faiss import faiss

_MAGIC = b"thread codes 2\n"


def save(compressed: Compressed, removed: Int64) -> SavedCodes:
    """Less the codes of int64[n] `removed` rows, which ascend."""
    coded = compressed.codes
    assert isinstance(coded, Codes)
    codes = coded.without(removed)
    rotation = codes.codebook.rotation
    parts = [b"" if rotation is None else rotation.tobytes(), *map(_bytes, (codes.base, codes.fresh))]
    header = {"rotation": None if rotation is None else rotation.shape}
    data = saved_parts.write(_MAGIC, compressed, codes.codebook.width, codes.coded_rows, header, parts)
    return SavedCodes(codes.all_rows(), data)


def load(data: bytes, count: int, width: int) -> Compressed:
    """DamagedCodes when these are not the codes of `count` rows of `width` components."""
    header, parts = saved_parts.read(_MAGIC, data, count, width)
    # A copy: a view would keep all of `data` in memory.
    rotation = header["rotation"] and np.frombuffer(parts[0], dtype=np.float32).reshape(header["rotation"]).copy()
    try:
        base, fresh = (faiss.deserialize_index(np.frombuffer(part, dtype=np.uint8)) for part in parts[1:])
    except RuntimeError as error:
        raise DamagedCodes(f"saved codes that this version of FAISS cannot read: {error}") from error
    base_rows = _number_anew(base, fresh)
    codes = Codes.of(Codebook(rotation, _emptied(base), width), base, fresh, base_rows, count)
    return Compressed(codes, **saved_parts.measured(header))


def _bytes(index: faiss.Index) -> bytes:
    found: bytes = faiss.serialize_index(index).tobytes()
    return found


def _number_anew(base: faiss.Index, fresh: faiss.Index) -> int:
    """Give the rows of both parts their place in the order of all; every row of `fresh` is above those of `base`."""
    base_lists, fresh_lists = ids_of(base), ids_of(fresh)
    rows = np.concatenate([*base_lists, *fresh_lists])
    places = np.zeros(1 + rows.max(initial=-1), dtype=np.int64)
    places[rows] = 1
    places = np.cumsum(places) - 1
    for numbers in (*base_lists, *fresh_lists):
        numbers[:] = places[numbers]
    return int(base.ntotal)


def _emptied(index: faiss.Index) -> faiss.Index:
    """The same trained index without a code."""
    empty = faiss.IndexIVFPQFastScan(index.quantizer, index.d, index.nlist, index.pq.M, BITS)
    empty.by_residual = False
    faiss.copy_array_to_vector(faiss.vector_to_array(index.pq.centroids), empty.pq.centroids)
    empty.is_trained = True
    return faiss.clone_index(empty)  # with a quantizer of its own, which lives as long as it does
