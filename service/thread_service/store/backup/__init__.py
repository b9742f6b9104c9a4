"""Backups: taken while the node serves, checked, and restored into an empty data directory.

A backup is a directory of the layout of a node's own, with a manifest that is written last: without it there is none.

    DIR/                            what `thread backup` is given; may hold backups of many times and nodes
        LOCK
        2026-07-05T10-11-12.345Z/   one backup
            thread.db   vectors/NNNNNN.f32   manifest.json
        2026-07-06T10-11-12.345Z-quarantined/   one whose database was damaged when it was taken
"""

from thread_service.store.backup.checking import check
from thread_service.store.backup.restoring import restore
from thread_service.store.backup.taking import Source, source_at_rest, take

__all__ = ["Source", "check", "restore", "source_at_rest", "take"]
