"""Every setting of a node, declared once: its flag, its variable, its default and its help.

`load` turns a command line and an environment into a `Settings`; the help page, the messages about bad values and
`docs/settings.md` (`python -m thread_service.settings > docs/settings.md`) are generated from the same declarations.
A value is looked for in the flag, then the environment, then the `.env` file of the working directory; blank is not
given.
"""

from __future__ import annotations

import os
import pwd
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, cast

from thread_service.launch_lines import ALIASES, BACKENDS, LaunchLine, graph_backend, notice_about, original_model
from thread_service.setting_values import (
    absolute_path,
    gigabytes,
    header_key,
    host_name,
    http_url,
    on_or_off,
    one_of,
    quoted,
    share,
    whole_number,
)

VARIABLES = {
    "AMBIENT_STACK_SECRET": "secret of the stack this node is part of: callers must be on this machine and send it as "
    "`X-Ambient-Secret` (HTTP) or `x-ambient-secret` (gRPC metadata); only `/health` is open",
    "MISTRAL_API_KEY": "key of Mistral's API; `$RAO_HOME/keys/providers.json` goes before it; read at every request",
    "OPENAI_API_KEY": "the same of OpenAI's API, or of the server that `--embedding-url` or `--graph-url` names; not "
    "every one needs it",
    "VLLM_API_KEY": "key of a vLLM at `--graph-url`, where it wants one; read at every request",
    "RAO_HOME": "home of a stack, an absolute path; without AMBIENT_STACK_SECRET the secret is read from "
    "`$RAO_HOME/secrets/$RAO_APP` (mode 600, 64 hexadecimal digits), and the node does not start without it",
    "RAO_APP": "app of the stack: `ambient`, `craft` or `veil`",
}
"""What is never on a command line."""


class SettingsError(Exception):
    """A setting that cannot be used. `str(error)` is one line: which flag or variable, what is wrong, what to do."""


Environment = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Declaration:
    """What the help page, the documentation and the parser need to know of one setting.

    `parse` turns the words of the caller into the value and raises `ValueError` with the reason and the remedy.
    """

    flag: str
    section: str
    help: str
    parse: Callable[[str], Any]
    default: Callable[[Environment], Any]
    default_shown: str
    words: tuple[str, ...] = ()
    value_name: str = ""
    variable_name: str = ""

    @property
    def variable(self) -> str:
        return self.variable_name or "THREAD_" + self.flag.removeprefix("--").replace("-", "_").upper()


def _setting(
    flag: str,
    default: Any,
    help: str,
    *,
    section: str,
    parse: Callable[[str], Any] | None = None,
    words: tuple[str, ...] = (),
    default_shown: str | None = None,
    value_name: str = "",
    variable_name: str = "",
    secret: bool = False,
) -> Any:
    """One field of `Settings`. `default` is a value, or a function of the environment."""
    of_environment: Callable[[Environment], Any] = default if callable(default) else lambda _: default
    declaration = Declaration(
        flag=flag,
        section=section,
        help=help,
        parse=parse or (one_of(words) if words else str.strip),
        default=of_environment,
        default_shown=str(default) if default_shown is None else default_shown,
        words=words,
        value_name=value_name or ("|".join(words) if words else "VALUE"),
        variable_name=variable_name,
    )
    return field(
        default_factory=lambda: of_environment(os.environ), repr=not secret, metadata={"declaration": declaration}
    )


def rao_home(environment: Environment) -> Path | None:
    """The folder RAO_HOME names, or None when it is unset or blank. `~` comes from the password database, not $HOME.

    Raises `SettingsError` for a relative path.
    """
    text = environment.get("RAO_HOME", "").strip()
    if not text:
        return None
    if text == "~" or text.startswith("~/"):
        try:
            text = pwd.getpwuid(os.getuid()).pw_dir + text[1:]
        except KeyError:
            raise SettingsError("RAO_HOME: this user has no home directory; give an absolute path") from None
    if not os.path.isabs(text) or "\0" in text:
        raise SettingsError(f"RAO_HOME: {quoted(text)} is not an absolute path; give one, or unset RAO_HOME")
    return Path(text)


def _default_data_dir(environment: Environment) -> Path:
    home, app = rao_home(environment), environment.get("RAO_APP", "").strip()
    if home is None or not app:
        return absolute_path("~/Documents/thread-db")
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", app):
        raise SettingsError(f"RAO_APP: {quoted(app)} is not the name of an app; use letters, digits, - and _")
    return home / "apps" / app / "thread-db"


def _default_models_dir(environment: Environment) -> Path:
    return (rao_home(environment) or absolute_path("~/.rao")) / "models" / "huggingface"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A node's settings, checked and complete. `data_dir` and `models_dir` are absolute."""

    host: str = _setting("--host", "127.0.0.1", "address to listen on", section="Network", value_name="ADDRESS")
    port: int = _setting(
        "--port",
        8081,
        "HTTP port; 0 takes a free one",
        section="Network",
        parse=whole_number(0, 65_535),
        value_name="PORT",
    )
    grpc_port: int = _setting(
        "--grpc-port",
        9090,
        "gRPC port; 0 takes a free one",
        section="Network",
        parse=whole_number(0, 65_535),
        value_name="PORT",
    )
    api_key: str = _setting(
        "--api-key",
        "",
        "when set, every HTTP route but /health, /livez and /readyz, and every gRPC call but the health service, wants "
        "`Authorization: Bearer KEY`",
        section="Network",
        parse=header_key,
        default_shown="none",
        value_name="KEY",
        secret=True,
    )
    max_body_mb: int = _setting(
        "--max-body-mb",
        100,
        "largest request body, in MiB",
        section="Network",
        parse=whole_number(1, 4_096),
        value_name="MIB",
    )
    mothership_host: str = _setting(
        "--mothership-host",
        "",
        "host of the mothership to join; an IP address or a name",
        section="Fleet",
        parse=host_name,
        default_shown="none: the node is on its own",
        value_name="ADDRESS",
    )
    mothership_grpc_port: int = _setting(
        "--mothership-grpc-port",
        9_091,
        "gRPC port of the mothership",
        section="Fleet",
        parse=whole_number(1, 65_535),
        value_name="PORT",
    )
    fleet_host: str = _setting(
        "--fleet-host",
        "",
        "host of a second mothership, which is never sent the stack secret",
        section="Fleet",
        parse=host_name,
        default_shown="none",
        value_name="ADDRESS",
    )
    fleet_grpc_port: int = _setting(
        "--fleet-grpc-port",
        9_092,
        "gRPC port of the second mothership",
        section="Fleet",
        parse=whole_number(1, 65_535),
        value_name="PORT",
    )
    advertise_host: str = _setting(
        "--advertise-host",
        "",
        "address by which others reach this node; what it registers",
        section="Fleet",
        parse=host_name,
        default_shown="--host; for a wildcard, the local address of the connection to the mothership",
        value_name="ADDRESS",
    )
    advertise_grpc_port: int | None = _setting(
        "--advertise-grpc-port",
        None,
        "gRPC port by which others reach this node; no two nodes may register the same host and port",
        section="Fleet",
        parse=whole_number(1, 65_535),
        default_shown="the port it listens on",
        value_name="PORT",
    )
    advertise_http_port: int | None = _setting(
        "--advertise-http-port",
        None,
        "HTTP port by which others reach this node",
        section="Fleet",
        parse=whole_number(1, 65_535),
        default_shown="the port it listens on",
        value_name="PORT",
    )
    min_free_gb: float = _setting(
        "--min-free-gb",
        1.0,
        "free disk, in units of 10^9 bytes, below which the mothership is told to route new documents elsewhere",
        section="Fleet",
        parse=gigabytes,
        default_shown="1",
        value_name="GB",
    )
    data_dir: Path = _setting(  # noqa: RUF009 - it returns a field
        "--data-dir",
        _default_data_dir,
        "where everything is kept",
        section="Storage",
        parse=absolute_path,
        default_shown="$RAO_HOME/apps/$RAO_APP/thread-db when both are set, else ~/Documents/thread-db",
        value_name="DIRECTORY",
    )
    node_id: str = _setting(
        "--node-id",
        "",
        "the node's UUID; kept in the data directory from then on",
        section="Storage",
        default_shown="the one in the data directory, else a new one",
        value_name="UUID",
    )
    models_dir: Path = _setting(  # noqa: RUF009 - it returns a field
        "--models-dir",
        _default_models_dir,
        "where models are downloaded to",
        section="Embedding",
        parse=absolute_path,
        default_shown="$RAO_HOME/models/huggingface, else ~/.rao/models/huggingface",
        value_name="DIRECTORY",
    )
    embedder: Literal["", "local", "mistral", "openai"] = _setting(
        "--embedder",
        "",
        "what turns text into vectors: a model on this machine, Mistral's API, or any that speaks as OpenAI's does",
        section="Embedding",
        words=("local", "mistral", "openai"),
        default_shown="what wrote the index; an empty one takes mistral when MISTRAL_API_KEY is set, else local",
    )
    embedding_model: str = _setting(
        "--embedding-model",
        "",
        "`org/repo`, `org/repo@revision`, a directory or `package:one+two`; the provider's name of a hosted one",
        section="Embedding",
        default_shown="what wrote the index, else chosen for the device: on CUDA voyageai/voyage-4-nano, on a CPU "
        "sentence-transformers/all-MiniLM-L6-v2; mistral-embed, text-embedding-3-small",
        value_name="MODEL",
    )
    embedding_dim: int | None = _setting(
        "--embedding-dim",
        None,
        "components kept of each vector of a local model that was trained for it (Matryoshka)",
        section="Embedding",
        parse=whole_number(1, 65_536),
        default_shown="the width of the index, else 1024 of voyage-4-nano's 2048, else all",
        value_name="COMPONENTS",
    )
    embedding_url: str = _setting(
        "--embedding-url",
        "",
        "where a hosted model is asked: `/embeddings` of this address, over HTTP as OpenAI's API",
        section="Embedding",
        parse=http_url,
        default_shown="the one that wrote the index, else the provider's own",
        value_name="URL",
    )
    device: Literal["auto", "cpu", "cuda"] = _setting(
        "--device", "auto", "where vectors are computed", section="Embedding", words=("auto", "cpu", "cuda")
    )
    gpu_memory: float = _setting(
        "--gpu-memory",
        0.3,
        "how much of the GPU's memory vectors, their codes and work on them may take; what does not fit stays in main "
        "memory",
        section="Embedding",
        parse=share,
        value_name="SHARE",
    )
    graph_backend: Literal["", "vllm", "openai", "mistral", "keyword"] = _setting(
        "--graph-backend",
        "",
        "what finds entities and relationships in texts nobody described: an instruct model under vLLM, one behind "
        "OpenAI's API or any that speaks as it does, one behind Mistral's, or no model: the commonest words",
        section="Extraction",
        words=BACKENDS,
        parse=graph_backend,
        default_shown="vllm, where there are CUDA, a vLLM and the memory, else keyword",
    )
    graph_model: str = _setting(
        "--graph-model",
        "",
        "the instruct model: for a vLLM of the node's own `org/repo`, `org/repo@revision` or a directory, else the "
        "server's name of it",
        section="Extraction",
        default_shown="casperhansen/mistral-nemo-instruct-2407-awq for vllm, gpt-4o-mini for openai, mistral-tiny",
        value_name="MODEL",
    )
    graph_url: str = _setting(
        "--graph-url",
        "",
        "where the model is asked: `/chat/completions` of this address",
        section="Extraction",
        parse=http_url,
        default_shown="the provider's own; for vllm, one that the node starts and ends",
        value_name="URL",
    )
    vllm_command: str = _setting(
        "--vllm-command",
        "vllm",
        "the command of the vLLM that the node starts, in an environment of its own",
        section="Extraction",
        value_name="COMMAND",
        variable_name="THREAD_VLLM",
    )
    vllm_port: int = _setting(
        "--vllm-port",
        0,
        "port of that vLLM on this machine; 0 takes a free one",
        section="Extraction",
        parse=whole_number(0, 65_535),
        value_name="PORT",
    )
    vllm_gpu_share: float = _setting(
        "--vllm-gpu-share",
        0.5,
        "how much of the GPU's memory that vLLM takes for itself",
        section="Extraction",
        parse=share,
        value_name="SHARE",
    )
    vllm_max_model_len: int = _setting(
        "--vllm-max-model-len",
        8_192,
        "longest text and answer together that vLLM makes room for, in tokens",
        section="Extraction",
        parse=whole_number(2_048, 1_000_000),
        default_shown="8192",
        value_name="TOKENS",
    )
    chunk_chars: int = _setting(
        "--chunk-chars",
        1_200,
        "longest passage that `sanitize` cuts a text into, in characters",
        section="Filing",
        parse=whole_number(1, 1_000_000),
        value_name="CHARACTERS",
    )
    queue_documents: int = _setting(
        "--queue-documents",
        10_000,
        "documents that may wait to be embedded; more are refused with 429",
        section="Filing",
        parse=whole_number(1, 10_000_000),
        value_name="DOCUMENTS",
    )
    mention_linking: bool = _setting(
        "--mention-linking",
        True,
        "link documents to the owner's names that their texts mention",
        section="Filing",
        parse=on_or_off,
        words=("on", "off"),
        default_shown="on",
    )
    graph_mode: Literal["boost", "narrow", "off"] = _setting(
        "--graph-mode",
        "boost",
        "how the knowledge graph takes part in a search: it brings passages nearer, or leaves all others out, or "
        "neither",
        section="Searching",
        words=("boost", "narrow", "off"),
    )
    lexical: bool = _setting(
        "--lexical",
        True,
        "whether the words of a query count beside its meaning",
        section="Searching",
        parse=on_or_off,
        words=("on", "off"),
        default_shown="on",
    )
    compress: Literal["auto", "always"] = _setting(
        "--compress",
        "auto",
        "which tables of vectors are searched by codes: the large ones, or every one",
        section="Searching",
        words=("auto", "always"),
    )
    pq_bits: int = _setting(
        "--pq-bits",
        8,
        "at most 2^BITS centroids for each sub-space of a code; over 8, a GPU's codes of large tables take 2 bytes for "
        "each instead of 1; the CPU uses at most 4",
        section="Searching",
        parse=whole_number(1, 16),
        value_name="BITS",
    )
    log_level: Literal["debug", "info", "warning", "error"] = _setting(
        "--log-level",
        "info",
        "least severe message to log",
        section="Logging",
        words=("debug", "info", "warning", "error"),
    )
    log_format: Literal["text", "json"] = _setting(
        "--log-format",
        "text",
        "lines of text, or one JSON object a line",
        section="Logging",
        words=("text", "json"),
    )


@dataclass(frozen=True, slots=True)
class Loaded:
    """`notices`: what the operator should know about the settings, one line each, to be logged as warnings."""

    settings: Settings
    notices: tuple[str, ...]


def declarations() -> dict[str, Declaration]:
    """Every setting by the name of its field, in the order of the help page."""
    return {item.name: cast(Declaration, item.metadata["declaration"]) for item in _fields()}


def _fields() -> tuple[Field[Any], ...]:
    return fields(Settings)


def load(flags: Mapping[str, str], launch_line: LaunchLine, environment: Environment, env_file: Environment) -> Loaded:
    """Settle every setting. `flags` holds the values of the command line by field name.

    Raises `SettingsError` for the first value that cannot be used.
    """
    merged = {**env_file, **environment}
    given = {**launch_line.settings(), **{name: text for name, text in flags.items() if text.strip()}}
    values: dict[str, Any] = {}
    for name, declaration in declarations().items():
        if name in given:
            values[name] = _parsed(declaration, declaration.flag, given[name])
        elif (text := merged.get(declaration.variable, "")).strip():
            source = "" if declaration.variable in environment else " (.env)"
            values[name] = _parsed(declaration, declaration.variable + source, text)
        else:
            values[name] = declaration.default(merged)
    backend = given.get("graph_backend", "") or merged.get("THREAD_GRAPH_BACKEND", "")
    values["graph_backend"], values["graph_model"] = launch_line.extraction(
        values["graph_backend"], values["graph_model"]
    )
    notices = ["" if launch_line.value("--no-graph-extraction") else notice_about(backend)]
    for name in ("embedding_model", "graph_model"):
        values[name], notice = original_model(values[name])
        notices.append(notice)
    values["node_id"], notice = _node_id(values["node_id"])
    notices.append(notice)
    return Loaded(Settings(**values), tuple(filter(None, notices)))


def _parsed(declaration: Declaration, source: str, text: str) -> Any:
    try:
        return declaration.parse(text)
    except ValueError as error:
        raise SettingsError(f"{source}: {error}") from None


def _node_id(text: str) -> tuple[str, str]:
    """A node id in upper case and no notice; or, for what is no UUID, no id and a notice."""
    candidate = text.strip()
    if not candidate or re.fullmatch(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}", candidate):
        return candidate.upper(), ""
    return "", f"node id {quoted(candidate[:16])} is not a UUID; the id in the data directory is used"


def read_env_file(path: Path) -> dict[str, str]:
    """The `KEY=VALUE` lines of a `.env` file; empty when there is none.

    A line is split at its first `=` and both sides are trimmed; there is no quoting. Lines that start with `#` are
    comments; what is no assignment is passed over.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot be read as UTF-8 text ({error}); repair or remove it") from None
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line and not line.lstrip().startswith("#"))
    return {key.strip(): value.strip() for key, value in pairs if key.strip() and "\0" not in key + value}


def table(rows: Iterable[Declaration]) -> list[str]:
    """Lines of Markdown: a row for each declaration."""
    lines = ["| flag | variable | values | default | meaning |", "|---|---|---|---|---|"]
    for declaration in rows:
        values = " ".join(f"`{word}`" for word in declaration.words) or declaration.value_name.lower()
        lines.append(
            f"| `{declaration.flag}` | `{declaration.variable}` | {values} | {declaration.default_shown} "
            f"| {declaration.help} |"
        )
    return lines


def markdown() -> str:
    """`docs/settings.md`: every setting as a row of a table, and the older spellings."""
    lines = [
        "# Settings",
        "",
        "<!-- Generated by `python -m thread_service.settings`: change the declarations there, not this page. -->",
        "",
        "A value is taken from the flag, else from the environment variable, else from the `.env` file in the working",
        "directory (`KEY=VALUE` lines, no quoting), else it is the default. A blank value counts as not given.",
    ]
    section = ""
    for declaration in declarations().values():
        if declaration.section != section:
            section = declaration.section
            rows = (item for item in declarations().values() if item.section == section)
            lines += ["", f"## {section}", "", *table(rows)]
    lines += ["", "## Variables without a flag", "", "| variable | meaning |", "|---|---|"]
    lines += [f"| `{name}` | {help} |" for name, help in VARIABLES.items()]
    lines += ["", "## Older launch lines", "", "| flag | what happens |", "|---|---|"]
    lines += [f"| `{alias.flag}` | {alias.help} |" for alias in ALIASES]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
