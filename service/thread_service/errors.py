"""Every error a caller can meet, as one tree.

    ThreadError
    ├── InvalidRequest      400  INVALID_ARGUMENT     something in the request; `fields` names what
    ├── NotFound            404  NOT_FOUND
    ├── IndexMismatch       409  FAILED_PRECONDITION  the index was written by another embedding model
    ├── TooLarge            413  RESOURCE_EXHAUSTED   a body or message over the limit
    ├── Busy                429  RESOURCE_EXHAUSTED   a bounded queue is full; nothing was taken
    ├── NotReady            503  UNAVAILABLE          the embedding model is loading, or away; the node is stopping
    │   └── ModelFailed                               the embedding model could not be loaded
    ├── EmbeddingFailed     500  INTERNAL             the model gave no usable vectors (in `models.embedder`)
    ├── StorageFull         507  RESOURCE_EXHAUSTED   the disk is full; nothing was written, reads go on
    └── StoreFailed         500  INTERNAL             the store has stopped writing (a failed fsync, a damaged file)

A class carries its HTTP status and its gRPC status by name, so that the two front ends map the tree once each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class FieldError:
    """One field of a request that cannot be taken: `field` as the caller wrote it (`inputs[2][0]`), and what to do."""

    field: str
    message: str


class ThreadError(Exception):
    """The root of the tree. `str(error)` is one sentence: what happened, and what to do."""

    slug: ClassVar[str] = "internal"
    title: ClassVar[str] = "Internal error"
    http_status: ClassVar[int] = 500
    grpc_status: ClassVar[str] = "INTERNAL"

    def __init__(
        self, detail: str, *, fields: tuple[FieldError, ...] = (), retry_after_seconds: int | None = None
    ) -> None:
        super().__init__(detail)
        self.fields = fields
        self.retry_after_seconds = retry_after_seconds

    @property
    def for_callers(self) -> str:
        """What a front end answers; `str(error)` is for the log."""
        return str(self)


class InvalidRequest(ThreadError):
    slug, title, http_status, grpc_status = "invalid-request", "Invalid request", 400, "INVALID_ARGUMENT"

    @classmethod
    def field(cls, field: str, message: str) -> InvalidRequest:
        """The common case: one field, one reason."""
        return cls(f"{field}: {message}", fields=(FieldError(field, message),))


class NotFound(ThreadError):
    slug, title, http_status, grpc_status = "not-found", "Not found", 404, "NOT_FOUND"


class IndexMismatch(ThreadError):
    slug, title, http_status, grpc_status = "index-mismatch", "Index of another model", 409, "FAILED_PRECONDITION"


class TooLarge(ThreadError):
    slug, title, http_status, grpc_status = "too-large", "Request too large", 413, "RESOURCE_EXHAUSTED"


class Busy(ThreadError):
    slug, title, http_status, grpc_status = "busy", "Too many requests", 429, "RESOURCE_EXHAUSTED"


class NotReady(ThreadError):
    slug, title, http_status, grpc_status = "not-ready", "Not ready", 503, "UNAVAILABLE"


class ModelFailed(NotReady):
    """The node goes on trying to load it, but what a caller can do is to tell an operator: a name of its own on the
    wire, so that nobody waits for what most often needs a change of the settings."""

    slug, title = "model-failed", "Model failed"


class StorageFull(ThreadError):
    slug, title, http_status, grpc_status = "storage-full", "Storage full", 507, "RESOURCE_EXHAUSTED"


class StoreFailed(ThreadError):
    """Its sentence names files, which are nobody's business but the operator's."""

    slug, title, http_status, grpc_status = "store-failed", "Store failed", 500, "INTERNAL"

    @property
    def for_callers(self) -> str:
        return "the store of this node has failed; the node's log says why"
