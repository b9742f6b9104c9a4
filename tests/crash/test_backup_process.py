"""A backup of a node that is being written to, taken by the command, outlives the node and its directory."""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from checks import check_sound, wait_indexed
from node_process import NodeProcess, missing_model

pytestmark = pytest.mark.skipif(missing_model() is not None, reason=missing_model() or "")


def thread(*arguments: str | Path) -> dict[str, object]:
    """What a command that has to succeed says, as a process of its own."""
    command = [sys.executable, "-m", "thread_service.cli", *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_a_killed_node_whose_directory_is_lost_is_restored_as_of_its_last_backup(tmp_path: Path) -> None:
    acknowledged: dict[str, str] = {}
    with NodeProcess(tmp_path / "data", tmp_path / "log") as node:
        client = node.wait_ready()

        def write_on() -> None:
            own = node.client()
            try:
                for number in range(10_000):
                    text = f"entry {number} of the log"
                    body = {"inputs": [text], "document_ids": [f"{number}"], "thread": {"owner_id": "me"}}
                    if own.send("/v1/batch/embeddings", body)[0] == 200:
                        acknowledged[f"{number}"] = text
            except (OSError, http.client.HTTPException):
                pass

        writer = threading.Thread(target=write_on)
        writer.start()
        thread("backup", tmp_path / "backups", "--data-dir", tmp_path / "data")
        before = dict(acknowledged)
        taken = thread("backup", tmp_path / "backups", "--data-dir", tmp_path / "data")
        node.kill()
        writer.join()
        del client
    shutil.rmtree(tmp_path / "data")
    restored = thread("restore", tmp_path / "backups", tmp_path / "data")
    assert restored["backup"] == taken["backup"]
    with NodeProcess(tmp_path / "data", tmp_path / "log") as node:
        client = node.wait_ready()
        wait_indexed(client)
        found = client.post("/v1/documents", {"owner_id": "me", "document_ids": list(acknowledged)})["documents"]
        held = {document["id"]: document["texts"][0] for document in found}
        assert before.items() <= held.items()
        assert held.keys() == {f"{number}" for number in range(len(held))}
        assert node.terminate() == 0, node.tail()
    check_sound(tmp_path / "data")
