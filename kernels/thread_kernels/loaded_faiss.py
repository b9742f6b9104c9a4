"""FAISS, loaded so that its idle threads sleep: the one place that imports it.

FAISS brings an OpenMP run-time of its own. By default its idle threads spin, which starves whatever else the machine
does: small work takes ten times as long then.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # the run-time reads this once, when it is loaded
import faiss

__all__ = ["faiss", "use_threads"]

_CORES = faiss.omp_get_max_threads()


def use_threads(is_worth_it: bool) -> None:
    """Whether FAISS uses all cores for what the calling thread asks of it next.

    Where there is little to do its threads wait for one another, and longer still beside other work.
    """
    faiss.omp_set_num_threads(_CORES if is_worth_it else 1)
