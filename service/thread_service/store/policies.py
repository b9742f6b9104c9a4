"""The node's policy of extraction as it is stored: one for the whole node, kept when everything else is cleared.

Runs inside the caller's transaction.
"""

from __future__ import annotations

import apsw
import msgspec

from thread_service.store import sql
from thread_service.text.policy import Policy


def read(connection: apsw.Connection) -> Policy:
    """What was stored last, else the program's own policy."""
    body = sql.value(connection, "SELECT body FROM policy")
    return Policy() if body is None else msgspec.json.decode(body, type=Policy)


def write(connection: apsw.Connection, policy: Policy) -> None:
    connection.execute("INSERT OR REPLACE INTO policy VALUES (1, ?)", (msgspec.json.encode(policy).decode(),))
