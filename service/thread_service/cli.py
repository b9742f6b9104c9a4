"""The command `thread`: read the settings, say what starts, serve until asked to stop; or do one of the other commands.

`thread [flags]` and `thread serve [flags]` are the same. Exit codes: 0 after a stop that was asked for, 1 when the node
could not start or had to stop or a command could not be done, 2 for a setting that cannot be used. Every refusal is one
line on standard error.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from thread_service import settings
from thread_service.launch_lines import ALIASES, LaunchLine
from thread_service.settings import Declaration, Loaded, SettingsError


@dataclass(frozen=True, slots=True)
class Operand:
    """A path that a command is given, by its place or, when it has a `flag`, by that."""

    name: str
    metavar: str
    help: str
    flag: str = ""
    is_optional: bool = False
    may_be_standard: bool = False
    """`-` is standard output."""


@dataclass(frozen=True, slots=True)
class About:
    """A command beside `serve`. `switches`: flags of its own, with their help; `needs`: the one that has to be given.
    `operands`: paths. `undone`: the exit code for not done. `settings`: fields of the settings that it takes beside
    those of all, which are there unless it is not `of_a_directory`; `passed`: those of them that are for the node that
    does it."""

    help: str
    switches: tuple[tuple[str, str], ...] = ()
    undone: int = 1
    needs: str = ""
    settings: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()
    operands: tuple[Operand, ...] = ()
    of_a_directory: bool = True

    @property
    def usage(self) -> str:
        return "".join(f" {operand.metavar}" for operand in self.operands if not operand.flag)


_MODEL_SETTINGS = ("embedder", "embedding_model", "embedding_url", "embedding_dim")

COMMANDS = {
    "backup": About(
        "Put a backup of everything that is kept into a directory: of the node that runs in the data directory, which "
        "goes on serving, or, when none does, of the directory itself. Vectors that are there from an earlier backup "
        "are not copied again. It is complete when this ends, and what a crash has left of one is no backup.",
        operands=(Operand("target", "DIR", "where backups are kept, each in a directory of its own"),),
    ),
    "restore": About(
        "Restore a backup into an empty data directory, compare it with its checksums and verify it. Exit code 1: not "
        "restored, or with damage that was backed up.",
        operands=(
            Operand("backup", "BACKUP", "the directory of a backup, or one of backups, of which the newest is taken"),
            Operand("target", "DIR", "the empty data directory to start the node with"),
        ),
        of_a_directory=False,
    ),
    "export": About(
        "Write everything that is kept as lines of JSON: documents with their texts, groups and what they say about "
        "the graph, and the vectors that callers brought; not those of the model. A node may run meanwhile. Exit code "
        "1: not exported, or not all of it.",
        operands=(Operand("file", "FILE", "the file to write; - is standard output", may_be_standard=True),),
    ),
    "import": About(
        "File what an export holds, or the data directory of an original node, in a data directory in which no node "
        "runs; the next start indexes it. What is there already stays as it is, so that an import that was cut off "
        "goes on. Exit code 1: some of it could not be read or filed; 2: nothing was.",
        undone=2,
        operands=(
            Operand("file", "FILE", "what `thread export` wrote", is_optional=True),
            Operand("original", "DIR", "instead of FILE: the original's data directory", flag="--from-thread"),
        ),
    ),
    "compact": About(
        "Let everything that was removed go from the disk, in the node that runs in the data directory or, when "
        "none does, in the directory itself."
    ),
    "verify": About(
        "Check everything that is kept, beside the node that runs in the data directory or, when none does, on the "
        "directory itself; nothing is changed. Exit code 0: no damage; 1: damage, each place named; 2: not checked.",
        (("full", "compare every index of the database with its table too, and every text with the index of words"),),
        undone=2,
        operands=(Operand("backup", "BACKUP", "check this backup instead, its checksums first", flag="--backup"),),
    ),
    "extract": About(
        "Let the instruct model of the node that runs in the data directory read documents again; when none runs, the "
        "next start does it. Returns when all of them are read, or the model cannot be asked.",
        (("pending", "those whose entities are keywords, because there was no model, or no usable answer of it"),),
        needs="pending",
    ),
    "reembed": About(
        "Embed everything that is stored with another model, in the node that runs in the data directory, whose index "
        "serves meanwhile, or, when none runs, in the directory itself; then let it take the place of the model that "
        "wrote the index. What was embedded is kept over a crash, and the same command goes on. Without a model: the "
        "one the node runs, where the index is of another, else the one that was begun with.",
        settings=(*_MODEL_SETTINGS, "models_dir", "device"),
        passed=_MODEL_SETTINGS,
    ),
    "doctor": About(
        "Check whether a node can run here with these settings: packages, GPU, data directory, model, ports. Nothing "
        "is started, changed or downloaded. Exit code 1: something would stop it from serving as configured."
    ),
    "mcp": About(
        "Let an assistant use a running node as its memory: a server of the Model Context Protocol with the tools "
        "remember, recall, entities and forget, as a program the assistant starts, or over HTTP on this machine."
    ),
}
"""`doctor.checkup` and `mcp_server` do the last two, `commands` the others."""

_COMMAND_SETTINGS = ("data_dir", "node_id")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    # FAISS and torch each bring an OpenMP runtime whose idle threads would spin; it reads this when it is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # One thread for each product: several searches at the same time keep the cores busy, and would wait spinning for
    # the threads they share. Measured with 8 of them on 2 cores: 13 ms a scan of 2,000 rows, and 1 ms with this.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Below this, gRPC writes lines of its own beside the log whenever a peer goes away.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    given = sys.argv[1:] if arguments is None else arguments
    try:
        if given and given[0] == "doctor":
            return _doctor(given[1:])
        if given and given[0] == "mcp":
            return _mcp(given[1:])
        if given and given[0] in COMMANDS:
            return _command(given[0], given[1:])
        return _serve(load(given, os.environ, Path(".env")))
    except SettingsError as error:
        return _refuse(error, 2)
    except KeyboardInterrupt:
        return 130


def _command(name: str, arguments: Sequence[str]) -> int:
    about = COMMANDS[name]
    parser = _Parser(prog=f"thread {name}", description=about.help, allow_abbrev=False)
    common = _COMMAND_SETTINGS if about.of_a_directory else ()
    declarations = {field: settings.declarations()[field] for field in (*common, *about.settings)}
    for field, declaration in declarations.items():
        _add(parser, field, declaration)
    for switch, help in about.switches:
        parser.add_argument(f"--{switch}", action="store_true", help=help, required=switch == about.needs)
    for operand in about.operands:
        _add_operand(parser, operand)
    parser.add_argument("--json", action="store_true", help="say what came of it as one line of JSON")
    parsed, rest = parser.parse_known_args(arguments)
    if rest:
        parser.error(_unknown(rest[0], "flag of this command", parser.flags))
    given = vars(parsed)
    loaded = _loaded({field: given[field] or "" for field in declarations}, LaunchLine({}), os.environ, Path(".env"))
    # Only now, as below.
    from thread_service import commands
    from thread_service.errors import ThreadError

    for notice in loaded.notices:
        sys.stderr.write(f"{notice}\n")
    try:
        switches = {switch: given[switch] for switch, _ in about.switches}
        switches |= {operand.name: given[operand.name] for operand in about.operands}
        switches |= {field: getattr(loaded.settings, field) for field in about.passed}
        return commands.run(name, loaded.settings, switches, as_json=given["json"])
    except (ThreadError, OSError) as error:
        return _refuse(error, about.undone)


def _doctor(arguments: Sequence[str]) -> int:
    parser = _parser("thread doctor", "thread doctor [flags]", COMMANDS["doctor"].help)
    parser.add_argument("--json", action="store_true", help="say what was found as one line of JSON")
    parsed, rest = parser.parse_known_args(arguments)
    if rest:
        parser.error(_unknown(rest[0], "flag of this command", parser.flags))
    loaded = _settled(vars(parsed), os.environ, Path(".env"))
    # Only now, and nothing that may not be installed.
    from rich.console import Console

    from thread_service.doctor import checkup

    for notice in loaded.notices:
        sys.stderr.write(f"{notice}\n")
    findings = list(checkup.run(loaded.settings))
    if parsed.json:
        sys.stdout.write(json.dumps(checkup.as_json(findings)) + "\n")
    else:
        checkup.show(findings, Console(highlight=False, soft_wrap=True))
    return 0 if checkup.is_fit(findings) else 1


def _mcp(arguments: Sequence[str]) -> int:
    from thread_service.mcp_server import settings as mcp_settings

    parser = _Parser(prog="thread mcp", description=COMMANDS["mcp"].help, allow_abbrev=False)
    for field, declaration in mcp_settings.DECLARATIONS.items():
        _add(parser, field, declaration)
    parsed, rest = parser.parse_known_args(arguments)
    if rest:
        parser.error(_unknown(rest[0], "flag of this command", parser.flags))
    given = {field: text or "" for field, text in vars(parsed).items()}
    loaded = mcp_settings.load(given, os.environ, settings.read_env_file(Path(".env")))
    try:
        from thread_service.mcp_server.run import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "mcp":
            raise
        return _refuse(SettingsError("thread mcp needs the package mcp: pip install 'thread-node[mcp]'"), 1)
    try:
        run(loaded)
    except (ValueError, OSError) as error:
        return _refuse(error, 1)
    return 0


def _serve(loaded: Loaded) -> int:
    # Only now: the libraries behind these take a second to import, which `--help` and a typo need not.
    from thread_kernels import EngineUnavailable
    from thread_service import app
    from thread_service.errors import ThreadError
    from thread_service.screen import TerminalScreen

    try:
        app.serve(loaded.settings, loaded.notices, TerminalScreen())
    except (ThreadError, EngineUnavailable, OSError) as error:
        return _refuse(error, 1)
    return 0


def load(arguments: Sequence[str], environment: MutableMapping[str, str], env_file: Path) -> Loaded:
    """The settings of this command line and environment. What the `.env` file adds is set in `environment` too."""
    usage = "thread [serve] [flags]\n" + "".join(
        f"       thread {name} [flags]{about.usage}\n" for name, about in COMMANDS.items()
    )
    about = "A memory node: give it text, it gives back the passages that answer a question."
    parser = _parser("thread", usage, about)
    parsed, rest = parser.parse_known_args(arguments)
    if rest and rest[0] in COMMANDS:
        parser.error(f"a command comes first: thread {rest[0]} [flags]")
    if rest not in ([], ["serve"]):
        parser.error(_unknown(rest[0], "flag or command", [*parser.flags, *COMMANDS, "serve"]))
    return _settled(vars(parsed), environment, env_file)


def _settled(given: Mapping[str, str | None], environment: MutableMapping[str, str], env_file: Path) -> Loaded:
    flags = {name: given[name] or "" for name in settings.declarations()}
    launch_line = LaunchLine({alias.flag: given[alias.flag] or "" for alias in ALIASES})
    return _loaded(flags, launch_line, environment, env_file)


def _unknown(word: str, kind: str, known: Sequence[str]) -> str:
    # Only the name: what follows a misspelt --api-key is not for the log.
    name = word.partition("=")[0][:40]
    near = difflib.get_close_matches(name, known, 1, cutoff=0.75)
    return f"{name!a} is not a {kind}" + "".join(f" (did you mean {meant}?)" for meant in near)


def _loaded(
    flags: Mapping[str, str], launch_line: LaunchLine, environment: MutableMapping[str, str], env_file: Path
) -> Loaded:
    extra = settings.read_env_file(env_file)
    loaded = settings.load(flags, launch_line, environment, extra)
    for name, value in extra.items():
        environment.setdefault(name, value)
    return loaded


class _Parser(argparse.ArgumentParser):
    @property
    def flags(self) -> list[str]:
        return [*self._option_string_actions]

    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message}; see {self.prog} --help")


def _parser(prog: str, usage: str, about: str) -> _Parser:
    """Every setting as a flag, by the name of its field, and the older spellings."""
    parser = _Parser(
        prog=prog,
        usage=usage,
        description=about,
        epilog="A flag wins over its environment variable, which wins over the .env file of the working directory.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"thread {version('thread-node')}")
    sections: dict[str, argparse._ArgumentGroup] = {}
    for name, declaration in settings.declarations().items():
        section = sections.get(declaration.section) or parser.add_argument_group(declaration.section)
        sections[declaration.section] = section
        _add(section, name, declaration)
    older = parser.add_argument_group("Older launch lines")
    for alias in ALIASES:
        about = alias.help.replace("`", "")
        if alias.value_name:
            older.add_argument(alias.flag, dest=alias.flag, metavar=alias.value_name, help=about)
        else:
            older.add_argument(alias.flag, dest=alias.flag, action="store_const", const="on", help=about)
    return parser


def _add(group: argparse._ActionsContainer, name: str, declaration: Declaration) -> None:
    about = f"{declaration.help} [{declaration.variable}; default: {declaration.default_shown}]"
    group.add_argument(
        declaration.flag, dest=name, metavar=declaration.value_name, help=about.replace("`", "").replace("%", "%%")
    )


def _add_operand(parser: argparse.ArgumentParser, operand: Operand) -> None:
    kind = _path_or_standard if operand.may_be_standard else _path
    if operand.flag:
        parser.add_argument(operand.flag, dest=operand.name, type=kind, metavar=operand.metavar, help=operand.help)
    else:
        count = "?" if operand.is_optional else None
        parser.add_argument(operand.name, type=kind, nargs=count, metavar=operand.metavar, help=operand.help)


def _path(text: str) -> str:
    """Absolute, for the node that is asked works in another directory."""
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError("is no path")
    return os.path.abspath(text)


def _path_or_standard(text: str) -> str:
    return text if text == "-" else _path(text)


def _refuse(error: Exception, code: int) -> int:
    line = " ".join(str(error).split()).encode("utf-8", "backslashreplace").decode()
    sys.stderr.write(f"thread: {line}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
