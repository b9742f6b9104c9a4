"""Asking a running node to do something, from another process."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from thread_service.errors import ThreadError
from thread_service.store.verification import Progress
from thread_service.wire.control_protocol import Answer, Request, address


class NobodyListens(Exception):
    """No node runs in the directory, or it takes no commands (yet)."""


def ask(path: Path, command: str, arguments: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """What the node that listens at `path` answers, however long it takes. Blocking.

    `NobodyListens`; `ThreadError`: the node's refusal, or that it ended before it answered.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            with address(path) as short:
                connection.connect(short)
        except (FileNotFoundError, ConnectionRefusedError):
            raise NobodyListens(str(path)) from None
        except OSError as error:
            raise ThreadError(f"{path}: the node cannot be reached: {error.strerror}") from error
        try:
            connection.sendall(msgspec.json.encode(Request(command, dict(arguments))) + b"\n")
            return _answer(connection, progress)
        except ConnectionError:
            raise ThreadError("the node ended before it answered") from None


def _answer(connection: socket.socket, progress: Progress) -> dict[str, Any]:
    with connection.makefile("rb") as lines:
        for line in lines:
            try:
                answer = msgspec.json.decode(line, type=Answer)
            except msgspec.DecodeError:
                break
            if answer.progress is not None:
                progress(answer.progress, answer.fraction)
            elif answer.error is not None:
                raise ThreadError(answer.error.detail)
            elif answer.result is not None:
                return answer.result
    raise ThreadError("the node ended before it answered")
