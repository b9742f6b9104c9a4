"""`thread doctor`: each check says what is wrong and what to do, and changes nothing."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import pytest

sys.path.append(str(Path(__file__).parent / "models"))

from tiny_model import write_model

from thread_service import cli
from thread_service.doctor import checkup, gpu, machine, model, network, packages, storage
from thread_service.doctor.result import Result
from thread_service.models.cuda_driver import Device, Driver
from thread_service.models.extraction import choice as extraction_choice
from thread_service.settings import Settings, declarations
from thread_service.store.directory import DataDirectory
from thread_service.store.disk import Disk

H200 = Device("NVIDIA H200", (9, 0), 140 << 30)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In an empty directory, with none of the variables that the node reads."""
    monkeypatch.chdir(tmp_path)
    names = [declaration.variable for declaration in declarations().values()]
    for name in (*names, "RAO_HOME", "RAO_APP", "AMBIENT_STACK_SECRET", "MISTRAL_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., Settings]:
    folder = write_model(tmp_path / "minilm")

    def make(**changed: Any) -> Settings:
        usual = {"data_dir": tmp_path / "data", "port": 0, "grpc_port": 0, "embedding_model": str(folder)}
        return Settings(**{**usual, **changed})

    return make


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """The directory of a node that was here."""
    directory = DataDirectory.open(tmp_path / "data")
    Disk(directory).close()
    return directory.path


def is_problem(result: Result, found: str, remedy: str = "") -> None:
    assert (result.status, found in result.found, remedy in result.remedy) == ("problem", True, True), result


def is_warning(result: Result, found: str, remedy: str = "") -> None:
    assert (result.status, found in result.found, remedy in result.remedy) == ("warning", True, True), result


# ------------------------------------------------------------------------------------------------------ the whole


def doctor(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str, str]:
    code = cli.main(["doctor", *flags])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_a_machine_that_can_serve_is_told_so_and_left_as_it_was(
    settings: Callable[..., Settings],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("somebody is called"))
    flags = ("--data-dir", str(tmp_path / "d"), "--embedding-model", str(tmp_path / "minilm"), "--port", "0")
    before = sorted(tmp_path.rglob("*"))
    code, out, err = doctor(capsys, *flags, "--grpc-port=0", "--api-key", "s3cret", "--use-mlx")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "a node can serve as configured"
    assert len([line for line in out.splitlines() if line[0] != " "]) == 1 + sum(map(len, checkup.CHECKS.values()))
    code, out, _ = doctor(capsys, *flags, "--grpc-port=0", "--json")
    answer = json.loads(out)
    assert (code, answer["fit"], out.count("\n")) == (0, True, 1)
    by_name = {check["name"]: check for check in answer["checks"]}
    assert by_name["model"] == {
        "section": "model", "name": "model", "status": "ok",
        "found": f"{tmp_path / 'minilm'} (asked for by --embedding-model), width 8",
    }  # fmt: skip
    assert "s3cret" not in out
    assert sorted(tmp_path.rglob("*")) == before


def test_a_problem_is_code_1_and_a_setting_that_cannot_be_used_code_2(
    settings: Callable[..., Settings], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, _ = doctor(capsys, "--port", "0", "--grpc-port", "0", "--embedding-model", str(tmp_path / "nothing"))
    assert code == 1
    assert "problem  model" in out
    assert "1 of " in out.splitlines()[-1]
    assert doctor(capsys, "--port", "x") == (2, "", doctor(capsys, "--port", "x")[2])
    assert doctor(capsys, "compact")[0] == 2


def test_a_check_that_fails_is_a_line_of_the_list(
    settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(settings: Settings) -> Result:
        raise ImportError("no\nsuch \ud800 module")

    monkeypatch.setattr(checkup, "CHECKS", {"here": {"broken": broken, "memory": machine.memory}})
    findings = [*checkup.run(settings())]
    assert len(findings) == 2
    is_problem(findings[0].result, "this check failed: ImportError: no such")
    assert not checkup.is_fit(findings)
    json.dumps(checkup.as_json(findings))


# ------------------------------------------------------------------------------------------------------ packages


def test_packages_are_compared_with_what_is_declared(
    settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert packages.declared(settings()).status == "ok"
    actual = importlib.metadata.version
    monkeypatch.setattr(packages, "version", lambda name: "0.1" if name == "apsw" else actual(name))
    is_problem(packages.declared(settings()), "apsw is 0.1, not <4,>=3.51.3", "pip install")

    def gone(name: str) -> str:
        if name == "rich":
            raise importlib.metadata.PackageNotFoundError(name)
        return actual(name)

    monkeypatch.setattr(packages, "version", gone)
    is_problem(packages.declared(settings()), "rich is missing", "pip install")


@pytest.mark.parametrize(
    ("names", "found"), [([], "not installed"), (["faiss-cpu", "faiss_gpu"], "overwrite each other")]
)
def test_exactly_one_faiss_is_wanted(
    settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch, names: list[str], found: str
) -> None:
    there = [SimpleNamespace(metadata={"Name": name}) for name in [*names, "rich"]]
    monkeypatch.setattr(packages, "distributions", lambda: there)
    monkeypatch.setattr(packages, "version", lambda name: "1.0")
    is_problem(packages.faiss(settings()), found, "pip")


# ------------------------------------------------------------------------------------------------------ GPU


def test_without_a_gpu_what_is_missing_is_information_unless_it_was_asked_for(
    settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "read_driver", lambda: None)
    monkeypatch.setattr(
        gpu, "version", lambda name: (_ for _ in ()).throw(importlib.metadata.PackageNotFoundError(name))
    )
    for check in (gpu.driver, gpu.cupy, gpu.triton, gpu.torch):
        result = check(settings())
        assert result.status == "info"
        assert "for a GPU" in result.remedy
        is_problem(check(settings(device="cuda")), result.found, "for a GPU")
    assert gpu.engine(settings()).status == "ok"


@pytest.mark.parametrize(
    ("driver", "found", "remedy"),
    [
        (Driver((12, 2), (H200,)), "CUDA 12.2", "12.9 or newer"),
        (Driver((13, 0), ()), "no device", "nvidia-smi"),
        (Driver((13, 0), (Device("Tesla T4", (7, 5), 16 << 30),)), "capability 7.5", "8.0 or newer"),
    ],
)
def test_a_driver_or_device_that_will_not_do_is_said(
    settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch, driver: Driver, found: str, remedy: str
) -> None:
    monkeypatch.setattr(gpu, "read_driver", lambda: driver)
    is_problem(gpu.driver(settings(device="cuda")), found, remedy)
    assert gpu.driver(settings()).status == "info"


def test_a_device_that_the_packages_do_not_see_is_said(
    settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "read_driver", lambda: Driver((13, 0), (H200,)))
    result = gpu.driver(settings(device="cuda"))
    assert result == Result("ok", "driver for CUDA 13.0: NVIDIA H200, compute capability 9.0, 140 GiB")
    monkeypatch.setattr(gpu, "version", lambda name: "2.11")
    monkeypatch.setattr(gpu, "_torch_devices", lambda: 0)
    is_problem(gpu.torch(settings(device="cuda")), "torch 2.11 sees no device", "CUDA version of the driver")
    monkeypatch.setattr(gpu, "_torch_devices", lambda: 1)
    assert gpu.torch(settings(device="cuda")).found == "torch 2.11, devices: 1"


def test_triton_wants_a_compiler(settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "read_driver", lambda: None)
    monkeypatch.setattr(gpu, "version", lambda name: "3.6.0")
    monkeypatch.setattr(gpu, "_has_compiler", lambda: False)
    is_problem(gpu.triton(settings(device="cuda")), "triton 3.6.0: Triton needs a C compiler", "apt install gcc")
    assert gpu.triton(settings()).status == "info"
    monkeypatch.setattr(gpu, "_has_compiler", lambda: True)
    assert gpu.triton(settings()) == Result("ok", "triton 3.6.0")


def test_what_would_find_entities_is_said(settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extraction_choice, "read_driver", lambda: None)
    assert model.entities(settings()).found.startswith("keywords: an instruct model needs a CUDA device")
    is_warning(model.entities(settings(graph_backend="vllm")), "needs a CUDA device", "--graph-backend keyword")
    own = model.entities(settings(graph_url="http://127.0.0.1:9/v1", graph_model="m"))
    assert (own.status, own.found) == ("ok", "m (http://127.0.0.1:9/v1)")


# ------------------------------------------------------------------------------------------------------ storage


def test_a_data_directory_is_found_empty_filled_or_impossible(
    settings: Callable[..., Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "not there yet" in storage.directory(settings()).found
    (tmp_path / "file").touch()
    is_problem(storage.directory(settings(data_dir=tmp_path / "file" / "x")), "is not a directory", "--data-dir")
    monkeypatch.setattr(storage.os, "access", lambda path, mode: False)
    is_problem(storage.directory(settings()), "cannot be written", "--data-dir")


def test_a_read_only_file_system_is_said(settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage.os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_RDONLY))
    is_problem(storage.directory(settings()), "is on a read-only file system", "mount it for writing, or give another")


MOUNTS = """\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
30 22 0:40 / /mnt/my\\040share rw master:1 - nfs4 server:/x rw
31 22 0:41 / /mnt rw - xfs /dev/sdb rw
32 30 0:42 / /mnt/my\\040share/deep rw - tmpfs none rw
33 22 0:43 / /home/ann/far rw - fuse.sshfs ann@far: rw
"""


@pytest.mark.parametrize(
    ("path", "kind", "said"),
    [
        ("/data", "ext4", ""),
        ("/mnt/data", "xfs", ""),
        ("/mnt/my share/data", "nfs4", "a network file system"),
        ("/home/ann/far", "fuse.sshfs", "a network file system"),
        ("/mnt/my share/deep/x", "tmpfs", "gone after a restart"),
    ],
)
def test_file_systems_of_other_machines_and_of_memory_are_warned_about(
    settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch, path: str, kind: str, said: str
) -> None:
    found = storage._mount(Path(path), MOUNTS)
    assert found[0] == kind
    monkeypatch.setattr(storage, "_mount", lambda path, table: found)
    result = storage.file_system(settings())
    assert (result.status == "warning", said in result.found) == (bool(said), True)


def test_room_is_compared_with_what_is_wanted(
    settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil._ntuple_diskusage  # type: ignore[attr-defined]
    for free, status in ((2_000_000_000, "ok"), (900_000_000, "warning"), (1_000, "problem")):
        monkeypatch.setattr(storage.shutil, "disk_usage", lambda path, free=free: usage(10**12, 0, free))
        assert storage.room(settings()).status == status


def test_a_directory_in_use_names_the_process(settings: Callable[..., Settings], stored: Path) -> None:
    assert storage.lock(settings()).status == "ok"
    with DataDirectory.open(stored.parents[1]).lock:
        is_warning(storage.lock(settings()), f"in use by process {os.getpid()}", "thread verify")
    assert storage.lock(settings()).status == "ok"


def test_what_is_there_is_read_without_changing_it(settings: Callable[..., Settings], stored: Path) -> None:
    before = {path: path.read_bytes() for path in stored.rglob("*") if path.is_file()}
    assert storage.schema(settings()) == Result("ok", "version 4")
    assert model.index(settings()).status == "info"
    assert storage.log(settings()).status == "ok"
    assert storage.fsync(settings()).status == "ok"
    assert {path: path.read_bytes() for path in stored.rglob("*") if path.is_file()} == before


def change(stored: Path, statement: str) -> None:
    with apsw.Connection(str(stored / "thread.db")) as connection:
        connection.execute(statement)
    connection.close()


def test_data_that_this_version_cannot_open_is_said(settings: Callable[..., Settings], stored: Path) -> None:
    change(stored, "PRAGMA user_version = 99")
    is_problem(storage.schema(settings()), "version 99, and this program knows 4", "upgrade")
    change(stored, "PRAGMA user_version = 1")
    is_problem(storage.schema(settings()), "before the first release", "another --data-dir")
    (stored / "FORMAT").unlink()
    result = checkup._result(storage.schema, settings())
    is_problem(result, "its restore did not finish")
    (stored / "FORMAT").write_text("1\n")
    (stored / "thread.db").write_bytes(b"nothing" * 1000)
    assert checkup._result(storage.schema, settings()).status == "problem"


# ------------------------------------------------------------------------------------------------------ model


def test_a_model_that_is_not_here_is_said(
    settings: Callable[..., Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_problem(
        model.model(settings(embedding_model="package:no_such")), "no_such is not installed", "--embedding-model"
    )
    is_problem(model.model(settings(embedding_model=str(tmp_path / "none"))), "is not a directory")
    hub = settings(embedding_model="org/name", models_dir=tmp_path / "models")
    is_warning(model.model(hub), "the first start downloads it", "Hub")
    hosted = settings(embedding_model="", embedder="mistral")
    is_problem(model.model(hosted), "has no key", "set MISTRAL_API_KEY")
    monkeypatch.setenv("MISTRAL_API_KEY", "k3y")
    result = model.model(hosted)
    assert result.status == "ok"
    assert "k3y" not in result.found
    own = settings(embedding_model="m", embedder="openai", embedding_url="http://127.0.0.1:9/v1")
    assert model.model(own).status == "ok"  # a server of one's own may need none


def test_an_index_of_another_model_is_a_problem(settings: Callable[..., Settings], stored: Path) -> None:
    assert model.index(settings()).status == "info"
    change(
        stored,
        "INSERT INTO stamp VALUES (1, 'minilm@8', '/elsewhere/minilm', NULL, 8, 0);"
        "INSERT INTO segments VALUES (1, 8, 1);"
        "INSERT INTO vectors (purpose, width, subject_key, segment, slot, crc) VALUES ('model', 8, 1, 1, 0, 0)",
    )
    assert model.index(settings()) == Result("ok", "written with minilm@8")
    is_problem(
        model.index(settings(embedding_model="", embedder="mistral")),
        "written with minilm@8, and the node would run mistral-embed@8",
        "--embedding-model /elsewhere/minilm",
    )
    # Without any flag the node takes the model of the index.
    is_problem(model.model(settings(embedding_model="")), "/elsewhere/minilm (it wrote the index)")


# ------------------------------------------------------------------------------------------------------ network


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_port_in_use_names_who_has_it(settings: Callable[..., Settings], taken: int, stored: Path) -> None:
    for check, flag in ((network.http_port, "port"), (network.grpc_port, "grpc_port")):
        shown = "--" + flag.replace("_", "-")
        is_problem(check(settings(**{flag: taken})), f"already in use by process {os.getpid()} (", shown)
        with DataDirectory.open(stored.parents[1]).lock:
            assert check(settings(**{flag: taken})).found.endswith("taken by the node that runs here")
    is_problem(network.grpc_port(settings(port=81, grpc_port=81)), "the HTTP port too", "--grpc-port")
    is_problem(network.http_port(settings(host="no.such.invalid.")), "not an address", "--host")


def test_who_can_reach_the_node_is_said(settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    assert network.exposure(settings()).found == "127.0.0.1, this machine only"
    is_warning(network.exposure(settings(host="0.0.0.0")), "no API key is set", "THREAD_API_KEY")
    guarded = network.exposure(settings(host="0.0.0.0", api_key="k3y"))
    assert guarded == Result("ok", "0.0.0.0, an API key asked of callers")
    monkeypatch.setenv("RAO_HOME", "/nowhere")
    is_problem(network.exposure(settings()), "RAO_APP")


@pytest.mark.parametrize("host", ["[::1", "a..b", "-a", "a b", "h" * 64])
def test_a_mothership_without_an_address_is_a_problem(settings: Callable[..., Settings], host: str) -> None:
    is_problem(network.mothership(settings(mothership_host=host)), "neither an IP address", "--mothership-host")
    is_problem(network.fleet(settings(fleet_host=host)), "neither an IP address", "--fleet-host")


def test_a_mothership_elsewhere_must_be_told_how_to_reach_the_node(settings: Callable[..., Settings]) -> None:
    assert network.mothership(settings()).found == "none"
    assert network.mothership(settings(mothership_host="127.0.0.1")).found == "ipv4:127.0.0.1:9091"
    is_warning(network.mothership(settings(mothership_host="ship.example")), "127.0.0.1", "--advertise-host")
    told = settings(mothership_host="ship.example", advertise_host="10.0.0.7", host="0.0.0.0")
    assert network.mothership(told) == Result("ok", "dns:///ship.example:9091")
