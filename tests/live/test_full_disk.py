"""A disk that runs full under a live node: 507, nothing lost, reads go on, and all is well once there is room."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from node_process import Client, Json, NodeProcess, missing_model

SIZE = 24 << 20
OWNER = {"owner_id": "full"}
_MOUNT = 'mount -t tmpfs -o size="$1" tmpfs "$2" && echo mounted && exec sleep 600'

pytestmark = pytest.mark.skipif(missing_model() is not None, reason=missing_model() or "")


@dataclass(frozen=True, slots=True)
class SmallDisk:
    """A file system of `SIZE` bytes that only processes started `within` see, at `path`; from outside it is `root`."""

    path: Path
    root: Path
    within: tuple[str, ...]

    @property
    def free(self) -> int:
        status = os.statvfs(self.root)
        return status.f_bavail * status.f_frsize

    def fill(self, leave: int = 0) -> None:
        with (self.root / "filler").open("ab", buffering=0) as filler:
            filler.write(bytes(max(0, self.free - leave)))

    def make_room(self) -> None:
        (self.root / "filler").unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """In a mount namespace of its own, which needs no privileges where user namespaces are allowed."""
    path = tmp_path / "disk"
    path.mkdir()
    if not (shutil.which("unshare") and shutil.which("nsenter")):
        pytest.skip("no unshare and nsenter here")
    holder = subprocess.Popen(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", _MOUNT, "sh", str(SIZE), str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    with holder:
        assert holder.stdout is not None
        said = holder.stdout.readline()
        try:
            if said != b"mounted\n":
                pytest.skip(f"no file system can be mounted here: {said.decode(errors='replace').strip()}")
            within = ("nsenter", f"--target={holder.pid}", "--user", "--mount", "--preserve-credentials", "--")
            yield SmallDisk(path, Path(f"/proc/{holder.pid}/root{path}"), within)
        finally:
            holder.kill()


def deposit(client: Client, number: int, size: int) -> tuple[int, Json]:
    text = f"word{number} " + f"filling{number} " * (size // 10)
    body = {"inputs": [text], "document_ids": [f"{number}"], "entities": [[]], "thread": OWNER}
    return client.send("/v1/batch/embeddings", body)


def check_held(client: Client, numbers: list[int]) -> None:
    ids = [str(number) for number in numbers]
    found = client.post("/v1/documents", {"owner_id": "full", "document_ids": ids})["documents"]
    assert [document["id"] for document in found] == ids
    assert all(document["texts"][0].startswith(f"word{document['id']} ") for document in found)


def is_found(client: Client, number: int) -> bool:
    answer = client.post("/v1/search", {"query": f"word{number}", "thread": OWNER | {"top_k": 1_000}})
    return any(text.startswith(f"word{number} ") for text in answer["texts"])


def test_a_full_disk_refuses_deposits_keeps_everything_and_recovers_by_itself(tmp_path: Path, disk: SmallDisk) -> None:
    log, filed = tmp_path / "log", [0, 1, 2]
    with NodeProcess(disk.path / "data", log, within=disk.within) as node:
        client = node.wait_ready()
        for number in filed:
            assert deposit(client, number, 300)[0] == 200
        node.until(lambda: is_found(client, 2), 30)

        # Full while the indexer is at work too: what was acknowledged waits.
        disk.fill(leave=200_000)
        for number in range(3, 200):
            status, problem = deposit(client, number, 20_000)
            if status != 200:
                break
            filed.append(number)
        assert (status, problem["type"], problem["title"]) == (507, "/problems/storage-full", "Storage full")
        assert client.content_type == "application/problem+json"
        disk.fill()

        refused = filed[-1] + 1
        assert deposit(client, refused, 20_000)[0] == 507
        check_held(client, filed)
        assert client.post("/v1/documents", {"owner_id": "full", "document_ids": [f"{refused}"]}) == {"documents": []}
        assert is_found(client, 0)
        assert is_found(client, 1)
        assert client.get("/health")["status"] == "ok"

        disk.make_room()
        assert deposit(client, refused, 20_000)[0] == 200
        filed.append(refused)
        for number in filed:
            node.until(lambda number=number: is_found(client, number), 60)
        assert node.process.poll() is None
        node.kill()
    with NodeProcess(disk.path / "data", log, within=disk.within) as node:
        client = node.wait_ready()
        check_held(client, filed)
        assert is_found(client, refused)
        assert node.terminate() == 0, node.tail()


def test_a_node_that_is_stopped_or_killed_on_a_full_disk_starts_on_it_and_loses_nothing(
    tmp_path: Path, disk: SmallDisk
) -> None:
    filed: list[int] = []
    with NodeProcess(disk.path / "data", tmp_path / "log", within=disk.within) as node:
        client = node.wait_ready()
        for number in range(5):
            assert deposit(client, number, 300)[0] == 200
            filed.append(number)
        disk.fill()
        assert deposit(client, 5, 400_000)[0] == 507
        node.kill()
    for end in (NodeProcess.terminate, NodeProcess.kill):
        with NodeProcess(disk.path / "data", tmp_path / "log", within=disk.within) as node:
            client = node.wait_ready()
            check_held(client, filed)
            assert end(node) in (0, None), node.tail()
    disk.make_room()
    with NodeProcess(disk.path / "data", tmp_path / "log", within=disk.within) as node:
        client = node.wait_ready()
        check_held(client, filed)
        assert deposit(client, 5, 300)[0] == 200
        for number in (*filed, 5):
            node.until(lambda number=number: is_found(client, number), 30)
