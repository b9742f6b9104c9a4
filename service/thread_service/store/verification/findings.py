"""What a verification found: damages, each with the names by which somebody can tell what was hit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

NAMED_MAX = 1_000
"""Damages of one check that are named; further ones are counted."""
DOCUMENTS_MAX = 10
"""Documents named with one damage."""


@dataclass(frozen=True, slots=True)
class Damage:
    """`what` says what is wrong with a file, a row of a table or a row of a segment; `document_ids` whom it hits.

    A row of a segment is named beside the row of `vectors` that points to it.
    """

    check: str
    what: str
    table: str | None = None
    key: str | None = None
    segment: int | None = None
    row: int | None = None
    file: str | None = None
    document_ids: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Without what does not apply, and with a sentence."""
        fields = {name: value for name, value in asdict(self).items() if value not in (None, [])}
        return {**fields, "sentence": self._sentence()}

    def _sentence(self) -> str:
        if self.row is not None:
            where = f"row {self.row} of segment {self.segment}"
        else:
            where = self.file or (f"row {self.key} of {self.table}" if self.key else self.table or "")
        # Ids are what callers make of them.
        ids = ", ".join(map(ascii, self.document_ids))
        return f"{self.check}: {where} {self.what}" + (f" (documents: {ids})" if ids else "")


@dataclass(slots=True)
class Findings:
    """`examined`: how many things each check has looked at; `damaged`: how many of them it has found damaged."""

    examined: Counter[str] = field(default_factory=Counter)
    damaged: Counter[str] = field(default_factory=Counter)
    named: list[Damage] = field(default_factory=list)

    def add(self, check: str, what: str, document_ids: Iterable[str] = (), **where: Any) -> None:
        """Note one damage. `where`: fields of `Damage`; a key may be any value, or several."""
        self.damaged[check] += 1
        if self.damaged[check] > NAMED_MAX:
            return
        key = where.pop("key", None)
        if key is not None:
            where["key"] = ", ".join(map(str, key)) if isinstance(key, tuple) else str(key)
        self.named.append(Damage(check, what, document_ids=[*document_ids][:DOCUMENTS_MAX], **where))

    def mark(self) -> tuple[int, Counter[str]]:
        """What to `go_back` to."""
        return len(self.named), self.damaged.copy()

    def go_back(self, mark: tuple[int, Counter[str]]) -> None:
        """Forget the damages noted since."""
        count, self.damaged = mark
        del self.named[count:]

    def is_full(self, check: str) -> bool:
        """Whether further damages of a check are only counted."""
        return self.damaged[check] >= NAMED_MAX

    @property
    def is_clean(self) -> bool:
        return not self.damaged
