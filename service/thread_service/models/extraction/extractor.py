"""Reading a document with an instruct model: what is asked again, when, and whose fault a failure is.

    windows → wait while the server asks for a pause → one request each → merged

A reply that is not what was asked for is asked for once more, with what was wrong about it. `ExtractionFailed` is
raised only for a document that the model cannot answer about, or the server refuses, or fails over while it does answer
about another text; then the document is left for a later pass. All else is `NotReady`: it waits, and nothing is asked
of the server, by anybody, until the pause is over.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from thread_service.errors import NotReady
from thread_service.models.extraction.answer import InvalidAnswer, merged, parse
from thread_service.models.extraction.chat_api import ChatApi, Reply
from thread_service.models.extraction.interface import ExtractionFailed, ExtractionStats, Found
from thread_service.models.extraction.prompt import answer_schema, entities_max, system_prompt
from thread_service.models.extraction.windows import windows
from thread_service.models.http_api import Away, Misconfigured, Refused
from thread_service.models.turn import Turn
from thread_service.text.policy import Policy

ATTEMPTS = 3
REQUEST_SECONDS = 180.0
"""A small machine takes so long for an answer of `TOKENS_MAX`."""
PROBE_SECONDS = 30.0
TOKENS_MAX = 800
MISCONFIGURED_SECONDS = 30.0
LONGEST_PAUSE_SECONDS = 5.0
"""A document whose turn is farther off than this comes back for it."""
STARTING_SECONDS = 1.0
"""How soon a server that is starting is looked at again."""
SHORTEST_WINDOW = 200

PROBE = "Ada Quill keeps the Tidal Ledger."
"""A text that every model can answer about: it tells a server at fault from a document at fault."""


class Server(Protocol):
    """The life of the server that is asked, where it is ours."""

    def start(self) -> None: ...

    def complaint(self) -> str:
        """Why it cannot be asked now, as a sentence; empty when it can."""

    def close(self) -> None: ...


class InstructExtractor:
    """See `Extractor`. `server`: None for one that others run."""

    def __init__(
        self, api: ChatApi, *, slots: int, server: Server | None = None, request_seconds: float = REQUEST_SECONDS
    ) -> None:
        self._api = api
        self._slots = slots
        self._server = server
        self._request_seconds = request_seconds
        self._turn = Turn()
        self._closed = threading.Event()
        self._counting = threading.Lock()
        self._stats = ExtractionStats()

    @property
    def slots(self) -> int:
        # While the server fails, one document is enough to find out when it does no more.
        return 1 if self._turn.is_failing else self._slots

    @property
    def stats(self) -> ExtractionStats:
        return self._stats

    def start(self) -> None:
        if self._server is not None:
            self._server.start()

    def pause(self) -> float:
        if self._server is not None and self._server.complaint():
            return STARTING_SECONDS
        return self._turn.pause()

    def complaint(self) -> str:
        if self._server is not None and (complaint := self._server.complaint()):
            return complaint
        return self._turn.complaint if self._turn.pause() > LONGEST_PAUSE_SECONDS else ""

    def extract(self, texts: Sequence[str], policy: Policy) -> Found:
        if entities_max(policy) == 0:
            return Found()
        found: list[Found] = []
        for window in windows(texts):
            while True:
                try:
                    found.append(self._read(window, policy))
                    break
                except NotReady:
                    # What was read of a long document is not given up for an outage.
                    if not found or self._closed.wait(max(self.pause(), STARTING_SECONDS)):
                        raise
        return merged(found)

    def close(self) -> None:
        self._closed.set()
        self._api.close()
        if self._server is not None:
            self._server.close()

    def _read(self, window: str, policy: Policy) -> Found:
        try:
            return self._answered(window, policy)
        except Refused as error:
            if len(window) < 2 * SHORTEST_WINDOW:
                raise ExtractionFailed(str(error)) from error
            return merged(self._read(part, policy) for part in windows([window], len(window) // 2 + 1))

    def _answered(self, window: str, policy: Policy) -> Found:
        """Asks once more, with the complaint, when the answer is none."""
        reply = self._reply(window, policy, TOKENS_MAX)
        try:
            return self._parsed(reply, policy)
        except InvalidAnswer as error:
            again = f"{window}\n\n---\nYour answer to this text could not be used: {error}. Answer again."
            reply = self._reply(again, policy, 2 * TOKENS_MAX if reply.is_cut else TOKENS_MAX)
        try:
            return self._parsed(reply, policy)
        except InvalidAnswer as error:
            raise ExtractionFailed(f"{self._api.where} gave two answers that cannot be used: {error}") from error

    def _parsed(self, reply: Reply, policy: Policy) -> Found:
        try:
            found = parse(reply.text, policy)
        except InvalidAnswer as error:
            self._count(invalid=1)
            raise InvalidAnswer("it is too long and was cut off") if reply.is_cut else error from None
        self._count(answered=1)
        return found

    def _reply(self, user: str, policy: Policy, max_tokens: int) -> Reply:
        """Raises Refused for what is too long, NotReady while the server fails, ExtractionFailed for what it fails over
        once more after it has answered about another text."""
        try:
            return self._attempts(user, policy, max_tokens, ATTEMPTS)
        except (Refused, Away) as error:
            if isinstance(error, Refused) and error.is_too_long:
                raise
            self._check_server()
        try:
            return self._attempts(user, policy, max_tokens, 1)
        except (Refused, Away) as error:
            self._turn.release()
            raise ExtractionFailed(f"{error}, and answers about another text") from error

    def _attempts(self, user: str, policy: Policy, max_tokens: int, attempts: int) -> Reply:
        """Raises Refused, NotReady; Away, after the last attempt, for what may be due to the text."""
        for attempt in range(1, attempts + 1):
            self._wait_for_turn()
            try:
                reply = self._request(user, policy, max_tokens, self._request_seconds)
            except Misconfigured as error:
                self._turn.hold(MISCONFIGURED_SECONDS, str(error))
                raise self._turn.not_ready() from error
            except Away as error:
                self._turn.failed(error)
                if error.timed_out or attempt == attempts:
                    if error.may_be_the_texts or error.timed_out:
                        raise
                    raise self._turn.not_ready() from error
            else:
                self._turn.succeeded()
                return reply
        raise AssertionError("a call has at least one attempt")

    def _request(self, user: str, policy: Policy, max_tokens: int, seconds: float) -> Reply:
        if self._closed.is_set():
            raise _closing()
        if self._server is not None and (complaint := self._server.complaint()):
            raise NotReady(complaint, retry_after_seconds=5)
        try:
            return self._api.complete(
                system_prompt(policy), user, answer_schema(policy), max_tokens=max_tokens, seconds=seconds
            )
        except Refused:
            raise
        except Exception as error:
            if self._closed.is_set():
                raise _closing() from error
            self._count(failed=1)
            raise

    def _wait_for_turn(self) -> None:
        while (pause := self._turn.pause()) > 0:
            if pause > LONGEST_PAUSE_SECONDS:
                raise self._turn.not_ready()
            if self._closed.wait(pause):
                raise _closing()

    def _check_server(self) -> None:
        """Return if it answers about another text now. Raises NotReady if not: then no document is at fault."""
        try:
            self._request(PROBE, Policy(), TOKENS_MAX, min(PROBE_SECONDS, self._request_seconds))
        except Away as error:
            self._turn.failed(error)
            raise self._turn.not_ready() from error
        except (Misconfigured, Refused) as error:
            self._turn.hold(MISCONFIGURED_SECONDS, str(error))
            raise self._turn.not_ready() from error
        self._turn.release()

    def _count(self, *, answered: int = 0, invalid: int = 0, failed: int = 0) -> None:
        with self._counting:
            now = self._stats
            self._stats = ExtractionStats(now.answered + answered, now.invalid + invalid, now.failed + failed)


def _closing() -> NotReady:
    return NotReady("the node is shutting down")
