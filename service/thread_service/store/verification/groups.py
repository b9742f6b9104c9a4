"""Documents and their groups: filed by one owner in groups of the same owner, the primary one among them."""

from __future__ import annotations

import apsw

from thread_service.store import sql
from thread_service.store.verification.look import Look, Range


def check(look: Look) -> None:
    def work(connection: apsw.Connection, within: Range) -> int:
        among = "document_key > ? AND document_key <= ?"
        strayed = sql.rows(
            connection,
            "SELECT document_key, document_id FROM documents d WHERE primary_group IS NOT NULL AND"
            " NOT EXISTS (SELECT 1 FROM document_groups g WHERE g.document_key = d.document_key"
            f" AND g.group_key = d.primary_group) AND {among}",
            within,
        )
        foreign = sql.rows(
            connection,
            "SELECT document_key, document_id, group_key FROM document_groups JOIN documents USING (document_key)"
            f" JOIN groups USING (group_key) WHERE groups.owner_key <> documents.owner_key AND {among}",
            within,
        )
        for key, document_id in strayed:
            look.damage("has a primary group that it is not in", [document_id], table="documents", key=key)
        for key, document_id, group_key in foreign:
            look.damage(f"is in group {group_key} of another owner", [document_id], table="documents", key=key)
        return int(sql.value(connection, f"SELECT count(*) FROM documents WHERE {among}", within))

    look.slices("documents", "document_key", work)
