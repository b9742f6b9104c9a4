"""A real node process, ended in every way: what it acknowledged is there when it is started again."""

from __future__ import annotations

import http.client
import os
import random
import sys
import threading
from pathlib import Path

import pytest
from checks import wait_indexed
from kill_loop import WRITERS, KillLoop
from node_process import STOP_SECONDS, Client, Json, NodeProcess, missing_model

pytestmark = pytest.mark.skipif(missing_model() is not None, reason=missing_model() or "")

ROUNDS = int(os.environ.get("KILL_ROUNDS", "12"))
_WORDS = [a + b for a in ("brass", "tide", "clock", "salt", "wind") for b in ("mark", "house", "line", "born", "way")]


def prose(seed: int, words: int) -> str:
    return " ".join(random.Random(seed).choices(_WORDS, k=words))


def deposit(texts: dict[str, str], *, wait: bool = False) -> Json:
    """A batch for the owner `me`, one document a text."""
    return {
        "inputs": list(texts.values()),
        "document_ids": list(texts),
        "entities": [[]] * len(texts),
        "thread": {"owner_id": "me"},
        "wait": wait,
    }


def held(client: Client, ids: list[str]) -> dict[str, list[str]]:
    answer = client.post("/v1/documents", {"owner_id": "me", "document_ids": ids})
    return {document["id"]: document["texts"] for document in answer["documents"]}


@pytest.mark.slow
@pytest.mark.timeout(120 + 40 * ROUNDS)
def test_no_acknowledged_operation_is_lost_when_the_node_is_killed_among_writers(tmp_path: Path) -> None:
    seed = random.SystemRandom().getrandbits(32)
    loop = KillLoop(tmp_path, seed=seed)
    try:
        for _ in range(ROUNDS):
            loop.round()
        loop.finish()
    except BaseException as error:
        error.add_note(f"round {loop.rounds + 1} of seed {seed}; journal, log and data are in {tmp_path}")
        raise
    unanswered = loop.outcomes.total() - loop.outcomes["nothing in flight"]
    # An answer may already be on its way when its operation is killed; most are not.
    assert unanswered > ROUNDS * WRITERS / 2, loop.outcomes
    assert loop.answers > ROUNDS, "the writers hardly wrote"
    assert loop.compactions > 0


def test_sigterm_with_a_full_queue_keeps_and_later_indexes_everything_acknowledged(tmp_path: Path) -> None:
    flags = ("--queue-documents", "50")
    texts = {f"doc {number}": f"word{number} {prose(number, 80)}" for number in range(200)}
    acknowledged: dict[str, str] = {}
    in_flight: dict[str, str] = {}
    with NodeProcess(tmp_path / "data", tmp_path / "log", *flags) as node:
        client = node.wait_ready()
        for document_id, text in texts.items():
            status, answer = client.send("/v1/batch/embeddings", deposit({document_id: text}))
            if status == 429:
                break
            assert status == 200, answer
            acknowledged[document_id] = text
        assert 50 <= len(acknowledged) < len(texts), "the queue never filled"
        refused = next(iter(texts.keys() - acknowledged.keys()))
        assert held(client, [refused]) == {}

        def write_on() -> None:
            own = node.client()
            try:
                for number in range(10_000):
                    text = {f"late {number}": f"late{number} " + prose(number, 20)}
                    in_flight.update(text)
                    status, answer = own.send("/v1/batch/embeddings", deposit(text))
                    assert status in (200, 429, 503), answer
                    del in_flight[f"late {number}"]
                    acknowledged.update(text if status == 200 else {})
            except (OSError, http.client.HTTPException):
                pass

        writer = threading.Thread(target=write_on)
        writer.start()
        code = node.terminate()
        writer.join()
        assert code == 0, node.tail()
    with NodeProcess(tmp_path / "data", tmp_path / "log", *flags) as node:
        client = node.wait_ready()
        found = held(client, [*texts, *acknowledged, *in_flight])
        assert {key: [text] for key, text in acknowledged.items()}.items() <= found.items()
        assert found.keys() <= acknowledged.keys() | in_flight.keys()
        wait_indexed(client)
        for text in list(acknowledged.values())[-5:]:
            thread = {"owner_id": "me", "top_k": 1}
            assert client.post("/v1/search", {"query": text.split()[0], "thread": thread})["texts"] == [text]
        assert node.terminate() == 0, node.tail()


def test_sigterm_does_not_wait_for_a_text_that_takes_minutes_to_embed(tmp_path: Path) -> None:
    text = prose(1, 400_000)
    with NodeProcess(tmp_path / "data", tmp_path / "log") as node:
        client = node.wait_ready()
        client.post("/v1/batch/embeddings", deposit({"endless": text}))
        assert node.terminate() == 0, node.tail()
    with NodeProcess(tmp_path / "data", tmp_path / "log") as node:
        assert held(node.wait_ready(), ["endless"]) == {"endless": [text]}


def test_a_second_process_is_refused_and_told_who_holds_the_data_directory(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", tmp_path / "log") as first:
        client = first.wait_ready()
        client.post("/v1/batch/embeddings", deposit({"one": "the lamp is lit"}, wait=True))
        with NodeProcess(tmp_path / "data", tmp_path / "second.log") as second:
            assert second.process.wait(30) == 1
        line = second.tail().strip()
        assert line.startswith("thread: ")
        assert "\n" not in line
        assert str(tmp_path / "data") in line
        assert f"process {first.process.pid} " in line
        assert held(client, ["one"]) == {"one": ["the lamp is lit"]}
        first.kill()
    # A killed holder leaves no lock behind.
    with NodeProcess(tmp_path / "data", tmp_path / "log") as next_one:
        assert held(next_one.wait_ready(), ["one"]) == {"one": ["the lamp is lit"]}


def test_after_a_failed_fsync_nothing_is_answered_as_done_and_the_node_ends_with_an_error(tmp_path: Path) -> None:
    disk = (sys.executable, str(Path(__file__).with_name("failing_disk.py")))
    with NodeProcess(tmp_path / "data", tmp_path / "log", within=disk) as node:
        client = node.wait_ready()
        client.post("/v1/batch/embeddings", deposit({"kept": "the lamp is lit"}, wait=True))
        (tmp_path / "fail").touch()
        try:
            status, answer = client.send("/v1/batch/embeddings", deposit({"lost": "the lamp is out"}, wait=True))
            assert status >= 500, answer
        except (OSError, http.client.HTTPException):
            pass
        assert node.process.wait(STOP_SECONDS) == 1
    assert "fsync failed" in node.tail()
    with NodeProcess(tmp_path / "data", tmp_path / "log") as node:
        client = node.wait_ready()
        wait_indexed(client)
        found = held(client, ["kept", "lost"])
        assert found["kept"] == ["the lamp is lit"]
        thread = {"owner_id": "me", "top_k": 9}
        assert set(client.post("/v1/search", {"query": "lamp", "thread": thread})["texts"]) == {
            text for [text] in found.values()
        }
