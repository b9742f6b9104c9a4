"""The commands that the pages show do what they say: those that any machine can run are run here.

The line that opens a block of commands says what they need, behind the language: `run` (a node on its usual port, and
nothing else), or one of `ELSEWHERE`. What is shown as JSON or YAML can be read as such; a block in no language holds no
commands.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

sys.path.append(str(Path(__file__).parents[1] / "crash"))

from node_process import NodeProcess, missing_model

from thread_service.settings import declarations

TOP = Path(__file__).parents[2]
PAGES = [TOP / "README.md", *sorted((TOP / "docs").glob("*.md"))]
ELSEWHERE = {
    "ubuntu": "needs Ubuntu 24.04, and root",
    "install": "installs for the whole machine, as root: what it names is compared with the service below",
    "docker": "needs a Docker engine",
    "gpu": "needs a CUDA device",
    "caddy": "needs Caddy, and a name of one's own",
    "ci": "is what continuous integration runs",
    "load": "is run below, where locust is installed",
    "grpcurl": "is run by tests/wire/test_fleet_docs.py",
    "elsewhere": "serves until it is stopped, or takes a minute: tests/live, tests/wire/test_fleet_launch.py and the "
    "block marked `load` do the same",
    "shown": "is an example of what is seen: tests/test_doctor.py, tests/test_cli.py and tests/node/test_verifying.py "
    "do the same",
}
MARKED = {"console", "sh", "bash", "python", "caddyfile"}
SHOWN = {"", "json", "mermaid", "yaml"}
BLOCK = re.compile(r"^```(?P<language>\w*)(?P<needs>[^\n]*)\n(?P<lines>.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\s*(\$|(\S*/)?(thread|curl|make|pip|python3?|docker|sudo|git|npm) )", re.MULTILINE)


def blocks() -> list[tuple[str, frozenset[str], str]]:
    """(page, what it needs, its commands) of every marked block; Python is a command that runs it."""
    return [
        (page.name, frozenset(block["needs"].split()), runnable(block["language"], block["lines"]))
        for page in PAGES
        for block in BLOCK.finditer(page.read_text(encoding="utf-8"))
        if block["language"] in MARKED
    ]


def runnable(language: str, lines: str) -> str:
    if language == "python":
        return f"python -W error - <<'END OF SCRIPT'\n{lines}END OF SCRIPT\n"
    return re.sub(r"^\$ ", "", lines, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    if reason := missing_model():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("documented")
    with NodeProcess(folder / "memory", folder / "node.log") as process:
        process.wait_ready()
        yield process


def run(commands: str, folder: Path, port: int) -> subprocess.CompletedProcess[str]:
    scripts = sysconfig.get_path("scripts")
    commands = commands.replace("localhost:8081", f"localhost:{port}").replace("127.0.0.1:8081", f"127.0.0.1:{port}")
    own = {name: value for name, value in os.environ.items() if not name.startswith(("THREAD_", "AMBIENT_", "RAO_"))}
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands.replace(".venv/bin/", "")],
        env=own | {"PATH": f"{scripts}:{os.environ['PATH']}"},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_every_block_says_what_it_needs() -> None:
    found = blocks()
    for page, needs, commands in found:
        assert needs, f"{page}: say what this needs, or `run`: {commands[:60]}"
        assert needs <= {"run", *ELSEWHERE}, (page, commands[:60])
    assert len([needs for _, needs, _ in found if "run" in needs]) >= 7


def test_no_command_stands_in_another_block() -> None:
    for page in PAGES:
        for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
            language, lines = block["language"], block["lines"]
            assert language in MARKED | SHOWN, (page.name, language)
            if language in SHOWN:
                assert not COMMAND.search(lines), f"{page.name}: say what this needs: {lines[:60]}"
            if language == "json":
                json.loads(lines)
            elif language == "yaml":
                yaml.safe_load(lines)


def test_what_any_machine_can_run_is_run(node: NodeProcess) -> None:
    for page, needs, commands in blocks():
        if needs == {"run"}:
            done = run(commands, node.log.parent, node.port)
            assert done.returncode == 0, (page, commands, done.stdout, done.stderr)


def test_the_first_example_needs_the_graph(node: NodeProcess) -> None:
    [example] = [commands for page, _, commands in blocks() if page == "first-ten-minutes.md" and "inputs" in commands]
    example = example.replace('"owner_id": "me"', '"owner_id": "first example"')
    without = example.replace('"top_k": 2', '"top_k": 2, "graph_mode": "off"')
    assert without != example
    keeps, begun = (
        "Ada Quill keeps the Tidal Ledger in Port Selwyn.",
        "The Tidal Ledger was begun in 1841 by Orrin Vale.",
    )
    found, found_without = (json.loads(run(each, node.log.parent, node.port).stdout) for each in (example, without))
    assert found["texts"] == [keeps, begun]
    edges = {(edge["subject"], edge["predicate"], edge["object"]) for edge in found["graph"]["relationships"]}
    assert ("Ada Quill", "keeps", "Tidal Ledger") in edges
    assert found_without["texts"][0] == keeps
    assert begun not in found_without["texts"]
    assert "graph" not in found_without


def test_the_way_without_a_gpu_installs_what_the_service_starts() -> None:
    text = (TOP / "docs" / "running.md").read_text(encoding="utf-8")
    [section] = re.findall(r"^## Any Linux, without a GPU\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    [folder] = re.findall(r"-m venv (/\S+)$", section, re.MULTILINE)
    unit = (TOP / "docs" / "thread.service").read_text(encoding="utf-8")
    assert f"ExecStart={folder}/bin/thread\n" in unit
    assert set(re.findall(r"(/\S+)/bin/(?:python|thread)\b", section)) == {folder}
    with (TOP / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    assert set(re.findall(r"'\.\[(\w+)\]'", section)) == {"cpu"} <= extras.keys()
    [model] = set(re.findall(r"package:(\S+?)[\s\"]", section))
    wanted = re.findall(r"^([\w-]+)==", (TOP / "requirements-model.txt").read_text(), re.MULTILINE)
    assert [name.replace("-", "_") for name in wanted] == model.split("+")
    [variable] = re.findall(r'"(THREAD_\w+)=', section)
    assert variable in {declaration.variable for declaration in declarations().values()}
    [file] = re.findall(r"--append (\S+)", section)
    assert f"EnvironmentFile=-{file}\n" in unit


def test_the_documented_load_is_put_on_a_node(node: NodeProcess) -> None:
    if not (TOP / ".venv-load" / ".installed").exists():
        pytest.skip("locust is not installed here: make .venv-load/.installed")
    [commands] = [commands for _, needs, commands in blocks() if needs == {"load"}]
    done = run(commands, TOP, node.port)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert done.stderr.splitlines()[-1] == "passed"
    assert re.search(r"^[1-9][\d.]* requests/s, p50 .*, errors 0$", done.stderr, re.MULTILINE), done.stderr
    assert re.search(r"^the node's memory \d+ → \d+ MB", done.stderr, re.MULTILINE)
    done = run(commands.replace("P99_MS=60000", "P99_MS=0.1"), TOP, node.port)
    assert done.returncode != 0
    assert "FAILED: p99 is" in done.stderr
    assert "above 0.1" in done.stderr
