"""One request to a chat endpoint, as vLLM, Mistral, OpenAI and the servers that follow them speak it.

    POST {url}/chat/completions  {"model", "messages", "temperature": 0, "max_tokens", "response_format"}
    200  {"choices": [{"message": {"content": text}, "finish_reason"}]}

Servers differ in how they are told the form of an answer. The strictest way is tried first; one that the server refuses
is tried without, and what worked is remembered. Nothing else is repeated here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from thread_service.models.http_api import NO_JSON, Away, HttpApi, Refused

Schema = Mapping[str, Any]

_FORMATS: tuple[Callable[[Schema], dict[str, Any] | None], ...] = (
    lambda schema: {"type": "json_schema", "json_schema": {"name": "graph", "strict": True, "schema": schema}},
    lambda schema: {"type": "json_object", "schema": schema},
    lambda schema: None,
)


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice]


_DECODER = msgspec.json.Decoder(_Answer)


@dataclass(frozen=True, slots=True)
class Reply:
    """`is_cut`: the model was not done when it had used up its tokens."""

    text: str
    is_cut: bool


class ChatApi:
    """`key` is asked for at every request; empty for a server that wants none. Thread-safe.

    Raises Misconfigured for an address that is none.
    """

    def __init__(self, url: str, model: str, key: Callable[[], str]) -> None:
        self._api = HttpApi(url, "/chat/completions", model, key)
        self._model = model
        self._format = 0
        self._is_settled = False

    @property
    def where(self) -> str:
        return self._api.where

    def complete(self, system: str, user: str, schema: Schema, *, max_tokens: int, seconds: float) -> Reply:
        """What the model replies; each request takes about `seconds` at most. Raises Refused, Misconfigured, Away."""
        body = {
            "model": self._model,
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": user}],
            "temperature": 0,
            "max_tokens": max_tokens,
        }
        for number in range(self._format, len(_FORMATS)):
            told = _FORMATS[number](schema)
            try:
                reply = self._reply(
                    self._api.post(body if told is None else {**body, "response_format": told}, seconds=seconds)
                )
            except (Refused, Away) as error:
                may_be_the_format = isinstance(error, Refused) or error.may_be_the_texts
                if self._is_settled or not may_be_the_format or number == len(_FORMATS) - 1:
                    raise
            else:
                if not self._is_settled:
                    self._format, self._is_settled = number, True
                return reply
        raise AssertionError("the last form either gives a reply or raises")

    def close(self) -> None:
        self._api.close()

    def _reply(self, answer: bytes) -> Reply:
        try:
            choices = _DECODER.decode(answer).choices
        except NO_JSON as error:
            raise self._api.malformed("which is not the JSON of a chat") from error
        if not choices:
            raise self._api.malformed("without a choice")
        return Reply(choices[0].message.content or "", choices[0].finish_reason == "length")
