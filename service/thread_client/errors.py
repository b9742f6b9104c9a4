"""What a call can fail with, as one tree.

    NodeError
    ├── InvalidRequest   400, 405, 415   something in the request; `fields` names what
    ├── NotAuthorised    401, 403        no key, or another one than the node's
    ├── NotFound         404
    ├── IndexMismatch    409             the index was written by another embedding model
    ├── TooLarge         413             more than the node takes, or answers, at once
    ├── Busy             429             nothing was taken; retried, and over only when retrying was
    ├── NotReady         503             the embedding model is loading (retried), or has failed (not retried)
    ├── StorageFull      507             nothing was written; searches go on
    ├── NodeFailed       other 5xx
    ├── Unreachable                      no connection, or one that broke (retried); or no answer in time
    └── NotANode                         an answer that no Thread node gives: another server is at this address

`str(error)` is one sentence that says what was wrong and what to do.
"""

from __future__ import annotations

import email.utils
import time
from collections.abc import Mapping
from typing import Any

import msgspec


class FieldError(msgspec.Struct, frozen=True):
    """One field of the request that cannot be taken: its path, such as `inputs[2][0]`, and what to do."""

    field: str
    message: str


class NodeError(Exception):
    """The root of the tree. `status`: of the HTTP answer, 0 without one. `retry_after_seconds`: what the node asked
    for, None when it did not."""

    def __init__(
        self,
        detail: str,
        *,
        status: int = 0,
        fields: tuple[FieldError, ...] = (),
        retry_after_seconds: float | None = None,
        may_pass: bool = False,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.fields = fields
        self.retry_after_seconds = retry_after_seconds
        self.may_pass = may_pass
        """Whether the same request may succeed a little later; the client has tried that already."""


class InvalidRequest(NodeError):
    """The request was not taken, and never will be as it is."""


class NotAuthorised(NodeError):
    """The node wants its key: `Client(..., api_key=KEY)`."""


class NotFound(NodeError):
    """There is nothing of that name."""


class IndexMismatch(NodeError):
    """The index was written by another embedding model than the node runs."""


class TooLarge(NodeError):
    """Send, or ask for, less at a time."""


class Busy(NodeError):
    """A queue of the node is full."""


class NotReady(NodeError):
    """The embedding model is loading, away or broken."""


class StorageFull(NodeError):
    """The node's disk is full."""


class NodeFailed(NodeError):
    """The node's log says why."""


class Unreachable(NodeError):
    """No answer came."""


class NotANode(NodeError):
    """Something answered that is no Thread node."""


class Problem(msgspec.Struct, frozen=True):
    """The body of an error answer (RFC 9457)."""

    detail: str
    type: str = ""
    errors: tuple[FieldError, ...] = ()


_BY_STATUS: Mapping[int, type[NodeError]] = {
    400: InvalidRequest,
    401: NotAuthorised,
    403: NotAuthorised,
    404: NotFound,
    405: InvalidRequest,
    409: IndexMismatch,
    413: TooLarge,
    415: InvalidRequest,
    429: Busy,
    503: NotReady,
    507: StorageFull,
}
_PASSING = (429, 503)
_MODEL_FAILED = "/problems/model-failed"
_SHOWN_CHARS = 200


def of_answer(status: int, headers: Mapping[str, str], body: bytes) -> NodeError:
    """The error that an answer of this status other than 200 is.

    One without `Retry-After` is worth another try only when it is not the node's own: a proxy rarely sends the header,
    while the node leaves it out when waiting does not help. A model that failed to load is not waited for either,
    though the node tries again to load it: most often it is the settings that have to change.
    """
    retry_after = retry_after_seconds(headers.get("retry-after", ""))
    try:
        problem: Problem | None = msgspec.json.decode(body, type=Problem)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        problem = None
    fallback: type[NodeError] = NodeFailed if status >= 500 else NotANode
    kind = _BY_STATUS.get(status, fallback) if problem or status in _PASSING else fallback
    if problem:
        detail = problem.detail
    else:
        shown = " ".join(body[: 4 * _SHOWN_CHARS].decode("utf-8", "replace").split())[:_SHOWN_CHARS]
        detail = f"HTTP status {status} without the explanation that a Thread node gives: {shown!a}"
    may_pass = status in _PASSING and (retry_after is not None or problem is None)
    if problem and problem.type == _MODEL_FAILED:
        may_pass = False
    return kind(
        detail,
        status=status,
        fields=problem.errors if problem else (),
        retry_after_seconds=retry_after,
        may_pass=may_pass,
    )


def retry_after_seconds(header: str) -> float | None:
    """The seconds a `Retry-After` header asks for, as a number or as a date; None for what is neither."""
    text = header.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def first_surrogate(value: Any, path: str = "") -> str | None:
    """The path of the first text that holds a lone surrogate, which no JSON can carry; None without any."""
    if isinstance(value, str):
        return path if any("\ud800" <= character <= "\udfff" for character in value) else None
    if isinstance(value, Mapping):
        inner = [(f"{path}.{key}".removeprefix("."), item) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        inner = [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    else:
        return None
    return next(filter(None, (first_surrogate(item, at) for at, item in inner)), None)
