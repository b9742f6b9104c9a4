"""What runs and compares the benchmarks, and what they work out of their numbers. What they measure is not run here."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from litestar.testing import TestClient

from thread_service.settings import Settings
from thread_service.wire.http import create_app

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.append(str(BENCHMARKS))

import bench  # noqa: E402
import compare  # noqa: E402
import gpu_check  # noqa: E402
import growth  # noqa: E402
import growth_data  # noqa: E402
import harness  # noqa: E402
import profile_layers  # noqa: E402
import service_nodes  # noqa: E402


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    monkeypatch.setattr(harness, "QUICK", tmp_path / "quick")
    return tmp_path


def parsed(monkeypatch: pytest.MonkeyPatch, *given: str) -> argparse.Namespace:
    monkeypatch.setattr(sys, "argv", ["script.py", *given])
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=100)
    return harness.parse(parser, rows=7)


def test_quick_takes_smaller_sizes_unless_a_size_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parsed(monkeypatch).rows == 100
    assert parsed(monkeypatch, "--quick").rows == 7
    assert parsed(monkeypatch, "--quick", "--rows", "9").rows == 9


def test_a_quick_result_leaves_the_full_one_and_keeps_the_one_before(results: Path) -> None:
    harness.write_results("scan", {"n": 1}, ratios={"a": 1.0})
    for number in (2, 3):
        harness.write_results("scan", {"n": number}, ratios={"a": number}, quick=True)
    read = {
        folder: json.loads((results / folder / "scan.json").read_text())["n"]
        for folder in (".", "quick", "quick/before")
    }
    assert read == {".": 1, "quick": 3, "quick/before": 2}


def test_ratios_are_compared_by_name_within_a_fifth(tmp_path: Path) -> None:
    for folder, ratios in (("before", {"a": 1.0, "b": 1.0, "c": 1.0}), ("after", {"a": 1.19, "b": 0.79})):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "scan.json").write_text(json.dumps({"ratios": ratios}))
    (tmp_path / "before" / "gone.json").write_text(json.dumps({"ratios": {"d": 1.0}}))
    found = {each.ratio: each.is_reproduced for each in compare.compared(tmp_path / "before", tmp_path / "after")}
    assert found == {"a": True, "b": False, "c": False}


def test_a_script_that_fails_or_hangs_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "FOLDER", tmp_path)
    monkeypatch.setattr(bench, "SECONDS", 0.5)
    for name, text in (
        ("fails", "raise SystemExit(3)"),
        ("hangs", "import threading; threading.Event().wait()"),
        ("works", "print('worked')"),
    ):
        (tmp_path / f"{name}.py").write_text(text)
    outcomes = bench.run_all([bench.Run(name) for name in ("fails", "hangs", "works")], quick=False)
    assert [outcome.failure for outcome in outcomes] == ["exit status 3", "stopped after 1 s", ""]
    bench.show(outcomes, 600)
    said = capfd.readouterr().out
    assert "worked" in said
    assert "1 of 3 succeeded" in said


def test_scripts_get_the_sets_that_hold_what_they_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "has_card", lambda: False)
    files = {
        "questions": ("corpus.jsonl", "queries.jsonl"),
        "graph": ("corpus.jsonl", "queries.jsonl", "triples.jsonl"),
        "gold": ("corpus.jsonl", "triples.jsonl", "ontologies.jsonl"),
        "neither": ("other.jsonl",),
    }
    for folder, names in files.items():
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).touch()
    found = [run.name for run in bench.runs(tmp_path)]
    assert [name for name in found if name.startswith(("retrieval", "ingest", "search_latency", "extraction"))] == [
        "retrieval graph",
        "retrieval questions",
        "ingest graph",
        "search_latency graph",
        "extraction gold",
    ]
    assert "scan_gpu" not in found


def test_every_script_that_is_run_is_there_and_quick_where_it_says_so(tmp_path: Path) -> None:
    for run in bench.runs(tmp_path):
        text = (BENCHMARKS / f"{run.script}.py").read_text()
        assert run.has_quick == ("parse(parser" in text), run.script


def test_the_gpu_check_runs_every_test_of_the_kernels_that_is_marked_for_one() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "gpu", "tests/kernels"]
    done = subprocess.run(command, cwd=BENCHMARKS.parent, capture_output=True, text=True, timeout=120)
    collected = {line.split("::")[0] for line in done.stdout.splitlines() if "::" in line}
    assert "tests/kernels/test_engine_contract.py" in collected, done.stdout
    run = {str(Path(each).relative_to(BENCHMARKS.parent)) for each in gpu_check.files_with_gpu_tests()}
    assert collected <= run


def sizes(rows: list[int], of_rows: Any) -> list[dict[str, Any]]:
    """Sizes of which every quantity is the same function of the rows."""
    cumulated = [of_rows(each) for each in rows]
    filed = [value - before for value, before in zip(cumulated, [0, *cumulated], strict=False)]
    times = [f"{what}_{key}_ms" for what in ("search", "evidence", "graph") for key in ("p50", "p99")]
    return [
        {
            "rows": each,
            "filing": {"seconds": seconds},
            "disk_mb": of_rows(each),
            "opened": {"seconds": 3 + of_rows(each), "anonymous_mb": 5 + of_rows(each)}
            | dict.fromkeys(times, of_rows(each)),
        }
        for each, seconds in zip(rows, filed, strict=True)
    ]


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.3])
def test_the_exponent_of_a_power_of_the_rows_is_that_power(exponent: float) -> None:
    found = growth.fitted(
        {"seconds": 3, "anonymous_mb": 5}, sizes([100, 1_000, 100_000], lambda rows: 0.2 * rows**exponent)
    )
    assert len(found) == 10
    for quantity, fitted in found.items():
        assert fitted == {"exponent": exponent, "last step": exponent}, quantity


def test_growth_asks_for_names_that_were_filed() -> None:
    documents = growth_data.Maker().documents(200)
    filed = [entity.name for document in documents for entity in document.entities or ()]
    assert len(filed) == len({*filed}) == growth_data.names_in(200)
    asked = [
        part for request in growth_data.Maker().queries(200) for part in request.query.split(" of ")[1].split(" and ")
    ]
    assert {*asked} <= {*filed}


def test_what_is_missing_is_said_with_what_to_install() -> None:
    with (
        pytest.raises(SystemExit, match=r"^nothing_such is not installed: pip install -r benchmarks/\S+$") as said,
        harness.peers(),
    ):
        import nothing_such  # type: ignore[import-not-found]  # noqa: F401
    assert (BENCHMARKS.parent / str(said.value).rpartition(" ")[2]).exists()


def test_the_front_end_is_measured_before_a_node_that_says_how_it_is_and_answers() -> None:
    node: Any = service_nodes.ReadyAnswer()
    with TestClient(create_app(node, Settings())) as client:
        assert client.get("/health").json()["embedder"]["phase"] == "ready"
        body = {"thread": {"owner_id": "ada"}, "query": "tide"}
        assert len(client.post("/v1/search", json=body).json()["texts"]) == 10


@pytest.mark.parametrize(
    ("stack", "owner"),
    [
        (
            "_bootstrap (threading.py);run (/x/service/thread_service/node/work.py)",
            ("node", "thread_service/node/work.py"),
        ),
        ("f (thread_service/node/search.py);g (faiss/swigfaiss.py)", ("node", "thread_service/node/search.py")),
        ("f (thread_service/batching/scan.py);g (thread_kernels/scan.py)", ("kernels", "thread_kernels/scan.py")),
        ("f (thread_service/app.py);g (uvicorn/protocols/http/h.py)", ("HTTP framework", "uvicorn")),
        ("f (thread_service/app.py);g (asyncio/runners.py)", ("event loop", "thread_service/app.py")),
        ("f (threading.py)", ("everything else", "threading.py")),
    ],
)
def test_a_sample_belongs_to_the_innermost_frame_of_the_node_or_its_framework(
    stack: str, owner: tuple[str, str]
) -> None:
    assert profile_layers.owner_of(stack.split(";")) == owner


def test_shares_of_samples_add_up() -> None:
    found = profile_layers.shares(["f (thread_service/node/search.py) 3", "g (thread_kernels/scan.py) 1"])
    assert found["samples"] == 4
    assert found["layers"]["node"] == 0.75
    assert sum(found["layers"].values()) == 1
    assert found["files"] == {"thread_service/node/search.py": 0.75, "thread_kernels/scan.py": 0.25}
