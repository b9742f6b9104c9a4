"""What is kept twice: the cache of codes on the disk, and beside a running node its memory."""

from __future__ import annotations

from thread_service.store import code_cache
from thread_service.store.verification.look import Look


def check_codes(look: Look) -> None:
    """The files of the newest cache of codes against their checksums. The next start makes anew what is damaged."""
    checked, damaged = code_cache.damages(look.place.cache)
    look.examined(checked)
    for path, what in damaged:
        look.damage(f"{what}; the next start makes the codes anew", file=str(path.relative_to(look.place.path)))


def check_memory(look: Look) -> None:
    """How much the memory of a running node holds of what the database does."""
    if look.place.in_memory is None:
        return
    for name, in_memory, in_database in look.place.in_memory():
        look.examined(1)
        if in_memory != in_database:
            look.damage(f"the node has {in_memory} in memory, the database {in_database}; restart it", table=name)
