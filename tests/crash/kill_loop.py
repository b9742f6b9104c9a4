"""Kill a node among concurrent writers, again and again on one data directory, and check what it kept.

    python tests/crash/kill_loop.py --rounds 500

A round: start the node (and sometimes kill it while it starts); read back every id that was ever used and compare with
what was acknowledged; let it finish indexing; compare searches, graph and groups; set the writers going; after a random
number of answers, at a moment when every writer's operation is in flight, SIGKILL. In every second round the node is
compacted without a pause meanwhile; in every fifth everything is cleared beside the writers' operations, and in another
fifth the clear is under way, too, when the node is killed.
"""

from __future__ import annotations

import argparse
import http.client
import random
import secrets
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from checks import check_found, check_graph, check_sound, read_back, wait_indexed
from ledger import Journal, Ledger, Operation
from node_process import Client, NodeProcess
from operations import Operations

from thread_service.errors import ThreadError
from thread_service.wire.control_client import NobodyListens, ask
from thread_service.wire.control_protocol import socket_path

WRITERS = 4
ANSWERS_MAX = 120
"""A round's writers are killed after at most so many answers."""
KILLED_WHILE_STARTING = 0.25
START_SECONDS_MAX = 2.5
CLEAR_SECONDS_MAX = 0.03
"""How long before a kill the clear is sent that it comes upon."""
KEPT_BEFORE_CLEAR = 6
"""Documents that some owner must have: no single operation leaves so many or removes so many, so what the owner holds
tells whether a clear was done."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Of a round. `answers`: after how many the node is killed. `compact`: all the while. `clear`: half-way there.
    `clear_at_kill`: a clear is unanswered when the node is killed."""

    answers: int
    delay: float
    compact: bool
    clear: bool
    clear_at_kill: bool


class Writers:
    """One thread a writer. `flying` holds those whose request is sent and whose answer is not in the journal yet."""

    def __init__(self, ledgers: list[Ledger], journal: Journal, rng: random.Random, port: int) -> None:
        self._ledgers = ledgers
        self._journal = journal
        self._port = port
        self._rng = rng
        self._changed = threading.Condition()
        self._flying: set[str] = set()
        self._killed = False
        self.answers = 0
        self.compactions = 0
        self.failures: list[str] = []
        self._threads = [
            threading.Thread(target=self._write, args=(ledger, random.Random(rng.random()))) for ledger in ledgers
        ]

    def kill(self, node: NodeProcess, plan: Plan, control: Path) -> bool:
        """Run the writers until they have so many answers and a little longer, then kill the node under all of them.
        Whether a clear was under way."""
        threads = [*self._threads]
        if plan.compact:
            threads.append(threading.Thread(target=self._compact, args=(control,)))
        for thread in threads:
            thread.start()
        client = node.client()
        if plan.clear:
            with self._all_flying(node, plan.answers // 2, plan.delay):
                if self._may_clear():
                    self._clear(client)
        with self._all_flying(node, plan.answers, plan.delay):
            clearing = plan.clear_at_kill and self._may_clear()
            if clearing:
                self._journal.note(event="clear sent")
                for ledger in self._ledgers:
                    ledger.under_clear = True
                client.begin("/v1/clear", {"confirm": True})
                time.sleep(self._rng.random() * CLEAR_SECONDS_MAX)
            lived = node.process.poll() is None
            self._killed = True
            node.kill()
        for thread in threads:
            thread.join()
        assert lived, f"the node ended by itself with {node.process.returncode}\n{node.tail()}"
        assert not self.failures, "\n".join([*self.failures, node.tail()])
        return clearing

    @contextmanager
    def _all_flying(self, node: NodeProcess, answers: int, delay: float) -> Iterator[None]:
        """From so many answers on, when every writer's operation is in flight: until the end of the block none is
        acknowledged, for whoever gets an answer must take the lock to note it."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.failures or self.answers >= answers, 60), node.tail()
        time.sleep(delay)
        with self._changed:
            full = self._changed.wait_for(lambda: self.failures or len(self._flying) == len(self._threads), 60)
            assert full, node.tail()
            yield

    def _may_clear(self) -> bool:
        return not self.failures and any(len(ledger.documents) >= KEPT_BEFORE_CLEAR for ledger in self._ledgers)

    def _clear(self, client: Client) -> None:
        """Under every writer's operation: each of them comes before it or after it."""
        self._journal.note(event="clear sent")
        answer = client.post("/v1/clear", {"confirm": True})
        self._journal.note(event="cleared", answer=answer)
        for ledger in self._ledgers:
            ledger.beside_clear = True

    def _compact(self, control: Path) -> None:
        """Again and again until the node is killed."""
        while not self._killed and not self.failures:
            try:
                ask(control, "compact", {}, lambda *_: None)
                self.compactions += 1
            except (NobodyListens, ThreadError) as error:
                with self._changed:
                    if not self._killed:
                        self._fail(f"compacting: {error!r}")

    def _write(self, ledger: Ledger, rng: random.Random) -> None:
        client, operations = Client(self._port), Operations(ledger, rng)
        try:
            while self._perform(client, ledger, operations.next()):
                pass
        except (OSError, http.client.HTTPException) as error:
            self._journal.note(owner=ledger.owner, event="lost", error=repr(error))
        except BaseException as error:
            self._fail(f"{ledger.owner}: {error!r}")
        finally:
            client.close()

    def _perform(self, client: Client, ledger: Ledger, operation: Operation) -> bool:
        self._journal.note(owner=ledger.owner, event="sent", path=operation.path, body=operation.body)
        ledger.begin(operation)
        client.begin(operation.path, operation.body)
        with self._changed:
            self._flying.add(ledger.owner)
            self._changed.notify_all()
        status, answer = client.receive()
        with self._changed:
            self._flying.remove(ledger.owner)
            self._journal.note(owner=ledger.owner, event="answered", status=status, answer=answer)
            cleared = ledger.beside_clear
            right = status == 200 and ledger.acknowledge(answer)
            self.answers += 1
            self._changed.notify_all()
        if not right:
            self._fail(f"{ledger.owner}: {operation.path} {operation.body} answered {status} {answer}")
            return False
        if cleared:
            ledger.settle(read_back(client, ledger))
        return not ledger.under_clear  # else the answer left a node that has been killed since

    def _fail(self, failure: str) -> None:
        with self._changed:
            self.failures.append(failure)
            self._changed.notify_all()


class KillLoop:
    """`folder` gets the data directory, the journal and the node's log, all kept for whoever looks into a failure."""

    def __init__(self, folder: Path, *, seed: int, writers: int = WRITERS) -> None:
        self._data, self._log = folder / "data", folder / "node.log"
        self._journal = Journal(folder / "journal.jsonl")
        self._rng = random.Random(seed)
        self._ledgers = [Ledger(f"writer {number}") for number in range(writers)]
        self.outcomes: Counter[str] = Counter()
        self.answers = 0
        self.compactions = 0
        self.rounds = 0
        self._clearing = False

    def round(self) -> str:
        """One start, check and kill; a line about it."""
        started = time.monotonic()
        with self._started() as node:
            client = node.wait_ready()
            ready = time.monotonic()
            outcomes = self.check(client)
            checked = time.monotonic()
            writers = Writers(self._ledgers, self._journal, self._rng, node.port)
            [control] = (socket_path(directory) for directory in (self._data / "nodes").iterdir())
            self._clearing = writers.kill(node, self._plan(), control)
        check_sound(self._data)
        self.rounds += 1
        self.answers += writers.answers
        self.compactions += writers.compactions
        self._journal.note(event="killed", round=self.rounds)
        kept = sum(len(ledger.documents) for ledger in self._ledgers)
        return (
            f"round {self.rounds}: ready after {ready - started:.1f} s, checked after {checked - ready:.1f} s,"
            f" in flight before {dict(outcomes)}; then {writers.answers} answers, {writers.compactions} compactions,"
            f" {kept} documents{', killed while clearing' if self._clearing else ''}"
        )

    def _plan(self) -> Plan:
        return Plan(
            answers=self._rng.randrange(ANSWERS_MAX),
            delay=self._rng.random() * 0.05,
            compact=self.rounds % 2 == 1,
            clear=self.rounds % 5 == 2,
            clear_at_kill=self.rounds % 5 == 4,
        )

    def check(self, client: Client) -> Counter[str]:
        """Everything acknowledged is there, and nothing else; what was in flight is there as a whole or not at all."""
        found = {ledger.owner: read_back(client, ledger) for ledger in self._ledgers}
        cleared = self._clearing and all(ledger.fits(found[ledger.owner], cleared=True) for ledger in self._ledgers)
        outcomes = Counter(ledger.settle(found[ledger.owner], cleared=cleared) for ledger in self._ledgers)
        self._clearing = False
        self.outcomes += outcomes
        wait_indexed(client)
        for ledger in self._ledgers:
            assert ledger.settle(read_back(client, ledger)) == "nothing in flight"
            check_found(client, ledger, self._rng)
            check_graph(client, ledger)
        return outcomes

    def finish(self) -> None:
        """The last start: check once more, stop the node in good order."""
        with self._started() as node:
            self.check(node.wait_ready())
            assert node.terminate() == 0, node.tail()
        check_sound(self._data)
        self._journal.close()

    def _started(self) -> NodeProcess:
        while self.rounds and self._rng.random() < KILLED_WHILE_STARTING:
            with NodeProcess(self._data, self._log) as node:
                time.sleep(self._rng.random() * START_SECONDS_MAX)
            self._journal.note(event="killed while starting", log=node.tail())
        return NodeProcess(self._data, self._log)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--writers", type=int, default=WRITERS)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--folder", type=Path, help="an empty folder for data, journal and log; default: a new one")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="kill-loop-"))
    sys.stdout.write(f"seed {options.seed}, everything in {folder}\n")
    loop = KillLoop(folder, seed=options.seed, writers=options.writers)
    for _ in range(options.rounds):
        sys.stdout.write(loop.round() + "\n")
        sys.stdout.flush()
    loop.finish()
    sys.stdout.write(
        f"{loop.rounds} kills, {loop.answers} acknowledged operations, none lost; {loop.compactions} compactions;"
        f" {dict(loop.outcomes)}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
