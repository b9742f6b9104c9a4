"""Whether what is on the disk is whole and of one piece: every table, every row of a segment, every derived thing.

`verify` is the whole; each module holds the checks of one subject. Nothing is changed and nothing is repaired.
"""

from thread_service.store.verification.look import Place, Progress
from thread_service.store.verification.run import CHECKS, COUNTED, at_rest, counts_of, damage_of_database, verify

__all__ = ["CHECKS", "COUNTED", "Place", "Progress", "at_rest", "counts_of", "damage_of_database", "verify"]
