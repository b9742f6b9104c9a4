from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from thread_service import app, cli, commands
from thread_service.errors import NotReady, StoreFailed
from thread_service.settings import Settings, declarations
from thread_service.store import extractions
from thread_service.store.directory import DataDirectory
from thread_service.store.disk import Disk
from thread_service.wire.control import run_control
from thread_service.wire.control_protocol import socket_path

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
        (["compact", "--port", "1"], "--port"),
        (["compact", "--api-key=k3y"], "--api-key"),
        (["compact", "serve"], "serve"),
        (["--port", "1", "compact"], "thread compact [flags]"),
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


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["--data-dri", "x"], "--data-dir"),
        (["--api-kye=k3y"], "--api-key"),
        (["bakup"], "backup"),
        (["compact", "--data_dir", "x"], "--data-dir"),
        (["doctor", "--jsn"], "--json"),
        (["--frobnicate"], None),
    ],
)
def test_a_misspelt_word_is_met_with_the_one_that_was_meant(
    served: list[Any], capsys: pytest.CaptureFixture[str], arguments: list[str], meant: str | None
) -> None:
    assert cli.main(arguments) == 2
    shown = capsys.readouterr().err
    assert (f"(did you mean {meant}?)" in shown) == (meant is not None)
    assert ("did you mean" in shown) == (meant is not None)


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


# ------------------------------------------------------------------------------------------------------ compact

ONE, OTHER = "1B4E28BA-2FA1-11D2-883F-0016D3CCA427", "2B4E28BA-2FA1-11D2-883F-0016D3CCA427"


@pytest.fixture
def data_dir(served: list[Any], tmp_path: Path) -> Path:
    """With the empty database of node ONE, which does not run."""
    Disk(DataDirectory.open(tmp_path / "data", ONE)).close()
    return tmp_path / "data"


@pytest.fixture
def running(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Something that answers commands for node ONE with what is in the list, or raises it."""
    monkeypatch.setattr(logging.root, "handlers", [])  # a start in another test may have set one up
    answers: list[Any] = []

    async def compact(arguments: Any, progress: Any) -> dict[str, Any]:
        progress("moving")
        if isinstance(answers[0], Exception):
            raise answers[0]
        return dict(answers[0])

    async def verify(arguments: Any, progress: Any) -> dict[str, Any]:
        progress("vectors")
        progress("vectors", 0.5)
        if isinstance(answers[0], Exception):
            raise answers[0]
        return {**answers[0], "full": arguments["full"]}

    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    path = socket_path(data_dir / "nodes" / ONE)
    known = {"compact": compact, "verify": verify, "extract": compact}
    thread = threading.Thread(target=lambda: loop.run_until_complete(run_control(path, known, stop)))
    lock = DataDirectory.open_existing(data_dir, ONE)
    thread.start()
    while not path.is_socket():
        thread.join(0.001)
    yield answers
    loop.call_soon_threadsafe(stop.set)
    thread.join(10)
    loop.close()
    lock.close()


def test_every_command_is_on_the_help_page_and_can_be_done(capsys: pytest.CaptureFixture[str]) -> None:
    assert {*cli.COMMANDS} == {*commands.COMMANDS, "doctor", "mcp"}
    for name in cli.COMMANDS:
        with pytest.raises(SystemExit) as stop:
            cli.main([name, "--help"])
        assert stop.value.code == 0
        assert ("--owner-id" if name == "mcp" else "--json") in capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    page = capsys.readouterr().out
    assert all(f"thread {name} [flags]" in page for name in cli.COMMANDS)


def test_a_directory_without_a_running_node_is_compacted_itself(
    data_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["compact", "--data-dir", str(data_dir), "--json"]) == 0
    shown = capsys.readouterr()
    answer = json.loads(shown.out)
    assert (answer["command"], answer["node_id"], answer["rows"], answer["segments"]) == ("compact", ONE, 0, 0)
    assert answer["bytes_after"] <= answer["bytes_before"]
    assert "rebuilding the database" in shown.err
    monkeypatch.setenv("THREAD_DATA_DIR", str(data_dir))
    assert cli.main(["compact"]) == 0
    assert capsys.readouterr().out.startswith("removed rows: 0, emptied segments: 0, disk: 0.")
    DataDirectory.open(data_dir).close()  # the lock was given up


def test_a_running_node_is_asked(data_dir: Path, running: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    running.append({"rows": 7, "segments": 2, "bytes_before": 9_000_000, "bytes_after": 2_000_000, "left": "no room"})
    assert cli.main(["compact", "--data-dir", str(data_dir)]) == 0
    shown = capsys.readouterr()
    assert shown.out == "removed rows: 7, emptied segments: 2, disk: 9.0 MB before, 2.0 MB now; no room\n"
    assert shown.err == "moving\n"
    running[0] = NotReady("The node is stopping.")
    assert cli.main(["compact", "--data-dir", str(data_dir), "--json"]) == 1
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "moving\nthread: The node is stopping.\n")


def test_a_directory_in_use_by_what_takes_no_commands_is_left_alone(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = DataDirectory.open_existing(data_dir, ONE)
    assert cli.main(["compact", "--data-dir", str(data_dir)]) == 1
    assert "is in use by process" in capsys.readouterr().err
    lock.close()


def test_a_backup_is_taken_checked_and_restored(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["backup", "backups", "--data-dir", str(data_dir), "--json"]) == 0
    shown = capsys.readouterr()
    taken = json.loads(shown.out)
    assert (taken["command"], taken["node_id"], taken["segments"]) == ("backup", ONE, 0)
    assert taken["backup"].startswith(str(tmp_path / "backups"))
    assert shown.err.splitlines() == ["database", "vectors"]
    assert cli.main(["verify", "--backup", "backups"]) == 0
    assert capsys.readouterr().out.startswith("no damage: 0 documents")
    assert cli.main(["restore", "backups", "restored", "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["command"], done["node_id"], done["verified"]["clean"]) == ("restore", ONE, True)
    assert cli.main(["restore", "backups", "restored"]) == 1
    assert "is not empty" in capsys.readouterr().err
    (Path(taken["backup"]) / "thread.db").write_bytes(b"")
    assert cli.main(["verify", "--backup", "backups", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["damage"][0]["file"] == "thread.db"
    assert cli.main(["verify", "--backup", "nowhere"]) == 2
    assert cli.main(["backup"]) == 2
    assert "DIR" in capsys.readouterr().err


def test_which_node_is_meant_is_found_out_or_asked_for(
    data_dir: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def compact(*flags: str, where: Path = data_dir) -> tuple[int, str]:
        code = cli.main(["compact", "--json", "--data-dir", str(where), *flags])
        shown = capsys.readouterr()
        return code, json.loads(shown.out)["node_id"] if shown.out else shown.err

    code, said = compact(where=tmp_path / "nothing")
    assert (code, said.count("\n")) == (1, 1)
    assert "nothing holds no node" in said
    assert not (tmp_path / "nothing").exists()

    Disk(DataDirectory.open(data_dir, OTHER)).close()
    assert compact() == (0, OTHER)
    assert compact("--node-id", ONE.lower()) == (0, ONE)
    assert (data_dir / "node-id").read_text().strip() == OTHER
    os.remove(data_dir / "node-id")
    code, said = compact()
    assert code == 1
    assert ONE in said
    assert OTHER in said
    assert "--node-id" in said
    code, said = compact("--node-id", ONE.replace("1", "3"))
    assert code == 1
    assert "holds no node 3B4E" in said


# ------------------------------------------------------------------------------------------------------ verify


def verified(data_dir: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str, str]:
    code = cli.main(["verify", "--data-dir", str(data_dir), *flags])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_verifying_a_directory_answers_by_its_exit_code(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = verified(data_dir, capsys)
    assert (code, out[:28], err.splitlines()[:2]) == (0, "no damage: 0 documents, 0 ve", ["database", "segments"])
    code, out, _ = verified(data_dir, capsys, "--json", "--full")
    answer = json.loads(out)
    assert (code, answer["command"], answer["node_id"], answer["clean"], answer["full"]) == (
        0,
        "verify",
        ONE,
        True,
        True,
    )

    (data_dir / "nodes" / ONE / "vectors" / "000001.f32").touch()
    code, out, _ = verified(data_dir, capsys)
    assert (code, out.count("\n")) == (1, 2)
    assert out.startswith("segments: vectors/000001.f32 is unknown to the database")
    code, out, _ = verified(data_dir, capsys, "--json")
    answer = json.loads(out)
    assert (code, answer["clean"], answer["damaged"]) == (1, False, 1)
    assert {"check": "segments", "file": "vectors/000001.f32", "segment": 1}.items() <= answer["damage"][0].items()


def test_what_cannot_be_verified_is_code_2(data_dir: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = verified(tmp_path / "nothing", capsys)
    assert (code, out, err.count("\n")) == (2, "", 1)
    with DataDirectory.open_existing(data_dir, ONE).lock:
        code, out, err = verified(data_dir, capsys)
    assert (code, out) == (2, "")
    assert "is in use by process" in err


def test_a_running_node_verifies_itself(data_dir: Path, running: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    sentence = "vectors: row 3 of segment 1 is damaged"
    counts = {"documents": 4, "vectors": 9, "entities": 2}
    damage = {"check": "vectors", "segment": 1, "row": 3, "sentence": sentence}
    running.append({"clean": False, "damaged": 60, "damage": [damage], "counts": counts, "seconds": 1.0})
    code, out, err = verified(data_dir, capsys)
    assert (code, err) == (1, "vectors\n")
    assert out.splitlines()[0] == sentence
    assert "59 more" in out.splitlines()[1]
    assert "60 damages among 4 documents, 9 vectors, 2 entities" in out.splitlines()[2]
    assert json.loads(verified(data_dir, capsys, "--full", "--json")[1])["full"] is True
    running[0] = NotReady("The node is stopping.")
    assert verified(data_dir, capsys) == (2, "", "vectors\nthread: The node is stopping.\n")


# ------------------------------------------------------------------------------------------------------ extract


def test_extracting_needs_to_be_told_which_documents(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["extract", "--data-dir", str(data_dir)]) == 2
    assert "required: --pending" in capsys.readouterr().err


def test_without_a_running_node_the_next_start_reads_what_was_put_off(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = Disk(DataDirectory.open_existing(data_dir, ONE))

    def put_off(connection: Any, _: Any) -> None:
        connection.execute("PRAGMA defer_foreign_keys = on")
        connection.execute("INSERT INTO owners VALUES (1, 'ann')")
        connection.execute(
            "INSERT INTO contents (content_key, digest, media_type, state) VALUES (1, x'', 'text', 'ready')"
        )
        for key, reason in ((1, "no usable answer"), (2, None)):
            connection.execute(
                "INSERT INTO documents (document_key, owner_key, document_id, content_key, access, created_at)"
                " VALUES (?1, 1, ?1, 1, 'restricted', 0)",
                (key,),
            )
            extractions.mark(connection, key, put_off=reason)

    disk.write(put_off).result()
    disk.close()
    assert cli.main(["extract", "--pending", "--data-dir", str(data_dir)]) == 0
    assert capsys.readouterr().out == (
        "documents read: 0, put off for a later pass: 0, waiting: 2 (no node runs here; the next start does it)\n"
    )
    assert cli.main(["extract", "--pending", "--data-dir", str(data_dir), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["taken_up"], answer["waiting"], answer["put_off"]) == (0, 2, 0)


def test_a_running_node_reads_documents_again(
    data_dir: Path, running: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    running.append({"taken_up": 3, "extracted": 2, "waiting": 0, "put_off": 1, "why": ""})
    assert cli.main(["extract", "--pending", "--data-dir", str(data_dir)]) == 0
    assert capsys.readouterr().out == "documents read: 2, put off for a later pass: 1\n"
