"""Does another run find the same ratios? Each result's `ratios` beside those of the run before.

    python benchmarks/compare.py [BEFORE AFTER]

Two folders of results. Without them, the quick results and those that they took the place of. Exit status 1 when a
ratio differs by more than 20 %, or is missing in the later run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness import BEFORE, QUICK

TOLERANCE = 0.2


@dataclass(frozen=True, slots=True)
class Compared:
    """A ratio of a result. `after` None: the later run has none of that name."""

    result: str
    ratio: str
    before: float
    after: float | None

    @property
    def is_reproduced(self) -> bool:
        return self.after is not None and abs(self.after - self.before) <= TOLERANCE * abs(self.before)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("before", type=Path, nargs="?", default=QUICK / BEFORE)
    parser.add_argument("after", type=Path, nargs="?", default=QUICK)
    arguments = parser.parse_args()
    found = list(compared(arguments.before, arguments.after))
    show(found)
    return 0 if found and all(each.is_reproduced for each in found) else 1


def compared(before: Path, after: Path) -> Iterator[Compared]:
    """Every ratio of the results that both folders have."""
    for path in sorted(before.glob("*.json")):
        if (after / path.name).exists():
            later = ratios(after / path.name)
            for name, value in ratios(path).items():
                yield Compared(path.stem, name, value, later.get(name))


def ratios(path: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads(path.read_text(encoding="utf-8")).get("ratios", {})
    return found


def show(found: list[Compared]) -> None:
    if not found:
        print("no result has one before it to be compared with")
        return
    print(f"{'result':26}{'ratio':60}{'before':>9}{'after':>9}")
    for each in found:
        after = "-" if each.after is None else f"{each.after:.3f}"
        mark = "" if each.is_reproduced else f"   not within {TOLERANCE:.0%}"
        print(f"{each.result:26}{each.ratio:60}{each.before:9.3f}{after:>9}{mark}")
    reproduced = sum(each.is_reproduced for each in found)
    print(f"{reproduced} of {len(found)} ratios within {TOLERANCE:.0%}")


if __name__ == "__main__":
    sys.exit(main())
