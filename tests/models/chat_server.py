"""A server on loopback that speaks the chat API and misbehaves on request, as `embeddings_server` does.

It finds pairs of capitalised words, persons that know one another in the order of the text.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from embeddings_server import EmbeddingsServer, Handler

MODEL = "instruct"
Act = Callable[[Any, str], None]


def says(text: str | None, finish_reason: str = "stop") -> Act:
    """Answer with this text of the model."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish_reason}
    return lambda handler, _: handler.reply(200, json.dumps({"choices": [choice], "usage": {}}))


def graph(*entities: tuple[str, str], edges: tuple[tuple[str, str, str], ...] = ()) -> str:
    """The text of an answer."""
    return json.dumps(
        {
            "entities": [{"name": name, "kind": kind} for name, kind in entities],
            "relationships": [dict(zip(("subject", "predicate", "object"), edge, strict=True)) for edge in edges],
        }
    )


def read(text: str) -> str:
    names = list(dict.fromkeys(re.findall(r"[A-Z]\w+ [A-Z]\w+", text)))
    edges = tuple((one, "knows", other) for one, other in pairwise(names))
    return graph(*((name, "person") for name in names), edges=edges)


def hang_up(handler: Any, _: str) -> None:
    """Promise more than is sent."""
    handler.reply(200, '{"choices": [', content_length="100000")


class ChatServer(EmbeddingsServer):
    """`formats`: the types of `response_format` it takes, None for none; others get 400, or 500 if `is_rude`."""

    def __init__(self) -> None:
        super().__init__(_Chat)
        self.formats: set[str | None] = {"json_schema", "json_object", None}
        self.is_rude = False
        self.prompts: list[str] = []
        self.counting = threading.Lock()
        self.at_once = 0
        self.most_at_once = 0


class _Chat(Handler):
    server: ChatServer

    def do_POST(self) -> None:
        server = self.server
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = request["messages"][-1]["content"]
        server.heads.append((self.path, dict(self.headers), request))
        if request.get("response_format", {}).get("type") not in server.formats:
            self.reply(500 if server.is_rude else 400, '{"error": {"message": "response_format is not supported"}}')
            return
        with server.counting:
            server.prompts.append(text)
            server.at_once += 1
            server.most_at_once = max(server.most_at_once, server.at_once)
            act: Any = server.script.popleft() if server.script else server.refuses(text)  # type: ignore[arg-type]
        server.gate.wait(10)
        with server.counting:
            server.at_once -= 1
        (act if callable(act) else says(read(text)))(self, text)
