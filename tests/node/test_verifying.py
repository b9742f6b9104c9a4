"""Verification: a store after a busy history is clean, and every kind of damage is named."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import pytest
from in_process import InProcess, WordsEmbedder, document, group, opened, unit

from thread_service.errors import NotReady, StoreFailed
from thread_service.node.operations import FileRequest, RemoveRequest, UpdateDocumentRequest, UpdateGroupRequest
from thread_service.store import compaction, verification
from thread_service.store.code_cache import CachedCodes, CodeCache
from thread_service.store.directory import DataDirectory
from thread_service.store.verification import findings, run

Report = dict[str, Any]


def silent(text: str, fraction: float | None = None, /) -> None:
    assert text in run.CHECKS
    assert fraction is None or 0 <= fraction <= 1


def beside(node: InProcess, *, full: bool = True) -> Report:
    return node.run(node.node.verify(full=full, progress=silent))


def at_rest(path: Path, *, full: bool = True) -> Report:
    [node_id] = [each.name for each in (path / "nodes").iterdir()]
    directory = DataDirectory.open_existing(path, node_id)
    try:
        with verification.at_rest(directory) as place:
            return verification.verify(place, full=full, progress=silent)
    finally:
        directory.close()


def files(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


async def busy(node: InProcess, owner: str, seed: int) -> None:
    """Deposits, re-deposits, groups, access, brought vectors, failures, removals, a compaction."""
    rng = random.Random(seed)
    people = [f"Person {number}" for number in range(6)]
    for step in range(40):
        id = f"d{rng.randrange(12)}"
        match rng.randrange(8):
            case 0:
                await node.node.remove(RemoveRequest(owner, (id,)))
            case 1:
                access = rng.choice(("available", "restricted"))
                await node.node.update_document(UpdateDocumentRequest(owner, id, access, rng.choice(("", "g0"))))
            case 2:
                access = rng.choice(("available", "restricted"))
                await node.node.update_group(UpdateGroupRequest(owner, "g0", access, label="again"))
            case 3:
                await node.node.compact(lambda *_: None)
            case _:
                some = rng.sample(people, 3)
                texts = [f"{some[0]} met {some[1]} on day {rng.randrange(6)}", "", "shared 🙂\0 text"][
                    : rng.randrange(1, 4)
                ]
                if rng.random() < 0.1:
                    texts = ["refused"]
                vectors = [unit(1, seed, step)] * len(texts) if rng.random() < 0.3 else None
                filed = document(
                    *texts,
                    id=id,
                    name=rng.choice((None, *people)),
                    entities=rng.choice((None, some)),
                    edges=[(some[0], rng.choice(("met", "knows")), some[2])],
                    vectors=vectors,
                )
                into = group(f"g{rng.randrange(2)}") if rng.random() < 0.6 else None
                await node.node.file(FileRequest(owner, (filed,), into, wait=rng.random() < 0.3))


def test_a_store_after_a_busy_history_is_clean_at_rest_and_while_it_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "MOVE_ROWS", 3)
    embedder = WordsEmbedder()
    embedder.refused = {"refused"}
    with opened(tmp_path, embedder) as node:
        done = asyncio.Event()

        async def look() -> list[Report]:
            reports = []
            while not done.is_set():
                reports.append(await node.node.verify(full=bool(len(reports) % 2), progress=silent))
            return reports

        async def both() -> list[Report]:
            looking = asyncio.create_task(look())
            await asyncio.gather(*(busy(node, owner, seed) for seed, owner in enumerate(("ann", "bob", "cy"))))
            done.set()
            return await looking

        for report in node.run(both()):
            assert report["damage"] == []
        node.settle()
        report = beside(node)
        assert (report["damage"], report["clean"], report["damaged"]) == ([], True, 0)
        assert report["checks"]["memory"] == {"examined": 2, "damaged": 0}
        for name in ("vectors", "contents", "words", "relationships", "mentions", "names", "assertions", "groups"):
            assert report["checks"][name]["examined"] > 0, name
        assert report["counts"]["documents"] == node.value("SELECT count(*) FROM documents") > 10
    before = files(tmp_path)
    report = at_rest(tmp_path)
    assert (report["damage"], report["checks"]["codes"]["damaged"]) == ([], 0)
    assert {name: data for name, data in files(tmp_path).items() if name[-4:] != "LOCK"} == {
        name: data for name, data in before.items() if name[-4:] != "LOCK"
    }


# ---------------------------------------------------------------------------------------------------- damage


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory without damage, of a node that does not run."""
    path = tmp_path_factory.mktemp("sound")
    embedder = WordsEmbedder()
    with opened(path, embedder) as node:
        said = [("Ada Quill", "keeps", "Tidal Ledger")]
        node.file("ann", document("Ada Quill keeps it.", "It is old.", id="ledger", edges=said), group="g")
        node.file(
            "bob", document("Ada Quill was here.", id="visit", entities=["Ada Quill"]), group=group("h", "available")
        )
        node.file("ann", document("brought", id="own", entities=None, vectors=[unit(1, 2)]))
        node.file("ann", document("The Tidal Ledger again.", id="again", name="Minutes"))
        node.settle()
        node.embedder.is_away = True
        node.file("ann", document("later", id="later"), wait=False)
        beside(node)
    report = at_rest(path)
    assert report["damage"] == []
    return path


@pytest.fixture
def path(sound: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(sound, tmp_path / "data"))


def database(path: Path) -> Path:
    [found] = path.glob("nodes/*/thread.db")
    return found


def edit(path: Path, *statements: str) -> None:
    """Change the tables behind the store's back."""
    with apsw.Connection(str(database(path))) as connection:
        for statement in statements:
            connection.execute(statement)
            assert connection.changes(), statement
    connection.close()


def has(report: Report, check: str, **wanted: Any) -> None:
    """One damage of the check holds all of this: a text is part of a field."""
    among = [damage for damage in report["damage"] if damage["check"] == check]

    def fits(damage: Report) -> bool:
        return all(
            name in damage
            and (
                damage[name] == value or (name in ("what", "file") and isinstance(value, str) and value in damage[name])
            )
            for name, value in wanted.items()
        )

    assert any(map(fits, among)), [damage["sentence"] for damage in report["damage"]]
    assert report["checks"][check]["damaged"] == len(among)
    assert not report["clean"]


CONTENT = "(SELECT content_key FROM documents WHERE document_id = '{}')"
LEDGER, OWN, VISIT, AGAIN, LATER = (CONTENT.format(id) for id in ("ledger", "own", "visit", "again", "later"))
PARTITION = f"(SELECT partition_key FROM partitions WHERE content_key = {LEDGER} AND ordinal = 1)"
ADA = "(SELECT entity_key FROM entities WHERE name_key = 'ada quill')"

TABLES: list[tuple[str, str, dict[str, Any]]] = [
    # Rows that others need, or that need others.
    (f"DELETE FROM partitions WHERE partition_key = {PARTITION}", "subjects",
     {"what": "of partition", "table": "vectors"}),
    (f"DELETE FROM partitions WHERE partition_key = {PARTITION}", "words", {"table": "words", "what": "not there"}),
    (f"DELETE FROM partitions WHERE content_key = {LEDGER} AND ordinal = 0", "contents", {"what": "lacks partitions"}),
    (f"DELETE FROM vectors WHERE subject_key = {PARTITION} AND purpose = 'model'", "contents",
     {"what": "(number 1) has no vector", "document_ids": ["ledger"]}),
    ("DELETE FROM vectors WHERE purpose = 'caller'", "contents", {"what": "has no vector", "document_ids": ["own"]}),
    (f"INSERT INTO brought_vectors VALUES ({PARTITION}, x'00')", "contents",
     {"what": "still waits", "document_ids": ["ledger"]}),
    (f"UPDATE partitions SET brought = 1 WHERE content_key = {LATER}", "contents",
     {"what": "that was brought for partition", "document_ids": ["later"]}),
    ("DELETE FROM documents WHERE document_id = 'visit'", "contents", {"what": "no document points to it"}),
    ("DELETE FROM documents WHERE document_id = 'visit'", "references",
     {"table": "assertions", "what": "not in documents"}),
    ("DELETE FROM owners WHERE owner_id = 'bob'", "references", {"table": "documents", "what": "owner_key 2"}),
    ("DELETE FROM segments WHERE segment = 1", "references", {"table": "vectors", "what": "segment 1"}),
    ("DELETE FROM relationships", "subjects", {"what": "is the vector of relationship 1"}),
    ("DELETE FROM predicates", "references", {"table": "relationships", "what": "not in predicates"}),
    ("DELETE FROM pending", "contents", {"what": "does not wait for it", "document_ids": ["later"]}),
    ("INSERT INTO unembedded (purpose, subject_key, text) VALUES ('predicate', 99, '')", "subjects",
     {"table": "unembedded", "what": "predicate 99"}),
    ("INSERT INTO vectors (purpose, width, subject_key, segment, slot, crc) SELECT purpose, width, subject_key,"
     f" segment, slot, crc FROM vectors WHERE subject_key = {PARTITION} AND purpose = 'model'", "subjects",
     {"what": "a second vector", "document_ids": ["ledger"]}),
    ("UPDATE vectors SET slot = (SELECT slot FROM vectors WHERE vector_key = 1) WHERE vector_key = 2", "vectors",
     {"what": "as another vector does", "table": "vectors", "key": "2"}),
    ("UPDATE vectors SET slot = 1000 WHERE vector_key = 2", "vectors", {"what": "lies in row 1000", "key": "2"}),
    ("UPDATE vectors SET width = 16 WHERE vector_key = 2", "vectors", {"what": "whose rows have 64", "key": "2"}),
    ("UPDATE vectors SET crc = crc - 1 WHERE vector_key = 2", "vectors",
     {"what": "CRC", "segment": 1, "row": 1, "document_ids": ["ledger"]}),
    ("UPDATE documents SET primary_group = 2 WHERE document_id = 'own'", "groups", {"document_ids": ["own"]}),
    ("UPDATE document_groups SET group_key = 2 WHERE group_key = 1", "groups",
     {"what": "group 2 of another owner", "document_ids": ["ledger"]}),
    # What was filed, and who may read it.
    (f"UPDATE partitions SET text = 'Ada Quill keeps i7.' WHERE content_key = {LEDGER} AND ordinal = 0", "contents",
     {"what": "do not hash", "document_ids": ["ledger"]}),
    (f"UPDATE partitions SET text = CAST(x'ff' AS TEXT) WHERE partition_key = {PARTITION}", "contents",
     {"what": "cannot be read", "table": "contents", "key": "1"}),
    (f"UPDATE contents SET readers = readers || ' o9' WHERE content_key = {VISIT}", "contents",
     {"what": "is open to the readers", "document_ids": ["visit"]}),
    ("UPDATE documents SET access = 'available' WHERE document_id = 'ledger'", "contents",
     {"what": "is open to the readers", "document_ids": ["ledger"]}),
    ("UPDATE documents SET access = 'available' WHERE document_id = 'ledger'", "relationships",
     {"what": "is open to the readers", "document_ids": ["ledger"]}),
    # The graph against its provenance.
    ("DELETE FROM assertions WHERE source = 'name'", "entities",
     {"what": "asserted by no document", "table": "entities"}),
    ("DELETE FROM entity_words WHERE word = 'tidal'", "entity words",
     {"what": "is missing", "table": "entity_words", "document_ids": ["ledger"]}),
    ("INSERT INTO entity_words VALUES ('zebra', 1)", "entity words", {"what": "no word", "key": "zebra, 1"}),
    ("UPDATE entities SET name_key = 'x' WHERE name_key = 'tidal ledger'", "entities",
     {"what": "the name 'x'", "document_ids": ["ledger"]}),
    ("UPDATE entities SET kind = 'ship' WHERE name_key = 'tidal ledger'", "entities",
     {"what": "not the one of its id", "document_ids": ["ledger"]}),
    ("UPDATE assertions SET mentions = 0 WHERE source = 'given' AND owner_key = 2", "assertions",
     {"what": "mentioned 0 times", "document_ids": ["visit"]}),
    ("UPDATE assertions SET owner_key = 1 WHERE owner_key = 2", "assertions",
     {"what": "for owner 1 by a document of owner 2", "document_ids": ["visit"]}),
    ("UPDATE assertions SET linkable = 1 WHERE source = 'keyword'", "assertions",
     {"what": "keyword", "document_ids": ["own"]}),
    ("UPDATE relationship_assertions SET weight = 0", "assertions", {"table": "relationship_assertions"}),
    ("DELETE FROM relationship_assertions", "relationships", {"what": "asserted by no document", "key": "1"}),
    ("DELETE FROM relationship_assertions", "predicates", {"what": "in no relationship", "key": "1"}),
    ("UPDATE relationships SET object_key = subject_key", "relationships",
     {"what": "another id", "document_ids": ["ledger"]}),
    ("UPDATE relationships SET readers = 'a'", "relationships", {"what": "is open to the readers 'a'"}),
    ("UPDATE predicates SET predicate = 'sells'", "predicates", {"what": "another id", "document_ids": ["ledger"]}),
    ("UPDATE predicates SET readers = 'a'", "predicates", {"what": "is open to the readers 'a'"}),
    ("UPDATE predicate_readers SET edges = 7", "predicates", {"what": "{'o1': 7}"}),
    ("UPDATE entity_readers SET mentions = mentions + 1 WHERE entity_key = 1", "counts", {"table": "entity_readers"}),
    ("UPDATE entity_counts SET entities = 99 WHERE reader = 1", "counts", {"table": "entity_counts", "key": "1"}),
    ("UPDATE relationship_counts SET relationships = 9", "counts", {"what": "says 9 where there are"}),
    ("DELETE FROM names WHERE name_key = 'ada quill' AND owner_key = 1", "names", {"key": "1, ada quill"}),
    ("INSERT INTO names VALUES (1, 'no body', 'no body')", "names", {"what": "asserted by no document"}),
    ("UPDATE names SET head = 'x' WHERE name_key = 'tidal ledger'", "names", {"what": "first words"}),
    ("INSERT INTO mentions SELECT document_key, entity_key FROM documents, entities"
     " WHERE document_id = 'visit' AND entities.name_key = 'minutes'", "mentions",
     {"document_ids": ["visit"], "table": "mentions"}),
    ("UPDATE stamp SET width = 32", "stamp", {"what": "a model of width 32"}),
    ("DELETE FROM stamp", "stamp", {"what": "no model"}),
    # The index of words.
    (f"DELETE FROM words WHERE rowid = {PARTITION}", "words", {"what": "not in the index", "document_ids": ["ledger"]}),
    ("INSERT INTO words (rowid, body, readers) VALUES (999, 'x', 'a')", "words", {"table": "words", "key": "999"}),
    ("INSERT INTO words (rowid, body, readers) SELECT partition_key, 'x', 'a' FROM partitions"
     f" WHERE content_key = {LATER}", "words", {"table": "words"}),
    (f"REPLACE INTO words (rowid, body, readers) VALUES ({PARTITION}, 'it is odd', 'g1 mtext o1')", "words",
     {"what": "'old'", "document_ids": ["ledger"]}),
    (f"REPLACE INTO words (rowid, body, readers) VALUES ({PARTITION}, 'it is old', 'a g1 mtext o1')", "words",
     {"what": "'a'", "document_ids": ["ledger"]}),
    ("DELETE FROM words_data WHERE id = (SELECT max(id) FROM words_data)", "database",
     {"what": "corruption found", "table": "words"}),
]  # fmt: skip


@pytest.mark.parametrize(("statement", "check", "wanted"), TABLES, ids=[f"{row[1]}-{row[0][:40]}" for row in TABLES])
def test_damage_in_a_table_is_named(path: Path, statement: str, check: str, wanted: dict[str, Any]) -> None:
    edit(path, statement)
    has(at_rest(path), check, **wanted)


def segment(path: Path) -> Path:
    """The file of the model's vectors."""
    [found] = path.glob("nodes/*/vectors/000001.f32")
    return found


def flip(file: Path, offset: int) -> None:
    data = bytearray(file.read_bytes())
    data[offset] ^= 1
    file.write_bytes(data)


def test_a_bit_that_has_flipped_in_a_vector_names_segment_and_row_and_the_document(path: Path) -> None:
    flip(segment(path), 4 * 64 * 1 + 7)
    report = at_rest(path, full=False)
    has(report, "vectors", what="CRC", segment=1, row=1, document_ids=["ledger"])
    assert report["damaged"] == 1
    assert report["damage"][0]["sentence"].startswith(
        "vectors: row 1 of segment 1 is damaged: its CRC does not fit (doc"
    )


def test_a_segment_that_is_too_short_is_named_with_every_row_that_is_lost(path: Path) -> None:
    os.truncate(segment(path), 4 * 64 * 2 + 9)
    report = at_rest(path)
    has(report, "segments", file="vectors/000001.f32", what="hold 2 of the", segment=1)
    has(report, "vectors", what="beyond the end", segment=1, row=2)
    lost = report["checks"]["vectors"]["damaged"]
    assert lost == at_rest_count(path, "SELECT count(*) FROM vectors WHERE segment = 1 AND slot >= 2") > 1


def at_rest_count(path: Path, statement: str) -> int:
    with apsw.Connection(str(database(path)), flags=apsw.SQLITE_OPEN_READONLY) as connection:
        return int(connection.execute(statement).get)


def test_a_missing_segment_is_named_with_the_documents_it_held(path: Path) -> None:
    segment(path).unlink()
    report = at_rest(path)
    has(report, "segments", file="vectors/000001.f32", what="is missing")
    has(report, "vectors", what="file, which is missing", segment=1, row=0, document_ids=["ledger"])


def test_a_segment_that_the_database_does_not_know_is_named_and_left(path: Path) -> None:
    other = segment(path).with_name("000077.f32")
    other.write_bytes(b"x")
    has(at_rest(path), "segments", file="vectors/000077.f32", what="unknown to the database")
    assert other.exists()


def test_a_page_that_is_damaged_is_named_by_its_table(path: Path) -> None:
    with apsw.Connection(str(database(path)), flags=apsw.SQLITE_OPEN_READONLY) as connection:
        page = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'documents'").get
        size = connection.pragma("page_size")
    flip(database(path), (page - 1) * size)  # the kind of page
    report = at_rest(path, full=False)
    has(report, "database", table="documents")
    has(report, "contents", what="cannot be read", table="contents")  # it goes on
    assert report["checks"]["vectors"] == {"examined": report["counts"]["vectors"], "damaged": 0}


def test_an_index_that_disagrees_with_its_table_is_found_in_full(path: Path) -> None:
    with apsw.Connection(str(database(path)), flags=apsw.SQLITE_OPEN_READONLY) as connection:
        page = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'groups_by_id'").get
        size = connection.pragma("page_size")
    start = (page - 1) * size
    flip(database(path), start + database(path).read_bytes()[start : start + size].rindex(b"h"))
    assert at_rest(path, full=False)["clean"]
    has(at_rest(path), "database", table="groups", what="index groups_by_id")


@pytest.mark.parametrize("offset", [0, 20])
def test_a_file_that_is_no_database_any_more_is_damage(path: Path, offset: int) -> None:
    flip(database(path), offset)
    has(at_rest(path), "database", table="sqlite_schema", what="cannot be read")


@pytest.mark.parametrize("name", ["manifest.json", "rows", "model-64.codes"])
def test_a_damaged_cache_is_named(path: Path, name: str) -> None:
    [directory] = path.glob("nodes/*/cache")
    codes = CachedCodes("model", 64, np.array([1]), np.array([2], np.uint32), b"codes")
    CodeCache(directory).write(np.zeros((5, 3), np.int64), [codes])
    assert at_rest(path)["checks"]["codes"] == {"examined": 3, "damaged": 0}
    [file] = directory.glob(f"codes-*/{name}")
    flip(file, 0)
    has(at_rest(path), "codes", file=name, what="anew")


def test_more_damages_than_can_be_named_are_counted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "NAMED_MAX", 2)
    edit(path, "UPDATE vectors SET crc = crc + 1")
    report = at_rest(path)
    total = report["checks"]["vectors"]["damaged"]
    assert total == report["counts"]["vectors"] > 5
    assert len([damage for damage in report["damage"] if damage["check"] == "vectors"]) == 2


def test_a_database_of_another_version_is_not_checked(path: Path) -> None:
    with apsw.Connection(str(database(path))) as connection:
        connection.pragma("user_version", 99)
    connection.close()
    with pytest.raises(StoreFailed, match="schema version 99"):
        at_rest(path)


# ---------------------------------------------------------------------------------------------------- beside a node


def test_damage_under_a_running_node_is_named_and_the_node_goes_on(path: Path) -> None:
    with opened(path) as node:
        node.settle()
        flip(segment(path), 4 * 64 * 1 + 7)
        node.store.resident.document_count += 1
        report = beside(node)
        has(report, "vectors", segment=1, row=1, document_ids=["ledger"])
        has(report, "memory", table="documents", what="6 in memory, the database 5")
        assert report["damaged"] == 2
        assert node.store.database.failure is None
        node.file("ann", document("new", id="new"))


def test_a_verification_ends_when_the_node_stops(path: Path) -> None:
    with opened(path) as node:

        async def scenario() -> None:
            def stop(text: str, fraction: float | None = None, /) -> None:
                node.store.stop_verifying()

            with pytest.raises(NotReady, match="stopping"):
                await node.node.verify(full=False, progress=stop)

        node.run(scenario())
