"""Moving in: what a node of the original kind kept is a node's own, and what cannot be read is named."""

from __future__ import annotations

import json
import plistlib
import random
from datetime import UTC
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import ids, opened, unit
from original_node import FILED_AT, NODE, OriginalNode

from thread_service import cli
from thread_service.node.moving import importing, original
from thread_service.node.moving.records import Document, Unread
from thread_service.store.directory import DataDirectory, existing_node
from thread_service.store.disk import Disk

PERSON, BOOK = ("Ada Quill", "person"), ("Tidal Ledger", "concept")
TEXT = "Ada Quill keeps the Tidal Ledger of the harbour."


def whole() -> OriginalNode:
    node = OriginalNode()
    node.group("ann", "harbour", access="available", label="Harbour", description="All at sea", tags=["sea", "salt"])
    node.group("ann", "private")
    node.group("Bob", "bobs", access="restricted")
    node.file(
        "ann",
        "ledger",
        TEXT,
        "A second chunk about brass.",
        groups=("private", "harbour"),
        access="available",
        name="The Ledger",
        metadata=b"\0\xff",
        entities=(PERSON, BOOK),
        edges=((PERSON, "keeps", BOOK), (PERSON, "auto:appears with", BOOK)),
        urls=(None, "https://example.org/brass"),
    )
    node.file("ann", "keywords", "clocks clocks tides", entities=(("clocks", "concept"), ("tides", "concept")))
    node.file("Bob", "vectors", "brought", "embedded", vectors=(unit(1, 2), None))
    node.file(
        "Bob", "code", "def run(): pass", media_type="code", entities=(("mod.run", "function"),), groups=("bobs",)
    )
    node.own("Bob", "ledger", "bobs")
    node.file(f"{NODE}-thread", "😀.. id", "filed by nobody")
    return node


def arrive(path: Path, target: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    """Import with the command; its exit code and result."""
    code = cli.main(["import", "--from-thread", str(path), "--data-dir", str(target), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_everything_of_an_original_node_moves_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = whole().write(tmp_path / "original")
    code, result = arrive(path, tmp_path / "data", capsys)
    assert (code, result["failed"], result["unread"]) == (0, 0, [])
    assert (result["documents"], result["groups"], result["owners"], result["waiting"]) == (6, 3, 3, 6)
    assert existing_node(tmp_path / "data") == NODE
    with opened(tmp_path / "data") as node:
        node.settle()
        [ledger, keywords] = node.documents("ann", "ledger", "keywords", embeddings=True)
        assert ledger.texts == (TEXT, "A second chunk about brass.")
        assert (ledger.name, ledger.metadata, ledger.group_id) == ("The Ledger", b"\0\xff", "harbour")
        assert ledger.created_at == int(FILED_AT.replace(tzinfo=UTC).timestamp())
        assert [p.url for p in ledger.partitions] == [
            f"file://{node.store.path}/documents/ledger",
            "https://example.org/brass",
        ]
        assert keywords.name is None
        harbour = next(each for each in node.library("ann").groups if each.group_id == "harbour")
        assert (harbour.label, harbour.access, harbour.description) == ("Harbour", "available", "All at sea")
        assert harbour.tags == ("salt", "sea")
        assert [each.document_id for each in harbour.documents] == ["ledger"]

        [code_document, vectors] = node.documents("bob", "code", "vectors", embeddings=True)
        assert code_document.media_type == "code"
        assert vectors.partitions[0].embedding.tobytes() == unit(1, 2).tobytes()
        assert len(vectors.partitions[1].embedding) == 0
        assert node.embedder.count("embedded") == 1
        assert node.embedder.count("brought") == 0

        # What was available is found by others through its depositor's document, and bob's own is his.
        assert ids(node.search("carol", "brass", scope="global")) == ["ledger"]
        assert {group.group_id for group in node.library("bob").groups} == {"bobs"}
        assert ids(node.search("bob", "brass", group_ids=("bobs",))) == ["ledger", "code"]
        assert node.documents(f"{NODE.lower()}-thread", "😀.. id")

        graph = node.graph("ann", "Ada Quill")
        assert {(each.name, each.kind) for each in graph.entities} == {PERSON, BOOK}
        assert {each.predicate for each in graph.relationships} == {"keeps", "auto:appears with"}
        sources = "SELECT DISTINCT spelling, source FROM assertions JOIN documents USING (document_key) WHERE {}"
        assert {*node.rows(sources.format("document_id = 'keywords'"))} == {("clocks", "keyword"), ("tides", "keyword")}
        assert {*node.rows(sources.format("document_id = 'ledger' AND source <> 'name'"))} == {
            (PERSON[0], "given"),
            (BOOK[0], "given"),
        }
        assert node.run(node.node.verify(full=True, progress=lambda *_: None))["damage"] == []


def test_moving_in_goes_on_where_it_was_cut_off_and_into_the_same_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = whole().write(tmp_path / "original")
    monkeypatch.setattr(importing, "DOCUMENTS_AT_ONCE", 1)
    disk = Disk(DataDirectory.open(path))
    found = original.find(path, None).records(lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        importing.file_records(disk, (record if _number < 8 else _interrupt() for _number, record in enumerate(found)))
    disk.close()
    code, result = arrive(path, path, capsys)
    assert code == 0
    assert result["skipped"] > 0
    assert result["documents"] + result["skipped"] == 6
    assert existing_node(path) == NODE


def _interrupt() -> Any:
    raise KeyboardInterrupt


def test_what_cannot_be_read_is_named_item_by_item(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = whole()
    for id in ("no parts", "bad parts", "no record", "odd", "link"):
        node.file("ann", id, f"text of {id}", "second")
    parts = node.files["documents/odd-parts"]
    parts[0] |= {"embedding": b"\0" * 12, "media_type": "film", "url": 7}
    parts.insert(1, {"id": "x"})
    parts.append("no part")
    parts.append({"data": "nan", "embedding": np.full(16, np.nan, "<f4").tobytes()})
    node.registry["documentOwners"]["../../etc/passwd"] = ["ann"]
    node.registry["ownerDocuments"]["ann"].append("../../etc/passwd")
    node.registry["somethingNew"] = 5
    node.indexes["odd"]["metadata"] = "no data"
    node.entities["broken"] = {"id": "broken", "documentIds": ["odd"]}
    node.edges["broken"] = {"id": "broken", "subjectId": "broken", "predicate": "x", "objectId": "y"}
    path = node.write(tmp_path / "original")
    (path / "documents" / "no parts-parts").unlink()
    (path / "documents" / "bad parts-parts").write_bytes(b"bplist00 and no more")
    (path / "documents" / "no record").unlink()
    (path / "documents" / "link-parts").unlink()
    (path / "documents" / "link-parts").symlink_to("/etc/passwd")
    code, result = arrive(path, tmp_path / "data", capsys)
    assert code == 1
    said = {(each["item"], each["what"]) for each in result["unread"]}
    for item, what in (
        ("documents/no parts-parts", "is missing"),
        ("documents/no parts", "no text of it can be read; it is left out"),
        ("documents/bad parts-parts", "is no property list: InvalidFileException"),
        ("documents/no record", "is missing"),
        ("documents/no record", "does not say when it was filed; it counts as filed in 1970"),
        ("documents/link-parts", "cannot be read: Too many levels of symbolic links"),
        ("documents/../../etc/passwd", "is no name of a file; the document is left out"),
        ("documents/odd-parts", "part 1 has no text; it is left out"),
        (
            "documents/odd-parts",
            "the vector of part 0 has 12 bytes, which is no width that is kept; the text is embedded instead",
        ),
        (
            "documents/odd-parts",
            "the vector of part 4 holds NaN, infinity or too large a number; the text is embedded instead",
        ),
        ("documents/odd-parts", "part 0 is of the media type 'film'; it counts as text"),
        (f"registry-{NODE}", "'somethingNew' is not understood and was left out"),
        (f"table-{NODE}", "metadata of document 'odd' is no data"),
        (f"graph-{NODE}", "entity 'broken' has no name"),
        (f"graph-{NODE}", "relationship 'broken' has no two ends and predicate"),
    ):
        assert (item, what) in said, item
    assert result["failed"] == len(result["unread"])
    with opened(tmp_path / "data") as copy:
        copy.settle()
        held = {
            each.document_id: each.texts for each in copy.documents("ann", "odd", "no record", "bad parts", "ledger")
        }
        assert held == {
            "odd": ("text of odd", "second", "nan"),
            "no record": ("text of no record", "second"),
            "ledger": (TEXT, "A second chunk about brass."),
        }


@pytest.mark.parametrize("registry", [None, b"", b"bplist00garbage", plistlib.dumps([1]), plistlib.dumps({})])
def test_without_a_registry_each_document_is_its_depositors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], registry: bytes | None
) -> None:
    path = whole().write(tmp_path / "original")
    if registry is None:
        (path / f"registry-{NODE}").unlink()
    else:
        (path / f"registry-{NODE}").write_bytes(registry)
    code, result = arrive(path, tmp_path / "data", capsys)
    assert code == 1
    assert any("every document is its depositor's alone" in each["what"] for each in result["unread"])
    with opened(tmp_path / "data") as node:
        node.settle()
        assert len(node.documents("ann", "ledger", "keywords")) == 2
        assert node.search("carol", "brass", scope="global").passages == ()


def test_documents_that_the_registry_does_not_know_stay_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = whole()
    node.file("ann", "cleared", "cleared long ago")
    for by_document in (node.registry["documentOwners"], node.registry["documentAccess"], node.indexes):
        by_document.pop("cleared")
    node.registry["ownerDocuments"]["ann"].remove("cleared")
    code, result = arrive(node.write(tmp_path / "original"), tmp_path / "data", capsys)
    assert (code, result["documents"]) == (0, 6)


def test_maps_are_told_apart_by_what_they_hold(tmp_path: Path) -> None:
    """The names of the registry's maps are not known for sure."""
    expected = records_of(whole().write(tmp_path / "plain"))
    node = whole()
    renamed = {"ownerDocuments": "documents_by_owner", "documentOwners": "owners_by_document", "groupOwner": "groups"}
    node.registry = {renamed.get(name, name): value for name, value in node.registry.items()}
    assert sorted(map(repr, records_of(node.write(tmp_path / "other")))) == sorted(map(repr, expected))


def records_of(path: Path) -> list[Any]:
    return [*original.find(path, None).records(lambda *_: None)]


def test_a_policy_moves_in_and_a_broken_one_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = {
        "kinds": [{"name": "Ship", "description": "sails"}],
        "promptTemplate": "find ships",
        "predicateAliases": {"Writes": "wrote"},
        "maxEntities": 4,
        "coMention": {"enabled": True, "predicate": "beside", "skipExplicitlyLinked": False},
    }
    path = whole().write(tmp_path / "original")
    (path / "graph-extraction-policy").write_bytes(plistlib.dumps(policy, fmt=plistlib.FMT_BINARY))
    assert arrive(path, tmp_path / "data", capsys)[0] == 0
    with opened(tmp_path / "data") as node:
        stored = node.run(node.node.graph_admin.policy())
    assert [(kind.name, kind.description) for kind in stored.kinds] == [("ship", "sails")]
    assert (stored.prompt_template, stored.max_entities, stored.predicate_aliases) == (
        "find ships",
        4,
        {"writes": "wrote"},
    )
    assert stored.co_mention is not None
    assert stored.co_mention.predicate == "beside"
    (path / "graph-extraction-policy").write_bytes(plistlib.dumps({**policy, "maxEntities": "many"}))
    _, result = arrive(path, tmp_path / "again", capsys)
    assert [each["item"] for each in result["unread"]] == ["graph-extraction-policy"]


def test_a_directory_of_no_original_node_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    two = whole().write(tmp_path / "two")
    (two / "node-id").unlink()
    (two / f"table-{NODE.replace('1', '2')}").touch()
    for path, why in (("empty", "holds no such node"), ("none", "cannot be read"), ("two", "see --node-id")):
        assert cli.main(["import", "--from-thread", str(tmp_path / path), "--data-dir", str(tmp_path / "data")]) == 2
        assert why in capsys.readouterr().err
        assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("seed", range(40))
def test_damaged_property_lists_end_in_named_items(tmp_path: Path, seed: int) -> None:
    path = whole().write(tmp_path / "original")
    rng = random.Random(seed)
    files = sorted(each for each in path.rglob("*") if each.is_file() and each.name != "node-id")
    for file in rng.sample(files, 4):
        data = bytearray(file.read_bytes())
        for _ in range(rng.choice((1, 4, 40))):
            data[rng.randrange(len(data))] = rng.randrange(256)
        file.write_bytes(data[: rng.choice((len(data), rng.randrange(len(data))))])
    disk = Disk(DataDirectory.open(tmp_path / "data"))
    done = importing.file_records(disk, original.find(path, None).records(lambda *_: None))
    assert done.documents <= 12
    disk.close()


def test_lists_that_hold_themselves_do_no_harm(tmp_path: Path) -> None:
    path = whole().write(tmp_path / "original")
    # Object 0 is an array of one object, which is itself.
    cycle = b"bplist00" + b"\xa1\x00" + b"\x08" + b"\0" * 6 + b"\x01\x01" + (1).to_bytes(8) + (0).to_bytes(8)
    cycle += (10).to_bytes(8)
    for name, data in (("registry", cycle), ("table", cycle), ("graph", cycle)):
        (path / f"{name}-{NODE}").write_bytes(data)
    (path / "documents" / "ledger-parts").write_bytes(cycle)
    found = records_of(path)
    assert any(isinstance(each, Unread) for each in found)
    assert {each.id for each in found if isinstance(each, Document)} == {"keywords", "vectors", "code", "😀.. id"}
