"""How much one request may hold. Everything a caller sends is bounded: by these, and by the size of the body."""

from __future__ import annotations

MESSAGE_BYTES_MAX = 100 * 2**20
"""One gRPC message, in and out."""

INPUTS_MAX = 10_000
"""Documents in one batch, and ids in one request for documents or their removal."""

PARTITIONS_MAX = 10_000
"""Texts of one document."""

ENTITIES_MAX = 1_000
"""Entities or tags of one document, terms of one search, kinds of one graph query."""

RELATIONSHIPS_MAX = 10_000
"""Relationships of one document."""

KINDS_MAX = 100
ALIASES_MAX = 1_000
"""Kinds and predicate aliases of a policy."""

GROUPS_MAX = 1_000
"""Groups named by one search."""

ID_BYTES_MAX = 1_024
"""UTF-8 bytes of an owner, document or group id."""

NAME_CHARS_MAX = 4_096
"""Characters of a name, kind, predicate, label, tag or graph term."""

DESCRIPTION_CHARS_MAX = 65_536
"""Characters of a group's description."""

QUERY_CHARS_MAX = 100_000
"""Characters of a query."""

URL_CHARS_MAX = 8_192
"""Characters of a partition's own address."""

WIDTH_MAX = 16_384
"""Dimensions of a caller's vector."""

WIDTH_DIVISOR = 16
"""A filed vector's width is a multiple of this: distances are summed over that many equal blocks."""

GRAPH_LIMIT_DEFAULT = 20
GRAPH_LIMIT_MAX = 1_000
"""Entities that one graph query starts from."""

HOPS_DEFAULT = 1
HOPS_MAX = 3
