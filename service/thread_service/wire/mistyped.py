"""What a caller reads when a body is of other types than its route takes: what the field must be, and one such value.

The decoder's sentences speak of its own types: "Expected `str | array`, got `null`".
"""

from __future__ import annotations

import re

_KINDS = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "bytes": "a text that is base64",
    "null": "null",
}
_GIVEN = {**_KINDS, "int": "a number", "float": "a fraction"}

# By the field's path, without its indices.
_SUCH_AS = {
    "inputs": '["a text to remember"]',
    "thread": '{"owner_id": "me"}',
    "thread.owner_id": '"me"',
    "owner_id": '"me"',
    "thread.group": '"notes" or {"id": "notes"}',
    "thread.groups[]": '"notes" or {"id": "notes"}',
    "metadata[]": '"AAH/", which is three bytes',
    "tags[]": '["harbour"]',
    "entities[]": '[{"name": "Ada Quill", "kind": "person"}]',
    "entities[][]": '{"name": "Ada Quill", "kind": "person"}',
    "relationships[]": '[{"subject": "Ada Quill", "predicate": "keeps", "object": "Tidal Ledger"}]',
    "relationships[][]": '{"subject": "Ada Quill", "predicate": "keeps", "object": "Tidal Ledger"}',
    "partitions[][]": '{"url": "https://example.org/1"}',
    "update": '{"operation": "remove", "document_id": "an-id"}',
}


def told(sentence: str, field: str) -> str:
    """A sentence of the decoder about `field`, as what is wrong and what to send."""
    if sentence == "Invalid base64 encoded string":
        return f"must be base64{_such_as(field)}"
    if found := re.fullmatch(r"Expected `([a-z |]+)`, got `(\w+)`", sentence):
        wanted = [_KINDS.get(kind, kind) for kind in found[1].split(" | ") if kind != "null"]
        return f"must be {' or '.join(wanted)}, not {_GIVEN.get(found[2], found[2])}{_such_as(field)}"
    if found := re.fullmatch(r"Expected `(\w+)` (of length )?([<>]=) (-?\d+)", sentence):
        return (
            f"must be {_KINDS.get(found[1], found[1])} of {_bound(found[1], bool(found[2]), found[3], int(found[4]))}"
        )
    return sentence[:1].lower() + sentence[1:]


def is_required(field: str) -> str:
    example = _SUCH_AS.get(_path(field))
    return "is required" if example is None else f'is required; send "{field.rpartition(".")[2]}": {example}'


def _bound(kind: str, is_length: bool, comparison: str, number: int) -> str:
    unit = f" {'characters' if kind == 'str' else 'entries'}" if is_length else ""
    if unit and number == 1:
        unit = " character" if kind == "str" else " entry"
    return f"at {'most' if comparison == '<=' else 'least'} {number:,}{unit}"


def _such_as(field: str) -> str:
    example = _SUCH_AS.get(_path(field))
    return "" if example is None else f"; send one such as {example}"


def _path(field: str) -> str:
    return re.sub(r"\[\d+\]", "[]", field)
