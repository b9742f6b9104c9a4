"""Every failure as `application/problem+json` (RFC 9457): the mapping of the error tree to HTTP, once.

Whatever a caller sent, the answer names what was wrong and never what is inside the node. A failure nobody foresaw is
logged with its traceback and answered as a plain 500.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.exceptions.http_exceptions import RequestEntityTooLarge

from thread_service.errors import FieldError, InvalidRequest, NotReady, StorageFull, ThreadError, TooLarge
from thread_service.wire import schemas
from thread_service.wire.printable import printable

_log = logging.getLogger(__name__)
_json = msgspec.json.Encoder()

MEDIA_TYPE = "application/problem+json"


def problem(
    status: int,
    title: str,
    detail: str,
    *,
    slug: str | None = None,
    fields: tuple[FieldError, ...] = (),
    headers: dict[str, str] | None = None,
) -> Response[bytes]:
    body = schemas.Problem(
        type=f"/problems/{slug or re.sub('[^a-z]+', '-', title.lower())}",
        title=title,
        status=status,
        detail=printable(detail),
        errors=[schemas.ProblemField(field=printable(f.field), message=printable(f.message)) for f in fields]
        or msgspec.UNSET,
    )
    return Response(_json.encode(body), status_code=status, media_type=MEDIA_TYPE, headers=headers or {})


# ---------------------------------------------------------------------------------------------------- handlers


def of_error(error: ThreadError) -> Response[bytes]:
    """The answer to a failure of the error tree."""
    is_stopping = isinstance(error, NotReady) and error.retry_after_seconds is None
    if isinstance(error, StorageFull) or is_stopping:
        # One line: the log may be on the disk that is full; and to stop while somebody waits is no fault.
        _log.warning("%s: %s", error.title, error)
    elif error.http_status >= 500 and error.retry_after_seconds is None:
        _log.error("%s: %s", error.title, error, exc_info=error)
    return problem(
        error.http_status,
        error.title,
        error.for_callers,
        slug=error.slug,
        fields=error.fields,
        headers=None if error.retry_after_seconds is None else {"Retry-After": str(error.retry_after_seconds)},
    )


def _thread_error(_: Request[Any, Any, Any], error: ThreadError) -> Response[bytes]:
    return of_error(error)


def _http_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    if isinstance(error, ValidationException):  # the body is the only parameter, and its decoder raises its own
        return _thread_error(request, InvalidRequest.field("body", "is missing; send a JSON object"))
    if isinstance(error, RequestEntityTooLarge):
        limit = request.route_handler.resolve_request_max_body_size()
        return _thread_error(request, TooLarge(f"the body is larger than {limit:,} bytes (--max-body-mb); send less"))
    if error.status_code >= 500:  # the framework's own, such as a caller who left in the middle of a body
        _log.warning("%s %a: %s", request.method, request.scope["path"], error.detail)
    title = HTTPStatus(error.status_code).phrase
    # The scope's path: `request.url` is put together from the caller's Host header, which need not parse.
    path = request.scope["path"]
    allowed = next((value for name, value in (error.headers or {}).items() if name.lower() == "allow"), "")
    served = " or ".join(sorted({*allowed.replace(",", " ").split()} - {"HEAD", "OPTIONS"}))
    detail = {
        404: f"there is nothing at {path}; /schema lists the routes",
        405: f"{request.method} is not served at {path}; use {served}",
    }.get(error.status_code, error.detail)
    return problem(error.status_code, title, detail, headers=dict(error.headers or {}))


def _unforeseen(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    _log.error("%s %a failed", request.method, request.scope["path"], exc_info=error)
    return problem(500, "Internal error", "the node failed to answer; its log says why", slug="internal")


HANDLERS: dict[int | type[Exception], Callable[[Request[Any, Any, Any], Any], Response[Any]]] = {
    ThreadError: _thread_error,
    HTTPException: _http_error,
    Exception: _unforeseen,
}
