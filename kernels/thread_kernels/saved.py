"""Codes as bytes, to outlive the process: what was trained, coded and measured, under one checksum.

    magic, length of the header, header (JSON), rotation, base, fresh, CRC-32 of all that

The row numbers inside are those of the table that saved them; `load` numbers the rows anew, 0, 1, … in their order.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import asdict

import numpy as np

from thread_kernels.codebook import BITS, Codebook
from thread_kernels.codes import Codes, ids_of
from thread_kernels.compression import Compressed
from thread_kernels.interface import DamagedCodes, Int64, SavedCodes
from thread_kernels.loaded_faiss import faiss
from thread_kernels.reach import Reach

_MAGIC = b"thread codes 2\n"
_LENGTH = struct.Struct("<Q")
_REACHES = ("whole", "even", "apart")
_NUMBERS = ("trained_rows", "calibrated_rows", "training_seconds", "coded_cost", "gathered_cost")


def save(compressed: Compressed, removed: Int64) -> SavedCodes:
    """Less the codes of int64[n] `removed` rows, which ascend."""
    codes = compressed.codes.without(removed)
    rotation = codes.codebook.rotation
    parts = [b"" if rotation is None else rotation.tobytes(), *map(_bytes, (codes.base, codes.fresh))]
    header = {
        "width": codes.codebook.width,
        "rotation": None if rotation is None else rotation.shape,
        "lengths": [len(part) for part in parts],
        "count": codes.coded_rows,
        **{name: getattr(compressed, name) for name in _NUMBERS},
        **{name: asdict(getattr(compressed, name)) for name in _REACHES},
    }
    text = json.dumps(header).encode()
    data = b"".join([_MAGIC, _LENGTH.pack(len(text)), text, *parts])
    return SavedCodes(codes.all_rows(), data + _LENGTH.pack(zlib.crc32(data)))


def load(data: bytes, count: int, width: int) -> Compressed:
    """DamagedCodes when these are not the codes of `count` rows of `width` components."""
    body = memoryview(data)[: -_LENGTH.size]
    if len(data) < len(_MAGIC) + 2 * _LENGTH.size or body[: len(_MAGIC)] != _MAGIC:
        raise DamagedCodes("no saved codes, or of another version")
    if _LENGTH.unpack(data[-_LENGTH.size :]) != (zlib.crc32(body),):
        raise DamagedCodes("the checksum of the saved codes is wrong")
    start = len(_MAGIC) + _LENGTH.size
    (length,) = _LENGTH.unpack(body[len(_MAGIC) : start])
    header = json.loads(bytes(body[start : start + length]))
    if (header["width"], header["count"]) != (width, count):
        raise DamagedCodes(
            f"codes of {header['count']} rows of {header['width']} components, not of {count} of {width}"
        )
    parts = []
    start += length
    for size in header["lengths"]:
        parts.append(body[start : start + size])
        start += size
    # A copy: a view would keep all of `data` in memory.
    rotation = header["rotation"] and np.frombuffer(parts[0], dtype=np.float32).reshape(header["rotation"]).copy()
    try:
        base, fresh = (faiss.deserialize_index(np.frombuffer(part, dtype=np.uint8)) for part in parts[1:])
    except RuntimeError as error:
        raise DamagedCodes(f"saved codes that this version of FAISS cannot read: {error}") from error
    base_rows = _number_anew(base, fresh)
    codebook = Codebook(rotation, _emptied(base), width)
    whole, even, apart = (Reach(tuple(map(tuple, header[name]["measured"])), header[name]["rows"]) for name in _REACHES)
    numbers = {name: header[name] for name in _NUMBERS}
    return Compressed(Codes.of(codebook, base, fresh, base_rows, count), whole, even, apart, **numbers)


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
