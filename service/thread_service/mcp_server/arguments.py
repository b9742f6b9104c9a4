"""What the tools take: types with their bounds, and descriptions by which an assistant fills them in well."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

Name = Annotated[str, Field(min_length=1, max_length=200)]

# ------------------------------------------------------------------------------------------------------ remember

Text = Annotated[
    str,
    Field(
        min_length=1,
        max_length=100_000,
        description="What to keep, in full sentences that can be understood alone. Dates as dates, not `yesterday`.",
    ),
]
OwnId = Annotated[
    Name | None,
    Field(
        description="A name of your own for what may change or be removed: a prefix for its sort, then a slug, as in "
        "`person/ada-quill`, `project/ledger/status`, `preference/tea`. Remembering again under the same id replaces. "
        "Leave it out for what stays as it is, such as what was said on a day; the same text is then kept once.",
    ),
]
Title = Annotated[Name | None, Field(description="A title. Other texts that mention it are linked to this one.")]


class EntityArgument(BaseModel):
    """A person, place, project or thing that the text is about."""

    name: Annotated[Name, Field(description="As people write it, in full: `Ada Quill`, not `Ada` or `she`.")]
    kind: Annotated[
        str,
        Field(max_length=100, description="One word, the same for the same sort: person, place, project, book."),
    ] = ""


class FactArgument(BaseModel):
    """A relationship that the text states outright, between two entities."""

    subject: Annotated[Name, Field(description="Name of an entity.")]
    predicate: Annotated[Name, Field(description="A verb in the present tense, short: `keeps`, `works for`.")]
    object: Annotated[Name, Field(description="Name of another entity.")]


Entities = Annotated[
    list[EntityArgument] | None,
    Field(
        max_length=50,
        description="Who and what the text is about. Texts that share an entity are found together, so use the name "
        "that `entities` already shows. Leave it out when nothing stands out: then the memory looks for itself.",
    ),
]
Facts = Annotated[
    list[FactArgument] | None,
    Field(
        max_length=50,
        description="Relationships to be followed from one text to another: who keeps, made, knows, decided or "
        "belongs to what. Only what the text says; nothing that is merely likely, and no `is related to`.",
    ),
]
IntoGroup = Annotated[
    Name | None,
    Field(
        description="A drawer that a whole body of texts shares, such as a project or a trip, so that `recall` can "
        "look there only. Not for a topic (that is an entity), nor for a single text. Most texts need none.",
    ),
]

# ------------------------------------------------------------------------------------------------------ recall

Question = Annotated[
    str,
    Field(
        min_length=1,
        max_length=10_000,
        description="A whole question or description with the names that matter, not single words: "
        "`Who began the book that Ada Quill keeps?`",
    ),
]
Passages = Annotated[int, Field(ge=1, le=20, description="How many passages.")]
InGroup = Annotated[Name | None, Field(description="Look in this group only.")]
About = Annotated[list[Name] | None, Field(max_length=20, description="Entities by name; texts about them come first.")]

# ------------------------------------------------------------------------------------------------------ entities

EntityName = Annotated[Name | None, Field(description="An entity by name. Without: those mentioned most.")]
Like = Annotated[
    str | None, Field(max_length=10_000, description="Instead of a name, a description of what is looked for.")
]
Hops = Annotated[int, Field(ge=0, le=3, description="How many relationships to follow from there.")]
Shown = Annotated[int, Field(ge=1, le=50, description="How many entities.")]

# ------------------------------------------------------------------------------------------------------ forget

Ids = Annotated[
    list[Name],
    Field(min_length=1, max_length=100, description="Ids of texts, as the other tools gave them."),
]
