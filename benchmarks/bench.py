"""Runs every benchmark, one after the other, and says which failed.

    python benchmarks/bench.py --data DIR [--quick] [--only SCRIPT ...]

`DIR` holds the evaluation sets, a folder each (README.md says what is in one); what a script needs is found by the
files a set has. A script that fails does not stop the others. Each is to take ten minutes on 2 cores, with `--quick`
one; what takes twice as long is stopped. A script whose own default takes longer is given a smaller size here. After a
quick run its ratios are compared with those of the quick run before.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import compare
from harness import BEFORE, QUICK

from thread_service.models.cuda_driver import read_driver

FOLDER = Path(__file__).parent
SECONDS, QUICK_SECONDS = 600, 60
PATIENCE = 2
"""A script is stopped after so many times the seconds it is to take."""


@dataclass(frozen=True, slots=True)
class Run:
    """`sizes`: where the script's own take more than ten minutes; a quick run has its own. `has_quick`: it has them."""

    script: str
    arguments: Sequence[str] = ()
    sizes: Sequence[str] = ()
    has_quick: bool = True

    @property
    def name(self) -> str:
        sets = [Path(self.arguments[at + 1]).name for at, flag in enumerate(self.arguments) if flag == "--data"]
        return " ".join([self.script, *sets])

    def command(self, quick: bool) -> list[str]:
        last = ["--quick"] if quick else self.sizes
        return [sys.executable, str(FOLDER / f"{self.script}.py"), *self.arguments, *last]


@dataclass(frozen=True, slots=True)
class Outcome:
    """`failure`: what went wrong; empty: nothing."""

    run: Run
    seconds: float
    failure: str


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of evaluation sets")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, under a minute each")
    parser.add_argument("--only", nargs="+", metavar="SCRIPT", help="without .py")
    arguments = parser.parse_args()
    every = list(runs(arguments.data.resolve()))
    unknown = {*arguments.only} - {run.script for run in every} if arguments.only else set()
    if unknown:
        parser.error(f"nothing to run for {', '.join(sorted(unknown))}: no such script, data set or card")
    chosen = [run for run in every if not arguments.only or run.script in arguments.only]
    started = time.time()
    outcomes = run_all([run for run in chosen if run.has_quick or not arguments.quick], arguments.quick)
    if arguments.quick:
        print("\nquick results beside those of the quick run before:")
        again = {path.stem for path in QUICK.glob("*.json") if path.stat().st_mtime >= started}
        compare.show([each for each in compare.compared(QUICK / BEFORE, QUICK) if each.result in again])
    show(outcomes, QUICK_SECONDS if arguments.quick else SECONDS)
    return 1 if any(outcome.failure for outcome in outcomes) else 0


def runs(data: Path) -> Iterator[Run]:
    """What can be run with these evaluation sets, on this machine."""
    asked = sets_with(data, "corpus.jsonl", "queries.jsonl")
    with_triples = sets_with(data, "corpus.jsonl", "queries.jsonl", "triples.jsonl")
    for folder in asked:
        yield Run("retrieval", ("--data", str(folder)))
    if sets_with(data, "corpus.jsonl"):
        yield Run("recall", ("--data", str(data)))
    yield Run("scan_cpu", sizes=("--rows", "100000"))
    if has_card():
        yield Run("scan_gpu", has_quick=False)
    yield Run("service")
    for folder in with_triples[:1]:
        yield Run("ingest", ("--data", str(folder)))
    yield Run("growth")
    yield Run("peers")
    if sets_with(data, "corpus.jsonl"):
        yield Run("peers", ("--data", str(data)))
    for folder in with_triples[:1]:
        yield Run("search_latency", ("--data", str(folder)))
    for script in ("names", "words", "owners", "embed"):
        yield Run(script)
    for folder in sets_with(data, "corpus.jsonl", "triples.jsonl", "ontologies.jsonl"):
        yield Run("extraction", ("--data", str(folder)))
    yield Run("catching_up")


def sets_with(data: Path, *names: str) -> list[Path]:
    """Folders that hold files of these names."""
    return sorted(
        folder for folder in data.iterdir() if folder.is_dir() and all((folder / name).exists() for name in names)
    )


def has_card() -> bool:
    try:
        driver = read_driver()
    except OSError:
        return False
    return driver is not None and bool(driver.devices)


def run_all(chosen: Sequence[Run], quick: bool) -> list[Outcome]:
    seconds = PATIENCE * (QUICK_SECONDS if quick else SECONDS)
    outcomes: list[Outcome] = []
    for number, run in enumerate(chosen, 1):
        print(f"\n=== {run.name} ({number} of {len(chosen)})", flush=True)
        started = time.perf_counter()
        failure = run_one(run.command(quick), seconds)
        outcomes.append(Outcome(run, time.perf_counter() - started, failure))
    return outcomes


def run_one(command: Sequence[str], seconds: float) -> str:
    """What went wrong; empty when nothing did."""
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            status = process.wait(seconds)
        except BaseException as error:
            # Its own processes, too: each run has a session to itself.
            os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return f"stopped after {seconds:.0f} s"
    return f"exit status {status}" if status else ""


def show(outcomes: Sequence[Outcome], seconds: float) -> None:
    print(f"\n{'script':40}{'seconds':>9}")
    for outcome in outcomes:
        late = f"took more than {seconds:.0f} s" if outcome.seconds > seconds else ""
        said = f"FAILED: {outcome.failure}" if outcome.failure else late
        print(f"{outcome.run.name:40}{outcome.seconds:9.0f}   {said}".rstrip())
    failed = sum(bool(outcome.failure) for outcome in outcomes)
    print(f"{len(outcomes) - failed} of {len(outcomes)} succeeded" if failed else f"all {len(outcomes)} succeeded")


if __name__ == "__main__":
    sys.exit(main())
