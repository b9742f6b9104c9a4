from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from thread_service import app, cli
from thread_service.errors import StoreFailed
from thread_service.settings import Settings, declarations

# What a launcher passes today.
LAUNCH_LINE = (
    "--host 127.0.0.1 --port 18081 --grpc-port 19090 --mothership-host 127.0.0.1 --mothership-grpc-port 9091 "
    "--fleet-host= --fleet-grpc-port 9092 --data-dir /d --node-id 1B4E28BA-2FA1-11D2-883F-0016D3CCA427 "
    "--graph-backend mlx --use-mlx --mlx-model org/model --graph-model m --graph-mistral-model n --no-graph-extraction"
)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[Settings, tuple[str, ...]]]:
    """Run in an empty directory; what would have been served is listed."""
    calls: list[tuple[Settings, tuple[str, ...]]] = []
    monkeypatch.chdir(tmp_path)
    for declaration in declarations().values():
        monkeypatch.delenv(declaration.variable, raising=False)
    monkeypatch.setattr(app, "serve", lambda settings, notices, screen: calls.append((settings, notices)))
    return calls


@pytest.mark.parametrize("command", [[], ["serve"], ["--host", "::1", "serve"]])
def test_thread_serves_with_or_without_the_word(served: list[Any], command: list[str]) -> None:
    assert cli.main([*command, "--port", "1"]) == 0
    ((settings, notices),) = served
    assert (settings.port, notices) == (1, ())


def test_existing_launch_lines_are_accepted(served: list[Any]) -> None:
    assert cli.main(LAUNCH_LINE.split()) == 0
    ((settings, notices),) = served
    assert (settings.port, settings.data_dir, settings.embedding_model) == (18081, Path("/d"), "org/model")
    assert (settings.mothership_host, settings.mothership_grpc_port) == ("127.0.0.1", 9091)
    assert (settings.fleet_host, settings.fleet_grpc_port) == ("", 9092)
    assert notices == ()


def test_the_env_file_fills_gaps_in_the_environment(
    served: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("THREAD_HOST", "::1")
    monkeypatch.delenv("THREAD_TEST_EXTRA", raising=False)
    env_file = tmp_path / ".env"
    env_file.write_text("THREAD_PORT=7\nTHREAD_HOST=0.0.0.0\nTHREAD_TEST_EXTRA=x\n", encoding="utf-8")
    environment = {"THREAD_HOST": "::1"}
    settings = cli.load([], environment, env_file).settings
    assert (settings.port, settings.host) == (7, "::1")
    assert environment == {"THREAD_HOST": "::1", "THREAD_PORT": "7", "THREAD_TEST_EXTRA": "x"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--port", "x"], "--port"),
        (["--prot", "1"], "--prot"),
        (["--po", "1"], "--po"),
        (["start"], "start"),
        (["--api-kye=k3y"], "--api-kye"),
        (["--port"], "--port"),
    ],
)
def test_a_bad_command_line_is_one_line_and_code_2(
    served: list[Any], capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert cli.main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("thread: ")
    assert said in shown.err
    assert "k3y" not in shown.err
    assert shown.err.count("\n") == 1
    assert (shown.out, served) == ("", [])


def test_a_node_that_cannot_start_is_one_line_and_code_1(
    served: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        raise StoreFailed("the directory is in use\nby another node \ud800")

    monkeypatch.setattr(app, "serve", fail)
    assert cli.main([]) == 1
    assert capsys.readouterr().err == "thread: the directory is in use by another node \\ud800\n"


def test_a_stack_secret_that_cannot_be_used_is_one_line_and_no_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAO_HOME", str(tmp_path))
    monkeypatch.delenv("RAO_APP", raising=False)
    monkeypatch.delenv("AMBIENT_STACK_SECRET", raising=False)
    assert cli.main(["--port", "0", "--grpc-port", "0", "--data-dir", str(tmp_path / "data")]) == 2
    refusal = capsys.readouterr().err.splitlines()[-1]
    assert refusal.startswith("thread: RAO_APP: ")
    assert not (tmp_path / "data").exists()


def test_help_names_every_setting_and_its_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["--help"])
    assert stop.value.code == 0
    page = " ".join(capsys.readouterr().out.split())
    for declaration in declarations().values():
        assert declaration.flag in page
        assert declaration.variable in page


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith("thread 0.")
