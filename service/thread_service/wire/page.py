"""The page at `/`: what the node knows, to look at in a browser.

Its files lie in `thread_service/page`, are read once, and are answered from memory by their exact names. They hold
nothing of the node's: what the page shows it asks of the routes everybody has, with the key or the secret that its
reader gives it. So neither is asked for here; a stack's node still wants a `Host` that is this machine.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from litestar import Request, Response, route
from litestar.enums import HttpMethod
from litestar.exceptions import NotFoundException
from litestar.params import FromPath

from thread_service.wire.guards import OPEN
from thread_service.wire.secret import LOCAL

INDEX = "index.html"

_TYPES = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "mjs": "text/javascript",
    "svg": "image/svg+xml",
    "LICENSE": "text/plain",
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Asked for each time, and not sent again while it is the same: a page of two versions would not run.
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """`etag` is of the bytes, in quotes, as it stands in a header."""

    content: bytes
    media_type: str
    etag: str


@cache
def page_files() -> dict[str, PageFile]:
    """Every file of the page by its path below the folder, such as `vendor/cytoscape.min.mjs`."""
    return dict(_read(files("thread_service") / "page", ""))


def _read(folder: Traversable, above: str) -> list[tuple[str, PageFile]]:
    found = []
    for entry in folder.iterdir():
        path = above + entry.name
        if entry.is_dir():
            found += _read(entry, f"{path}/")
        elif media_type := _TYPES.get(entry.name.rpartition(".")[2]):
            content = entry.read_bytes()
            found.append((path, PageFile(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')))
    return found


_METHODS = [HttpMethod.GET, HttpMethod.HEAD]


@route("/", http_method=_METHODS, opt=OPEN | LOCAL, include_in_schema=False, sync_to_thread=False)
def index(request: Request[Any, Any, Any]) -> Response[bytes]:
    return _answer(request, INDEX)


@route("/page/{name:path}", http_method=_METHODS, opt=OPEN | LOCAL, include_in_schema=False, sync_to_thread=False)
def file(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
    return _answer(request, name.removeprefix("/"))


def _answer(request: Request[Any, Any, Any], name: str) -> Response[bytes]:
    found = page_files().get(name)
    if found is None:
        raise NotFoundException
    headers = _HEADERS | {"ETag": found.etag}
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if found.etag in known or known == ["*"]:
        return Response(b"", status_code=304, headers=headers, media_type=found.media_type)
    return Response(found.content, status_code=200, headers=headers, media_type=found.media_type)


ROUTES = (index, file)
