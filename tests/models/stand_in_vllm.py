"""A command that behaves as vLLM's does: `stand_in_vllm.py serve MODEL --host H --port P ...`.

The file that STAND_IN names says how this life goes, and is told what it saw: `start_seconds` until it answers,
`crash` to end at once, `mute` to listen and say that it is not well. It has a worker of its own that outlives it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

LIFE = Path(os.environ["STAND_IN"])


def tell(**more: Any) -> None:
    with LIFE.with_suffix(".seen").open("a") as seen:
        seen.write(json.dumps(more) + "\n")


def say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def main() -> None:
    arguments = sys.argv[1:]
    flags = dict(zip(arguments[2::2], arguments[3::2], strict=True))
    life = json.loads(LIFE.read_text())
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    tell(pid=os.getpid(), worker=worker.pid, arguments=arguments, environment=dict(os.environ))
    say("INFO 11-30 01:02:03 [api_server.py:1] vLLM API server version 0.0.0")
    say("Loading shards:  50%\rLoading shards: 100%")
    if life.get("crash"):
        say("ERROR 11-30 01:02:04 [core.py:2] EngineCore failed to start.")
        say("torch.OutOfMemoryError: CUDA out of memory.")
        sys.exit(1)
    time.sleep(life.get("start_seconds", 0.0))
    Server((flags["--host"], int(flags["--port"])), Handler).serve_forever()


class Server(ThreadingHTTPServer):
    daemon_threads = True


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        is_well = not json.loads(LIFE.read_text()).get("mute")
        self.send_response(200 if self.path == "/health" and is_well else 503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = request["messages"][-1]["content"]
        names = list(dict.fromkeys(re.findall(r"[A-Z]\w+ [A-Z]\w+", text)))
        content = json.dumps({"entities": [{"name": name, "kind": "person"} for name in names]})
        is_ours = self.headers["Authorization"] == f"Bearer {os.environ['VLLM_API_KEY']}"
        body = json.dumps({"choices": [{"message": {"content": content}, "finish_reason": "stop"}]}).encode()
        self.send_response(200 if is_ours else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


if __name__ == "__main__":
    main()
