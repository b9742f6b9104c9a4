"""`setup-cuda-ubuntu.sh` on machines that are made up: what it calls is stubbed, and nothing else is on its PATH."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
SCRIPT = TOP / "setup-cuda-ubuntu.sh"
REAL = (
    *("bash", "chmod", "cp", "cut", "cat", "dirname", "env", "find", "flock", "ln", "mkdir", "mktemp", "mv"),
    *("readlink", "rm", "sed", "sha256sum", "sort", "touch", "xargs"),
)
"""What the script may use of this machine; everything else that it calls is one of `STUBS`."""

# Each says that it was called; then it does what is needed to go on.
STUBS = {
    "nvidia-smi": """
[[ -z $SMI_FAILS ]] || { echo "Failed to initialize NVML: Driver/library version mismatch"; exit 18; }
printf "%s\\n" "$SMI" """,
    "id": "echo $USER_ID",
    "sudo": '"$@"',
    "dpkg-query": '[[ " $ABSENT " != *" ${!#} "* ]] && echo "install ok installed"',
    "apt-get": "",
    "curl": """
[[ -z $OFFLINE ]] || exit 6
while [[ $1 != --output ]]; do shift; done
echo "deb https://x /" > "$2" """,
    "gpg": "",
    "install": "",
    "systemctl": "",
    "docker": 'printf "%s\\n" "$RUNTIMES"',
    "nvidia-ctk": "",
    "python3.12": """
mkdir -p "$3/bin"
for program in python thread vllm; do
    cat > "$3/bin/$program" <<END
#!$BASH
echo "$program \\$*" >> "\\$CALLS"
[[ -z \\$BREAKS || "\\$*" != *"\\$BREAKS"* ]]
END
    chmod +x "$3/bin/$program"
done""",
}
RTX_4090 = "NVIDIA GeForce RTX 4090, 580.95.05, 24564, 8.9"


@dataclass
class Machine:
    """`run` takes the script's flags, commands that are `absent`, and the variables that the stubs go by."""

    folder: Path

    @property
    def source(self) -> Path:
        """The script beside a checkout that is small: what is installed is stubbed anyway."""
        source = self.folder / "checkout"
        if not source.exists():
            for name in ("kernels", "protos", "service"):
                (source / name).mkdir(parents=True)
            for name in ("LICENSE", "README.md", "hatch_build.py", "pyproject.toml", "service/node.py"):
                (source / name).write_text(name)
            for file in (SCRIPT, TOP / "requirements-vllm.txt"):
                shutil.copy(file, source)
        return source

    @property
    def prefix(self) -> Path:
        return self.folder / "thread"

    def run(self, *flags: str, absent: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        commands = self.folder / "commands"
        shutil.rmtree(commands, ignore_errors=True)
        commands.mkdir()
        for name in REAL:
            found = shutil.which(name)
            assert found is not None, name
            (commands / name).symlink_to(found)
        for name in STUBS.keys() - {*absent.split()}:
            stub = commands / name
            stub.write_text(f'#!{commands}/bash\necho "{name} $*" >> "$CALLS"\n{STUBS[name]}\n')
            stub.chmod(0o755)
        release = self.folder / "os-release"
        release.write_text(variables.pop("RELEASE", 'ID=ubuntu\nVERSION_ID="24.04"\n'))
        calls = self.folder / "calls"
        calls.write_text("")
        given = {"SMI": RTX_4090, "RUNTIMES": '{"nvidia":{}}', "USER_ID": "0"} | variables
        return subprocess.run(
            [str(commands / "bash"), str(self.source / SCRIPT.name), "--prefix", str(self.prefix), *flags],
            env={"PATH": str(commands), "CALLS": str(calls), "OS_RELEASE": str(release)} | given,
            capture_output=True,
            text=True,
            cwd=self.folder,
            check=False,
        )

    def calls(self, command: str) -> list[str]:
        lines = (self.folder / "calls").read_text().splitlines()
        return [line.removeprefix(command).strip() for line in lines if line.startswith(command + " ")]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def refused(run: subprocess.CompletedProcess[str]) -> str:
    """The one line on standard error."""
    assert run.returncode == 1, run
    [line] = run.stderr.splitlines()
    return line


def test_a_new_driver_gets_the_node_for_cuda_13_and_the_pinned_vllm(machine: Machine) -> None:
    run = machine.run()
    assert (run.returncode, run.stderr) == (0, "")
    installs = [call for call in machine.calls("python") if "--upgrade pip" not in call]
    assert installs == [
        f"-m pip install --quiet --disable-pip-version-check {machine.prefix}/.source[cuda13]",
        f"-m pip install --quiet --disable-pip-version-check --requirement {machine.source}/requirements-vllm.txt",
    ]
    for name, program in (("node", "thread"), ("vllm", "vllm")):
        assert (machine.prefix / name / "bin" / program).exists()
        assert (machine.prefix / name).readlink().parent == machine.prefix
    assert machine.calls("apt-get") == []
    command = f"{machine.prefix}/node/bin/thread --data-dir DIR --vllm-command {machine.prefix}/vllm/bin/vllm"
    assert f"{command} --vllm-gpu-share 0.5" in run.stdout
    assert not (machine.prefix / ".source").exists()


def test_an_older_driver_gets_cuda_12(machine: Machine) -> None:
    assert machine.run(SMI="NVIDIA A100-SXM4-80GB, 575.57.08, 81920, 8.0").returncode == 0
    assert f"-m pip install --quiet --disable-pip-version-check {machine.prefix}/.source[cuda12]" in machine.calls(
        "python"
    )
    assert "-m pip install --quiet --disable-pip-version-check vllm==0.19.1" in machine.calls("python")


def test_the_vllm_of_older_drivers_is_the_one_that_the_other_files_name() -> None:
    [version] = re.findall(r"VLLM_FOR_CUDA12='(vllm==[\d.]+)'", SCRIPT.read_text())
    assert version in (TOP / "requirements-vllm.txt").read_text()
    assert version.replace("vllm==", "vllm-openai:v") in (TOP / "docker" / "compose.yaml").read_text()


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"absent": "nvidia-smi"}, "no NVIDIA driver: run 'sudo ubuntu-drivers install'"),
        ({"SMI_FAILS": "1"}, "does not answer (Failed to initialize NVML: Driver/library version mismatch): restart"),
        (
            {"SMI": "NVIDIA H100 PCIe, 535.183.01, 81559, 9.0"},
            "535.183.01 is too old for CUDA 12.9: install 580",
        ),
        ({"SMI": "Tesla T4, 580.95.05, 15360, 7.5"}, "has compute capability 7.5, and the kernels need 8.0"),
        ({"SMI": "No devices were found"}, "shows no device (No devices were found): see 'nvidia-smi -L'"),
        ({"RELEASE": 'ID=debian\nVERSION_ID="12"\n'}, "made for Ubuntu 24.04, and here is debian 12: use the image"),
        ({"absent": "sudo", "USER_ID": "1000", "ABSENT": "gcc"}, "wants root, and there is no sudo"),
    ],
)
def test_what_stands_in_the_way_is_one_line_that_says_what_to_do(
    machine: Machine, variables: dict[str, str], said: str
) -> None:
    assert said in refused(machine.run(**variables))
    assert not machine.prefix.exists()


def test_a_prefix_that_cannot_be_written_is_refused(machine: Machine) -> None:
    machine.prefix.write_text("a file\n")
    assert f"{machine.prefix} cannot be written: run this with sudo, or give --prefix" in refused(machine.run())


@pytest.mark.parametrize(
    ("mebibytes", "said"),
    [(12288, "too small for both models, which want 13 GiB"), (16376, "--vllm-gpu-share 0.60"), (24564, "share 0.5\n")],
)
def test_the_memory_of_the_gpu_decides_about_the_instruct_model(machine: Machine, mebibytes: int, said: str) -> None:
    run = machine.run(SMI=f"NVIDIA GeForce, 580.95.05, {mebibytes}, 8.6")
    assert run.returncode == 0
    assert said in run.stdout
    assert (machine.prefix / "node").exists()
    assert (machine.prefix / "vllm").exists() == (mebibytes > 13000)


def test_a_second_run_installs_nothing_until_something_has_changed(machine: Machine) -> None:
    machine.run()
    run = machine.run()
    assert run.returncode == 0
    assert run.stdout.count("up to date") == 2
    assert machine.calls("python") == machine.calls("apt-get") == machine.calls("systemctl") == []
    (machine.source / "service" / "node.py").write_text("a newer version")
    assert machine.run().stdout.count("up to date") == 1
    assert machine.calls("thread") == ["--version"]
    assert machine.calls("vllm") == []


@pytest.mark.parametrize("breaks", ["source[cuda13]", "--version"])
def test_what_fails_half_way_leaves_what_was_there_in_use(machine: Machine, breaks: str) -> None:
    machine.run(SMI="NVIDIA A100-SXM4-80GB, 575.57.08, 81920, 8.0")
    before = sorted(machine.prefix.glob("*")), (machine.prefix / "node").readlink()
    line = refused(machine.run(BREAKS=breaks))
    assert "what was there before is still in use" in line
    assert (sorted(machine.prefix.glob("*")), (machine.prefix / "node").readlink()) == before
    run = machine.run()
    assert run.returncode == 0
    assert (machine.prefix / "node").readlink() != before[1]
    # One to go back to stays, beside the new one.
    assert len([*machine.prefix.glob("node-*")]) == 2


def test_a_dry_run_says_what_it_would_do_and_does_nothing(machine: Machine) -> None:
    run = machine.run("--dry-run", ABSENT="python3.12-venv", RUNTIMES="{}", absent="nvidia-ctk")
    assert run.returncode == 0
    for line in ("apt-get install --yes --no-install-recommends python3.12-venv", "[cuda13]", "nvidia-ctk runtime"):
        assert any(said.startswith("+ ") and line in said.replace("\\", "") for said in run.stdout.splitlines()), line
    assert not machine.prefix.exists()
    for command in ("apt-get", "python3.12", "install", "systemctl", "curl"):
        assert machine.calls(command) == []


def test_packages_that_are_missing_are_installed(machine: Machine) -> None:
    machine.run(ABSENT="python3.12-dev gcc", USER_ID="1000")
    assert machine.calls("apt-get") == ["update", "install --yes --no-install-recommends python3.12-dev gcc"]
    assert machine.calls("sudo") == ["apt-get " + call for call in machine.calls("apt-get")]


TOOLKIT: list[tuple[Callable[[Machine], subprocess.CompletedProcess[str]], str, bool]] = [
    (lambda it: it.run(absent="docker nvidia-ctk"), "Docker: not here", False),
    (lambda it: it.run("--no-docker", absent="nvidia-ctk"), "no container sees the GPU; run this without", False),
    (lambda it: it.run(absent="nvidia-ctk", RUNTIMES="{}"), "installing NVIDIA's container toolkit", True),
    (lambda it: it.run(RUNTIMES="{}"), "Docker restarts", True),
    (lambda it: it.run(), "container toolkit is there", False),
]


@pytest.mark.parametrize(("start", "said", "restarts"), TOOLKIT)
def test_docker_gets_the_container_toolkit(
    machine: Machine, start: Callable[[Machine], subprocess.CompletedProcess[str]], said: str, restarts: bool
) -> None:
    run = start(machine)
    # nvidia-ctk comes with the package, which the stub of apt-get does not bring.
    assert run.returncode == (127 if "installing" in said else 0), run
    assert said in run.stdout
    assert bool(machine.calls("systemctl")) == (restarts and run.returncode == 0)


def test_a_repository_out_of_reach_is_said(machine: Machine) -> None:
    line = [*machine.run(absent="nvidia-ctk", OFFLINE="1").stderr.splitlines()][-1]
    assert "NVIDIA's repository cannot be reached" in line
    assert machine.calls("install") == []


@pytest.mark.parametrize("flags", [["--nonsense"], ["--prefix", "relative"], ["--prefix"]])
def test_an_option_that_cannot_be_used_is_refused(machine: Machine, flags: list[str]) -> None:
    assert "see --help" in refused(machine.run(*flags))


def test_help_names_every_option(machine: Machine) -> None:
    run = machine.run("--help")
    assert run.returncode == 0
    options = set(re.findall(r"^        (--[a-z-]+)\)", SCRIPT.read_text(), re.MULTILINE))
    assert options == set(re.findall(r"--[a-z-]+", run.stdout))
    assert len(options) == 5


def test_two_setups_at_once_are_refused(machine: Machine) -> None:
    machine.prefix.mkdir()
    lock = machine.prefix / ".setup.lock"
    lock.touch()
    with subprocess.Popen(["flock", lock, "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdin.write(b"held\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == b"held\n"
        assert "another setup is working on" in refused(machine.run())
        holder.stdin.close()
