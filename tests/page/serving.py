"""An application served over a real port, in a thread of this process: what a browser needs."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import uvicorn

START_SECONDS = 20.0


@contextlib.contextmanager
def served(app: Any, port: int = 0) -> Iterator[str]:
    """The application's address. After the block nothing answers there."""
    listener = socket.create_server(("127.0.0.1", port))
    config = uvicorn.Config(app, lifespan="off", ws="none", log_config=None, access_log=False)
    config.timeout_graceful_shutdown = 1
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        deadline = time.monotonic() + START_SECONDS
        while not server.started:
            assert thread.is_alive(), "the server ended"
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.005)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def file(url: str, owner: str, *texts: str, **more: Any) -> None:
    """File documents and wait until they can be searched. `more` goes into the body, `group` into its thread."""
    thread = {"owner_id": owner, **({"group": more.pop("group")} if "group" in more else {})}
    body = {"inputs": [*texts], "thread": thread, "wait": True, **more}
    answer = httpx.post(f"{url}/v1/batch/embeddings", json=body, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text
    assert answer.json()["success"]
