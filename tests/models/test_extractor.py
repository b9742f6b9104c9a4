"""An instruct model against a server that misbehaves: what is made of its answers, what is asked again, whose fault a
failure is."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import embeddings_server as does
import httpx
import pytest
from chat_server import MODEL, ChatServer, graph, hang_up, says
from embeddings_server import KEY, running

from thread_service.errors import NotReady
from thread_service.models import http_api, turn
from thread_service.models.extraction import extractor as extracting
from thread_service.models.extraction.chat_api import ChatApi
from thread_service.models.extraction.extractor import InstructExtractor
from thread_service.models.extraction.interface import Entity, ExtractionFailed, Found, Relationship
from thread_service.models.extraction.windows import WINDOW_CHARACTERS, windows
from thread_service.text.policy import Kind, Policy

_NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
TEXT = "Ada Quill met Orrin Vale."
ADA, ORRIN = Entity("Ada Quill", "person"), Entity("Orrin Vale", "person")
FOUND = Found((ADA, ORRIN), (Relationship(0, "knows", 1),))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each client would read all certificates of the machine anew, for connections that use none.
    monkeypatch.setattr(http_api.httpx, "Client", partial(httpx.Client, verify=_NO_CERTIFICATES))
    monkeypatch.setattr(turn, "FIRST_PAUSE_SECONDS", 0.002)
    monkeypatch.setattr(turn, "LONGEST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(extracting, "STARTING_SECONDS", 0.01)


@pytest.fixture(scope="module")
def module_server() -> Iterator[ChatServer]:
    with running(ChatServer()) as server:
        yield server


@pytest.fixture
def server(module_server: ChatServer) -> ChatServer:
    module_server.script.clear()
    module_server.refuses = lambda text: None
    module_server.formats, module_server.is_rude = {"json_schema", "json_object", None}, False
    module_server.heads.clear()
    module_server.prompts.clear()
    return module_server


@pytest.fixture
def extractor(server: ChatServer) -> Iterator[InstructExtractor]:
    extractor = InstructExtractor(ChatApi(server.url, MODEL, lambda: KEY), slots=4, request_seconds=60)
    yield extractor
    extractor.close()


def formats_asked(server: ChatServer) -> list[str | None]:
    return [request.get("response_format", {}).get("type") for _, _, request in server.heads]


# ------------------------------------------------------------------------------------------------ as it should be


def test_the_request_is_the_one_of_the_api_and_its_prompt_the_policys(
    server: ChatServer, extractor: InstructExtractor
) -> None:
    policy = Policy(
        kinds=(Kind("ship", "a vessel {{max_entities}}"), Kind("person")),
        prompt_template="{{kinds}}|{{kind_names}}|{{max_entities}}|{{max_relationships}}|{{other}}",
        max_entities=40,
        max_relationships=3,
    )
    assert extractor.extract([TEXT], policy) == FOUND
    path, headers, request = server.heads[0]
    assert (path, headers["Authorization"]) == ("/v1/chat/completions", f"Bearer {KEY}")
    system, user = request["messages"]
    assert system["content"] == "- ship: a vessel {{max_entities}}\n- person|ship, person|12|3|{{other}}"
    assert user == {"role": "user", "content": TEXT}
    assert (request["model"], request["temperature"], request["max_tokens"]) == (MODEL, 0, 800)
    told = request["response_format"]["json_schema"]
    assert told["strict"] is True
    listed = told["schema"]["properties"]["entities"]
    assert listed["maxItems"] == 12
    assert listed["items"]["properties"]["kind"]["enum"] == ["ship", "person"]
    extractor.extract([TEXT], Policy())
    assert "one of: person, organization, place" in server.heads[1][2]["messages"][0]["content"]
    assert "{{" not in server.heads[1][2]["messages"][0]["content"]


@pytest.mark.parametrize(
    ("formats", "is_rude", "asked"),
    [
        ({"json_object", None}, True, ["json_schema", "json_object", "json_object"]),
        ({None}, False, ["json_schema", "json_object", None, None]),
    ],
)
def test_a_server_that_knows_no_schema_is_asked_as_it_likes_and_that_is_remembered(
    server: ChatServer, extractor: InstructExtractor, formats: set[str | None], is_rude: bool, asked: list[str | None]
) -> None:
    server.formats, server.is_rude = formats, is_rude
    assert extractor.extract([TEXT], Policy()) == FOUND
    assert extractor.extract([TEXT], Policy()) == FOUND
    assert formats_asked(server) == asked


def test_a_passing_fault_of_a_server_that_knows_schemas_changes_nothing_about_them(
    server: ChatServer, extractor: InstructExtractor
) -> None:
    extractor.extract([TEXT], Policy())
    server.script += [does.status(500)]
    assert extractor.extract([TEXT], Policy()) == FOUND
    assert formats_asked(server) == ["json_schema"] * 3


def test_nothing_is_asked_about_nothing(server: ChatServer, extractor: InstructExtractor) -> None:
    assert extractor.extract([" \n", ""], Policy()) == Found()
    assert extractor.extract([TEXT], Policy(max_entities=0)) == Found()
    assert server.heads == []


# ------------------------------------------------------------------------------------------------ answers


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        ("Sure! Here it is:\n```json\n" + graph(("Ada Quill", "person")) + "\n```\nAnything else?", Found((ADA,))),
        ('{"entities": []}', Found()),
        ('{"entities": [], "relationships": null}', Found()),
        (
            graph(("  Ada Quill ", "Person"), ("", "person"), ("ada  QUILL,", "person"), ("Ada Quill", "martian")),
            Found((ADA, Entity("Ada Quill", "concept"))),
        ),
        ('{"entities": [{"name": "Ada Quill"}, "Tide", {"name": 3}, {"name": null}, 7]}',
         Found((Entity("Ada Quill", "concept"), Entity("Tide", "concept")))),
        (graph(("A\0b", "person"), ("\0", "person"), ("🜁", "work")),
         Found((Entity("A\0b", "person"), Entity("\0", "person"), Entity("🜁", "work")))),
        (graph(("x" * 600, "person"), ("Ada Quill", "person")), Found((ADA,))),
        (graph(("C", "concept"), ("C++", "concept"), ("C#", "concept")),
         Found(tuple(Entity(name, "concept") for name in ("C", "C++", "C#")))),
        (
            graph(
                ("Ada Quill", "person"),
                ("Orrin Vale", "person"),
                edges=(
                    ("ada quill", " Knows ", "ORRIN VALE."),
                    ("Ada Quill", "knows", "Orrin Vale"),
                    ("Ada Quill", "knows", "Nobody Listed"),
                    ("Ada Quill", "is", "Ada Quill"),
                    ("Ada Quill", " ", "Orrin Vale"),
                    ("Orrin Vale", "wrote to", "Ada Quill"),
                ),
            ),
            Found((ADA, ORRIN), (Relationship(0, "knows", 1), Relationship(1, "authored to", 0))),
        ),
    ],
    ids=["prose", "empty", "null", "names and kinds", "loose", "NUL", "long name", "C++", "edges"],
)  # fmt: skip
def test_of_an_answer_counts_what_was_asked_for(
    server: ChatServer, extractor: InstructExtractor, reply: str, found: Found
) -> None:
    server.script += [says(reply)]
    assert extractor.extract([TEXT], Policy(predicate_aliases={"wrote to": "authored to"})) == found
    assert len(server.heads) == 1


def test_ten_thousand_entities_are_capped(server: ChatServer, extractor: InstructExtractor) -> None:
    names = [f"Name {number}" for number in range(10_000)]
    edges = tuple((names[0], f"verb {number}", names[1]) for number in range(10_000))
    server.script += [says(graph(*((name, "person") for name in names), edges=edges))] * 2
    found = extractor.extract([TEXT], Policy(max_entities=1_000, max_relationships=1_000))
    assert (len(found.entities), len(found.relationships)) == (12, 15)
    found = extractor.extract([TEXT], Policy(max_entities=2, max_relationships=0))
    assert (len(found.entities), len(found.relationships)) == (2, 0)


BAD_ANSWERS = {
    "no object": ("I am sorry.", "stop", "no JSON object"),
    "nothing": (None, "stop", "no JSON object"),
    "truncated": ('{"entities": [{"name": "Ada', "length", "cut off"),
    "bad JSON": ('{"entities": [}', "stop", "not valid JSON"),
    "two objects": ("{} or {}", "stop", "not valid JSON"),
    "deep": ('{"entities": ' + "[" * 50_000 + "}", "stop", "not valid JSON"),
    "lone surrogate": ('{"entities": [{"name": "\\ud800"}]}', "stop", "not valid JSON"),
    "wrong schema": ('{"items": [1]}', "stop", 'no list called "entities"'),
    "wrong elements": ('{"entities": [{"label": "Ada"}]}', "stop", '"name"'),
    "wrong edges": ('{"entities": [], "relationships": "none"}', "stop", '"relationships" is not a list'),
}


@pytest.mark.parametrize("bad", BAD_ANSWERS)
def test_an_answer_that_is_none_is_asked_for_once_more_with_what_was_wrong(
    server: ChatServer, extractor: InstructExtractor, bad: str
) -> None:
    reply, finish_reason, complaint = BAD_ANSWERS[bad]
    server.script += [says(reply, finish_reason)]
    assert extractor.extract([TEXT], Policy()) == FOUND
    assert server.prompts[1].startswith(TEXT)
    assert complaint in server.prompts[1]
    assert server.heads[1][2]["max_tokens"] == (1_600 if finish_reason == "length" else 800)
    server.refuses = lambda text: says(reply, finish_reason)
    server.prompts.clear()
    with pytest.raises(ExtractionFailed, match="two answers that cannot be used"):
        extractor.extract([TEXT], Policy())
    assert len(server.prompts) == 2
    assert (extractor.stats.answered, extractor.stats.invalid) == (1, 3)


def test_a_long_document_is_read_to_its_end_and_names_that_are_one_are_merged(
    server: ChatServer, extractor: InstructExtractor
) -> None:
    filler = "Nothing happened for a long while. " * 60
    texts = [f"Ada Quill wrote. {filler}", f"{filler} Then ADA QUILL met Orrin Vale. {filler}", "Ada Quill left."]
    server.refuses = lambda text: (
        says(graph(("ADA QUILL", "person"), ("Orrin Vale", "person"), edges=(("ADA QUILL", "met", "Orrin Vale"),)))
        if "Orrin" in text
        else None
    )
    assert extractor.extract(texts, Policy()) == Found((ADA, ORRIN), (Relationship(0, "met", 1),))
    assert len(server.prompts) == 3
    assert all(len(prompt) <= WINDOW_CHARACTERS for prompt in server.prompts)
    assert " ".join(server.prompts).split() == " ".join(texts).split()


def test_windows_are_filled_with_whole_texts_and_lose_nothing() -> None:
    assert list(windows(["a", " ", "b", "c" * 10, "d"], 12)) == ["a b", "c" * 10 + " d"]
    long = "".join(map(chr, range(0x4E00, 0x4E00 + 9_000)))
    assert "".join(windows([long])) == long


# ------------------------------------------------------------------------------------------------ faults


@pytest.mark.parametrize(
    "misdeed",
    [
        does.status(429, retry_after="0.01"),
        does.status(500),
        does.status(503),
        does.body("{"),
        does.body('{"choices": []}'),
        hang_up,
    ],
    ids=["429", "500", "503", "no JSON", "no choice", "hang up"],
)
def test_a_passing_fault_is_waited_out(server: ChatServer, extractor: InstructExtractor, misdeed: Any) -> None:
    extractor.extract([TEXT], Policy())
    server.script += [misdeed, misdeed]
    assert extractor.extract([TEXT], Policy()) == FOUND
    assert extractor.slots == 4
    assert extractor.stats.failed == 2


@pytest.mark.parametrize(
    ("misdeed", "said"),
    [
        (does.status(503), "fails with 503"),
        (does.status(429, retry_after="70"), "fails with 429"),
        (does.status(500), "fails with 500"),
        (does.status(401, f"wrong {KEY}"), "refuses the key"),
        (does.status(404), "check the address and the model"),
        (does.status(400, "no such model"), "no such model"),
        (hang_up, "cannot be reached"),
    ],
    ids=["503", "429", "500", "401", "404", "400", "hang up"],
)
def test_no_document_is_at_fault_when_the_server_answers_about_none(
    server: ChatServer, extractor: InstructExtractor, misdeed: Any, said: str
) -> None:
    server.refuses = lambda text: misdeed
    with pytest.raises(NotReady, match=said) as caught:
        extractor.extract([TEXT], Policy())
    assert KEY not in str(caught.value)
    assert caught.value.retry_after_seconds is not None
    asked = len(server.heads)
    if extractor.pause() > 1:
        with pytest.raises(NotReady, match=said):
            extractor.extract([TEXT], Policy())
        assert len(server.heads) == asked
    else:
        server.refuses = lambda text: None
        assert extractor.extract([TEXT], Policy()) == FOUND


@pytest.mark.parametrize("misdeed", [does.status(500, "boom"), does.status(400, "not this")], ids=["500", "400"])
def test_a_document_the_server_always_fails_over_is_at_fault_alone(
    server: ChatServer, extractor: InstructExtractor, misdeed: Any
) -> None:
    extractor.extract([TEXT], Policy())
    server.refuses = lambda text: misdeed if "poison" in text else None
    with pytest.raises(ExtractionFailed, match=r"boom|not this"):
        extractor.extract(["poison"], Policy())
    assert extractor.pause() <= 0
    assert extractor.extract([TEXT], Policy()) == FOUND


def test_a_server_that_is_too_slow_for_one_document_fails_that_one(server: ChatServer) -> None:
    extractor = InstructExtractor(ChatApi(server.url, MODEL, lambda: ""), slots=4, request_seconds=0.5)
    server.refuses = lambda text: does.drip if "endless" in text else None
    with pytest.raises(ExtractionFailed, match="did not answer in time"):
        extractor.extract(["endless"], Policy())
    assert "Authorization" not in server.heads[0][1]
    server.refuses = lambda text: does.drip
    with pytest.raises(NotReady, match="did not answer in time"):
        extractor.extract(["endless"], Policy())
    extractor.close()


def test_a_window_that_is_too_long_for_the_model_is_read_in_halves(
    server: ChatServer, extractor: InstructExtractor
) -> None:
    server.refuses = lambda text: does.status(400, "exceeds the context: too many tokens") if len(text) > 900 else None
    text = f"Ada Quill wrote. {'Nothing happened. ' * 100} Orrin Vale came."
    assert extractor.extract([text], Policy()).entities == (ADA, ORRIN)
    assert " ".join(prompt for prompt in server.prompts if len(prompt) <= 900).split() == text.split()


def test_what_was_read_of_a_long_document_outlives_an_outage(server: ChatServer, extractor: InstructExtractor) -> None:
    texts = ["Ada Quill " + "x " * 1_400, "Orrin Vale " + "y " * 1_400]
    server.script += [says(graph(("Ada Quill", "person"))), *[does.status(503)] * 7]
    assert extractor.extract(texts, Policy()).entities == (ADA, ORRIN)
    assert sum("Ada Quill" in prompt for prompt in server.prompts) == 1


def test_while_a_server_fails_only_one_document_asks(server: ChatServer, extractor: InstructExtractor) -> None:
    server.refuses = lambda text: does.status(503)
    with pytest.raises(NotReady):
        extractor.extract([TEXT], Policy())
    assert extractor.slots == 1
    server.refuses = lambda text: None
    extractor.extract([TEXT], Policy())
    assert extractor.slots == 4


@pytest.mark.parametrize("misdeed", [does.silence, does.status(503, retry_after="60")], ids=["silence", "pause"])
def test_closing_ends_what_waits(server: ChatServer, misdeed: Any) -> None:
    extractor = InstructExtractor(ChatApi(server.url, MODEL, lambda: KEY), slots=4, request_seconds=1)
    server.refuses = lambda text: misdeed
    errors: list[BaseException] = []

    def read() -> None:
        try:
            extractor.extract([TEXT], Policy())
        except NotReady as error:
            errors.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    while not server.prompts:
        time.sleep(0.001)
    extractor.close()
    reader.join(10)
    assert errors


def test_a_server_of_our_own_is_not_asked_before_it_is_ready(server: ChatServer) -> None:
    class Starting:
        said = "vLLM is starting"
        began = ended = False

        def start(self) -> None:
            self.began = True

        def complaint(self) -> str:
            return self.said

        def close(self) -> None:
            self.ended = True

    life = Starting()
    extractor = InstructExtractor(ChatApi(server.url, MODEL, lambda: KEY), slots=4, server=life)
    extractor.start()
    assert life.began
    with pytest.raises(NotReady, match="vLLM is starting"):
        extractor.extract([TEXT], Policy())
    assert extractor.pause() > 0
    assert server.heads == []
    life.said = ""
    assert extractor.pause() <= 0
    assert extractor.extract([TEXT], Policy()) == FOUND
    extractor.close()
    assert life.ended


def test_the_schema_is_one_that_json_schema_knows() -> None:
    from thread_service.models.extraction.prompt import answer_schema

    schema = answer_schema(Policy(kinds=()))
    assert json.loads(json.dumps(schema)) == schema
    assert schema["properties"]["entities"]["items"]["properties"]["kind"] == {"type": "string"}
    assert schema["required"] == ["entities", "relationships"]
