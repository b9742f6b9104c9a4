"""A machine on which a node cannot start is told so in one line that says what to do. Drivers and GPUs: test_doctor.py
and test_setup_script.py."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from thread_service import cli


def start(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, list[str]]:
    code = cli.main(["--device", "cpu", "--graph-backend", "keyword", "--log-level", "error", *flags])
    return code, capsys.readouterr().err.splitlines()


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        for flags, name in ((("--port", str(port)), "--port"), (("--port=0", "--grpc-port", str(port)), "--grpc-port")):
            code, lines = start(capsys, "--data-dir", str(tmp_path / "data"), *flags)
            assert code == 1
            assert lines == [
                f"thread: port {port} on 127.0.0.1 is already in use; stop what uses it or give another {name}"
            ]


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EROFS, "Read-only file system; mount it for writing, or give another --data-dir"),
        (errno.EACCES, "write there, or give another --data-dir"),
        (errno.ENOTDIR, "Not a directory; give another --data-dir"),
    ],
)
def test_a_volume_that_cannot_be_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    data, mkdir = tmp_path / "data", Path.mkdir

    def refuse(path: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        if path.is_relative_to(data):
            raise OSError(number, os.strerror(number), str(path))
        mkdir(path, mode, parents, exist_ok)

    monkeypatch.setattr(Path, "mkdir", refuse)
    code, [line] = start(capsys, "--port=0", "--grpc-port=0", "--data-dir", str(data))
    assert code == 1
    assert line.startswith(f"thread: {data}: cannot be used as the data directory: ")
    assert line.endswith(remedy)
