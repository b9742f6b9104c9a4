"""The files of an embedding model in the sentence-transformers layout, and what their settings say.

    tokenizer.json                       required
    the weights                          required; see `weights`
    config.json                          hidden size, vocabulary size, positions, architecture
    modules.json, 1_Pooling/config.json  which vector stands for a text
    2_Dense/config.json                  a linear layer over that vector; on torch only
    sentence_bert_config.json            tokens a text may have
    config_sentence_transformers.json    prompts for queries and documents

A setting this program cannot honour (another pooling, a further layer) is an error: the vectors would be wrong.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from thread_service.models import voyage
from thread_service.models.embedder import ModelUnavailable, Role
from thread_service.models.weights import INDEX, SAFETENSORS, Format, choose_weights, shards

Pooling = Literal["mean", "cls", "max", "lasttoken", "weightedmean", "mean_sqrt_len_tokens"]
_Json = TypeVar("_Json", dict[str, Any], list[Any])

SETTINGS_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "config.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "*_Pooling/config.json",
    "*_Dense/config.json",
    INDEX,
)

_TOKENS_WHEN_UNSAID = 512
_PROMPT_NAMES: Mapping[Role, tuple[str, ...]] = {"query": ("query",), "document": ("document", "passage", "corpus")}
_POOLINGS: Mapping[Format, Mapping[str, Pooling]] = {
    "onnx": {"mean": "mean", "cls": "cls"},
    "safetensors": {
        "mean": "mean",
        "cls": "cls",
        "max": "max",
        "lasttoken": "lasttoken",
        "weightedmean": "weightedmean",
        "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    },
}
_POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True, slots=True)
class Dense:
    """A linear layer over the pooled vector: `folder`/model.safetensors holds linear.weight [outputs, inputs]."""

    folder: Path
    inputs: int
    outputs: int
    bias: bool
    activation: str

    @property
    def config(self) -> Path:
        return self.folder / "config.json"

    @property
    def weights(self) -> Path:
        return self.folder / SAFETENSORS


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """Where the files are, and the settings that shape a vector.

    `weights` is the file that stands for them all, `files` those that hold them. `max_tokens` counts the special tokens
    too. `head`: components of voyage-4-nano's own linear layer, None for any other model. `code`: classes outside of
    transformers that config.json asks for.
    """

    format: Format
    tokenizer: Path
    weights: Path
    files: tuple[Path, ...]
    config: Path
    pooling: Pooling
    dense: tuple[Dense, ...]
    prompts: Mapping[Role, str]
    max_tokens: int
    hidden_size: int | None
    vocabulary_size: int | None
    pad_id: int | None
    head: int | None
    code: tuple[str, ...]

    @property
    def whole_width(self) -> int | None:
        """Of the model's vectors before any cut, as far as the files say."""
        return self.dense[-1].outputs if self.dense else self.head or self.hidden_size

    def width(self, whole: int, asked: int | None, stored: int | None) -> int:
        """Of the `whole` components, how many are kept: `asked`, else `stored` if that is possible, else the usual.

        Raises ModelUnavailable when the model was not trained for `asked`.
        """
        possible = voyage.widths(whole) if self.head else range(whole, 0, -1)
        if asked is not None and asked not in possible:
            widths = ", ".join(map(str, possible)) if self.head else f"1 to {whole}"
            raise ModelUnavailable(f"--embedding-dim {asked}: the vectors of {self.config.parent} can have {widths}")
        usual = voyage.USUAL_WIDTH if self.head and voyage.USUAL_WIDTH in possible else whole
        return asked or (stored if stored in possible else None) or usual


def read_folder(roots: Sequence[Path], formats: Sequence[Format] = ("onnx",)) -> ModelFolder:
    """Find the model under `roots` (or their immediate subfolders) and read its settings. Raises ModelUnavailable.

    `formats`: forms of weights that may be chosen, best first.
    """
    base = _base(roots)
    if base is None:
        raise ModelUnavailable(f"tokenizer.json is missing in {_listed(roots)}: it is needed to cut texts into tokens")
    config_path = base / "config.json"
    config = _read_object(config_path)
    format, weights = find_weights(roots, formats)
    is_voyage = format == "safetensors" and voyage.is_voyage(config)
    if is_voyage and not _positive(config.get("num_labels")):
        raise ModelUnavailable(f"{config_path} does not say num_labels, the size of the model's linear layer")
    max_tokens = _read_max_tokens(base, config)
    # Older models keep the transformer in a folder of its own.
    home = base.parent if base not in roots and (base.parent / "modules.json").is_file() else base
    pooling, dense = _read_modules(home, format)
    if is_voyage and (pooling != "mean" or dense):
        raise ModelUnavailable(f"{home / 'modules.json'} asks for other layers than mean pooling: not voyage-4-nano's")
    prompts = _read_prompts(home)
    return ModelFolder(
        format=format,
        tokenizer=base / "tokenizer.json",
        weights=weights,
        files=shards(weights),
        config=config_path,
        pooling=pooling,
        dense=dense,
        prompts=voyage.PROMPTS if is_voyage and not any(prompts.values()) else prompts,
        max_tokens=min(max_tokens, voyage.MAX_TOKENS) if is_voyage else max_tokens,
        hidden_size=_positive(config.get("hidden_size")),
        vocabulary_size=_positive(config.get("vocab_size")),
        pad_id=config["pad_token_id"] if isinstance(config.get("pad_token_id"), int) else None,
        head=_positive(config.get("num_labels")) if is_voyage else None,
        code=_read_code(config),
    )


def find_weights(roots: Sequence[Path], formats: Sequence[Format]) -> tuple[Format, Path]:
    """The weights under `roots`. Raises ModelUnavailable."""
    by_name = {
        path.relative_to(root).as_posix(): path
        for root in reversed(roots)
        for folder in _with_subfolders(root)
        for path in folder.glob("*.onnx")
    }
    if (base := _base(roots)) is not None:
        by_name |= {name: base / name for name in (SAFETENSORS, INDEX) if (base / name).is_file()}
    format, name = choose_weights(by_name, _listed(roots), formats)
    return format, by_name[name]


def _base(roots: Sequence[Path]) -> Path | None:
    folders = (folder for root in roots for folder in _with_subfolders(root))
    return next((folder for folder in folders if (folder / "tokenizer.json").is_file()), None)


def _read_modules(base: Path, format: Format) -> tuple[Pooling, tuple[Dense, ...]]:
    path = base / "modules.json"
    pooling, kinds, dense = "1_Pooling", [], []
    for module in _read_json(path, list, []):
        kind = str(module.get("type", "")).rpartition(".")[2] if isinstance(module, dict) else ""
        if kind == "Pooling":
            pooling = str(module.get("path", pooling))
        elif kind == "Dense" and format == "safetensors":
            dense.append(_read_dense(base / str(module.get("path", ""))))
        elif kind not in ("Transformer", "Normalize"):
            raise ModelUnavailable(f"{path} asks for a {kind or 'nameless'} layer, which is not supported")
        kinds.append(kind)
    if dense and kinds != [
        "Transformer",
        "Pooling",
        *["Dense"] * len(dense),
        *["Normalize"] * kinds.count("Normalize"),
    ]:
        raise ModelUnavailable(
            f"{path} asks for {', '.join(kinds)}; Dense is supported between Pooling and Normalize only"
        )
    return _read_pooling(base / pooling / "config.json", _POOLINGS[format]), tuple(dense)


def _read_pooling(path: Path, supported: Mapping[str, Pooling]) -> Pooling:
    settings = _read_object(path)
    asked = settings.get("pooling_mode") or [mode for flag, mode in _POOLING_FLAGS.items() if settings.get(flag)]
    modes = [asked] if isinstance(asked, str) else list(asked) or ["mean"]
    pooling = supported.get(modes[0]) if len(modes) == 1 else None
    if pooling is None:
        raise ModelUnavailable(
            f"{path} asks for {' + '.join(map(str, modes))} pooling; {' and '.join(supported)} are supported"
        )
    if settings.get("include_prompt") is False:
        raise ModelUnavailable(f"{path} leaves the prompt out of the pooling, which is not supported")
    return pooling


def _read_dense(folder: Path) -> Dense:
    path = folder / "config.json"
    settings = _read_object(path)
    inputs, outputs = _positive(settings.get("in_features")), _positive(settings.get("out_features"))
    if inputs is None or outputs is None:
        raise ModelUnavailable(f"{path} does not say in_features and out_features")
    is_plain = settings.get("module_input_name", "sentence_embedding") == "sentence_embedding"
    if not is_plain or settings.get("module_output_name") not in (None, "sentence_embedding"):
        raise ModelUnavailable(f"{path} asks for a layer over something else than the text's vector")
    if settings.get("use_residual"):
        raise ModelUnavailable(f"{path} asks for a residual connection, which is not supported")
    activation = settings.get("activation_function") or "torch.nn.modules.linear.Identity"
    return Dense(folder, inputs, outputs, settings.get("bias") is not False, str(activation))


def _read_code(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The classes of models that `auto_map` names, whose code lies beside the checkpoint and is not run here."""
    classes = config.get("auto_map")
    if not isinstance(classes, dict):
        return ()
    return tuple(str(name).rpartition(".")[2] for kind, name in classes.items() if kind.startswith("AutoModel"))


def _read_prompts(base: Path) -> dict[Role, str]:
    path = base / "config_sentence_transformers.json"
    settings = _read_object(path)
    prompts = settings.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(prompt, str | None) for prompt in prompts.values()):
        raise ModelUnavailable(f"{path}: prompts must be an object of strings")
    prompts = {name: prompt for name, prompt in prompts.items() if prompt is not None}
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
