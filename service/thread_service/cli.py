"""The command `thread`: read the settings, say what starts, serve until asked to stop; or do one of the other commands.

`thread [flags]` and `thread serve [flags]` are the same. Exit codes: 0 after a stop that was asked for, 1 when the node
could not start or had to stop or a command could not be done, 2 for a setting that cannot be used. Every refusal is one
line on standard error.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from thread_service import settings
from thread_service.launch_lines import ALIASES, LaunchLine
from thread_service.settings import Declaration, Loaded, SettingsError

COMMANDS = {
    "compact": "Let everything that was removed go from the disk, in the node that runs in the data directory or, when "
    "none does, in the directory itself."
}
"""What each command beside `serve` is for; `commands` does them."""

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
        if given and given[0] in COMMANDS:
            return _command(given[0], given[1:])
        return _serve(load(given, os.environ, Path(".env")))
    except SettingsError as error:
        return _refuse(error, 2)
    except KeyboardInterrupt:
        return 130


def _command(name: str, arguments: Sequence[str]) -> int:
    parser = _Parser(prog=f"thread {name}", description=COMMANDS[name], allow_abbrev=False)
    declarations = {field: settings.declarations()[field] for field in _COMMAND_SETTINGS}
    for field, declaration in declarations.items():
        _add(parser, field, declaration)
    parser.add_argument("--json", action="store_true", help="say what came of it as one line of JSON")
    parsed, rest = parser.parse_known_args(arguments)
    if rest:
        parser.error(_unknown(rest[0], "flag of this command"))
    given = vars(parsed)
    loaded = _loaded({field: given[field] or "" for field in declarations}, LaunchLine({}), os.environ, Path(".env"))
    # Only now, as below.
    from thread_service import commands
    from thread_service.errors import ThreadError

    for notice in loaded.notices:
        sys.stderr.write(f"{notice}\n")
    try:
        commands.run(name, loaded.settings, as_json=given["json"])
    except (ThreadError, OSError) as error:
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
    parser = _parser()
    parsed, rest = parser.parse_known_args(arguments)
    if rest and rest[0] in COMMANDS:
        parser.error(f"a command comes first: thread {rest[0]} [flags]")
    if rest not in ([], ["serve"]):
        parser.error(_unknown(rest[0], "flag or command"))
    given = vars(parsed)
    flags = {name: given[name] or "" for name in settings.declarations()}
    launch_line = LaunchLine({alias.flag: given[alias.flag] or "" for alias in ALIASES})
    return _loaded(flags, launch_line, environment, env_file)


def _unknown(word: str, kind: str) -> str:
    # Only the name: what follows a misspelt --api-key is not for the log.
    return f"{word.partition('=')[0][:40]!a} is not a {kind}"


def _loaded(
    flags: Mapping[str, str], launch_line: LaunchLine, environment: MutableMapping[str, str], env_file: Path
) -> Loaded:
    extra = settings.read_env_file(env_file)
    loaded = settings.load(flags, launch_line, environment, extra)
    for name, value in extra.items():
        environment.setdefault(name, value)
    return loaded


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message}; see {self.prog} --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="thread",
        usage="thread [serve] [flags]\n" + "".join(f"       thread {name} [flags]\n" for name in COMMANDS),
        description="A memory node: give it text, it gives back the passages that answer a question.",
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


def _refuse(error: Exception, code: int) -> int:
    line = " ".join(str(error).split()).encode("utf-8", "backslashreplace").decode()
    sys.stderr.write(f"thread: {line}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
