"""A backup that is taken while a node is written to is the node of one moment."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from in_process import InProcess, WordsEmbedder, document, happens, ids, opened, until

from thread_service.node.operations import FileRequest
from thread_service.store import backup, verification
from thread_service.store.backup import taking
from thread_service.store.directory import DataDirectory

WRITERS = 4
BEFORE = 3
"""Documents of each writer before the backup begins."""


def silent(text: str, fraction: float | None = None, /) -> None:
    """No progress."""


def test_a_backup_under_writes_restores_to_a_consistent_prefix(
    node: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "PAGES_AT_ONCE", 1)
    acknowledged = [0] * WRITERS
    steps = list[tuple[str, bool]]()

    def while_everyone_writes(text: str, fraction: float | None = None, /) -> None:
        """Before the snapshot, between its first pages, and before the segments."""
        if (text, fraction is None) not in steps:
            steps.append((text, fraction is None))
            seen = acknowledged.copy()
            until(lambda: all(now > then for now, then in zip(acknowledged, seen, strict=True)))

    async def write(writer: int, stop: asyncio.Event) -> None:
        while not stop.is_set():
            number = acknowledged[writer]
            filed = document(
                f"entry {number} of writer{writer}",
                id=f"{number}",
                name=f"Entry {number}",
                entities=[f"Topic {number % 5}", f"Writer {writer}"],
                edges=[(f"Writer {writer}", "wrote about", f"Topic {number % 5}")],
            )
            await node.node.file(FileRequest(f"w{writer}", (filed,), wait=number % 3 == 0))
            acknowledged[writer] += 1

    async def scenario() -> tuple[dict[str, Any], list[int], list[int]]:
        stop = asyncio.Event()
        writing = [asyncio.create_task(write(writer, stop)) for writer in range(WRITERS)]
        await happens(lambda: min(acknowledged) >= BEFORE)
        before = acknowledged.copy()
        taken = await node.node.back_up(tmp_path / "backups", while_everyone_writes)
        after = [count + 1 for count in acknowledged]  # one more may be committed and not answered yet
        stop.set()
        await asyncio.gather(*writing)
        return taken, before, after

    taken, before, after = node.run(scenario())
    assert {("database", True), ("database", False), ("vectors", True)} <= {*steps}
    done = backup.restore(Path(taken["backup"]), tmp_path / "restored", silent)
    assert done["verified"]["damage"] == []
    with opened(tmp_path / "restored") as restored:
        restored.settle()
        for writer in range(WRITERS):
            held = restored.rows(
                "SELECT document_id FROM documents JOIN owners USING (owner_key) WHERE owner_id = ?", (f"w{writer}",)
            )
            count = len(held)
            assert before[writer] <= count <= after[writer]
            assert {number for (number,) in held} == {str(number) for number in range(count)}
            last = count - 1
            assert ids(restored.search(f"w{writer}", f"entry {last} of writer{writer}"))[0] == str(last)
    directory = DataDirectory.open(tmp_path / "restored")
    with verification.at_rest(directory) as place:
        assert verification.verify(place, full=True, progress=silent)["damage"] == []
    directory.close()


def test_no_segment_is_emptied_while_a_backup_is_taken(node: InProcess, tmp_path: Path) -> None:
    for number in range(6):
        node.file("ann", document(f"text {number}", id=f"{number}"))
    node.remove("ann", "1", "2", "3")
    steps = list[str]()

    async def scenario() -> dict[str, Any]:
        compacting: list[asyncio.Future[Any]] = []
        loop = asyncio.get_running_loop()

        def compact_meanwhile(text: str, fraction: float | None = None, /) -> None:
            if not steps:
                steps.append(text)
                compacting.append(asyncio.run_coroutine_threadsafe(node.node.compact(steps.append), loop))  # type: ignore[arg-type]
                until(lambda: "waiting for the compaction that is under way" in steps)

        taken = await node.node.back_up(tmp_path / "backups", compact_meanwhile)
        await asyncio.wrap_future(compacting[0])  # type: ignore[arg-type]
        return taken

    taken = node.run(scenario())
    assert len(steps) > 2, "it was compacted afterwards"
    done = backup.restore(Path(taken["backup"]), tmp_path / "restored", silent)
    assert done["verified"]["clean"]
    with opened(tmp_path / "restored", WordsEmbedder()) as restored:
        assert {*ids(restored.search("ann", "text", top_k=9))} == {"0", "4", "5"}
