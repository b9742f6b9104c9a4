"""`.env.example`: every variable a `.env` file may set (`python -m thread_service.env_example > .env.example`)."""

from __future__ import annotations

import sys
import textwrap

from thread_service.settings import VARIABLES, Declaration, declarations

_HEAD = """\
# Copy this to .env in the directory where the node starts, and uncomment what is to differ from the default.
# One KEY=VALUE a line, without quotes. A variable that is exported, or the flag of the same name, goes before it.
"""


def page() -> str:
    lines = [_HEAD]
    section = ""
    for declaration in declarations().values():
        if declaration.section != section:
            section = declaration.section
            lines.append(f"# ---- {section}\n")
        about = f"{declaration.help} (default: {declaration.default_shown})"
        lines.append(_entry(declaration.variable, about, _default(declaration)))
    lines.append("# ---- Without a flag\n")
    lines += [_entry(name, help, "") for name, help in VARIABLES.items()]
    return "\n".join(lines)


def _entry(variable: str, about: str, value: str) -> str:
    comment = textwrap.wrap(about.replace("`", ""), 110, initial_indent="# ", subsequent_indent="# ")
    return "\n".join([*comment, f"# {variable}={value}", ""])


def _default(declaration: Declaration) -> str:
    """What the default is written as; blank, which counts as not given, for one that is no plain value."""
    try:
        is_plain = declaration.parse(declaration.default_shown) == declaration.default({})
    except ValueError:
        return ""
    return declaration.default_shown if is_plain else ""


if __name__ == "__main__":
    sys.stdout.write(page())
