"""What the launch lines of existing callers may say beyond this version's own settings.

None of these flags is refused: an alias sets what it used to set, and what this version cannot do is said in the log
instead of being dropped in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Models that exist in MLX form only, and what they were converted from.
_ORIGINALS = {"rao-studios/voyage-4-nano-mlx-8bit": "voyageai/voyage-4-nano"}


@dataclass(frozen=True, slots=True)
class Alias:
    """A flag of an earlier launch line. `value_name` is empty for a bare switch."""

    flag: str
    value_name: str
    help: str


ALIASES = (
    Alias("--use-mlx", "", "same as `--embedder local`"),
    Alias("--mlx-model", "MODEL", "same as `--embedding-model`"),
    Alias("--graph-backend", "NAME", "accepted; this version extracts keywords, whatever the name"),
    Alias("--graph-model", "MODEL", "accepted; this version extracts keywords without a model"),
    Alias("--graph-mistral-model", "MODEL", "accepted; this version extracts keywords without a model"),
    Alias("--no-graph-extraction", "", "accepted; this version extracts keywords only"),
)


@dataclass(frozen=True, slots=True)
class LaunchLine:
    """The aliases that a command line gave, by flag. A switch that is on holds "on"; blank values count as absent."""

    given: Mapping[str, str]

    def value(self, flag: str) -> str:
        return self.given.get(flag, "").strip()

    def settings(self) -> dict[str, str]:
        """The settings that aliases stand for, by field name; a setting's own flag wins over these."""
        values = {"embedder": "local" if self.value("--use-mlx") else "", "embedding_model": self.value("--mlx-model")}
        return {name: text for name, text in values.items() if text}


def notices_about(line: LaunchLine) -> list[str]:
    """What this version does not do of what the launch line asks for, one line each."""
    notices: list[str] = []
    if line.value("--no-graph-extraction"):
        return notices
    backend = line.value("--graph-backend")
    models = [flag for flag in ("--graph-model", "--graph-mistral-model") if line.value(flag)]
    if backend not in ("", "keyword"):
        notices.append(f"--graph-backend {backend[:40]!a}: this version extracts keywords instead")
    elif models:
        notices.append(f"{models[0]}: this version extracts keywords, which takes no model")
    return notices


def original_model(model: str) -> tuple[str, str]:
    """The model to load for `model`, and a notice when that is another one (else empty)."""
    original = _ORIGINALS.get(model)
    return (original, f"embedding model {model} exists for MLX only; {original} is used") if original else (model, "")
