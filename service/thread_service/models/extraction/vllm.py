"""`vllm serve` as a child of the node: started, waited for, started again when it ends, and ended with the node.

    starting → ready → (it ends, or stops answering) → a pause, longer each time → starting

vLLM pins versions that the node cannot share, so it runs from an environment of its own and is spoken to over HTTP, on
this machine only, with a key that nobody else has. What it writes goes into our log.
"""

from __future__ import annotations

import http.client
import logging
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from thread_service.models.extraction import tethered

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
POLL_SECONDS = 1.0
HEALTH_SECONDS = 10.0
"""How long an answer about its health may take."""
UNWELL_MAX = 12
"""How often in a row a server that was ready may not say that it is well."""
FIRST_PAUSE_SECONDS = 2.0
LONGEST_PAUSE_SECONDS = 300.0
STEADY_SECONDS = 60.0
"""A server that was ready for so long has not failed to start."""
GRACE_SECONDS = 15.0
LINE_BYTES_MAX = 4_096

_LEVELS = {"DEBUG": logging.DEBUG, "INFO": logging.DEBUG, "WARNING": logging.INFO, "ERROR": logging.WARNING}
"""Its levels in our log: it tells every ten seconds how it is."""
_LEVEL = re.compile(rf"\b({'|'.join(_LEVELS)})\b")
_NOT_HANDED_ON = re.compile(r"PYTHON|VIRTUAL_ENV|OPENBLAS_NUM_THREADS|OMP_WAIT_POLICY|THREAD_|.*(API_KEY|SECRET)")
"""What of our environment is for us alone."""


class VllmServer:
    """`command` starts vLLM's command line, such as `["/opt/vllm/bin/vllm"]`. `port` 0: a free one.

    `models_dir` is where it keeps and looks for models. `gpu_share`: how much of the device's memory it may take.
    """

    def __init__(
        self,
        command: Sequence[str],
        model: str,
        *,
        port: int,
        gpu_share: float,
        max_model_len: int,
        models_dir: Path,
        environment: Mapping[str, str],
    ) -> None:
        self.port = port or _free_port()
        self.key = secrets.token_urlsafe(24)
        name, _, revision = model.partition("@")
        self._command = [
            *(*command, "serve", name, "--host", HOST, "--port", str(self.port), "--served-model-name", model),
            *("--gpu-memory-utilization", f"{gpu_share:g}", "--max-model-len", str(max_model_len)),
            # Else there is a line for every question about its health.
            *("--uvicorn-log-level", "warning"),
            *(("--revision", revision, "--tokenizer-revision", revision) if revision else ()),
        ]
        self._environment = {
            **{name: value for name, value in environment.items() if not _NOT_HANDED_ON.match(name)},
            "HF_HUB_CACHE": str(models_dir),
            "VLLM_API_KEY": self.key,
            "VLLM_NO_USAGE_STATS": "1",
        }
        self._closing = threading.Event()
        self._complaint = "vLLM is starting"
        self._last_words = ""
        self._thread = threading.Thread(target=self._run, name="vllm", daemon=True)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/v1"

    def start(self) -> None:
        self._thread.start()

    def complaint(self) -> str:
        """Why it cannot be asked now, as a sentence; empty when it can."""
        return self._complaint

    def close(self) -> None:
        """Returns when it has ended, and its workers have been killed."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        """On one thread from beginning to end: the kernel takes its end for the parent's."""
        failures = 0
        while not self._closing.is_set():
            self._complaint = "vLLM is starting"
            began = time.monotonic()
            reason, ready_at = self._one_life()
            if self._closing.is_set():
                return
            is_steady = ready_at is not None and time.monotonic() - ready_at > STEADY_SECONDS
            failures = 0 if is_steady else failures + 1
            pause = min(FIRST_PAUSE_SECONDS * 2.0 ** min(max(failures - 1, 0), 16), LONGEST_PAUSE_SECONDS)
            self._complaint = f"vLLM {reason}"
            lasted = time.monotonic() - began
            log.warning("vLLM %s after %.0f s; it is started again in %.0f s", reason, lasted, pause)
            self._closing.wait(pause)

    def _one_life(self) -> tuple[str, float | None]:
        """From its start to its end: (what ended it, when it became ready)."""
        if _is_taken(self.port):
            return f"cannot be started: port {self.port} is in use", None
        log.info("starting %s", " ".join(self._command))
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", tethered.__file__, str(os.getpid()), *self._command],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return f"cannot be started: {error.strerror}", None
        listener = threading.Thread(target=self._listen, args=(process,), name="vllm-log", daemon=True)
        listener.start()
        try:
            reason, ready_at = self._watch(process)
        finally:
            _end(process)
            listener.join(GRACE_SECONDS)
        return f"{reason} ({self._last_words})" if self._last_words else reason, ready_at

    def _watch(self, process: subprocess.Popen[bytes]) -> tuple[str, float | None]:
        """Until it has ended or is to be ended."""
        ready_at: float | None = None
        began = time.monotonic()
        unwell = 0
        while not self._closing.wait(POLL_SECONDS):
            if _has_ended(process):
                return "ended by itself", ready_at
            if self._is_well():
                unwell = 0
                if ready_at is None:
                    ready_at = time.monotonic()
                    self._complaint = ""
                    log.info("vLLM is ready after %.0f s", ready_at - began)
            elif ready_at is not None:
                unwell += 1
                if unwell == UNWELL_MAX:
                    return "does not answer any more", ready_at
        return "was stopped", ready_at

    def _is_well(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=HEALTH_SECONDS)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        """Its lines into our log; a line without a level is part of what the one before it began."""
        assert process.stdout is not None
        level = logging.DEBUG
        self._last_words = ""
        with process.stdout as pipe:
            while line := pipe.readline(LINE_BYTES_MAX):
                # A progress bar writes over itself.
                text = line.decode("utf-8", "replace").rstrip().rpartition("\r")[2]
                text = "".join(character for character in text if character.isprintable())
                if not text:
                    continue
                if found := _LEVEL.search(text[:80]):
                    level = _LEVELS[found[1]]
                self._last_words = text[:300]
                log.log(level, "vllm: %s", text)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has; its number stays its own, so that its group can be ended with it."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it, then whatever of its session is left: a worker without its server would hold the device's memory."""
    if not _has_ended(process):
        process.terminate()
        deadline = time.monotonic() + GRACE_SECONDS
        while not _has_ended(process) and time.monotonic() < deadline:
            time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return True
    return False
