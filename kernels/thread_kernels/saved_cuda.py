"""The codes of a CUDA table as bytes, to outlive the process: its rotation, centroids and codes.

Nothing in them belongs to the card that wrote them. The whole vectors are not among them: a restored table is scanned
by codes alone until they have been read from the store, which is done in the background.
"""

from __future__ import annotations

import numpy as np

from thread_kernels import saved_parts
from thread_kernels.compression import Compressed
from thread_kernels.device import Residence
from thread_kernels.device_codebook import DeviceCodebook
from thread_kernels.device_codes import DeviceCodes
from thread_kernels.device_rows import CodeLayout, Tiles
from thread_kernels.interface import Int64, SavedCodes

_MAGIC = b"thread codes cuda 1\n"
_MOVED_ROWS = 1 << 18


def save(compressed: Compressed, removed: Int64) -> SavedCodes:
    """Less the codes of int64[n] `removed` rows, which ascend."""
    coded = compressed.codes
    assert isinstance(coded, DeviceCodes)
    codebook = coded.codebook
    with codebook.residence.using():
        rotation = None if codebook.rotation is None else codebook.rotation.cpu().numpy()
        centroids = codebook.centroids.cpu().numpy()
    kept = np.isin(coded.numbers, removed, assume_unique=True, invert=True)
    codes = []
    for start in range(0, len(kept), _MOVED_ROWS):
        stop = min(start + _MOVED_ROWS, len(kept))
        with codebook.residence.using() as device:  # a part at a time, so that searches come between
            some = device.download(coded.tiles.codes(start, stop, codebook.subspaces))
        codes.append(some[kept[start:stop]].tobytes())
    numbers = coded.numbers[kept]
    header = {
        "exponent": codebook.exponent,
        "rotation": None if rotation is None else rotation.shape,
        "centroids": centroids.shape,
    }
    parts = [b"" if rotation is None else rotation.tobytes(), centroids.tobytes(), b"".join(codes)]
    data = saved_parts.write(_MAGIC, compressed, codebook.width, len(numbers), header, parts)
    return SavedCodes(numbers, data)


def load(residence: Residence, data: bytes, count: int, width: int) -> Compressed:
    """DamagedCodes when these are not the codes of `count` rows of `width` components; OutOfRoom when they do not
    fit."""
    header, parts = saved_parts.read(_MAGIC, data, count, width)
    centroids = np.frombuffer(parts[1], dtype=np.float32).reshape(header["centroids"])
    layout = CodeLayout.of(len(centroids), centroids.shape[1])
    codes = np.frombuffer(parts[2], dtype=layout.dtype).reshape(count, len(centroids))
    with residence.using() as device:
        device.costs(width, centroids.shape[1])  # so that no search waits for it
        rotation = None
        if header["rotation"]:
            turned = np.frombuffer(parts[0], dtype=np.float32).reshape(header["rotation"])
            rotation = device.tensor(device.upload(turned))
        resident = device.tensor(device.upload(centroids))
        codebook = DeviceCodebook.of(residence, width, header["exponent"], rotation, resident)
        tiles = Tiles.none(residence, layout).with_room(count)
        for start in range(0, count, _MOVED_ROWS):
            tiles = tiles.and_codes(device.upload(codes[start : start + _MOVED_ROWS]))
    found = DeviceCodes.of(codebook, tiles, None, np.arange(count), count, is_complete=False)
    return Compressed(found, **saved_parts.measured(header))
