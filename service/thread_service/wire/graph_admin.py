"""The HTTP interface of graph administration: names, kinds, edges and extraction changed after filing, and the policy.

Its own module beside `http`; the operations are in `node.graph_admin`.
"""

from __future__ import annotations

from typing import Annotated, Any

from litestar import get
from msgspec import UNSET, UnsetType

from thread_service.errors import InvalidRequest
from thread_service.node import operations
from thread_service.text import policy
from thread_service.text.ids import normalise_kind, normalise_predicate
from thread_service.wire import graph_admin_schemas as schemas
from thread_service.wire import limits
from thread_service.wire.convert import bounded_id
from thread_service.wire.declare import TheNode, body, operation, replacement

_OWNER = {"owner_id": "ada"}
_EDGE_ID = "05116381971031951161351772287416318415313225169113131340013510900127119124196561854140"
_ADA_ID = "1412591235115168205084234111821453041951111386714622454061321340243821554211169"
_LEDGER_ID = "921898094203421541159423411010712011920622415039241155151141872264524221551140636305"

RENAME: dict[str, Any] = {"thread": _OWNER, "id": _ADA_ID, "name": "Ada Quill-Vale"}
SET_KIND: dict[str, Any] = {"thread": _OWNER, "id": _LEDGER_ID, "kind": "work"}
MERGE: dict[str, Any] = {"thread": _OWNER, "from": _ADA_ID, "into": _LEDGER_ID}
DELETE_ENTITY: dict[str, Any] = {"thread": _OWNER, "id": _ADA_ID}
DELETE_RELATIONSHIP: dict[str, Any] = {"thread": _OWNER, "id": _EDGE_ID}
RE_EXTRACT: dict[str, Any] = {"thread": _OWNER, "document_id": "harbour-1"}
POLICY: dict[str, Any] = {
    "kinds": [{"name": "person", "description": "a human being"}, {"name": "ship", "description": "a vessel by name"}],
    "predicate_aliases": {"authored": "wrote"},
    "max_entities": 12,
    "max_relationships": 15,
    "co_mention": {"enabled": True, "predicate": "appears with", "skipExplicitlyLinked": True},
    "hub_degree_cap": 24,
}


@operation("/v1/graph/entity/rename", "Give an entity another name")
async def rename_entity(
    data: Annotated[schemas.RenameEntityRequest, body(RENAME)], node: TheNode
) -> schemas.EditAnswer:
    return _edited(await node.graph_admin.rename_entity(_owner(data.thread), bounded_id(data.id, "id"), data.name))


@operation("/v1/graph/entity/set-kind", "Give an entity another kind")
async def set_entity_kind(data: Annotated[schemas.SetKindRequest, body(SET_KIND)], node: TheNode) -> schemas.EditAnswer:
    return _edited(await node.graph_admin.set_entity_kind(_owner(data.thread), bounded_id(data.id, "id"), data.kind))


@operation("/v1/graph/entity/merge", "Make two entities one")
async def merge_entities(
    data: Annotated[schemas.MergeEntitiesRequest, body(MERGE)], node: TheNode
) -> schemas.EditAnswer:
    from_id, into = bounded_id(data.from_id, "from"), bounded_id(data.into, "into")
    return _edited(await node.graph_admin.merge_entities(_owner(data.thread), from_id, into))


@operation("/v1/graph/entity/delete", "Delete an entity and its edges")
async def delete_entity(
    data: Annotated[schemas.DeleteRequest, body(DELETE_ENTITY)], node: TheNode
) -> schemas.EditAnswer:
    await node.graph_admin.delete_entity(_owner(data.thread), bounded_id(data.id, "id"))
    return schemas.EditAnswer(success=True)


@operation("/v1/graph/relationship/delete", "Delete an edge")
async def delete_relationship(
    data: Annotated[schemas.DeleteRequest, body(DELETE_RELATIONSHIP)], node: TheNode
) -> schemas.EditAnswer:
    await node.graph_admin.delete_relationship(_owner(data.thread), bounded_id(data.id, "id"))
    return schemas.EditAnswer(success=True)


@operation("/v1/graph/re-extract", "Look into a document's texts for entities again")
async def re_extract(
    data: Annotated[schemas.ReExtractRequest, body(RE_EXTRACT)], node: TheNode
) -> schemas.ReExtractAnswer:
    found = await node.graph_admin.re_extract(_owner(data.thread), bounded_id(data.document_id, "document_id"))
    return schemas.ReExtractAnswer(success=found > 0, entity_count=found)


@get("/v1/graph/policy", summary="The policy of extraction")
async def read_policy(node: TheNode) -> schemas.Policy:
    return _policy_answer(await node.graph_admin.policy())


@replacement("/v1/graph/policy", "Replace the policy of extraction")
async def write_policy(data: Annotated[schemas.Policy, body(POLICY)], node: TheNode) -> schemas.Policy:
    wanted = policy_in(data)
    await node.graph_admin.set_policy(wanted)
    return _policy_answer(wanted)


ROUTES = (
    *(rename_entity, set_entity_kind, merge_entities, delete_entity, delete_relationship, re_extract),
    *(read_policy, write_policy),
)


# ---------------------------------------------------------------------------------------------------- translation


def _owner(caller: schemas.Caller) -> str:
    owner_id = operations.owner_id(bounded_id(caller.owner_id, "thread.owner_id"))
    if not owner_id:
        raise InvalidRequest.field("thread.owner_id", "is blank; say whose contributions are to be changed")
    return owner_id


def _edited(surviving_id: str | None) -> schemas.EditAnswer:
    if surviving_id is None:
        return schemas.EditAnswer(success=False)
    return schemas.EditAnswer(success=True, surviving_id=surviving_id)


def policy_in(given: schemas.Policy) -> policy.Policy:
    """Normalised as the graph is. InvalidRequest names what is blank or stands twice."""
    kinds: dict[str, policy.Kind] = {}
    for index, kind in enumerate(given.kinds):
        name = normalise_kind(kind.name)
        if not kind.name.strip():
            raise InvalidRequest.field(f"kinds[{index}].name", "is blank; name the kind")
        if name in kinds:
            raise InvalidRequest.field(f"kinds[{index}].name", "stands in the list already; name each kind once")
        kinds[name] = policy.Kind(name, kind.description)
    template = given.prompt_template or None
    if template is not None and not template.strip():
        raise InvalidRequest.field("prompt_template", "is blank; leave it out for the program's own")
    return policy.Policy(
        kinds=tuple(kinds.values()),
        prompt_template=template,
        predicate_aliases=_aliases(given.predicate_aliases),
        max_entities=given.max_entities,
        max_relationships=given.max_relationships,
        co_mention=_co_mention(given.co_mention or None),
        hub_degree_cap=None if given.hub_degree_cap is UNSET else given.hub_degree_cap,
    )


def _aliases(given: dict[str, str]) -> dict[str, str]:
    aliases: dict[str, str] = {}
    for said, canonical in given.items():
        alias, field = normalise_predicate(said), f"predicate_aliases.{said[:80]}"
        if len(said) > limits.NAME_CHARS_MAX:
            raise InvalidRequest.field(field, f"is longer than {limits.NAME_CHARS_MAX:,} characters")
        if not alias or not canonical.strip():
            raise InvalidRequest.field(field, "is blank, or stands for a blank predicate; give both a word")
        if aliases.setdefault(alias, normalise_predicate(canonical)) != normalise_predicate(canonical):
            raise InvalidRequest.field(field, "stands for two predicates; upper and lower case are the same alias")
    return aliases


def _co_mention(given: schemas.CoMention | None) -> policy.CoMention | None:
    if given is None:
        return None
    if not given.predicate.strip():
        raise InvalidRequest.field("co_mention.predicate", "is blank; say how the edges are to be called")
    return policy.CoMention(given.enabled, normalise_predicate(given.predicate), given.skip_explicitly_linked)


def _policy_answer(current: policy.Policy) -> schemas.Policy:
    rule = current.co_mention
    co_mention: schemas.CoMention | UnsetType = UNSET
    if rule is not None:
        co_mention = schemas.CoMention(rule.enabled, rule.predicate, rule.skip_explicitly_linked)
    return schemas.Policy(
        kinds=[schemas.Kind(kind.name, kind.description) for kind in current.kinds],
        prompt_template=UNSET if current.prompt_template is None else current.prompt_template,
        predicate_aliases=dict(current.predicate_aliases),
        max_entities=current.max_entities,
        max_relationships=current.max_relationships,
        co_mention=co_mention,
        hub_degree_cap=UNSET if current.hub_degree_cap is None else current.hub_degree_cap,
    )
