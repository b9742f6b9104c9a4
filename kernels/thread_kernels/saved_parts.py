"""Saved codes as bytes: a header and some parts under one checksum, whichever engine they are of.

magic, length of the header, header (JSON), parts, CRC-32 of all that
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from thread_kernels.compression import Compressed
from thread_kernels.interface import DamagedCodes
from thread_kernels.reach import Reach

_LENGTH = struct.Struct("<Q")
_REACHES = ("whole", "even", "apart")
_NUMBERS = ("trained_rows", "calibrated_rows", "training_seconds", "coded_cost", "gathered_cost")


def write(
    magic: bytes, compressed: Compressed, width: int, count: int, header: Mapping[str, Any], parts: Sequence[bytes]
) -> bytes:
    """What was measured, `header` and `parts` of the codes of `count` rows of `width` components."""
    full = {
        "width": width,
        "lengths": [len(part) for part in parts],
        "count": count,
        **{name: getattr(compressed, name) for name in _NUMBERS},
        **{name: asdict(getattr(compressed, name)) for name in _REACHES},
        **header,
    }
    text = json.dumps(full).encode()
    data = b"".join([magic, _LENGTH.pack(len(text)), text, *parts])
    return data + _LENGTH.pack(zlib.crc32(data))


def read(magic: bytes, data: bytes, count: int, width: int) -> tuple[dict[str, Any], list[memoryview]]:
    """The header and the parts. DamagedCodes when these are not the codes of `count` rows of `width` components."""
    body = memoryview(data)[: -_LENGTH.size]
    if len(data) < len(magic) + 2 * _LENGTH.size or body[: len(magic)] != magic:
        raise DamagedCodes("no saved codes, or of another engine or version")
    if _LENGTH.unpack(data[-_LENGTH.size :]) != (zlib.crc32(body),):
        raise DamagedCodes("the checksum of the saved codes is wrong")
    start = len(magic) + _LENGTH.size
    (length,) = _LENGTH.unpack(body[len(magic) : start])
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
    return header, parts


def measured(header: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `Compressed` but its codes."""
    reaches = {name: Reach(tuple(map(tuple, header[name]["measured"])), header[name]["rows"]) for name in _REACHES}
    return {**reaches, **{name: header[name] for name in _NUMBERS}}
