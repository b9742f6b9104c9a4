"""The files of an ONNX embedding model in the sentence-transformers layout, and what their settings say.

    tokenizer.json                       required
    onnx/model.onnx or model.onnx        required; another name only if there is no second
    config.json                          hidden size, vocabulary size, positions
    modules.json, 1_Pooling/config.json  which vector stands for a text
    sentence_bert_config.json            tokens a text may have
    config_sentence_transformers.json    prompts for queries and documents

A setting this program cannot honour (another pooling, a further layer) is an error: the vectors would be wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from thread_service.models.embedder import ModelUnavailable, Role

Pooling = Literal["mean", "cls"]
_Json = TypeVar("_Json", dict[str, Any], list[Any])

SETTINGS_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "config.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "*_Pooling/config.json",
)

_TOKENS_WHEN_UNSAID = 512
_PROMPT_NAMES: Mapping[Role, tuple[str, ...]] = {"query": ("query",), "document": ("document", "passage", "corpus")}
_POOLINGS: Mapping[str, Pooling] = {"mean": "mean", "cls": "cls"}
_POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """Where the files are, and the settings that shape a vector. `max_tokens` counts the special tokens too."""

    tokenizer: Path
    weights: Path
    config: Path
    pooling: Pooling
    prompts: Mapping[Role, str]
    max_tokens: int
    hidden_size: int | None
    vocabulary_size: int | None


def read_folder(roots: Sequence[Path]) -> ModelFolder:
    """Find the model under `roots` (or their immediate subfolders) and read its settings. Raises ModelUnavailable."""
    folders = [folder for root in roots for folder in _with_subfolders(root)]
    base = next((folder for folder in folders if (folder / "tokenizer.json").is_file()), None)
    if base is None:
        raise ModelUnavailable(f"tokenizer.json is missing in {_listed(roots)}: it is needed to cut texts into tokens")
    config_path = base / "config.json"
    config = _read_object(config_path)
    return ModelFolder(
        tokenizer=base / "tokenizer.json",
        weights=_find_weights(roots),
        config=config_path,
        pooling=_read_pooling(base),
        prompts=_read_prompts(base),
        max_tokens=_read_max_tokens(base, config),
        hidden_size=_positive(config.get("hidden_size")),
        vocabulary_size=_positive(config.get("vocab_size")),
    )


def choose_weights(names: Iterable[str], where: str) -> str:
    """The ONNX file among `names` (POSIX paths relative to the model): `onnx/model.onnx`, else `model.onnx`, else the
    only one. Raises ModelUnavailable for none and for several.
    """
    found = sorted(name for name in names if name.endswith(".onnx"))
    for usual in ("onnx/model.onnx", "model.onnx"):
        if usual in found:
            return usual
    if not found:
        raise ModelUnavailable(
            f"no .onnx file in {where}: name a model published in ONNX form, or export it to onnx/model.onnx"
        )
    if len(found) > 1:
        raise ModelUnavailable(f"several .onnx files in {where}, none called model.onnx: {', '.join(found)}")
    return found[0]


def _find_weights(roots: Sequence[Path]) -> Path:
    by_name = {
        path.relative_to(root).as_posix(): path
        for root in reversed(roots)
        for folder in _with_subfolders(root)
        for path in folder.glob("*.onnx")
    }
    return by_name[choose_weights(by_name, _listed(roots))]


def _read_pooling(base: Path) -> Pooling:
    folder = "1_Pooling"
    for module in _read_json(base / "modules.json", list, []):
        kind = str(module.get("type", "")).rpartition(".")[2] if isinstance(module, dict) else ""
        if kind == "Pooling":
            folder = str(module.get("path", folder))
        elif kind not in ("Transformer", "Normalize"):
            raise ModelUnavailable(
                f"{base / 'modules.json'} asks for a {kind or 'nameless'} layer, which is not supported"
            )
    path = base / folder / "config.json"
    settings = _read_object(path)
    asked = settings.get("pooling_mode") or [mode for flag, mode in _POOLING_FLAGS.items() if settings.get(flag)]
    modes = [asked] if isinstance(asked, str) else list(asked) or ["mean"]
    pooling = _POOLINGS.get(modes[0]) if len(modes) == 1 else None
    if pooling is None:
        raise ModelUnavailable(f"{path} asks for {' + '.join(map(str, modes))} pooling; mean and cls are supported")
    if settings.get("include_prompt") is False:
        raise ModelUnavailable(f"{path} leaves the prompt out of the pooling, which is not supported")
    return pooling


def _read_prompts(base: Path) -> dict[Role, str]:
    path = base / "config_sentence_transformers.json"
    settings = _read_object(path)
    prompts = settings.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(prompt, str) for prompt in prompts.values()):
        raise ModelUnavailable(f"{path}: prompts must be an object of strings")
    default = prompts.get(settings.get("default_prompt_name"), "")
    return {
        role: next((prompts[name] for name in names if name in prompts), default)
        for role, names in _PROMPT_NAMES.items()
    }


def _read_max_tokens(base: Path, config: dict[str, Any]) -> int:
    """sentence-transformers' rule: its own setting, else the smaller of the tokenizer's and the model's."""
    own = _positive(_read_object(base / "sentence_bert_config.json").get("max_seq_length"))
    if own is not None:
        return own
    tokenizer_config = _read_object(base / "tokenizer_config.json")
    limits = [_positive(tokenizer_config.get("model_max_length")), _positive(config.get("max_position_embeddings"))]
    return min([limit for limit in limits if limit is not None], default=_TOKENS_WHEN_UNSAID)


def _positive(value: object) -> int | None:
    """`value` if it is a usable size; tokenizer configurations write 10³⁰ for "no limit"."""
    return value if isinstance(value, int) and 0 < value < 1_000_000 else None


def _read_object(path: Path) -> dict[str, Any]:
    return _read_json(path, dict, {})


def _read_json(path: Path, kind: type[_Json], default: _Json) -> _Json:
    """The JSON in `path`, which must be a `kind`; `default` if there is no such file."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return default
    except (OSError, ValueError) as error:
        raise ModelUnavailable(f"{path} cannot be read: {error}") from error
    if not isinstance(content, kind):
        raise ModelUnavailable(f"{path} is not a JSON {'object' if kind is dict else 'array'}")
    return content


def _with_subfolders(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    return [root, *sorted(path for path in root.iterdir() if path.is_dir())]


def _listed(roots: Sequence[Path]) -> str:
    return " and ".join(map(str, roots))
