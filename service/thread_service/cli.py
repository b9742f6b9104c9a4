"""The command `thread`: read the settings, say what starts, serve until asked to stop.

`thread [flags]` and `thread serve [flags]` are the same. Exit codes: 0 after a stop that was asked for, 1 when the node
could not start or had to stop, 2 for a setting that cannot be used. Every refusal is one line on standard error.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import MutableMapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from thread_service import settings
from thread_service.launch_lines import ALIASES, LaunchLine
from thread_service.settings import Loaded, SettingsError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    # FAISS and torch each bring an OpenMP runtime whose idle threads would spin; it reads this when it is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # One thread for each product: several searches at the same time keep the cores busy, and would wait spinning for
    # the threads they share. Measured with 8 of them on 2 cores: 13 ms a scan of 2,000 rows, and 1 ms with this.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Below this, gRPC writes lines of its own beside the log whenever a peer goes away.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        loaded = load(sys.argv[1:] if arguments is None else arguments, os.environ, Path(".env"))
    except SettingsError as error:
        return _refuse(error, 2)
    try:
        return _serve(loaded)
    except KeyboardInterrupt:
        return 130


def _serve(loaded: Loaded) -> int:
    # Only now: the libraries behind these take a second to import, which `--help` and a typo need not.
    from thread_kernels import EngineUnavailable
    from thread_service import app
    from thread_service.errors import ThreadError
    from thread_service.screen import TerminalScreen

    try:
        app.serve(loaded.settings, loaded.notices, TerminalScreen())
    except SettingsError as error:
        return _refuse(error, 2)
    except (ThreadError, EngineUnavailable, OSError) as error:
        return _refuse(error, 1)
    return 0


def load(arguments: Sequence[str], environment: MutableMapping[str, str], env_file: Path) -> Loaded:
    """The settings of this command line and environment. What the `.env` file adds is set in `environment` too."""
    parser = _parser()
    parsed, rest = parser.parse_known_args(arguments)
    if rest not in ([], ["serve"]):
        # Only the name: what follows a misspelt --api-key is not for the log.
        parser.error(f"{rest[0].partition('=')[0][:40]!a} is not a flag or command")
    given = vars(parsed)
    flags = {name: given[name] or "" for name in settings.declarations()}
    launch_line = LaunchLine({alias.flag: given[alias.flag] or "" for alias in ALIASES})
    extra = settings.read_env_file(env_file)
    loaded = settings.load(flags, launch_line, environment, extra)
    for name, value in extra.items():
        environment.setdefault(name, value)
    return loaded


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message}; see thread --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="thread",
        usage="thread [serve] [flags]",
        description="A memory node: give it text, it gives back the passages that answer a question.",
        epilog="A flag wins over its environment variable, which wins over the .env file of the working directory.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"thread {version('thread-node')}")
    sections: dict[str, argparse._ArgumentGroup] = {}
    for name, declaration in settings.declarations().items():
        section = sections.get(declaration.section) or parser.add_argument_group(declaration.section)
        sections[declaration.section] = section
        about = f"{declaration.help} [{declaration.variable}; default: {declaration.default_shown}]"
        section.add_argument(
            declaration.flag, dest=name, metavar=declaration.value_name, help=about.replace("`", "").replace("%", "%%")
        )
    older = parser.add_argument_group("Older launch lines")
    for alias in ALIASES:
        about = alias.help.replace("`", "")
        if alias.value_name:
            older.add_argument(alias.flag, dest=alias.flag, metavar=alias.value_name, help=about)
        else:
            older.add_argument(alias.flag, dest=alias.flag, action="store_const", const="on", help=about)
    return parser


def _refuse(error: Exception, code: int) -> int:
    line = " ".join(str(error).split()).encode("utf-8", "backslashreplace").decode()
    sys.stderr.write(f"thread: {line}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
