"""An export, imported into an empty directory, makes the same node."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import msgspec
import numpy as np
import pytest
from in_process import InProcess, WordsEmbedder, document, group, ids, opened, unit

from thread_service import cli
from thread_service.node.moving import importing, lines
from thread_service.node.moving.records import Document, Group, Line
from thread_service.node.operations import SearchAnswer, UpdateDocumentRequest, UpdateGroupRequest
from thread_service.store import policies, registry
from thread_service.store.directory import DataDirectory, existing_node
from thread_service.store.disk import Disk
from thread_service.text.policy import CoMention, Policy

INSPECTION = "Nobody described this harbour inspection."
OWNERS = ("ann", "bob", "😀 \0 owner")


def fill(node: InProcess) -> None:
    """Everything that a document can have, and every state that it can be in."""
    policy = Policy(predicate_aliases={"writes": "wrote"}, co_mention=CoMention(True))
    node.run(node.node.graph_admin.set_policy(policy))
    node.file(
        "ann",
        document(
            "Ada Quill keeps the Tidal Ledger.",
            "A second chunk about brass.",
            id="ledger",
            name="The Ledger",
            entities=[("Ada Quill", "person"), "Tidal Ledger", ("Ada quill", "person")],
            edges=[("Ada Quill", "writes", "Tidal Ledger"), ("Ada Quill", "writes", "Tidal Ledger")],
            metadata=b"\0\xff metadata",
            group_tags=("tides", "salt"),
        ),
        group=group("harbour", "available", label="Harbour", description="All at sea", tags=("own",)),
    )
    node.file("ann", document(INSPECTION, id="keywords", entities=None), group="zeta")
    node.file("ann", document(INSPECTION, id="ledger-2", entities=None), group="harbour")
    node.file("ann", document("Ada Quill was seen by the Ledger.", id="../mention", name="Ada Quill"))
    node.file("bob", document(INSPECTION, id="ledger", entities=["Own"]), group="harbour")
    vectors = [unit(1, 2), None]
    node.file("bob", document("brought", "embedded", id="vectors", vectors=vectors))
    node.file("bob", document("other width", id="wide", vectors=[unit(1, 0, 3, width=128)]))
    code = document("code\0 here", id="é" * 400, media_type="code", entities=[("mod.fn", "function")])
    node.file("😀 \0 owner", code)
    node.file("bob", document("gone", id="gone"))
    node.remove("bob", "gone")
    node.embedder.refused.add("this is refused")
    node.file("bob", document("this is refused", id="refused", entities=["Refusal"]))
    node.run(node.node.update_document(UpdateDocumentRequest("ann", "keywords", group_id="harbour")))
    node.run(node.node.update_group(UpdateGroupRequest("ann", "zeta", access="available")))
    node.run(node.node.graph_admin.rename_entity("ann", _entity(node, "ann", "Tidal Ledger"), "Tide Book"))
    node.settle()


def _entity(node: InProcess, owner: str, name: str) -> str:
    return next(entity.entity_id for entity in node.graph(owner, name).entities if entity.name == name)


@pytest.fixture
def filled(node: InProcess) -> InProcess:
    fill(node)
    return node


def export(node: InProcess, file: Path) -> bytes:
    assert cli.main(["export", str(file), "--data-dir", str(node.path), "--json"]) == 0
    return file.read_bytes()


def answers(node: InProcess) -> list[Any]:
    """What the node says to each owner, without what belongs to a node: where its files are."""
    found: list[Any] = []
    for owner in OWNERS:
        for query in ("brass tides", "who keeps the Tide Book", "harbour inspection", "Ada Quill"):
            modes = ("boost", "narrow", "off")
            found += [_about(node.search(owner, query, scope="global", graph_mode=mode)) for mode in modes]
        found.append(_about(node.search(owner, query_embedding=unit(1, 2))))
        browsed = node.graph(owner, limit=1_000)
        found.append((browsed.entity_count, browsed.relationship_count, {*browsed.entities}, {*browsed.relationships}))
        found.append(sorted(node.mentions(owner)))
        for each in node.library(owner, include_available=True).groups:
            shown = [(item.document_id, item.owner_id, item.name, item.created_at) for item in each.documents]
            found.append((each.group_id, each.owner_id, each.label, each.access, each.description, each.tags, shown))
    found.append(node.run(node.node.stats()))
    return found


def _about(answer: SearchAnswer) -> Any:
    rounded = [(passage.partition_id, passage.owner_id, round(passage.distance, 5)) for passage in answer.passages]
    # Those that are equally evident may come in another order.
    return rounded, [{*passage.entities} for passage in answer.passages]


def test_an_export_makes_the_same_node_again(filled: InProcess, tmp_path: Path) -> None:
    exported = export(filled, tmp_path / "all.jsonl")
    target = tmp_path / "imported"
    assert cli.main(["import", str(tmp_path / "all.jsonl"), "--data-dir", str(target), "--json"]) == 0
    assert existing_node(target) == filled.store.node_id
    embedder = WordsEmbedder()
    embedder.refused.add("this is refused")
    with opened(target, embedder) as copy:
        copy.settle()
        assert export(copy, tmp_path / "again.jsonl") == exported
        assert answers(copy) == answers(filled)
        [brought] = copy.documents("bob", "vectors", embeddings=True)
        assert brought.partitions[0].embedding.tobytes() == unit(1, 2).tobytes()
        assert copy.run(copy.node.verify(full=True, progress=lambda *_: None))["damage"] == []
        # What was named for people only is no name in the graph again.
        assert copy.run(copy.node.graph_admin.policy()).predicate_aliases == {"writes": "wrote"}


def test_what_waits_to_be_indexed_is_exported_as_it_was_said(node: InProcess, tmp_path: Path) -> None:
    node.embedder.open.clear()
    node.file("ann", document("waits", id="a", entities=["Thing"], vectors=[unit(3)]), wait=False)
    node.file("ann", document("also waits", id="b", entities=None), wait=False)
    first = export(node, tmp_path / "one")
    assert cli.main(["import", str(tmp_path / "one"), "--data-dir", str(tmp_path / "imported")]) == 0
    node.embedder.open.set()
    node.settle()
    with opened(tmp_path / "imported") as copy:
        copy.settle()
        assert export(copy, tmp_path / "two") == export(node, tmp_path / "three")
    assert b'"waiting"' in first
    assert b'"waiting"' not in (tmp_path / "two").read_bytes()


def test_an_import_that_was_cut_off_goes_on_and_replaces_nothing(
    filled: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported = export(filled, tmp_path / "all.jsonl")
    target = tmp_path / "imported"
    monkeypatch.setattr(importing, "DOCUMENTS_AT_ONCE", 2)
    disk = Disk(DataDirectory.open(target))

    def cut_off() -> Iterator[Any]:
        for number, record in enumerate(lines.read(tmp_path / "all.jsonl", lambda *_: None)):
            if number == 11:
                raise KeyboardInterrupt
            yield record

    with pytest.raises(KeyboardInterrupt):
        importing.file_records(disk, cut_off())
    begun = len(documents_of(disk))
    assert begun > 0
    done = importing.file_records(disk, lines.read(tmp_path / "all.jsonl", lambda *_: None))
    assert (done.failed, done.skipped) == (0, begun)
    again = importing.file_records(disk, lines.read(tmp_path / "all.jsonl", lambda *_: None))
    assert (again.documents, again.skipped, again.groups, again.owners) == (0, done.documents + begun, 0, 0)
    disk.close()
    embedder = WordsEmbedder()
    embedder.refused.add("this is refused")
    with opened(target, embedder) as copy:
        copy.settle()
        assert export(copy, tmp_path / "again").split(b"\n")[1:] == exported.split(b"\n")[1:]


def documents_of(disk: Disk) -> list[str]:
    with disk.read() as connection:
        return [id for (id,) in connection.execute("SELECT document_id FROM documents ORDER BY document_key")]


def test_what_cannot_be_read_is_named_and_everything_else_is_filed(tmp_path: Path) -> None:
    header = {"type": "thread-export", "version": 1, "node_id": "1B4E28BA-2FA1-11D2-883F-0016D3CCA427"}
    good = {"type": "document", "owner": " Ann ", "id": "a", "access": "restricted", "created_at": 5, "texts": ["one"]}
    nan = base64.b64encode(np.full(16, np.nan, "<f4").tobytes()).decode()
    lone = '{"type":"document","owner":"ann","id":"\\ud800","access":"restricted","created_at":1,"texts":["x"]}'
    graph = {"entities": [{"name": "A", "kind": "", "source": "given"}]}
    group = {"owner": "ann", "id": "g", "label": "Shared", "description": None, "tags": [], "access": "restricted"}
    policy = {"kinds": [], "prompt_template": None, "predicate_aliases": {}, "max_entities": 3, "max_relationships": 3}
    policy |= {"co_mention": None, "hub_degree_cap": None}
    edge = {"subject": 0, "predicate": "p", "object": 1, "source": "given"}
    bad: list[tuple[Any, str, str]] = [
        ("not json", "", "malformed"),
        ("[" * 100_000, "", ""),
        (lone, "", ""),
        ({"type": "unheard of"}, "", "type"),
        ({**good, "access": "everybody"}, "", "access: "),
        ({**good, "created_at": 2**70}, "", "created_at: "),
        ({"type": "owner", "id": 7}, "", "id: expected `str`"),
        ({"type": "owner", "id": " "}, "owner ' '", "id: is empty; give"),
        ({"type": "group", **group, "label": None}, "", "label: expected `str`"),
        ({"type": "group", **group, "id": ""}, "group '' of 'ann'", "id: is empty; give"),
        ({"type": "group", **group, "owner": "x" * 2_000}, f"group 'g' of '{'x' * 2_000}'", "owner: is longer than"),
        ({"type": "policy", **policy, "max_entities": -1}, "", "max_entities: expected"),
        ({"type": "policy", **policy, "kinds": [{"name": " "}]}, "policy", "kinds[0].name: is blank; name"),
        ({"type": "policy", **policy, "predicate_aliases": {"a": ""}}, "policy", "predicate_aliases: 'a' or what"),
        ({**good, "id": "b", "texts": []}, "document 'b' of ' Ann '", "texts: holds no text; give"),
        ({**good, "id": ""}, "document '' of ' Ann '", "id: is empty; give"),
        ({**good, "id": "x" * 2_000}, f"document '{'x' * 2_000}' of ' Ann '", "id: is longer than"),
        ({**good, "owner": " "}, "document 'a' of ' '", "owner: is empty; give"),
        ({**good, "id": "nan", "vectors": [nan]}, "document 'nan' of ' Ann '", "vectors: holds NaN"),
        ({**good, "id": "odd", "vectors": ["AAA="]}, "document 'odd' of ' Ann '", "vectors: are no float32"),
        ({**good, "id": "urls", "urls": []}, "document 'urls' of ' Ann '", "urls: has another number"),
        ({**good, "id": "group", "primary_group": "g"}, "document 'group' of ' Ann '", "groups: lacks a group"),
        ({**good, "id": "edge", "graph": {**graph, "relationships": [edge]}}, "document 'edge' of ' Ann '", ""),
    ]
    items = [f"line {number}: {item}" if item else f"line {number}" for number, (_, item, _) in enumerate(bad, 2)]
    sound = [{"type": "owner", "id": "bob"}, {"type": "group", **group}, {"type": "policy", **policy}, good]
    file = tmp_path / "hostile.jsonl"
    rows = [header, *(row for row, *_ in bad), *sound]
    file.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    disk = Disk(DataDirectory.open(tmp_path / "data"))
    done = importing.file_records(disk, lines.read(file, lambda *_: None))
    assert documents_of(disk) == ["a"]
    assert sorted(each.item for each in done.unread) == sorted([*items, "end"])
    said = {each.item: each.what for each in done.unread}
    for item, (_, _, what) in zip(items, bad, strict=True):
        assert what in said[item], item
    assert "the file ends early, after 10 documents" in said["end"]
    assert (done.failed, done.documents, done.groups, done.owners) == (len(bad) + 1, 1, 1, 1)
    with disk.read() as connection:
        assert [*connection.execute("SELECT owner_id FROM owners")] == [("bob",), ("ann",)]
        assert [*connection.execute("SELECT group_id, label FROM groups")] == [("g", "Shared")]
        assert policies.read(connection).max_entities == 3
    disk.close()


def test_a_record_that_the_store_does_not_take_costs_nothing_but_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a record may hold that no check foresees."""
    ensure = registry.ensure_group

    def unforeseen(connection: apsw.Connection, owner_key: int, group_id: str, **more: Any) -> Any:
        if group_id == "odd":
            raise apsw.TooBigError("string or blob too big")
        return ensure(connection, owner_key, group_id, **more)

    monkeypatch.setattr(registry, "ensure_group", unforeseen)
    record = Document("ann", "a", "restricted", 5, ["one"], groups=["g", "odd"])
    found = [
        Line(2, Group("ann", "odd", "", None, [], "restricted")),
        Line(3, Group("ann", "g", "", None, [], "restricted")),
        Line(4, record),
        Line(5, msgspec.structs.replace(record, id="b", groups=["g"])),
    ]
    disk = Disk(DataDirectory.open(tmp_path / "data"))
    done = importing.file_records(disk, found)
    assert documents_of(disk) == ["b"]
    assert (done.groups, done.documents, done.failed) == (1, 1, 2)
    assert [(each.item, "TooBigError" in each.what) for each in done.unread] == [
        ("line 2: group 'odd' of 'ann'", True),
        ("line 4: document 'a' of 'ann'", True),
    ]
    disk.close()


def test_what_is_not_imported_is_said_with_the_way_to_do_it_again(
    filled: InProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exported = export(filled, tmp_path / "all.jsonl").replace(b'"type":"owner","id":"ann"', b'"type":"owner","id":""')
    (tmp_path / "faulty.jsonl").write_bytes(exported)
    capsys.readouterr()
    assert cli.main(["import", str(tmp_path / "faulty.jsonl"), "--data-dir", str(tmp_path / "imported")]) == 1
    said = capsys.readouterr().out
    assert "1 not imported:\nline " in said
    assert ": owner '': id: is empty; give it an id\ncorrect them and import again" in said


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"{}\n", b'{"type":"owner","id":"ann"}\n', b"[" * 10_000])
def test_what_is_no_export_is_refused(tmp_path: Path, data: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_bytes(data)
    assert cli.main(["import", str(tmp_path / "file"), "--data-dir", str(tmp_path / "data")]) == 2
    assert "is no export of a node" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_nothing_is_imported_into_a_running_node_or_without_a_source(
    node: InProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export(node, tmp_path / "all.jsonl")
    assert cli.main(["import", str(tmp_path / "all.jsonl"), "--data-dir", str(node.path)]) == 2
    assert "is in use by process" in capsys.readouterr().err
    for arguments in ([], [str(tmp_path / "all.jsonl"), "--from-thread", str(tmp_path)]):
        assert cli.main(["import", *arguments, "--data-dir", str(tmp_path / "other")]) == 2
        assert "say what to import" in capsys.readouterr().err
    assert cli.main(["import", str(tmp_path / "none"), "--data-dir", str(tmp_path / "other")]) == 2
    assert not (tmp_path / "other").exists()


def test_standard_output_holds_the_export_and_nothing_else(
    filled: InProcess, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    exported = export(filled, tmp_path / "all.jsonl")
    capfdbinary.readouterr()
    assert cli.main(["export", "-", "--data-dir", str(filled.path), "--json"]) == 0
    shown = capfdbinary.readouterr()
    assert shown.out == exported
    assert json.loads(shown.err.splitlines()[-1])["documents"] == exported.count(b'"type":"document"')


def test_vectors_that_move_or_rot_during_an_export(filled: InProcess, tmp_path: Path) -> None:
    exported = export(filled, tmp_path / "all.jsonl")
    filled.run(filled.node.compact(lambda *_: None))
    assert export(filled, tmp_path / "compacted.jsonl") == exported
    for path in filled.store.directory.vectors.iterdir():
        path.write_bytes(bytes(path.stat().st_size))
    code = cli.main(["export", str(tmp_path / "rotten.jsonl"), "--data-dir", str(filled.path), "--json"])
    assert code == 1
    kept = (tmp_path / "rotten.jsonl").read_bytes()
    assert kept.count(b'"type":"document"') == exported.count(b'"type":"document"') - 2
    assert ids(filled.search("ann", "brass"))
