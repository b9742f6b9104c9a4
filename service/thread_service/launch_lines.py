"""What the launch lines of existing callers may say beyond this version's own settings.

None of these flags is refused: an alias sets what it used to set, and where a name now stands for another, that is said
in the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Models that exist in MLX form only, and what they were converted from.
_ORIGINALS = {
    "rao-studios/voyage-4-nano-mlx-8bit": "voyageai/voyage-4-nano",
    "mlx-community/Mistral-Nemo-Instruct-2407-4bit": "casperhansen/mistral-nemo-instruct-2407-awq",
}

BACKENDS = ("vllm", "openai", "mistral", "keyword")


@dataclass(frozen=True, slots=True)
class Alias:
    """A flag of an earlier launch line. `value_name` is empty for a bare switch."""

    flag: str
    value_name: str
    help: str


ALIASES = (
    Alias("--use-mlx", "", "same as `--embedder local`"),
    Alias("--mlx-model", "MODEL", "same as `--embedding-model`"),
    Alias("--graph-mistral-model", "MODEL", "same as `--graph-model`, for `--graph-backend mistral`"),
    Alias("--no-graph-extraction", "", "same as `--graph-backend keyword`"),
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

    def extraction(self, backend: str, model: str) -> tuple[str, str]:
        """Backend and model of extraction, given what their own settings say: these aliases win over them."""
        if self.value("--no-graph-extraction"):
            return "keyword", model
        return backend, (backend == "mistral" and self.value("--graph-mistral-model")) or model


def graph_backend(text: str) -> str:
    """`mlx`, which ran an instruct model on the machine itself, is `vllm` here. Other names were always `keyword`."""
    word = text.strip().lower()
    if word == "mlx":
        return "vllm"
    return word if word in BACKENDS else "keyword"


def notice_about(backend: str) -> str:
    """What is made of a backend of this name, where that is not what the name says; else empty."""
    if backend.strip().lower() in ("", "mlx", *BACKENDS):
        return ""
    return f"--graph-backend {backend.strip()[:40]!a} is not one of {', '.join(BACKENDS)}: keywords are extracted"


def original_model(model: str) -> tuple[str, str]:
    """The model to load for `model`, and a notice when that is another one (else empty)."""
    original = _ORIGINALS.get(model)
    return (original, f"the model {model} exists for MLX only; {original} is used") if original else (model, "")
