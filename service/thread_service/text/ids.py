"""Content addresses and graph ids: pure functions from what a thing says to the name it goes by.

Two families. Documents and stored content are addressed by SHA-256 over length-prefixed parts, so that two different
contents never share an address. Graph ids are *decimal hashes* of normalised names: the form other nodes use, kept
digit for digit so that a fleet can merge graphs by id. None of these ids is ever a file name.

Every function takes Unicode scalar values only; a lone surrogate raises `UnicodeEncodeError` (a `ValueError`).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

DEFAULT_KIND = "concept"

_DECIMALS = [f"{byte:02d}" for byte in range(256)]
_length = struct.Struct("<Q").pack


def decimal_hash(data: bytes) -> str:
    """SHA-256 of `data`, each of the 32 bytes in decimal padded to two digits, without separator: 64 to 96 digits."""
    return "".join(map(_DECIMALS.__getitem__, hashlib.sha256(data).digest()))


def content_id(texts: Iterable[str]) -> str:
    """The document id of a list of chunk texts: 64 lower-case hexadecimal digits.

    SHA-256 over the texts in order, each preceded by its UTF-8 byte length as an unsigned 64-bit little-endian integer.
    """
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode()
        digest.update(_length(len(data)))
        digest.update(data)
    return digest.hexdigest()


def content_digest(media_type: str, texts: Sequence[str], vectors: Sequence[NDArray[np.float32] | None]) -> bytes:
    """The 32-byte address of stored content: its media type, its texts in order, and each text's caller vector or none.

    `vectors` holds one entry for each text, of shape (width,), or None where the caller gave none; they are hashed bit
    for bit as little-endian float32. Raises `ValueError` when the two lengths differ.
    """
    digest = hashlib.sha256()
    media = media_type.encode()
    digest.update(_length(len(media)))
    digest.update(media)
    for text, vector in zip(texts, vectors, strict=True):
        data = text.encode()
        digest.update(_length(len(data)))
        digest.update(data)
        if vector is None:
            digest.update(b"\0")
        else:
            values = np.ascontiguousarray(vector, dtype="<f4").tobytes()
            digest.update(b"\1" + _length(len(values)))
            digest.update(values)
    return digest.digest()


def normalise_name(name: str) -> str:
    """An entity name as ids see it: lower case, words joined by single spaces."""
    return " ".join(name.lower().split())


def normalise_kind(kind: str) -> str:
    """An entity kind as ids see it: trimmed and lower case, inner white space kept; `concept` when nothing is left."""
    return kind.strip().lower() or DEFAULT_KIND


def normalise_predicate(predicate: str) -> str:
    """A predicate as ids see it: trimmed and lower case, inner white space kept."""
    return predicate.strip().lower()


def entity_id(kind: str, name: str) -> str:
    """The id of an entity: the decimal hash of `kind|name`, both normalised."""
    return decimal_hash(f"{normalise_kind(kind)}|{normalise_name(name)}".encode())


def relationship_id(subject_id: str, predicate: str, object_id: str) -> str:
    """The id of a relationship: the decimal hash of `subject id|predicate|object id`, the predicate normalised."""
    return decimal_hash(f"{subject_id}|{normalise_predicate(predicate)}|{object_id}".encode())


def predicate_id(predicate: str) -> str:
    """The id of a predicate: the decimal hash of its normalised form."""
    return decimal_hash(normalise_predicate(predicate).encode())


def partition_id(document_id: str, ordinal: int) -> str:
    """The id of one text chunk of a document; `ordinal` counts from 0."""
    return f"{document_id}:{ordinal}"
