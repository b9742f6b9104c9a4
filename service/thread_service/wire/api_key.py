"""The API key, as HTTP headers and gRPC metadata carry it."""

from __future__ import annotations

import hmac

WANTED = "this node wants its API key as `Authorization: Bearer KEY`"


def is_granted(authorization: str, key: bytes) -> bool:
    """Whether the value of an `authorization` header brings the key, which is compared in constant time."""
    scheme, _, given = authorization.partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), key)
